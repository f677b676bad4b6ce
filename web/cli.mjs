#!/usr/bin/env node
/**
 * The command `npx trainweb`. `copy <folder>` puts the files that a page asks for where a server serves them, for
 * bundlers that carry no assets along and for pages without one.
 */

import { cp, mkdir, readFile, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const USAGE = `usage: npx trainweb copy <folder>
       npx trainweb isolate <folder>
       npx trainweb --version

copy copies the files that a page with trainweb asks for into the folder, and makes it. The page finds them in a folder
trainweb beside the bundle (npx trainweb copy dist/trainweb). If they are served elsewhere, as /files/, say so
before the first session:

    import { env } from "trainweb";
    env.baseURL = "/files/";

isolate copies isolate.js, a service worker for servers whose headers cannot be set. The folder is that of the page:

    <script src="isolate.js"></script>

artifacts, check, compile, export, inspect and train are commands of the Python package:

    pip install "trainweb[native]"`;

const PACKAGE = dirname(fileURLToPath(import.meta.url));

/** @type {string[]} What the page's script names; put here by the build. */
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

/** An error for words that are no command; undefined for commands. */
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
