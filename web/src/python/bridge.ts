/** Calls into `trainweb.training.bridge`, whose functions answer with JSON and perhaps bytes. */

import type { Engine } from "../engine/engine.js";
import { EngineError, fromWire, type WireError } from "../wire/errors.js";
import type { PyProxy, Pyodide } from "./boot.js";

/** What a bridge function returned. */
export interface Answer {
  readonly value: unknown;
  readonly data: Uint8Array | null;
}

type Argument = string | number | null | Uint8Array | Engine;

type PythonFunction = (...args: readonly (Argument | undefined)[]) => PyProxy;

type AnswerJson = { readonly ok: unknown } | { readonly error: WireError };

/** JSON numbers have no names for these, but Python writes them. */
const NON_FINITE = /("(?:[^"\\]|\\.)*")|-?\bInfinity\b|\bNaN\b/g;

/** How Python's advice on dtypes reads in JavaScript. */
const ASTYPE = /Convert it with \.astype\('(\w+)'\)\./;

/** JavaScript that makes data of a type, of any array of numbers. */
const CONVERSIONS: Readonly<Record<string, string>> = {
  int64: "BigInt64Array.from(values, BigInt)",
  uint64: "BigUint64Array.from(values, BigInt)",
  bool: "Uint8Array.from(values)",
};

export class Bridge {
  readonly #module: PyProxy;

  /** Version of Pyodide. */
  readonly version: string;

  constructor(pyodide: Pyodide, engine: Engine) {
    this.version = pyodide.version;
    this.#module = pyodide.pyimport("trainweb.training.bridge");
    this.call("start", engine);
  }

  /**
   * Call a function of the bridge.
   *
   * @throws the error it answers with, in its own class; EngineError when it fails in any other way
   */
  call(name: string, ...args: readonly Argument[]): Answer {
    const [text, data] = this.#callRaw(name, args);
    const answer = parseJson(text) as AnswerJson;
    if ("error" in answer) {
      const { error } = answer;
      throw fromWire({ ...error, message: withJavaScriptAdvice(error.message) });
    }
    return { value: answer.ok, data };
  }

  #callRaw(name: string, args: readonly Argument[]): [string, Uint8Array | null] {
    const call = this.#module[name] as PythonFunction | undefined;
    if (typeof call !== "function") {
      throw new EngineError(`trainweb.training.bridge has no function ${name}.`);
    }
    let result: PyProxy;
    try {
      // Pyodide makes None of undefined, but an object of its own of null.
      result = call(...args.map((arg) => arg ?? undefined));
    } catch (error) {
      // The bridge answers with every error it knows of: this is a defect, and the traceback tells.
      throw new EngineError(`${name} failed in Python: ${String(error)}`);
    }
    try {
      const [text, data] = result.toJs() as [string, Uint8Array | undefined | null];
      return [text, data ?? null];
    } finally {
      result.destroy();
    }
  }
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

/** Python's advice, if a message has any, for those who write JavaScript. */
export function withJavaScriptAdvice(message: string): string {
  return message.replace(ASTYPE, (_, dtype: string) => {
    const array = `${dtype[0]?.toUpperCase()}${dtype.slice(1)}Array`;
    const data = CONVERSIONS[dtype] ?? `${array}.from(values)`;
    return `Make the tensor with new Tensor('${dtype}', ${data}, dims).`;
  });
}
