/** The rules for the arguments of `run*` calls, in the order in which onnxruntime applies them. */

import type { Tensor } from "onnxruntime-common";

import { isObject, isRecord } from "../wire/kinds.js";
import { getLogLevel, levelOf, log } from "../wire/log.js";
import { throwIf, TrainwebError } from "../wire/errors.js";
import { refuseIf } from "../wire/messages.js";
import { byInputs, checkFeedNames, inputName } from "../wire/feed-names.js";
import type { InputDeclaration } from "../wire/protocol.js";
import { entriesOf, warnOfRunEntries } from "./inert.js";
import { checkSeverity } from "./options.js";
import { RUN_OPTIONS, type RunOptions } from "./run-options.js";
import { isTensor, mustBe } from "../data/checks.js";
import { brief, checkKnown } from "../data/nearest.js";
import { checkFlag } from "./call-values.js";
import { asTensor, type NumericArray } from "./tensors.js";

/**
 * Feeds by input name: tensors, or typed arrays if the model declares all dims but one, which follows from the number
 * of
 * elements then.
 */
export type FeedsType = { readonly [name: string]: Tensor | NumericArray };

/** Output names, or per output name a tensor to write into or null. */
export type FetchesType = readonly string[] | { readonly [name: string]: Tensor | null };

/** Results by output name. */
export type ReturnType = { readonly [name: string]: Tensor };

export interface RunArguments {
  readonly feeds: Readonly<Record<string, Tensor>>;
  /** The outputs that are wanted, in order; the value is the tensor to write into, or null. */
  readonly fetches: ReadonlyMap<string, Tensor | null>;
  readonly options: RunOptions;
}

/** Sort out `(feeds[, fetches][, options])` and check the names. */
export function parseRunArguments(
  inputs: readonly InputDeclaration[],
  outputNames: readonly string[],
  feeds: unknown,
  arg1: unknown,
  arg2: unknown,
): RunArguments {
  if (!isRecord(feeds) || isTensor(feeds)) {
    throw new TypeError(
      "'feeds' must be an object that use input names as keys and OnnxValue as corresponding values.",
    );
  }
  const [fetches, options] = parseFetches(outputNames, arg1, arg2);
  const inputNames = inputs.map(({ name }) => name);
  const isRenamed = Object.keys(feeds).some((name) => inputName(name, inputNames) !== name);
  const named = isRenamed ? byInputs(feeds as FeedsType, inputNames) : (feeds as FeedsType);
  checkFeedNames(inputNames, namesOf(inputNames, named));
  return {
    feeds: Object.fromEntries(inputs.map((input) => [input.name, asTensor(input, named[input.name])])),
    fetches: fetches ?? new Map(outputNames.map((name) => [name, null])),
    options: checkRunOptions(options),
  };
}

type Fetches = Map<string, Tensor | null>;

function parseFetches(outputNames: readonly string[], arg1: unknown, arg2: unknown): [fetches: Fetches | null, options: object] {
  if (arg1 === undefined) {
    return [null, parseOptions(arg2)];
  }
  if (arg1 === null) {
    throw new TypeError("Unexpected argument[1]: cannot be null.");
  }
  throwIf(isTensor(arg1), TypeError, "'fetches' cannot be a Tensor");
  if (typeof arg1 !== "object") {
    throw new TypeError("Unexpected argument[1]: must be 'fetches' or 'options'.");
  }
  if (Array.isArray(arg1)) {
    return [fetchesOfNames(outputNames, arg1), parseOptions(arg2)];
  }
  const fetches = fetchesOfObject(outputNames, arg1);
  return fetches.size === 0 ? [null, arg1] : [fetches, parseOptions(arg2)];
}

function fetchesOfNames(outputNames: readonly string[], names: readonly unknown[]): Fetches {
  throwIf(names.length === 0, TypeError, "'fetches' cannot be an empty array.");
  const fetches = new Map<string, null>();
  for (const name of names) {
    if (typeof name !== "string") {
      throw new TypeError("'fetches' must be a string array or an object.");
    }
    throwIf(!outputNames.includes(name), RangeError, `'fetches' contains invalid output name: ${brief(name)}.`);
    fetches.set(name, null);
  }
  return fetches;
}

/** The outputs among the object's own keys; none at all means that the object is `options`. */
function fetchesOfObject(outputNames: readonly string[], object: object): Fetches {
  const isFetch = ([name, value]: [string, unknown]): boolean => outputNames.includes(name) && (value === null || isTensor(value));
  return new Map(Object.entries(object).filter(isFetch) as [string, Tensor | null][]);
}

function parseOptions(arg: unknown): object {
  if (arg === undefined) {
    return {};
  }
  if (!isObject(arg)) {
    throw new TypeError("'options' must be an object.");
  }
  return arg;
}

/** Check the only option object of `runOptimizerStep`. */
export function parseRunOptions(arg: unknown): RunOptions {
  return withoutAverages(checkRunOptions(parseOptions(arg)));
}

/** @throws SessionError if a run that is not an eval step is to read averages of the parameters */
export function withoutAverages(options: RunOptions): RunOptions {
  refuseIf(options.ema === true, "EMA_IN_TRAINING");
  return options;
}

/**
 * Run a step. Its errors get the tag of its options, and the options decide what is logged.
 *
 * @param what - name of the step in the log
 * @param severity - default of the options' severity
 */
export async function tagged<T>(
  what: string,
  { tag, logSeverityLevel }: Pick<RunOptions, "tag" | "logSeverityLevel">,
  severity: RunOptions["logSeverityLevel"],
  run: () => Promise<T>,
): Promise<T> {
  const least = logSeverityLevel ?? severity;
  const level = least === undefined ? getLogLevel() : levelOf(least);
  if (tag === undefined && level !== "verbose") {
    return run();
  }
  try {
    const start = performance.now();
    const result = await run();
    const name = tag === undefined ? what : `${tag}: ${what}`;
    log("verbose", `${name}: ${(performance.now() - start).toFixed(3)} ms`, level);
    return result;
  } catch (error) {
    // An aborted signal throws the caller's own reason, which stays as it is.
    throw error instanceof TrainwebError ? Object.assign(error, { tag }) : error;
  }
}

function checkRunOptions(options: object): RunOptions {
  const { signal, tag, logSeverityLevel, logVerbosityLevel, extra } = options as RunOptions;
  checkKnown("The run option", options, RUN_OPTIONS);
  checkSeverity(logSeverityLevel, logVerbosityLevel);
  throwIf(signal !== undefined && !(signal instanceof AbortSignal), TypeError, "'options.signal' must be an AbortSignal.");
  const { transfer = false, terminate = false, ema = false } = options as RunOptions;
  for (const [name, value] of Object.entries({ transfer, terminate, ema })) {
    checkFlag(`options.${name}`, value);
  }
  mustBe(tag === undefined || typeof tag === "string", "options.tag", "a string", tag);
  if (extra !== undefined) {
    warnOfRunEntries(entriesOf(extra));
  }
  signal?.throwIfAborted();
  refuseIf(terminate, "TERMINATED");
  return options as RunOptions;
}

/** The names of feeds; an input that is undefined is not given. */
function namesOf(inputNames: readonly string[], feeds: object): string[] {
  return Object.entries(feeds).flatMap(([name, value]) =>
    value === undefined && inputNames.includes(name) ? [] : [name],
  );
}
