/** The loop over tokens behind `generate`; `trainweb/generation/generate.py` is the same in Python. */

import { badSetting, isTensor } from "../data/given.js";
import { encodedText } from "../data/text.js";
import { sessionError } from "../wire/messages.js";
import type { SamplingSettings, SessionInfo, TokenTask } from "../wire/protocol.js";
import { checkFields, withDefaults } from "./check-settings.js";
import { callOf } from "./client.js";
import type { FitHost } from "./fit/run.js";
import { ownOutputs } from "./predict.js";
import { GENERATE, type GenerateFields } from "./settings/generate.js";
import { GrowingText, type Tokenizer } from "./text.js";

const LOGITS = "logits";

/** A prompt: text, or token ids as numbers, as a typed array, or as the tensor that a tokenizer gives. */
export type Prompt =
  | string
  | ArrayLike<number>
  | ArrayLike<bigint>
  | {
      /** The token ids of a tensor. */
      readonly data: unknown;
    };

/** Options of `generate`. */
export interface GenerateOptions extends GenerateFields {
  /** Token ids and texts that end it. A stop token is given as the last one, without its text. */
  readonly stop?: number | string | readonly (number | string)[];
  /** Makes token ids of text and back; needed for a prompt that is text. */
  readonly tokenizer?: Tokenizer;
  /** Ends the iteration with its reason. */
  readonly signal?: AbortSignal;
}

/** A token that `generate` gives. */
export interface GeneratedToken {
  /** Its id. */
  readonly token: number;
  /**
   * The text that it completes, "" while a character or a possible stop text is incomplete; null without a tokenizer.
   */
  readonly text: string | null;
}

interface Request {
  readonly prompt: readonly number[];
  readonly maxTokens: number;
  readonly sampling: SamplingSettings;
  readonly adapter: boolean;
  readonly stopTokens: ReadonlySet<number>;
  readonly text: GrowingText | null;
  readonly signal: AbortSignal | undefined;
}

type Plain = { readonly [Name in keyof GenerateFields]-?: Exclude<GenerateFields[Name], undefined> };

/** See `TrainingSession.generate`. */
export function generate(
  info: SessionInfo,
  send: FitHost["send"],
  prompt: Prompt,
  options: GenerateOptions,
): AsyncGenerator<GeneratedToken, void, undefined> {
  const request = requestOf(prompt, options);
  const output = logitsOf(info);
  return tokensOf((task) => send(() => callOf("nextToken", [info.handle, { ...task, output }])), request);
}

async function* tokensOf(
  next: (task: Omit<TokenTask, "output">) => Promise<number>,
  { prompt, maxTokens, sampling, adapter, stopTokens, text, signal }: Request,
): AsyncGenerator<GeneratedToken, void, undefined> {
  const tokens = [...prompt];
  for (let place = 0; place < maxTokens; place++) {
    signal?.throwIfAborted();
    const token = await next({ tokens: [...tokens], place, maxTokens, sampling, adapter });
    signal?.throwIfAborted();
    tokens.push(token);
    const isStop = stopTokens.has(token);
    const piece = text?.add(token, isStop, place === maxTokens - 1);
    yield { token, text: piece?.text ?? null };
    if (isStop || piece?.stopped === true) {
      return;
    }
  }
}

function requestOf(given: Prompt, options: GenerateOptions): Request {
  const { stop = [], tokenizer, signal, ...plain } = options;
  const others = ["stop", "tokenizer", "signal"];
  const checked = withDefaults(checkFields("generate", "", plain, GENERATE, others), GENERATE) as unknown as Plain;
  const { maxTokens, temperature, topK, topP, seed, adapter } = checked;
  for (const [name, value] of Object.entries({ topK, topP, seed })) {
    if (temperature === 0 && value !== null) {
      throw sessionError("GREEDY_SETTING", { name });
    }
  }
  const stops: readonly unknown[] = Array.isArray(stop) ? stop : [stop];
  if (stops.some((one) => !Number.isSafeInteger(one) && (typeof one !== "string" || one === ""))) {
    throw badSetting("stop", stop, "token ids and texts that are not empty");
  }
  const texts = stops.filter((one) => typeof one === "string");
  if (texts.length > 0 && tokenizer === undefined) {
    throw sessionError("TEXT_WITHOUT_TOKENIZER", { name: "stop" });
  }
  return {
    prompt: promptTokens(given, tokenizer),
    maxTokens,
    sampling: { temperature, topK, topP, seed: seed ?? 0 },
    adapter,
    stopTokens: new Set(stops.filter((one) => typeof one === "number")),
    text: tokenizer === undefined ? null : new GrowingText(tokenizer, texts),
    signal,
  };
}

function promptTokens(prompt: Prompt, tokenizer: Tokenizer | undefined): readonly number[] {
  if (typeof prompt === "string" && tokenizer === undefined) {
    throw sessionError("TEXT_WITHOUT_TOKENIZER", { name: "prompt" });
  }
  const ids = typeof prompt === "string" && tokenizer !== undefined ? encodedText(tokenizer, prompt) : prompt;
  const given: unknown = isTensor(ids) ? ids.data : ids;
  if (!Array.isArray(given) && !ArrayBuffer.isView(given)) {
    throw badSetting("prompt", prompt, "text or a list of token ids");
  }
  const tokens = Array.from(given as unknown as ArrayLike<unknown>, (one) => (typeof one === "bigint" ? Number(one) : one));
  if (tokens.length === 0) {
    throw sessionError("EMPTY_PROMPT", {});
  }
  if (!tokens.every((one): one is number => Number.isSafeInteger(one))) {
    throw badSetting("prompt", prompt, "text or a list of token ids");
  }
  return tokens;
}

/** The output that generate reads. */
function logitsOf(info: SessionInfo): string {
  const names = ownOutputs(info);
  if (names.includes(LOGITS)) {
    return LOGITS;
  }
  if (names.length !== 1) {
    throw sessionError("NO_LOGITS", { names: names.join(", ") });
  }
  return names[0] as string;
}
