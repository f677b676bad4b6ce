// Bundles the scripts of the site's pages.
//
//   node site/build.mjs OUTPUT_FOLDER

import { readdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const [output] = process.argv.slice(2);
if (!output) {
  throw new Error("usage: node build.mjs OUTPUT_FOLDER");
}

const { metafile } = await build({
  entryPoints: ["cells", "frame", "landing", "page", "python"].map((name) => join(here, "scripts", `${name}.ts`)),
  outdir: output,
  bundle: true,
  minify: true,
  format: "esm",
  external: ["trainweb", "trainweb/vis"], // by the import map of the page
  target: "es2022",
  legalComments: "none",
  metafile: true,
  logLevel: "warning",
});

// The licences of what went into them.
const folders = new Set();
for (const input of Object.keys(metafile.inputs)) {
  const found = /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(input);
  if (found) {
    folders.add(found[0]);
  }
}
const texts = [];
for (const folder of [...folders].sort()) {
  const name = (await readdir(folder)).find((file) => /^licen[cs]e/i.test(file));
  if (!name) {
    throw new Error(`${folder} has no licence`);
  }
  texts.push(`${folder.replace(/^.*node_modules\//, "")}\n\n${await readFile(join(folder, name), "utf8")}`);
}
await writeFile(join(output, "LICENSES.txt"), texts.join("\n\n"));
