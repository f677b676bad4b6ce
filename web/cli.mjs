#!/usr/bin/env node
/**
 * `npx trainweb copy <folder>`: puts what a page asks for where a server serves it, for bundlers that carry no
 * assets along and for pages without one. The page names the folder in env.baseURL.
 */

import { cp, mkdir, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const USAGE = `usage: npx trainweb copy <folder>

Copies the files that a page with trainweb asks for into the folder, and makes it. If it is served as
/trainweb/, say so before the first session:

    import { env } from "trainweb";
    env.baseURL = "/trainweb/";`;

const PACKAGE = dirname(fileURLToPath(import.meta.url));

/** @type {string[]} What the page's script names; put here by the build. */
const ASSETS = TRAINWEB_ASSETS;

/** With the script for pages that have no bundler. */
async function copyTo(folder) {
  let bytes = 0;
  for (const name of ["index.js", ...ASSETS]) {
    const target = join(folder, name);
    await mkdir(dirname(target), { recursive: true });
    await cp(join(PACKAGE, name), target);
    bytes += (await stat(target)).size;
  }
  console.log(`${ASSETS.length + 1} files, ${(bytes / 1e6).toFixed(1)} MB in ${folder}`);
}

const [command, folder, ...others] = process.argv.slice(2);
if (command === "--help" || command === "-h") {
  console.log(USAGE);
} else if (command !== "copy" || folder === undefined || folder.startsWith("-") || others.length > 0) {
  console.error(USAGE);
  process.exitCode = 2;
} else {
  try {
    await copyTo(folder);
  } catch (error) {
    console.error(`trainweb copy: ${error.message}`);
    process.exitCode = 1;
  }
}
