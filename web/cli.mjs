#!/usr/bin/env node
/**
 * `npx trainweb copy <folder>`: puts what a page asks for where a server serves it, for bundlers that carry no
 * assets along and for pages without one.
 */

import { cp, mkdir, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const USAGE = `usage: npx trainweb copy <folder>
       npx trainweb isolate <folder>

Copies the files that a page with trainweb asks for into the folder, and makes it. They are found in a folder
trainweb beside the bundle (npx trainweb copy dist/trainweb). If they are served elsewhere, as /files/, say so
before the first session:

    import { env } from "trainweb";
    env.baseURL = "/files/";

isolate copies isolate.js, a service worker for servers whose headers cannot be set. The folder is that of the page:

    <script src="isolate.js"></script>`;

const PACKAGE = dirname(fileURLToPath(import.meta.url));

/** @type {string[]} What the page's script names; put here by the build. */
const ASSETS = TRAINWEB_ASSETS;

/** Whoever serves Pyodide and the others passes them on. */
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

const [command, folder, ...others] = process.argv.slice(2);
if (command === "--help" || command === "-h") {
  console.log(USAGE);
} else if (!Object.hasOwn(COMMANDS, command) || folder === undefined || folder.startsWith("-") || others.length > 0) {
  console.error(USAGE);
  process.exitCode = 2;
} else {
  try {
    await copyTo(COMMANDS[command], folder);
  } catch (error) {
    console.error(`trainweb ${command}: ${error.message}`);
    process.exitCode = 1;
  }
}
