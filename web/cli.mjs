#!/usr/bin/env node
/**
 * The command `npx trainweb`. `copy`, `isolate` and `kernels` copy files of the package for a server. The other commands run
 * the Python package in Pyodide.
 */

import { cp, mkdir, readFile, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gunzipSync } from "node:zlib";

/** @type {Record<string, string>} The commands of the Python package that run in Node, and what each does. */
const IN_NODE = {
  check: "list the trained parameters of a model, the cost of a step, and obstacles",
  artifacts: "make training artifacts from a forward model",
  compile: "compile a bundle from which a page trains without Python",
  inspect: "show the contents of a model or a checkpoint",
  quantize: "quantize a forward model to 4 or 8 bits, to train adapters on it",
};

/** Commands that only the Python package has. */
const ONLY_PYTHON = ["export", "train"];

const USAGE = `usage: npx trainweb <command> ...
       npx trainweb --version

  copy <folder>     copy the files of a page into a folder that a server serves
  isolate <folder>  copy isolate.js, a service worker for servers whose headers you cannot set
  kernels <folder>  write the kernels unpacked, for env.wasm.wasmPaths or trainweb/engine
${Object.entries(IN_NODE)
  .map(([name, text]) => `  ${`${name} ...`.padEnd(16)}  ${text}`)
  .join("\n")}

npx trainweb check --help, and so on, lists the options of a command.

A page looks for the copied files in a folder trainweb beside the bundle (npx trainweb copy dist/trainweb). If you serve
them elsewhere, such as /files/, set the folder before the first session:

    import { env } from "trainweb";
    env.baseURL = "/files/";

Put isolate.js into the folder of the page:

    <script src="isolate.js"></script>

${ONLY_PYTHON.join(", ")} are commands of the Python package only:

    pip install "trainweb[native]"`;

const PACKAGE = dirname(fileURLToPath(import.meta.url));

/** @type {string[]} The files that the page's script names; the build inserts them. */
const ASSETS = TRAINWEB_ASSETS;

/** Licences of Pyodide and the others, to be served with them. */
const LICENCES = "THIRD_PARTY_LICENSES";

/** @type {Record<string, string[]>} The files that a command copies. */
const COPIES = {
  // With the scripts for pages that have no bundler.
  copy: ["index.js", "trainweb.js", "vis.js", ...ASSETS, LICENCES],
  isolate: ["isolate.js"],
  kernels: ASSETS.filter((name) => name.startsWith("kernels")),
};

async function copyTo(folder, names, unpacked) {
  let bytes = 0;
  for (const name of names) {
    const source = name === LICENCES ? join(PACKAGE, "..", "..", name) : join(PACKAGE, name);
    const target = join(folder, unpacked ? name.replace(/\.gz$/, "") : name);
    await mkdir(dirname(target), { recursive: true });
    await (unpacked ? writeFile(target, gunzipSync(await readFile(source))) : cp(source, target));
    bytes += (await stat(target)).size;
  }
  console.log(`${names.length} files, ${(bytes / 1e6).toFixed(1)} MB in ${folder}`);
}

/** An error if the words are not a command of this package; undefined for commands. */
function fault([command, folder, ...others]) {
  if (ONLY_PYTHON.includes(command)) {
    const install = 'pip install "trainweb[native]"';
    return `'${command}' is a command of the Python package only. Install that: ${install}. Then run: trainweb ${command}`;
  }
  if (command !== undefined && !Object.hasOwn(COPIES, command)) {
    return `There is no command '${command}'.\n\n${USAGE}`;
  }
  return folder === undefined || folder.startsWith("-") || others.length > 0 ? USAGE : undefined;
}

async function run(words) {
  const [command, folder] = words;
  if (command === "--help" || command === "-h") {
    return console.log(USAGE);
  }
  if (command === "--version") {
    return console.log(JSON.parse(await readFile(join(PACKAGE, "..", "..", "package.json"), "utf8")).version);
  }
  const runsInNode = Object.hasOwn(IN_NODE, command ?? "");
  const error = runsInNode ? undefined : fault(words);
  if (error !== undefined) {
    console.error(error);
    process.exitCode = 2;
    return;
  }
  try {
    if (runsInNode) {
      const { runCommand } = await import("./command.js");
      process.exitCode = await runCommand(words);
    } else {
      await copyTo(folder, COPIES[command], command === "kernels");
    }
  } catch (error) {
    console.error(`trainweb ${command}: ${error.message}`);
    process.exitCode = 1;
  }
}

await run(process.argv.slice(2));
