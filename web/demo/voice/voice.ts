/** A language model whose adapter learns the voice of a text. */

import { Tokenizer } from "@huggingface/tokenizers";
import { Dataset, ModelError, Tensor, TrainingSession, type AdapterFiles, type EpochEvent, type FitRun, type LoadProgress } from "trainweb";

import { fastest } from "../page.js";
import type { ModelFiles } from "./files.js";

/** An adapter beside each product in the numbered layers, not beside the head. */
const LORA = { rank: 8, alpha: 16, targets: [String.raw`.*\.\d+\..*`] } as const;
const LEARNING_RATE = 3e-3;
/** Inputs that rows of a text have. */
const INPUTS: readonly string[] = ["input_ids", "attention_mask", "position_ids", "labels"];
const EXPECTED = "this page teaches models that take input_ids, with attention_mask and position_ids or without.";
/** Tokens of a row, unless the model reads fewer. */
const LENGTH = 128;
/** Below this the text is no text to learn from: a row, and one to test. */
const LEAST_ROWS = 2;
/** From so many rows on, a part of them is only tested. */
const TESTED_FROM = 8;
const TESTED = 0.125;
/** Tokens that it writes, and after each pass of the training. */
const SAMPLE = 80;
const PASS_SAMPLE = 24;
/** Passes without a better loss of the rows that are only tested, after which training ends. */
const PATIENCE = 3;

/** What training takes here. */
export interface Needs {
  /** Memory of weights, adapter and a step. */
  readonly bytes: number;
  readonly secondsPerStep: number;
  readonly stepsPerPass: number;
}

export interface WriteOptions {
  readonly prompt: string;
  /** With or without what it has learned. */
  readonly adapter: boolean;
  /** Fewer tokens, as after a pass. */
  readonly isShort?: boolean;
  readonly temperature: number;
  readonly seed: number;
  readonly signal: AbortSignal;
}

interface TextCoder {
  encode(text: string): number[];
  decode(ids: number[]): string;
}

export class Voice {
  readonly #session: TrainingSession;
  readonly #tokenizer: TextCoder;
  readonly #length: number;
  #train: Dataset | null = null;
  /** Rows that are only tested. */
  #test: Dataset | null = null;
  #secondsPerStep = 0;

  private constructor(session: TrainingSession, tokenizer: TextCoder, context: number | null) {
    this.#session = session;
    this.#tokenizer = tokenizer;
    this.#length = Math.min(LENGTH, context ?? LENGTH);
  }

  static async load(files: ModelFiles, onProgress: (progress: LoadProgress) => void): Promise<Voice> {
    const tokenizer = coderOf(files);
    const optimizer = { type: "AdamW", weightDecay: 0 } as const;
    const config = { file: files.graph, tokenizer, optimizer, clipGradNorm: 1, lora: LORA };
    const session = await TrainingSession.createFromPretrained(files.files, config, { onProgress })
      .catch((error: unknown) => {
        throw error instanceof ModelError ? new Error(`${files.name} cannot be taught here: ${error.message}`) : error;
      });
    const names = session.trainingInputNames;
    if (!names.includes("input_ids") || names.some((name) => !INPUTS.includes(name))) {
      await session.release();
      throw new Error(`${files.name} takes ${names.filter((name) => name !== "labels").join(", ")}, but ${EXPECTED}`);
    }
    return new Voice(session, tokenizer, files.context);
  }

  /** Learn from this text from now on; returns the number of its tokens. */
  read(text: string): number {
    const { length } = this.#tokenizer.encode(text);
    if (length <= LEAST_ROWS * this.#length) {
      throw new Error(`The text has ${length} tokens. This model needs more than ${LEAST_ROWS * this.#length}.`);
    }
    const inputs = this.#session.trainingInputNames;
    const rows = Dataset.fromText([text], this.#tokenizer, { length: this.#length, inputs });
    [this.#train, this.#test] = (rows.size ?? 0) < TESTED_FROM ? [rows, null] : rows.split(TESTED);
    return length;
  }

  /** Memory and time of training, measured with a step that changes nothing. */
  async needs(): Promise<Needs> {
    const session = this.#session;
    if (this.#secondsPerStep === 0) {
      const row = this.#firstRow();
      this.#secondsPerStep = await fastest(async () => {
        await session.runTrainStep(row);
        // The next gradients replace these, as they do in `fit`.
        await session.lazyResetGrad();
      });
    }
    const { parameters, gradients, moments, arena, prepared, plans } = await session.memory();
    const bytes = parameters + gradients + moments + arena + prepared + plans;
    return { bytes, secondsPerStep: this.#secondsPerStep, stepsPerPass: this.#given.size ?? 0 };
  }

  /** Train the adapter until it is stopped, or for so many passes over the text; the best pass stays. */
  learn(passes: number, onPass: (event: EpochEvent) => Promise<void>): FitRun {
    return this.#session.fit(this.#given, {
      epochs: passes,
      batchSize: 1,
      learningRate: LEARNING_RATE,
      validationData: this.#test,
      callbacks: [(event) => (event.type === "epoch" ? onPass(event) : undefined)],
      ...(this.#test === null ? {} : { earlyStopping: { patience: PATIENCE } }),
    });
  }

  /** What the model writes after a prompt, piece by piece. */
  async *write({ prompt, temperature, seed, adapter, signal, isShort = false }: WriteOptions): AsyncGenerator<string> {
    const sampling = temperature === 0 ? { temperature } : { temperature, seed };
    const maxTokens = isShort ? PASS_SAMPLE : SAMPLE;
    for await (const { text } of this.#session.generate(prompt, { ...sampling, maxTokens, adapter, signal })) {
      yield text ?? "";
    }
  }

  /** PEFT's two files. */
  adapter(): Promise<AdapterFiles> {
    return this.#session.adapter();
  }

  loadAdapter(files: AdapterFiles): Promise<void> {
    return this.#session.loadAdapter(files);
  }

  release(): Promise<void> {
    return this.#session.release();
  }

  #firstRow(): Record<string, Tensor> {
    const columns = [...(this.#given.columns ?? [])];
    const cut = ([name, { data, dims }]: [string, Tensor]): [string, Tensor] =>
      [name, new Tensor("int64", (data as BigInt64Array).slice(0, dims[1]), [1, dims[1] as number])];
    return Object.fromEntries(columns.map(cut));
  }

  get #given(): Dataset {
    if (this.#train === null) {
      throw new Error("There is no text yet.");
    }
    return this.#train;
  }
}

function coderOf({ tokenizer: json, tokenizerConfig }: ModelFiles): TextCoder {
  let tokenizer: Tokenizer;
  try {
    tokenizer = new Tokenizer(json as object, tokenizerConfig);
  } catch (error) {
    throw new Error(`tokenizer.json is no tokenizer that this page reads: ${String(error)}`);
  }
  return {
    encode: (text) => tokenizer.encode(text).ids,
    decode: (ids) => tokenizer.decode(ids, { skip_special_tokens: true }),
  };
}
