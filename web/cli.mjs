#!/usr/bin/env node
/**
 * The command `npx trainweb`. `copy <folder>` copies the files of a page into a folder that a server serves. Pages
 * without a bundler need it, and bundlers that do not copy assets.
 */

import { cp, mkdir, readFile, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const USAGE = `usage: npx trainweb copy <folder>
       npx trainweb isolate <folder>
       npx trainweb --version

copy creates the folder and copies the files of a page with trainweb into it. The page looks for them in a folder
trainweb beside the bundle (npx trainweb copy dist/trainweb). If you serve them elsewhere, such as /files/, set the
folder before the first session:

    import { env } from "trainweb";
    env.baseURL = "/files/";

isolate copies isolate.js, a service worker for servers whose headers you cannot set. Use the folder of the page:

    <script src="isolate.js"></script>

artifacts, check, compile, export, inspect and train are commands of the Python package:

    pip install "trainweb[native]"`;

const PACKAGE = dirname(fileURLToPath(import.meta.url));

/** @type {string[]} The files that the page's script names; the build inserts them. */
const ASSETS = TRAINWEB_ASSETS;

/** Licences of Pyodide and the others, to be served with them. */
const LICENCES = "THIRD_PARTY_LICENSES";

/** @type {Record<string, string[]>} The files that a command copies. */
const COMMANDS = {
  // With the script for pages that have no bundler.
  copy: ["index.js", ...ASSETS, LICENCES],
  isolate: ["isolate.js"],
};

async function copyTo(names, folder) {
  let bytes = 0;
  for (const name of names) {
    const target = join(folder, name);
    await mkdir(dirname(target), { recursive: true });
    await cp(name === LICENCES ? join(PACKAGE, "..", "..", name) : join(PACKAGE, name), target);
    bytes += (await stat(target)).size;
  }
  console.log(`${names.length} files, ${(bytes / 1e6).toFixed(1)} MB in ${folder}`);
}

/** Commands that only the Python package has. */
const OF_PYTHON = ["artifacts", "check", "compile", "export", "inspect", "train"];

/** An error if the words are not a command; undefined for commands. */
function fault([command, folder, ...others]) {
  if (OF_PYTHON.includes(command)) {
    const install = 'pip install "trainweb[native]"';
    return `'${command}' is a command of the Python package. Install that: ${install}. Then run: trainweb ${command}`;
  }
  if (command !== undefined && !Object.hasOwn(COMMANDS, command)) {
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
  const error = fault(words);
  if (error !== undefined) {
    console.error(error);
    process.exitCode = 2;
    return;
  }
  try {
    await copyTo(COMMANDS[command], folder);
  } catch (error) {
    console.error(`trainweb ${command}: ${error.message}`);
    process.exitCode = 1;
  }
}

await run(process.argv.slice(2));
