// Build the pages of the demos: a folder that any static server can serve, beside the package's folder.
// The package itself stays outside the bundle: the page imports it as any page would, through the import map of
// index.html.

import { copyFileSync, mkdirSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const demos = dirname(fileURLToPath(import.meta.url));

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
  const beside = ["index.html", "style.css"].map((name) => join(here, name));
  const shared = [join(demos, "mnist", "icon.svg"), join(demos, "..", "..", "THIRD_PARTY_LICENSES")];
  for (const file of [...beside, ...shared]) {
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
