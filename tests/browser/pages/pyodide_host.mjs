// A notebook kernel in small: stock Pyodide, with none of trainweb's JavaScript.

let pyodide;

async function boot({ base, lock, packages }) {
  const { loadPyodide } = await import(`${base}pyodide.mjs`);
  pyodide = await loadPyodide({ indexURL: base, lockFileURL: `${base}${lock}` });
  await pyodide.loadPackage(packages, { messageCallback: () => {} });
  return pyodide.version;
}

async function unpack({ url, folder }) {
  const reply = await fetch(url);
  if (!reply.ok) throw new Error(`${url}: ${reply.status}`);
  pyodide.unpackArchive(await reply.arrayBuffer(), "zip", { extractDir: folder });
  return null;
}

// The code's last expression, as JSON: proxies never cross to the page.
async function run({ code, variables }) {
  const scope = pyodide.toPy(variables);
  scope.set("__name__", "__main__");
  try {
    const value = await pyodide.runPythonAsync(code, { globals: scope });
    if (value === undefined || value === null) return null;
    if (value?.toJs === undefined) return typeof value === "bigint" ? Number(value) : value;
    try {
      return value.toJs({ dict_converter: Object.fromEntries, create_pyproxies: false });
    } finally {
      value.destroy();
    }
  } finally {
    scope.destroy();
  }
}

const handlers = { boot, unpack, run };

/** Answer one message: {id, kind, ...} -> {id, value} or {id, error}. */
export async function answer(message) {
  try {
    return { id: message.id, value: await handlers[message.kind](message) };
  } catch (error) {
    return { id: message.id, error: String(error?.message ?? error) };
  }
}
