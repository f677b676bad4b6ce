/**
 * Builds the JavaScript package.
 *
 *     node web/build.mjs            everything, into dist/npm
 *     node web/build.mjs --engine   only the engine as a script, for the Python wheel
 *     node web/build.mjs --scripts  that and the scripts, into the dist/npm that is there; types are not checked
 *     node web/build.mjs --scripts --types  that and the declarations, also of wrong types, which are printed
 *
 * dist/npm holds index.js (all in one, to be imported by a page), trainweb.js (the same as a global), module.js (the same with its
 * dependencies as imports and the files beside it named as assets, for bundlers and Node), the two worker scripts,
 * engine.js, the command of npx, declarations, the kernels, and for the worker Pyodide, the standard library and the Python packages: as wheels, compiled
 * in one zip, and imported in a snapshot of Pyodide.
 */

import { spawnSync } from "node:child_process";
import { copyFile, mkdir, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { constants, gzipSync } from "node:zlib";

import { build, transform } from "esbuild";

import { compileLibrary, compilePackages, makeSnapshot } from "./snapshot.mjs";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const SOURCES = join(ROOT, "web", "src");
const ENGINE = join(ROOT, "py_src", "trainweb", "backend", "wasm", "engine");
const OUT = join(ROOT, "dist", "npm");

/** The folders of the wheels; of the trainweb wheels there must be exactly one. */
const WHEEL_FOLDERS = [join(ROOT, "dist"), join(ROOT, ".build", "wheels")];
const WHEELS = ["trainweb", "protobuf", "flatbuffers"];

/** The Pyodide that compiles the packages and makes the snapshot; the package contains it. */
const PYODIDE = join(ROOT, ".build", "pyodide");

const { version } = JSON.parse(await readFile(join(ROOT, "package.json"), "utf8"));

/** @param {boolean} namesAssets - whether the script names the files beside it in the form that bundlers recognise */
function define(namesAssets) {
  return { TRAINWEB_VERSION: JSON.stringify(version), TRAINWEB_NAMES_ASSETS: String(namesAssets) };
}

const COMMON = {
  bundle: true,
  keepNames: true,
  target: "es2022",
  define: define(false),
  loader: { ".onnx": "base64" },
  legalComments: "none",
  logLevel: "warning",
};

/** A script whose value is the class Engine, so that Python can evaluate it. */
async function buildEngineScript() {
  await build({
    ...COMMON,
    entryPoints: [join(SOURCES, "engine", "engine.ts")],
    outfile: join(ENGINE, "engine.js"),
    format: "iife",
    globalName: "trainwebEngine",
    banner: { js: "(() => {" },
    footer: { js: "return trainwebEngine.Engine;\n})()" },
    // The script has no address itself.
    define: { ...COMMON.define, "import.meta.url": '""' },
  });
}

// Identifiers stay: they are the names of classes and what stack traces show.
const SMALL = { minifyWhitespace: true, minifySyntax: true };
/** Of Pyodide's glue, whose functions keep their names for whoever asks. */
const SMALLEST = { minify: true, keepNames: true, format: "esm", target: COMMON.target, charset: "utf8" };
const ESM = { ...COMMON, format: "esm", outdir: OUT };
/** What users have of their own; other packages are bundled. */
const EXTERNAL = ["onnxruntime-common", "node:*"];

function source(folder, name) {
  return join(SOURCES, folder, `${name}.ts`);
}

/** The script's address: of the element in a page, or of the module that runs. */
const HERE = "globalThis.document?.currentScript?.src ?? /https?:\\/\\/[^\\s)]+/.exec(new Error().stack)?.[0]";

/** What users import. It knows how large the files beside it are. */
async function buildEntries() {
  const sizes = {};
  for (const name of await knownNames()) {
    sizes[name] = (await stat(join(OUT, name))).size;
  }
  const entry = (namesAssets) => ({
    ...ESM,
    sourcemap: "linked",
    define: { ...define(namesAssets), TRAINWEB_SIZES: JSON.stringify(sizes) },
  });
  await build({ ...entry(false), ...SMALL, entryPoints: { index: source("page", "index") } });
  // The same as the global `trainweb`, for <script src> with and without type="module".
  await build({
    ...entry(false),
    ...SMALL,
    format: "iife",
    globalName: "trainweb",
    entryPoints: { trainweb: source("page", "index") },
    define: { ...entry(false).define, "import.meta.url": "TRAINWEB_HERE" },
    banner: { js: `globalThis.trainweb = (() => {\n"use strict";\nconst TRAINWEB_HERE = ${HERE};` },
    footer: { js: "return trainweb;\n})();" },
  });
  await build({ ...entry(true), ...SMALL, entryPoints: { engine: source("engine", "engine") } });
  await build({ ...entry(true), entryPoints: { module: source("page", "index") }, external: EXTERNAL });
  await build({ ...entry(true), minify: true, entryPoints: { vis: source("vis", "index") }, loader: { ".css": "text" } });
  // Node, Deno and Bun: the page's script and the engine with what surrounds them there.
  await build({
    ...entry(true),
    entryPoints: { node: source("node", "index"), "node-engine": source("node", "engine") },
    external: EXTERNAL,
  });
  // Behind cli.js; it is no part of a page.
  await build({ ...ESM, ...SMALL, entryPoints: { command: source("node", "command") }, external: EXTERNAL });
}

async function buildWorkers() {
  // Bundlers copy the workers' scripts alone, under names of their own: no maps are named in them.
  await build({ ...ESM, ...SMALL, entryPoints: { worker: source("worker", "worker") } });
  // Loaded by the worker when a session asks for a GPU.
  await build({ ...ESM, ...SMALL, entryPoints: { webgpu: source("webgpu", "gpu-host") } });
  // Plain, because Vite turns assets of less than 4 KiB into data: URLs, which may not share memory.
  await build({ ...ESM, entryPoints: { "pool-worker": source("engine", "pool-worker") } });
  await build({ ...ESM, entryPoints: { "worker-scope": source("node", "worker-scope") }, packages: "external" });
  // A classic script: pages of no bundler have it in their head.
  await build({ ...COMMON, format: "iife", outdir: OUT, entryPoints: { isolate: source("isolate", "isolate") } });
  await change(join(OUT, "worker.js"), /\bimport\(/g, `import(${IGNORED}`, 1);
}

/** Asks bundlers, for which a worker may be an entry, to leave an import alone; minifying drops comments. */
const IGNORED = "/* @vite-ignore */ /* webpackIgnore: true */ /* turbopackIgnore: true */ ";

/** Replace in a file what must be in it so many times. */
async function change(file, pattern, replacement, count) {
  const text = await readFile(file, "utf8");
  const found = text.match(pattern)?.length ?? 0;
  if (found !== count) {
    throw new Error(`${file} has ${pattern} ${found} times, expected ${count}`);
  }
  await writeFile(file, text.replace(pattern, replacement));
}

/** The files that the page knows by name. */
async function knownNames() {
  const text = await readFile(source("page", "assets"), "utf8");
  const table = /const FILES = \{([^}]*)\}/.exec(text)?.[1] ?? "";
  return [...table.matchAll(/: \["([^"]+)"/g)].map(([, name]) => name);
}

/** The files that the page's script names for bundlers; they are the elements that it knows by name. */
async function assetNames() {
  const text = await readFile(join(OUT, "module.js"), "utf8");
  const literal = [...text.matchAll(/new URL\("\.\/([^"]+)", import\.meta\.url\)/g)].map(([, name]) => name);
  const known = await knownNames();
  if (literal.length === 0 || literal.join() !== known.join()) {
    throw new Error(`module.js names ${literal.join(", ") || "nothing"} and knows ${known.join(", ")}`);
  }
  return literal;
}

/** The command `npx trainweb`. */
async function buildCommand() {
  const names = await assetNames();
  const text = await readFile(join(ROOT, "web", "cli.mjs"), "utf8");
  await writeFile(join(OUT, "cli.js"), text.replace("TRAINWEB_ASSETS", JSON.stringify(names)), { mode: 0o755 });
}

async function buildDeclarations() {
  const tsc = join(ROOT, "node_modules", "typescript", "bin", "tsc");
  const { status } = spawnSync(process.execPath, [tsc, "-p", join(ROOT, "web", "tsconfig.json")], { stdio: "inherit" });
  if (status !== 0 && !process.argv.includes("--types")) {
    throw new Error("tsc found wrong types");
  }
  await joinMethods("session.d.ts", "SessionMethods");
  await joinMethods("checkpoint-state.d.ts", "StateMethods");
  await dropInnerDeclarations();
}

/** Names by the lines that import them: `{ "./tensors.js": ["type Tensor"] }`. */
function importsOf(text) {
  const found = text.matchAll(/^import (type )?\{ ([^}]*) \} from "([^"]+)";$/gm);
  return [...found].flatMap(([, , names, from]) =>
    names.split(", ").map((name) => ({ from, name: `type ${name.replace(/^type /, "")}` })),
  );
}

/** The members of a class in declarations, and those that it inherits from other classes there. */
function membersOf(name, text) {
  const [, base, body] = new RegExp(`^export declare class ${name} extends (\\w+) \\{\\n {4}#private;\\n {4}constructor\\([^)]*\\);\\n([^]*?)^\\}`, "m").exec(text);
  return base === "Opaque" ? body : membersOf(base, text) + body;
}

/** Declare the calls of a generated class in the one that extends it: the former is no public name. */
async function joinMethods(name, generated) {
  const file = join(OUT, "page", name);
  const [own, all] = await Promise.all([file, join(OUT, "page", "session-methods.d.ts")].map((one) => readFile(one, "utf8")));
  const body = membersOf(generated, all);
  const known = new Set(importsOf(own).map(({ name }) => name));
  const missing = importsOf(all).filter(({ name }) => !known.has(name) && new RegExp(`\\b${name.slice("type ".length)}\\b`).test(body));
  const imports = missing.map(({ name, from }) => `import { ${name} } from "${from}";\n`).join("");
  const joined = own
    .replace(/^import \{.*\} from "\.\/session-methods\.js";\n/m, imports)
    .replace(` extends ${generated} {\n    #private;\n`, ` {\n    #private;\n${body}`);
  if (/\b(Session|State)Methods\b/.test(joined)) {
    throw new Error(`${name} still names ${generated}`);
  }
  await writeFile(file, joined);
}

/** Drop the declarations that nobody who imports the package comes to. */
async function dropInnerDeclarations() {
  const { exports } = JSON.parse(await readFile(join(ROOT, "package.json"), "utf8"));
  const waiting = Object.values(exports).flatMap(({ types }) => (types === undefined ? [] : [join(ROOT, types)]));
  const reached = new Set();
  for (let file = waiting.pop(); file !== undefined; file = waiting.pop()) {
    if (!reached.has(file)) {
      reached.add(file);
      const imports = (await readFile(file, "utf8")).matchAll(/\b(?:from|import)\s*\(?\s*"(\.[^"]+)\.js"/g);
      waiting.push(...[...imports].map(([, name]) => join(dirname(file), `${name}.d.ts`)));
    }
  }
  for (const name of await readdir(OUT, { recursive: true })) {
    if (name.endsWith(".d.ts") && !reached.has(join(OUT, name))) {
      await rm(join(OUT, name));
    }
  }
}

async function pack(file, target) {
  await writeFile(target, gzipSync(await readFile(file), { level: constants.Z_BEST_COMPRESSION }));
}

/** For those who open it, or serve it themselves: the script has it as text. */
async function copyExample() {
  await copyFile(join(ROOT, "docs", "first.onnx"), join(OUT, "first.onnx"));
}

/** Packed; `npx trainweb kernels` unpacks them. */
async function packKernels() {
  const names = (await readdir(ENGINE)).filter((name) => name.endsWith(".wasm"));
  if (names.length !== 4) {
    throw new Error(`expected 4 kernel builds in ${ENGINE}, found ${names.length}`);
  }
  await Promise.all(names.map((name) => pack(join(ENGINE, name), join(OUT, `${name}.gz`))));
}

async function findWheel(project) {
  for (const folder of WHEEL_FOLDERS) {
    const names = await readdir(folder).catch(() => []);
    const found = names.filter((name) => name.startsWith(`${project}-`) && name.endsWith(".whl"));
    if (found.length > 1) {
      throw new Error(`several wheels of ${project} in ${folder}: ${found.join(", ")}`);
    }
    if (found.length === 1) {
      return join(folder, found[0]);
    }
  }
  throw new Error(`no wheel of ${project} in ${WHEEL_FOLDERS.join(" or ")}; run ./build.sh`);
}

/** Names without versions. */
async function copyWheels() {
  await mkdir(join(OUT, "python"), { recursive: true });
  return Promise.all(
    WHEELS.map(async (project) => {
      const target = join(OUT, "python", `${project}.whl`);
      await copyFile(await findWheel(project), target);
      return target;
    }),
  );
}

async function pyodideVersion() {
  const source = await readFile(join(SOURCES, "wire", "version.ts"), "utf8");
  return /PYODIDE_VERSION = "([^"]+)"/.exec(source)[1];
}

