/** The loop over tokens behind `generate`; `trainweb/generation/generate.py` is the same in Python. */

import { badSetting, refuseSettingIf } from "../data/checks.js";
import { encodedText, unpadded } from "../data/text.js";
import { LOGITS } from "../wire/constants.js";
import { refuseIf } from "../wire/messages.js";
import type { SamplingSettings, TokenTask } from "../wire/protocol.js";
import { settingsOf } from "./check-settings.js";
import type { Resolved } from "./setting-kinds.js";
import { GENERATE, type GenerateFields } from "./settings/generate.js";
import { GrowingText, type Tokenizer } from "./text.js";

const PROMPT = "one text or a list of token ids, a call for each; make one of a chat by apply_chat_template of its tokenizer";
/** Inputs that `generate` computes, with the step from token to token. */
const COMPUTED = [
  ["position_ids", 1, "0, 1, 2, ... from the first token that is no padding, as generate counts them"],
  ["token_type_ids", 0, "0 for each token, as generate sets them"],
] as const;

/** A prompt: text, or token ids: numbers, a typed array, a list of one of these, a tensor, or a tokenizer's inputs. */
export type Prompt =
  | string
  | ArrayLike<number>
  | ArrayLike<bigint>
  | readonly (ArrayLike<number> | ArrayLike<bigint>)[]
  | {
      /** The token ids of a tensor. */
      readonly data: unknown;
    }
  | {
      /** The token ids among a model's inputs. */
      readonly input_ids: unknown;
      /** 1 for each token, and 0 for padding before or behind them, which is left out. */
      readonly attention_mask?: unknown;
      /** 0, 1, 2, ... from the first token that is no padding; others are refused. */
      readonly position_ids?: unknown;
      /** 0 for each token; others are refused. */
      readonly token_type_ids?: unknown;
    };

/** Options of `generate`. */
export interface GenerateOptions extends GenerateFields {
  /** Token ids and texts at which to stop. You get a stop token as the last one, with empty text. */
  readonly stop?: number | string | readonly (number | string)[];
  /** Turns text into token ids and back; a prompt that is text needs it. */
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

/**
 * See `TrainingSession.generate`.
 *
 * @param outputs - names of the outputs of the model
 * @param next - asks the worker for the next token
 * @param defaults - options where none are given
 */
export function generate(
  outputs: readonly string[],
  next: (task: TokenTask) => Promise<number>,
  prompt: Prompt,
  options: GenerateOptions,
  defaults: GenerateOptions = {},
): AsyncGenerator<GeneratedToken, void, undefined> {
  const request = requestOf(prompt, options, defaults);
  const output = logitsOf(outputs);
  return tokensOf((task) => next({ ...task, output }), request);
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

function requestOf(input: Prompt, options: GenerateOptions, defaults: GenerateOptions): Request {
  const isGiven = (name: string): boolean => (options[name as keyof GenerateOptions] ?? null) !== null;
  const unset = Object.fromEntries(Object.entries(defaults).filter(([name]) => !isGiven(name)));
  const { stop = [], tokenizer, signal, ...plain }: GenerateOptions = { ...options, ...unset };
  const others = ["stop", "tokenizer", "signal"];
  const checked = settingsOf<Resolved<GenerateFields>>("generate", plain, GENERATE, others);
  const { maxTokens, temperature, topK, topP, seed, adapter } = checked;
  const useless = ["topK", "topP", "seed"].find(isGiven);
  refuseIf(temperature === 0 && useless !== undefined, "GREEDY_SETTING", { name: useless });
  const stops: readonly unknown[] = Array.isArray(stop) ? stop : [stop];
  if (stops.some((one) => !Number.isSafeInteger(one) && (typeof one !== "string" || one === ""))) {
    throw badSetting("stop", stop, "token ids and texts that are not empty");
  }
  const texts = stops.filter((one) => typeof one === "string");
  refuseIf(texts.length > 0 && tokenizer === undefined, "TEXT_WITHOUT_TOKENIZER", { name: "stop" });
  return {
    prompt: promptTokens(input, tokenizer),
    maxTokens,
    sampling: { temperature, topK, topP, seed: seed ?? 0 },
    adapter,
    stopTokens: new Set(stops.filter((one) => typeof one === "number")),
    text: tokenizer === undefined ? null : new GrowingText(tokenizer, texts),
    signal,
  };
}

function promptTokens(prompt: Prompt, tokenizer: Tokenizer | undefined): readonly number[] {
  refuseIf(typeof prompt === "string" && tokenizer === undefined, "TEXT_WITHOUT_TOKENIZER", { name: "prompt" });
  const inputs = Object(prompt) as Record<string, unknown>;
  const { input_ids: row = prompt, attention_mask: mask } = inputs;
  const isText = typeof prompt === "string" && tokenizer !== undefined;
  const tokens = isText ? encodedText(tokenizer, prompt) : unpadded(row, mask);
  refuseIf(tokens?.length === 0, "EMPTY_PROMPT");
  // A Gather would count negative ones from the end.
  if (tokens?.every((one): one is number => Number.isSafeInteger(one) && (one as number) >= 0) !== true) {
    throw badSetting("prompt", prompt, PROMPT);
  }
  for (const [name, step, expected] of COMPUTED) {
    const numbers = inputs[name] ?? null;
    const isComputed = numbers === null || String(unpadded(numbers, mask)) === String(tokens.map((_, k) => step * k));
    refuseSettingIf(!isComputed, name, numbers, expected);
  }
  return tokens;
}

/** The output that generate reads. */
function logitsOf(names: readonly string[]): string {
  if (names.includes(LOGITS)) {
    return LOGITS;
  }
  refuseIf(names.length !== 1, "NO_LOGITS", { names: names.join(", ") });
  return names[0] as string;
}
