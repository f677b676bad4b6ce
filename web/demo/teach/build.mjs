// Builds the page into a folder that any static server can serve, beside that of the package:
//
//   node web/demo/teach/build.mjs OUTPUT_FOLDER
//
// The model comes from scripts/make_teach_model.py.

import { copyFileSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const output = process.argv[2];
if (!output) {
  throw new Error("usage: node build.mjs OUTPUT_FOLDER");
}

mkdirSync(output, { recursive: true });
for (const name of ["index.html", "style.css"]) {
  copyFileSync(join(here, name), join(output, name));
}
copyFileSync(join(here, "..", "mnist", "icon.svg"), join(output, "icon.svg"));
copyFileSync(join(here, "..", "..", "..", "THIRD_PARTY_LICENSES"), join(output, "THIRD_PARTY_LICENSES"));
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
