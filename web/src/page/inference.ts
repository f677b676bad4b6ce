/// <reference lib="esnext.disposable" preserve="true" />
/** `InferenceSession`: runs forward models on the same kernels, such as exports of a training session. */

import { isBuffer } from "../data/checks.js";
import { log } from "../wire/log.js";
import type { InferenceInfo, ModelMetadata, TokenTask, ValueMetadata } from "../wire/protocol.js";
import { modelMetadata } from "./call-values.js";
import {
  parseRunArguments,
  withoutAverages,
  tagged,
  type FetchesType,
  type FeedsType,
  type ReturnType,
  type RunArguments,
} from "./arguments.js";
import { Channel } from "./channel.js";
import { callOf, type WorkerClient } from "./client.js";
import { generate, type GeneratedToken, type GenerateOptions, type Prompt } from "./generate.js";
import { withModel } from "./load-model.js";
import { refuseIf } from "../wire/messages.js";
import { throwIf, UnsupportedError } from "../wire/errors.js";
import { resolveOptions, type SessionOptions } from "./options.js";
import type { RunOptions } from "./run-options.js";
import { isSource, type Source } from "./sources.js";
import { StepSender } from "./step-sender.js";
import { Opaque } from "../wire/opaque.js";

const KEY = Symbol("InferenceSession");

/** Runs a forward model. */
export class InferenceSession extends Opaque {
  readonly #info: InferenceInfo;
  /** Options of runs without options. */
  readonly #severity: RunOptions["logSeverityLevel"];
  readonly #channel: Channel;
  readonly #steps: StepSender;
  /** Milliseconds of the runs since `startProfiling`. */
  #runs: number[] | null = null;

  private constructor(key: symbol, client: WorkerClient, info: InferenceInfo, severity: RunOptions["logSeverityLevel"]) {
    super();
    throwIf(key !== KEY, TypeError, "use InferenceSession.create().");
    this.#info = info;
    this.#severity = severity;
    this.#channel = new Channel(client, info.handle);
    this.#channel.endWith(this);
    this.#steps = new StepSender(client, this.#channel, info);
  }

  /**
   * Load a model.
   *
   * @param model - a URL, bytes or a Blob
   * @throws ModelError, UnsupportedError or LimitError when trainweb cannot use the model
   */
  static create(model: Source, options?: SessionOptions): Promise<InferenceSession>;
  static create(
    buffer: ArrayBuffer,
    byteOffset: number,
    options?: SessionOptions,
  ): Promise<InferenceSession>;
  static create(
    buffer: ArrayBuffer,
    byteOffset: number,
    byteLength?: number,
    options?: SessionOptions,
  ): Promise<InferenceSession>;
  static async create(
    model: Source,
    arg1?: SessionOptions | number,
    arg2?: SessionOptions | number,
    arg3?: SessionOptions,
  ): Promise<InferenceSession> {
    const [source, options] = parseCreateArguments(model, arg1, arg2, arg3);
    const resolved = resolveOptions(options);
    refuseIf(resolved.device === "webgpu", "NOT_ON_GPU", { what: "an InferenceSession" });
    throwIf(resolved.checksNumerics, UnsupportedError, "debug.checkNumerics is for steps of a TrainingSession; eval steps are checked.");
    return withModel(source, resolved, async (client, argumentsOf) => {
      const info = await client.request(callOf("createInference", [argumentsOf(resolved.json), resolved.json]));
      return new InferenceSession(KEY, client, info, resolved.severity);
    });
  }

  /** The inputs and outputs, with their types, as text. */
  override toString(): string {
    const [inputs, outputs] = [this.inputMetadata, this.outputMetadata].map((values) =>
      values.map(({ name, type, shape }) => `${name} ${type}[${shape.join(", ")}]`).join(", "),
    );
    return `<InferenceSession: ${inputs} to ${outputs}>`;
  }

