/** The command line of the Python package in Node: in Pyodide, on the files of the machine. */

import { existsSync } from "node:fs";
import { mkdtemp, readdir, readFile, realpath, rm, stat, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { gunzipSync } from "node:zlib";

import { Engine } from "../engine/engine.js";
import { EMPTY_INDEX, limitHeap, type Pyodide, type PyProxy } from "../python/boot.js";
import { setPlatform } from "../wire/platform.js";
import { posixPath } from "./paths.js";
import { NODE } from "./platform.js";

/** Pyodide, as Node has it: folders of the machine can be in its file system. */
interface NodePyodide extends Pyodide {
  readonly FS: Pyodide["FS"] & {
    readonly filesystems: { readonly NODEFS: object };
    mkdirTree(path: string): void;
    mount(kind: object, options: { readonly root: string }, where: string): void;
  };
}

interface PyodideModule {
  loadPyodide(options: object): Promise<NodePyodide>;
}

type Main = (words: PyProxy, folder: string, engine: Engine) => number;

/** Folders of Pyodide; the machine's folders of these names stay outside. */
const OWN_FOLDERS = ["dev", "lib", "proc", "sys"];

/** The packages lie where no folder of the machine hides them. */
const PACKAGES = "/lib/python3.14/site-packages";

/** Variables by which Python decides how a help looks. */
const LOOKS = ["COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TERM"];

/** Run a command of the Python package. @param words - of the command line after `trainweb` @returns the exit status */
export async function runCommand(words: readonly string[]): Promise<number> {
  setPlatform(NODE);
  const [pyodide, engine] = await Promise.all([
    startPython(),
    Engine.create({ wasm: (build) => new URL(`./${build}.wasm.gz`, import.meta.url) }),
  ]);
  for (const [where, folder] of await mounts()) {
    // Not mountNodeFS, which refuses /home and /tmp: Pyodide has such folders.
    pyodide.FS.mkdirTree(where);
    pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root: folder }, where);
  }
  const isWindows = process.platform === "win32";
  const cli = pyodide.pyimport("trainweb.cli");
  const argv = pyodide.toPy(isWindows ? words.map((word) => posixPath(word, existsSync)) : words);
  return (cli["main_in_node"] as Main)(argv, isWindows ? posixPath(process.cwd(), existsSync) : process.cwd(), engine);
}

/** Pyodide with the package, in its own way for Node: it reads its WebAssembly from a folder, unpacked. */
async function startPython(): Promise<NodePyodide> {
  const file = (name: string): URL => new URL(`./python/${name}`, import.meta.url);
  // Else Pyodide looks for the package "ws" to make one like it.
  Object.assign(globalThis, { require: createRequire(import.meta.url) });
  const folder = await mkdtemp(join(tmpdir(), "trainweb-"));
  try {
    await writeFile(join(folder, "pyodide.asm.wasm"), gunzipSync(await readFile(file("pyodide.asm.wasm.gz"))));
    const { loadPyodide } = (await import(/* @vite-ignore */ file("pyodide.mjs").href)) as PyodideModule;
    const script = (await import(/* @vite-ignore */ file("pyodide.asm.mjs").href)) as { readonly default: unknown };
    const pyodide = await loadPyodide({
      indexURL: folder,
      stdLibURL: fileURLToPath(file("python_stdlib.zip")),
      lockFileContents: EMPTY_INDEX,
      createPyodideModule: script.default,
      env: Object.fromEntries(LOOKS.flatMap((name) => (name in process.env ? [[name, process.env[name]]] : []))),
    });
    limitHeap(pyodide);
    pyodide.unpackArchive((await readFile(file("packages.zip"))).slice().buffer, "zip", { extractDir: PACKAGES });
    return pyodide;
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** The folders of the machine at their own paths, or at the names of their drives. */
async function mounts(): Promise<[where: string, folder: string][]> {
  if (process.platform === "win32") {
    const drives = [..."ABCDEFGHIJKLMNOPQRSTUVWXYZ"].map((letter) => `${letter}:`);
    return drives.filter((drive) => existsSync(`${drive}\\`)).map((drive) => [`/${drive}`, `${drive}\\`]);
  }
  const folders: [string, string][] = [];
  for (const name of await readdir("/")) {
    // A link, such as /tmp of macOS, by its folder.
    const folder = await realpath(`/${name}`).catch(() => null);
    if (folder !== null && !OWN_FOLDERS.includes(name) && (await stat(folder)).isDirectory()) {
      folders.push([`/${name}`, folder]);
    }
  }
  return folders;
}
