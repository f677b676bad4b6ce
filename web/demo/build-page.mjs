// Build the pages of the demos: a folder that any static server can serve, beside the package's folder.
// The package itself stays outside the bundle: the page imports it as any page would, through the import map of
// index.html.

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const demos = dirname(fileURLToPath(import.meta.url));
/** Parts that each page has, by the comments that stand for them. */
const PARTS = {
  "    <!-- head -->\n": readFileSync(join(demos, "head.html"), "utf8"),
  "<!-- brand -->": '<p class="brand"><svg viewBox="0 0 32 32" aria-hidden="true"><use href="icon.svg#mark"></use></svg>trainweb</p>',
};

/**
 * Build the page of a script into the folder that the command line names.
 *
 * @param {string} script - URL of the build script, which lies beside index.html, style.css and main.ts
 */
export async function buildPage(script) {
  const here = dirname(fileURLToPath(script));
  const output = process.argv[2];
  if (!output) {
    throw new Error("usage: node build.mjs OUTPUT_FOLDER");
  }
  mkdirSync(output, { recursive: true });
  writeFileSync(join(output, "index.html"), wholePage(join(here, "index.html")));
  const shared = [join(here, "style.css"), join(demos, "mnist", "icon.svg"), join(demos, "..", "..", "THIRD_PARTY_LICENSES")];
  for (const file of shared) {
    copyFileSync(file, join(output, basename(file)));
  }
  copyFileSync(join(demos, "..", "..", "examples", "style.css"), join(output, "family.css"));
  await build({
    entryPoints: [join(here, "main.ts")],
    outfile: join(output, "main.js"),
    bundle: true,
    format: "esm",
    target: "es2022",
    external: ["trainweb", "trainweb/vis"],
    sourcemap: true,
    logLevel: "warning",
  });
}

/** @param {string} path - an index.html */
function wholePage(path) {
  let page = readFileSync(path, "utf8");
  for (const [comment, part] of Object.entries(PARTS)) {
    if (!page.includes(comment)) {
      throw new Error(`${path} has no ${comment.trim()}`);
    }
    page = page.replace(comment, part);
  }
  return page;
}
