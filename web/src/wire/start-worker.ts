/** Starting our own workers, from the same origin or from another one (a CDN). */

import { EngineError } from "./errors.js";
import { messageOf } from "./fetch-file.js";
import { otherPlatform } from "./platform.js";
import type { TrustedTypePolicy, TrustedTypes, WithTrustedTypes } from "./trusted-types.js";

/**
 * Start one of the package's module workers. A page may not start a worker of another origin. Then a small worker of
 * the page's origin imports the script, which needs `worker-src blob:` in a content security policy. A frame with
 * `sandbox="allow-scripts"` has no origin, and Chromium starts no module from its blobs: there it is a `data:` URL.
 *
 * @param url - of the script, absolute. Never a literal `new URL` here: bundlers would take the worker apart
 * @param gpu - the module that has WebGPU where the platform has none
 */
export function startWorker(url: string, gpu: string | null = null): Worker {
  const other = otherPlatform();
  if (other !== null) {
    return other.startWorker(url, gpu);
  }
  const { origin } = new URL(url);
  return origin === globalThis.origin ? new Worker(trusted(url), { type: "module" }) : startFromBlob(url);
}

/** The scheme of the workers that import a script of another origin. */
export function schemeOfWorkers(): "blob" | "data" {
  return globalThis.origin === "null" ? "data" : "blob";
}

function startFromBlob(url: string): Worker {
  const source = `import ${JSON.stringify(url)};`;
  if (schemeOfWorkers() === "data") {
    return new Worker(trusted(`data:text/javascript,${encodeURIComponent(source)}`), { type: "module" });
  }
  const blob = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  try {
    return new Worker(trusted(blob), { type: "module" });
  } finally {
    // The worker has started to fetch; the URL has no further use.
    setTimeout(() => URL.revokeObjectURL(blob), 60_000);
  }
}

let policy: TrustedTypePolicy | null = null;

/** Make a trusted URL of ours, for pages that require a named policy (Trusted Types): `trusted-types trainweb`. */
function trusted(url: string): string {
  const { trustedTypes } = globalThis as WithTrustedTypes;
  if (trustedTypes === undefined) {
    return url;
  }
  policy ??= createPolicy(trustedTypes);
  return policy.createScriptURL(url);
}

function createPolicy(trustedTypes: TrustedTypes): TrustedTypePolicy {
  try {
    return trustedTypes.createPolicy("trainweb", { createScriptURL: (address) => address });
  } catch (error) {
    const help = "The content security policy of the page must allow trusted-types trainweb.";
    throw new EngineError(`No worker can be started: ${messageOf(error)} ${help}`, { cause: error });
  }
}