async function buildPython() {
  const folder = join(OUT, "python");
  const version = await pyodideVersion();
  const packages = await compilePackages(PYODIDE, version, await copyWheels());
  await writeFile(join(folder, "packages.zip"), packages.zip);
  const library = join(folder, "python_stdlib.zip");
  await writeFile(library, await compileLibrary(PYODIDE, version));
  await makeSnapshot(PYODIDE, version, library, packages, join(folder, "snapshot.bin"));
}

/**
 * Pyodide's scripts are minified, not packed: packed they would need a policy that lets blobs run. Bundlers that read them
 * (Vite's development server does) must not see the npm package that they import in Node alone, nor a map that is not here.
 */
async function copyPyodide() {
  const folder = join(OUT, "python");
  await copyFile(join(PYODIDE, "pyodide.mjs"), join(folder, "pyodide.mjs"));
  const glue = await transform(await readFile(join(PYODIDE, "pyodide.asm.mjs"), "utf8"), SMALLEST);
  await writeFile(join(folder, "pyodide.asm.mjs"), glue.code);
  for (const name of ["pyodide.mjs", "pyodide.asm.mjs"]) {
    const script = join(folder, name);
    await change(script, /\bimport\("ws"\)/g, 'import(/* @vite-ignore */ ["ws"].join())', 1);
    // Bun's name cannot be taken away from a worker, as `process` is in node/worker-scope.ts.
    await change(script, /\btypeof Bun<"u"/g, 'typeof process=="object"&&typeof Bun<"u"', 1);
  }
  // Stores of extensions refuse packages that name scripts of other servers. Nothing is loaded from there.
  await change(join(folder, "pyodide.mjs"), /`https:\/\/cdn\.jsdelivr\.net\/[^`]*`/g, 'new URL(".",import.meta.url).href', 1);
  await change(join(folder, "pyodide.mjs"), /\n?\/\/# sourceMappingURL=.*/g, "", 1);
  await pack(join(PYODIDE, "pyodide.asm.wasm"), join(folder, "pyodide.asm.wasm.gz"));
}

async function buildAll() {
  await buildEngineScript();
  if (process.argv.includes("--engine")) {
    return;
  }
  if (process.argv.includes("--scripts")) {
    await buildWorkers();
    await buildEntries();
    if (process.argv.includes("--types")) {
      await buildDeclarations();
    }
    return;
  }
  // Whatever an older build left would be packed, too.
  await rm(OUT, { recursive: true, force: true });
  await mkdir(OUT, { recursive: true });
  await buildWorkers();
  await packKernels();
  await copyExample();
  await buildPython();
  await copyPyodide();
  await buildEntries();
  await buildDeclarations();
  await buildCommand();
}

try {
  await buildAll();
} catch (error) {
  // The message alone: Node would print the line of Pyodide that threw, a megabyte long.
  console.error(`web/build.mjs: ${error.message}`);
  process.exitCode = 1;
}
