/** Calls into `trainweb.page.bridge`, whose functions answer with JSON and perhaps bytes. */

import type { Engine } from "../engine/engine.js";
import { EngineError, fromWire, LimitError, type WireError } from "../wire/errors.js";
import { HEAP_LIMIT, type PyProxy, type Pyodide } from "./boot.js";
import { PythonFiles, type PythonFile } from "./python-files.js";
import { checkHandout, type Announced, type Handout } from "./handout.js";

/** The result of a bridge function. */
export interface PythonAnswer {
  readonly value: unknown;
  readonly file: Handout | null;
}

type Argument = string | number | boolean | null | PythonFile | Engine | PythonFiles;

type PythonFunction = (...args: readonly (Argument | undefined)[]) => PyProxy;

type AnswerJson = { readonly ok: unknown; readonly data?: Announced } | { readonly error: WireError };

/** Members that Pyodide's errors have besides a message. */
interface PyodideError extends Error {
  /** Class of the Python exception. */
  readonly type?: string;
  readonly pyodide_fatal_error?: boolean;
}

/** JSON numbers have no names for these, but Python writes them. */
const NON_FINITE = /("(?:[^"\\]|\\.)*")|-?\bInfinity\b|\bNaN\b/g;

export class Bridge {
  readonly #module: PyProxy;

  /** The files that Python may read. */
  readonly files = new PythonFiles();

  /** Version of Pyodide. */
  readonly version: string;

  constructor(pyodide: Pyodide, engine: Engine) {
    this.version = pyodide.version;
    this.#module = pyodide.pyimport("trainweb.page.bridge");
    this.call("start", engine, this.files);
  }

  /**
   * Call a function of the bridge.
   *
   * @throws the error it answers with, in its own class; EngineError when it fails in any other way
   */
  call(name: string, ...args: readonly Argument[]): PythonAnswer {
    const [text, data] = this.#callRaw(name, args);
    const answer = parseAnswer(name, text);
    if ("error" in answer) {
      const { error } = answer;
      if (error.name === "MemoryError") {
        throw tooLarge(name, args, error["nbytes"]);
      }
      throw fromWire(error);
    }
    const { ok, data: announced } = answer;
    return { value: ok, file: announced === undefined ? null : checkHandout(publicName(name), data, announced) };
  }

  /** Everything that comes out of Python passes here: JSON, and bytes that are yet to be checked. */
  #callRaw(name: string, args: readonly Argument[]): [string, unknown] {
    const call = this.#module[name] as PythonFunction | undefined;
    if (typeof call !== "function") {
      throw new EngineError(`trainweb.page.bridge has no function ${name}.`);
    }
    let result: PyProxy | null = null;
    try {
      // Pyodide converts undefined to None, but null to a special object.
      result = call(...args.map((arg) => arg ?? undefined));
      return result.toJs() as [string, unknown];
    } catch (error) {
      const { type, pyodide_fatal_error: isFatal } = error as PyodideError;
      // Python has no room, or the browser has none for a copy of the bytes.
      if (type === "MemoryError" || (result !== null && error instanceof RangeError)) {
        throw tooLarge(name, args, null);
      }
      // The bridge answers with every error that it knows: this is a defect, and the traceback shows it.
      const failure = new EngineError(`${name} failed in Python: ${String(error)}`);
      throw Object.assign(failure, isFatal === true ? { fatal: true } : {});
    } finally {
      result?.destroy();
    }
  }
}

/** @throws EngineError for an invalid answer of Python; Python and the worker are of no use then */
function parseAnswer(name: string, text: string): AnswerJson {
  try {
    return parseJson(text) as AnswerJson;
  } catch {
    const error = new EngineError(`${name}: the answer of Python is unreadable.`);
    throw Object.assign(error, { fatal: true });
  }
}

/** @param nbytes - size of the weights or the file of the call; null if it is unknown */
function tooLarge(name: string, args: readonly Argument[], nbytes: unknown): LimitError {
  const sizes = args.map((arg) => (arg instanceof Object && "nbytes" in arg ? arg.nbytes : 0));
  const size = typeof nbytes === "number" && nbytes > 0 ? nbytes : Math.max(0, ...sizes);
  const what = size > 0 ? ` (${megabytes(size)} of weights or data)` : "";
  return new LimitError(
    `${publicName(name)}${what} does not fit into Python's memory, which has ${megabytes(HEAP_LIMIT)} at most ` +
      "in a page. Nothing was changed. Weights do not count, constants of the model do: take a model with fewer. " +
      "getContiguousParameters works for every session that was created.",
  );
}

function megabytes(nbytes: number): string {
  return `${Math.ceil(nbytes / 2 ** 20)} MiB`;
}

const PUBLIC_NAMES: Readonly<Record<string, string>> = {
  artifact: "artifacts",
  checkpoint: "saveCheckpoint",
  export: "exportModelForInferencing",
  build_files: "buildArtifacts",
  gradient_graph: "GradientGraphBuilder",
  save_state: "saveCheckpoint",
  state_parameter: "getParameter",
  compile_plan: "a step",
};

/** The public name of a bridge function, for users. */
export function publicName(name: string): string {
  return PUBLIC_NAMES[name] ?? name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    const tagged = text.replace(NON_FINITE, (match, string?: string) => string ?? `"${match}"`);
    return JSON.parse(tagged, (_, value: unknown) =>
      value === "NaN" || value === "Infinity" || value === "-Infinity" ? Number(value) : value,
    );
  }
}
