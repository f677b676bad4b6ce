/**
 * Builds the JavaScript package.
 *
 *     node web/build.mjs            everything, into dist/npm
 *     node web/build.mjs --engine   only the engine as a script, for the Python wheel
 *
 * dist/npm holds index.js (all in one, for a <script type="module">), module.js (the same with its
 * dependencies as imports, for bundlers and Node), the two worker scripts, engine.js, declarations,
 * the kernels, and for the worker Pyodide, the standard library and the Python packages: as wheels, compiled
 * in one zip, and imported in a snapshot of Pyodide.
 */

import { execFileSync } from "node:child_process";
import { copyFile, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { constants, gzipSync } from "node:zlib";

import { build } from "esbuild";

import { compileLibrary, compilePackages, makeSnapshot } from "./snapshot.mjs";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const SOURCES = join(ROOT, "web", "src");
const ENGINE = join(ROOT, "py_src", "trainweb", "backend", "wasm", "engine");
const OUT = join(ROOT, "dist", "npm");

/** Where wheels are found; of the trainweb wheels there must be exactly one. */
const WHEEL_FOLDERS = [join(ROOT, "dist"), join(ROOT, ".build", "wheels")];
const WHEELS = ["trainweb", "protobuf", "flatbuffers"];

/** What compiles the packages, makes the snapshot and goes along. */
const PYODIDE = join(ROOT, ".build", "pyodide");

const { version } = JSON.parse(await readFile(join(ROOT, "package.json"), "utf8"));

const COMMON = {
  bundle: true,
  keepNames: true,
  target: "es2022",
  define: { TRAINWEB_VERSION: JSON.stringify(version) },
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
    // The script starts no workers: engines made from it have one thread.
    define: { ...COMMON.define, "import.meta.url": '""' },
  });
}

async function buildModules() {
  // Identifiers stay: they are the names of classes and what stack traces show.
  const small = { minifyWhitespace: true, minifySyntax: true };
  const esm = { ...COMMON, format: "esm", outdir: OUT, sourcemap: "linked" };
  await build({
    ...esm,
    ...small,
    entryPoints: {
      index: join(SOURCES, "page", "index.ts"),
      worker: join(SOURCES, "worker", "worker.ts"),
      "pool-worker": join(SOURCES, "engine", "pool-worker.ts"),
      engine: join(SOURCES, "engine", "engine.ts"),
    },
  });
  await build({
    ...esm,
    entryPoints: { module: join(SOURCES, "page", "index.ts") },
    packages: "external",
  });
}

function buildDeclarations() {
  const tsc = join(ROOT, "node_modules", "typescript", "bin", "tsc");
  execFileSync(process.execPath, [tsc, "-p", join(ROOT, "web", "tsconfig.json")], {
    stdio: "inherit",
  });
}

async function pack(file, target) {
  await writeFile(target, gzipSync(await readFile(file), { level: constants.Z_BEST_COMPRESSION }));
}

/** Packed for the package's own workers, as they are for everybody else. */
async function copyKernels() {
  const names = (await readdir(ENGINE)).filter((name) => name.endsWith(".wasm"));
  if (names.length !== 4) {
    throw new Error(`expected 4 kernel builds in ${ENGINE}, found ${names.length}`);
  }
  await Promise.all(
    names.map(async (name) => {
      await copyFile(join(ENGINE, name), join(OUT, name));
      await pack(join(ENGINE, name), join(OUT, `${name}.gz`));
    }),
  );
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

/** Pyodide as it is; the script stays plain, for packed it would need a policy that lets blobs run. */
async function copyPyodide() {
  const folder = join(OUT, "python");
  for (const name of ["pyodide.mjs", "pyodide.asm.mjs"]) {
    await copyFile(join(PYODIDE, name), join(folder, name));
  }
  await pack(join(PYODIDE, "pyodide.asm.wasm"), join(folder, "pyodide.asm.wasm.gz"));
}

async function buildAll() {
  await buildEngineScript();
  if (process.argv.includes("--engine")) {
    return;
  }
  // Whatever an older build left would be packed, too.
  await rm(OUT, { recursive: true, force: true });
  await mkdir(OUT, { recursive: true });
  await buildModules();
  buildDeclarations();
  await copyKernels();
  await buildPython();
  await copyPyodide();
}

try {
  await buildAll();
} catch (error) {
  // The message alone: Node would print the line of Pyodide that threw, a megabyte long.
  console.error(`web/build.mjs: ${error.message}`);
  process.exitCode = 1;
}