  /** Names of the inputs, in the model's order. */
  get inputNames(): readonly string[] {
    return Object.freeze([...this.#info.inputNames]);
  }

  /** Names of the outputs, in the model's order. */
  get outputNames(): readonly string[] {
    return Object.freeze([...this.#info.outputNames]);
  }

  /** Name, type and dims, with symbols, of the inputs. */
  get inputMetadata(): readonly ValueMetadata[] {
    return Object.freeze(structuredClone(this.#info.about.inputs));
  }

  /** Name, type and dims, with symbols, of the outputs. */
  get outputMetadata(): readonly ValueMetadata[] {
    return Object.freeze(structuredClone(this.#info.about.outputs));
  }

  /** Metadata of the model: its author, its version, texts by name. */
  get modelMetadata(): ModelMetadata {
    return modelMetadata(this.#info.about.model);
  }

  /**
   * Run the model.
   *
   * @throws FeedError when a feed is missing, unknown, or has the wrong type, dims or values
   */
  run(feeds: FeedsType, options?: RunOptions): Promise<ReturnType>;
  run(feeds: FeedsType, fetches: FetchesType, options?: RunOptions): Promise<ReturnType>;
  async run(
    feeds: FeedsType,
    arg1?: FetchesType | RunOptions,
    arg2?: RunOptions,
  ): Promise<ReturnType> {
    this.#channel.check();
    const { inputs, outputNames } = this.#info;
    const args = parseRunArguments(inputs, outputNames, feeds, arg1, arg2);
    withoutAverages(args.options);
    return tagged("run", args.options, this.#severity, () => this.#measured(args));
  }

  /**
   * Write tokens after a prompt with a causal language model, one by one: as `TrainingSession.generate`, without
   * adapters.
   *
   * @param prompt - text, which needs a tokenizer, or token ids
   * @throws ModelError or UnsupportedError if the model is not a causal language model; SessionError for logits that
   *   are NaN
   */
  generate(prompt: Prompt, options: GenerateOptions = {}): AsyncGenerator<GeneratedToken, void, undefined> {
    this.#channel.check();
    throwIf("adapter" in options, TypeError, "'adapter' is for TrainingSession.generate: an inference session has no adapters.");
    const next = (task: TokenTask): Promise<number> =>
      this.#steps.send(() => callOf("nextToken", [this.#info.handle, task], []));
    return generate(this.#info.outputNames, next, prompt, options);
  }

  /**
   * Record each later run on the browser's performance timeline, as a measure "trainweb run" (User Timing).
   *
   * @throws ReleasedError after `release`
   */
  startProfiling(): void {
    this.#channel.check();
    this.#runs ??= [];
  }

  /** Stop recording, and log the number of runs and their time at level "info". You may call it without a start. */
  endProfiling(): void {
    const runs = this.#runs;
    this.#runs = null;
    if (runs !== null) {
      const mean = runs.reduce((sum, run) => sum + run, 0) / Math.max(1, runs.length);
      log("info", `${runs.length} runs of ${this.inputNames.join(", ")}: ${mean.toFixed(3)} ms each.`);
    }
  }

  async #measured(args: RunArguments): Promise<ReturnType> {
    const start = performance.now();
    const results = await this.#steps.run("inference", this.#info.inputNames, args);
    if (this.#runs !== null) {
      this.#runs.push(performance.now() - start);
      performance.measure("trainweb run", { start });
    }
    return results;
  }

  /** Free the session after the calls already made. You may repeat the call. */
  release(): Promise<void> {
    return this.#channel.release();
  }

  /** `release`, at the end of a block with `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }
}

type CreateArguments = readonly [source: Source, options: unknown];

/** Sort out `(source[, options])` and `(buffer[, byteOffset[, byteLength]][, options])`. */
function parseCreateArguments(model: unknown, arg1: unknown, arg2: unknown, arg3: unknown): CreateArguments {
  if (isBuffer(model)) {
    return typeof arg1 === "number" ? parseRange(model, arg1, arg2, arg3) : [model, arg1];
  }
  if (!isSource(model)) {
    throw new TypeError("Unexpected argument[0]: must be 'path' or 'buffer'.");
  }
  return [model, arg1];
}

function parseRange(buffer: ArrayBuffer, byteOffset: number, arg2: unknown, arg3: unknown): CreateArguments {
  const total = buffer.byteLength;
  checkPlace("byteOffset", byteOffset, byteOffset >= 0 && byteOffset < total, `[0, ${total})`);
  const rest = total - byteOffset;
  if (typeof arg2 !== "number") {
    return [new Uint8Array(buffer, byteOffset, rest), arg2];
  }
  checkPlace("byteLength", arg2, arg2 > 0 && arg2 <= rest, `(0, ${rest}]`);
  return [new Uint8Array(buffer, byteOffset, arg2), arg3];
}

function checkPlace(name: string, value: number, isInRange: boolean, range: string): void {
  const isInteger = Number.isSafeInteger(value);
  throwIf(!isInteger || !isInRange, RangeError, `'${name}' ${isInteger ? `is out of range ${range}` : "must be an integer"}.`);
}

// The names that onnxruntime-common has for the types, beside the class.
export declare namespace InferenceSession {
  export type { FeedsType, FetchesType, ReturnType, RunOptions, SessionOptions, OnnxValueMapType, ValueMetadata };
}

/** Tensors by name. */
type OnnxValueMapType = ReturnType;
