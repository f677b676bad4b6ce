/** Starting our own workers, from the same origin or from another one (a CDN). */

/**
 * Start one of the package's module workers.
 *
 * A page may not start a worker of another origin; then a small one of its own origin imports it, which
 * needs `worker-src blob:` in a content security policy.
 */
export function startWorker(script: "worker" | "pool-worker"): Worker {
  if (isCrossOrigin()) {
    return startFromBlob(new URL(`${script}.js`, MODULE_URL));
  }
  // Literal, each on its own: this is the form that bundlers recognise.
  if (script === "worker") {
    return new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  }
  return new Worker(new URL("./pool-worker.js", import.meta.url), { type: "module" });
}

const MODULE_URL: string = import.meta.url;

/** Bundlers may put a file: URL here, which says nothing about where the script came from. */
function isCrossOrigin(): boolean {
  const { protocol, origin } = new URL(MODULE_URL, "file:///");
  return /^https?:$/.test(protocol) && origin !== globalThis.origin;
}

function startFromBlob(url: URL): Worker {
  const source = `import ${JSON.stringify(url.href)};`;
  const blob = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  try {
    return new Worker(blob, { type: "module" });
  } finally {
    // The worker has started to fetch; later than that the URL is of no use.
    setTimeout(() => URL.revokeObjectURL(blob), 60_000);
  }
}
