// Builds the demo page into a folder that any static server can serve.
//
//   node web/demo/mnist/build.mjs OUTPUT_FOLDER
//
// The package itself stays outside the bundle: the page imports it as any page would, through the
// import map of index.html. The model comes from scripts/make_demo_model.py, the images from
// make-data.mjs.

import { copyFileSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const output = process.argv[2];
if (!output) {
  throw new Error("usage: node build.mjs OUTPUT_FOLDER");
}

mkdirSync(output, { recursive: true });
for (const name of ["index.html", "style.css", "icon.svg"]) {
  copyFileSync(join(here, name), join(output, name));
}
copyFileSync(join(here, "..", "..", "..", "THIRD_PARTY_LICENSES"), join(output, "THIRD_PARTY_LICENSES"));
const plot = createRequire(import.meta.url).resolve("uplot/dist/uPlot.min.css");
copyFileSync(plot, join(output, "uPlot.min.css"));
await build({
  entryPoints: [join(here, "main.ts")],
  outfile: join(output, "main.js"),
  bundle: true,
  format: "esm",
  target: "es2022",
  external: ["trainweb"],
  sourcemap: true,
  logLevel: "warning",
});
