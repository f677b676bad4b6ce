/** Texts as rows of token ids and labels; `trainweb/data/text.py` makes the same rows. */

import { Tensor } from "onnxruntime-common";

import { IGNORED, LOG_PROBABILITIES, REFERENCE } from "../wire/constants.js";
import { isObject } from "../wire/kinds.js";
import { log } from "../wire/log.js";
import { refuseIf, sessionError, warnIf } from "../wire/messages.js";
import { checkInteger, describe, mustBe, refuseSettingIf } from "./checks.js";
import { checkOptions } from "./nearest.js";

/** Token ids as tokenizers give them. */
export type TokenIds = readonly number[] | ArrayLike<bigint>;

/** An object with token ids, as some tokenizers give it. */
export interface EncodedText {
  /** The token ids of the text. */
  readonly ids: TokenIds;
}

/** Options of a tokenizer's `encode`. */
export interface EncodeOptions {
  /** Add the tokens that the tokenizer puts around texts. */
  readonly add_special_tokens?: boolean;
}

/** Options of a tokenizer's `apply_chat_template`. */
export interface TemplateOptions {
  /** False: return text instead of ids. */
  readonly tokenize: false;
  /** Begin an answer at the end. */
  readonly add_generation_prompt?: boolean;
}

/** Makes token ids of text, as tokenizers of `@huggingface/transformers` do. */
export interface TextTokenizer {
  /** The token ids of a text, or an object that has them. */
  encode(text: string, options?: EncodeOptions): TokenIds | EncodedText;
  /** The text of token ids, for warnings. */
  decode?(tokens: number[]): string;
  /** The text of a chat; only chats need it. */
  apply_chat_template?(chat: ChatMessage[], options: TemplateOptions): unknown;
  /** The token that ends a text. */
  readonly eos_token_id?: number | null;
}

/** A text, alone or as a field, a prompt and the text that follows it, or a chat. */
export type TextItem =
  | string
  | WithFurther<{
      /** The text. */
      readonly text: string;
    }>
  | WithFurther<PromptedText>
  | WithFurther<Chat>;

/** An item, also as a literal with further columns, which are left out. */
export type WithFurther<Item> = Item | (Item & Readonly<Record<string, unknown>>);

/** A chat, of which the last answer is to be learned; the tokenizer's template makes it text. */
export interface Chat {
  /** The turns, the last of the role "assistant". */
  readonly messages: readonly ChatMessage[];
}

/** A turn of a chat. */
export interface ChatMessage {
  /** The speaker, such as "user" or "assistant". */
  readonly role: string;
  /** The text. */
  readonly content: string;
}

/** A prompt, and the text that follows it; both may be turns of a chat. */
export interface PromptedText {
  /** The text before the completion. */
  readonly prompt: string | readonly ChatMessage[];
  /** The text to learn. */
  readonly completion: string | readonly ChatMessage[];
}

/** Columns that `Dataset.fromText` makes. */
export type TextInput = "input_ids" | "attention_mask" | "position_ids" | "labels";

/** Options of `Dataset.fromText`. */
export interface TextOptions {
  /**
   * Tokens of a row, at least 2. With a list, each text is padded to the least length that holds it. Texts of one length
   * make a batch, and each length compiles a plan. A list needs `pack: false` and `batchSize`.
   */
  readonly length: number | readonly number[];
  /**
   * True, the default, joins all texts and cuts full rows. The last tokens, which fill no row, and rows without a token
   * to learn are left out. False makes a row of each text, with zeros behind it.
   */
  readonly pack?: boolean;
  /** True learns no token of a prompt. */
  readonly maskPrompt?: boolean;
  /**
   * Id behind each text, by default the tokenizer's `eos_token_id`. A single text needs none. The template ends a chat;
   * if an id is given that its last answer lacks, it is added.
   */
  readonly endToken?: number | null;
  /** The inputs that the model has, such as `trainingInputNames` of a session; by default `input_ids` and `labels`. */
  readonly inputs?: readonly (TextInput | string)[];
  /** With it, the dataset has batches of so many rows, in a new order each iteration. */
  readonly batchSize?: number;
  /** Seed of the order of batches; default 0. */
  readonly seed?: number;
}

/** Options of rows of one length. */
type ColumnOptions = Omit<TextOptions, "length" | "batchSize" | "seed"> & { readonly length: number };

interface Tokens {
  readonly ids: readonly number[];
  /** For each token the label of the token before it. */
  readonly labels: readonly number[];
  /** Ids at the end of its masked prompt that the text does not have there. */
  readonly lost?: readonly number[];
}

interface Row extends Tokens {
  /** Tokens that are not padding. */
  readonly count: number;
}

const SHORTEST = 2;
const LONGEST = 2_147_483_647;
/** Bytes of padded rows of an input, as of any tensor. */
const LARGEST = 2_147_483_647;
const MASK = "a 1 for each token and a 0 for padding before or behind all of them; leave others out of the ids";
/** Columns of a text, in the order in which they are looked for. */
const FORMS = [["prompt", "completion"], ["messages"], ["text"]];
const OPTIONS = { length: true, pack: true, maskPrompt: true, endToken: true, inputs: true, batchSize: true, seed: true } as const;

/**
 * The ids of a text. It may start with the token that the tokenizer puts before texts, as a chat that a template made
 * does. It then gets no further tokens.
 *
 * @throws ModelError when it is no tokenizer
 */
export function encodedText(
  tokenizer: Pick<TextTokenizer, "encode">,
  text: string,
  options?: EncodeOptions,
): readonly number[] {
  const ids = idsOf(tokenizer, text, options);
  if (options === undefined && ids.length > 1 && ids[0] === ids[1]) {
    const bare = idsOf(tokenizer, text, { add_special_tokens: false });
    if (bare[0] === ids[0] && bare.length < ids.length && bare.every((id, k) => id === ids[k + 1])) {
      return bare;
    }
  }
  return ids;
}

function idsOf(
  tokenizer: Pick<TextTokenizer, "encode">,
  text: string,
  options?: EncodeOptions,
): readonly number[] {
  const isTokenizer = typeof (tokenizer as Partial<TextTokenizer> | null | undefined)?.encode === "function";
  refuseIf(!isTokenizer, "NOT_A_TOKENIZER", { actual: describe(tokenizer) });
  const encoded: unknown = tokenizer.encode(text, options);
  const { ids: row = encoded, attention_mask: mask } = Object(encoded) as { ids?: unknown; attention_mask?: unknown };
  const ids = unpadded(row, mask);
  if (ids?.every((one): one is number => Number.isSafeInteger(one)) !== true) {
    throw sessionError("NOT_TOKEN_IDS", { actual: describe(encoded) });
  }
  // A Gather would count these from the end.
  refuseIf(ids.some((id) => id < 0), "NOT_TOKEN_IDS", { actual: "a negative id" });
  return ids;
}

/** The tokens of a row, whose mask is 0 for padding; without a mask they are all. Null if it is no row. */
export function unpadded(row: unknown, mask: unknown): readonly unknown[] | null {
  const tokens = numbersOf(row);
  const bits = numbersOf(mask ?? tokens?.map(() => 1))?.map((bit) => (typeof bit === "boolean" ? Number(bit) : bit)) ?? [];
  const [start, end] = [bits.indexOf(1), bits.lastIndexOf(1) + 1];
  const isMask = bits.length === tokens?.length && bits.every((bit, k) => bit === Number(start <= k && k < end));
  refuseSettingIf(tokens !== null && !isMask, "attention_mask", mask, MASK);
  return tokens?.slice(start, end) ?? null;
}

/** The numbers of an array, of a list of one such row, or of a tensor of one row. */
function numbersOf(values: unknown): readonly unknown[] | null {
  if (Array.isArray(values) && values.length === 1 && typeof values[0] === "object") {
    return numbersOf(values[0]);
  }
  const { data = values, dims } = Object(values) as { readonly data?: unknown; readonly dims?: unknown };
  const isRow = !Array.isArray(dims) || dims.slice(0, -1).every((size) => size === 1);
  const isArray = isRow && (Array.isArray(data) || ArrayBuffer.isView(data));
  return isArray ? Array.from(data as ArrayLike<unknown>, (one) => (typeof one === "bigint" ? Number(one) : one)) : null;
}

interface TextSettings {
  /** Of rows, ascending. */
  readonly lengths: number[];
  readonly batchSize: number | null;
  readonly seed: number;
  /** Options of the columns, whose rows have the last of the lengths. */
  readonly columns: ColumnOptions;
}

/** Checked options of `Dataset.fromText`. */
export function textSettings(options: TextOptions): TextSettings {
  const { length, batchSize = null, seed, ...others } = checkOptions("fromText", options, OPTIONS);
  const isList = Array.isArray(length);
  const lengths = isList ? [...(length as readonly number[])] : [length as number];
  lengths.forEach((one, k) => checkInteger(isList ? `length[${k}]` : "length", one, SHORTEST, LONGEST));
  refuseSettingIf(lengths.length === 0, "length", length, "an integer >= 2 or a list of such integers");
  refuseSettingIf(isList && others.pack !== false, "pack", others.pack ?? true, "false if 'length' is a list");
  const isMissing = batchSize === null && (isList || seed !== undefined);
  refuseSettingIf(isMissing, "batchSize", batchSize, "given with a list of lengths or a seed");
  lengths.sort((a, b) => a - b);
  return { lengths, batchSize, seed: seed ?? 0, columns: { ...others, length: lengths.at(-1) as number } };
}

/** The least of these lengths that holds a row up to the last of its labels to learn. */
function lengthFor(labels: BigInt64Array, lengths: readonly number[]): number {
  const count = labels.findLastIndex((label) => label !== BigInt(IGNORED)) + 1;
  return lengths.find((one) => one >= count) as number;
}

/** The batches of rows with these labels, each padded to the least of these lengths. */
export function batchesOf({ data, dims: [rows = 0, width = 0] }: Tensor, lengths: readonly number[], size: number): number {
  const counts = new Map<number, number>();
  for (let row = 0; row < rows; row++) {
    const length = lengthFor((data as BigInt64Array).subarray(row * width, (row + 1) * width), lengths);
    counts.set(length, (counts.get(length) ?? 0) + 1);
  }
  return [...counts.values()].reduce((sum, count) => sum + Math.ceil(count / size), 0);
}

/** A function that cuts the padding of a row to the least of these lengths. */
export function cutter(lengths: readonly number[]): (row: Readonly<Record<string, Tensor>>) => Record<string, Tensor> {
  return (row) => {
    const length = lengthFor(row["labels"]?.data as BigInt64Array, lengths);
    const cut = ({ data }: Tensor): Tensor => new Tensor("int64", (data as BigInt64Array).slice(0, length), [length]);
    return Object.fromEntries(Object.entries(row).map(([name, tensor]) => [name, cut(tensor)]));
  };
}

/**
 * The columns of `Dataset.fromText`, each int64 of shape [rows, length].
 *
 * @throws ModelError, FeedError or TypeError when an argument is not what it must be
 */
export function textColumns(
  source: Iterable<TextItem>,
  tokenizer: TextTokenizer,
  options: ColumnOptions,
): Record<string, Tensor> {
  const { length, pack = true, maskPrompt = false, endToken = null, inputs = ["input_ids", "labels"] } = options;
  for (const [name, value] of Object.entries({ pack, maskPrompt })) {
    refuseSettingIf(typeof value !== "boolean", name, value, "true or false");
  }
  refuseIf(!isObject(source) || !(Symbol.iterator in source), "NOT_TEXTS", { actual: describe(source) });
  const needed = (name: string): boolean => inputs.includes(name);
  const isList = Array.isArray(inputs) && inputs.every((name) => Object.hasOwn(VALUES, name));
  const hasBoth = isList && needed("input_ids") && needed("labels");
  refuseSettingIf(!hasBoth, "inputs", inputs, "input_ids and labels, and if needed attention_mask and position_ids");
  const items = Array.from(source, fieldsOf);
  refuseIf(items.length === 0, "NOT_TEXTS", { actual: "empty" });
  const further = [...new Set(items.flatMap((item) => item.further))].sort();
  warnIf(further.length > 0, "FURTHER_COLUMNS", { source: "texts", names: further.join(", ") });
  const end = endOf(tokenizer, endToken, items.length);
  const texts = items.map(({ fields }, k) => tokensOf(tokenizer, fields, k, end, endToken, maskPrompt));
  const position = texts.findIndex(({ lost }) => lost !== undefined);
  if (position >= 0) {
    const lost = [...(texts[position]?.lost ?? [])];
    log("warning", sessionError("PROMPT_DIFFERS", { position, end: tokenizer.decode?.(lost) ?? lost }).message);
  }
  const nbytes = texts.length * length * BigInt64Array.BYTES_PER_ELEMENT;
  refuseIf(!pack && nbytes > LARGEST, "ROWS_TOO_LARGE", { count: texts.length, length, nbytes, most: LARGEST });
  const rows = pack ? packedRows(texts, length) : texts.map((text, k) => paddedRow(text, length, k));
  return Object.fromEntries(Object.keys(VALUES).filter(needed).map((name) => [name, columnOf(name, rows, length)]));
}

function endOf(tokenizer: TextTokenizer, endToken: number | null, texts: number): number | null {
  const end = endToken ?? (tokenizer as Partial<TextTokenizer> | null | undefined)?.eos_token_id ?? null;
  if (end === null) {
    refuseIf(texts > 1, "NO_END_TOKEN");
  } else {
    checkInteger("endToken", end, 0, LONGEST);
  }
  return end;
}

/** The columns of a text, and the names of further ones; `position` is for errors. */
function fieldsOf(item: TextItem, position: number): { fields: Fields; further: string[] } {
  if (typeof item === "string") {
    return { fields: { text: item }, further: [] };
  }
  const columns = isObject(item) ? Object.keys(item) : [];
  const form = FORMS.find((names) => names.every((name) => columns.includes(name))) ?? [];
  const description = columns.length > 0 ? `${describe(item)} of ${columns.join(", ")}` : describe(item);
  refuseIf(form.length === 0, "NOT_A_TEXT", { position, actual: description });
  const fields = Object.fromEntries(Object.entries(item).filter(([name]) => form.includes(name)));
  return { fields, further: columns.filter((name) => !form.includes(name)) };
}

/** A text, a pair or a chat, before the token `end`; before `given` if it is a chat that has no such end. */
function tokensOf(
  tokenizer: TextTokenizer,
  fields: Fields,
  position: number,
  end: number | null,
  endToken: number | null,
  isMasked: boolean,
): Tokens {
  const chat = chatOf(fields);
  const isChat = chat !== null;
  const { prompt, whole: text } = isChat ? chatText(tokenizer, ...chat, position) : pairText(fields, position, isMasked);
  // The template has the tokens around the text.
  const options = isChat ? { add_special_tokens: false } : undefined;
  const last = isChat ? endToken : end;
  const ids = [...encodedText(tokenizer, text, options)];
  const promptIds = prompt !== "" && (isMasked || endToken !== null) ? encodedText(tokenizer, prompt, options) : [];
  // A token of both is learned, so the prompt ends at its first id that differs from the whole text's.
  const differs = promptIds.findIndex((id, k) => id !== ids[k]);
  const start = differs < 0 ? promptIds.length : differs;
  if (last !== null && !ids.slice(isChat ? start : -1).includes(last)) {
    ids.push(last);
  }
  const labels = ids.map((id, k) => (isMasked && k < start ? IGNORED : id));
  return { ids, labels, ...(isMasked && start < promptIds.length ? { lost: promptIds.slice(start) } : {}) };
}

type Turns = readonly ChatMessage[];
type Prompted = Readonly<Record<"prompt" | "whole", string>>;
type Fields = Partial<Chat & PromptedText & { readonly text: string }>;

/** The turns before the answer and all turns, of a chat or of a prompt and a completion that are turns. */
function chatOf({ messages, prompt, completion }: Fields): [before: Turns, chat: Turns] | null {
  if (messages !== undefined) {
    return [Array.isArray(messages) ? (messages as Turns).slice(0, -1) : [], messages as Turns];
  }
  const areTurns = Array.isArray(prompt) && Array.isArray(completion);
  return areTurns ? [prompt as Turns, [...(prompt as Turns), ...(completion as Turns)]] : null;
}

function pairText({ text, prompt = "", completion = text }: Fields, position: number, isMasked: boolean): Prompted {
  const wrong: unknown = typeof prompt === "string" ? completion : prompt;
  if (typeof prompt !== "string" || typeof completion !== "string") {
    throw sessionError("NOT_A_TEXT", { position, actual: describe(wrong) });
  }
  refuseIf(isMasked && text !== undefined, "NO_PROMPT", { position });
  refuseIf(completion === "", "EMPTY_TEXT", { position });
  return { prompt, whole: prompt + completion };
}

/** The text before the answer, and the whole text, by the tokenizer's template. */
function chatText(tokenizer: TextTokenizer, before: Turns, chat: Turns, position: number): Prompted {
  if (typeof tokenizer.apply_chat_template !== "function") {
    throw sessionError("NO_CHAT_TEMPLATE", { position });
  }
  refuseIf(!Array.isArray(chat) || (chat as readonly ChatMessage[]).at(-1)?.role !== "assistant", "NO_ANSWER", { position });
  return {
    prompt: String(tokenizer.apply_chat_template([...before], { tokenize: false, add_generation_prompt: true })),
    whole: String(tokenizer.apply_chat_template([...chat], { tokenize: false })),
  };
}

/** Full rows of all texts behind each other; rows without a token to learn are left out. */
function packedRows(texts: readonly Tokens[], length: number): Row[] {
  const ids = texts.flatMap((text) => text.ids);
  const labels = texts.flatMap((text) => text.labels);
  const rows: Row[] = [];
  for (let start = 0; start + length < ids.length; start += length) {
    const row = { ids: ids.slice(start, start + length), labels: labels.slice(start + 1, start + length + 1), count: length };
    if (row.labels.some((label) => label !== IGNORED)) {
      rows.push(row);
    }
  }
  refuseIf(rows.length === 0, "NO_FULL_ROW", { count: ids.length, length });
  return rows;
}

function paddedRow({ ids, labels }: Tokens, length: number, position: number): Row {
  const count = ids.length - 1;
  refuseIf(count > length, "TEXT_TOO_LONG", { position, count: ids.length, length, most: length + 1 });
  refuseIf(labels.slice(1).every((label) => label === IGNORED), "TEXT_TOO_SHORT", { position, count: ids.length });
  return { ids: ids.slice(0, -1), labels: labels.slice(1), count };
}

const VALUES: Readonly<Record<string, (row: Row, k: number) => number>> = {
  input_ids: ({ ids }, k) => ids[k] ?? 0,
  attention_mask: ({ count }, k) => Number(k < count),
  position_ids: (_, k) => k,
  labels: ({ labels }, k) => labels[k] ?? IGNORED,
};

function columnOf(name: string, rows: readonly Row[], length: number): Tensor {
  const value = VALUES[name] as (row: Row, k: number) => number;
  const data = BigInt64Array.from({ length: rows.length * length }, (_, k) =>
    BigInt(value(rows[Math.floor(k / length)] as Row, k % length)),
  );
  return new Tensor("int64", data, [rows.length, length]);
}

/** A prompt with a better and a worse answer; all may be turns of a chat. */
export interface Preference {
  /** The text before both answers; by default what both begin with. */
  readonly prompt?: PromptedText["prompt"];
  /** The better answer. */
  readonly chosen: PromptedText["completion"];
  /** The worse answer. */
  readonly rejected: PromptedText["completion"];
}

/** A training session with `DPOLoss`, whose current parameters are the reference. */
export interface ReferenceSession {
  /** The inputs of its training model. */
  readonly trainingInputNames: readonly string[];
  /** As of `TrainingSession.predict`. */
  predict(
    data: Record<string, Tensor>,
    options: { readonly outputs: readonly string[] },
  ): Promise<Readonly<Record<string, Tensor>>>;
}

/** Options of `Dataset.fromPreferences`. */
export interface PreferenceOptions extends Pick<ColumnOptions, "length" | "endToken"> {
  /** Tokens of a row, at least 2. */
  readonly length: number;
  /** As a rule the session to be trained, before its first step. */
  readonly reference: ReferenceSession;
  /** Pairs of a batch, which has twice as many rows; default 4. */
  readonly batchSize?: number;
  /** Seed of the order; default 0. */
  readonly seed?: number;
}

const PAIR = ["prompt", "chosen", "rejected"];

/**
 * The columns of `Dataset.fromPreferences`, each of shape [pairs, 2, ...]: chosen and rejected.
 *
 * @throws ModelError, FeedError or TypeError when an argument is not what it must be
 */
export async function preferenceColumns(
  pairs: Iterable<Preference>,
  tokenizer: TextTokenizer,
  { length, endToken = null, reference }: PreferenceOptions,
): Promise<Record<string, Tensor>> {
  refuseIf(!isObject(pairs) || !(Symbol.iterator in pairs), "NOT_TEXTS", { actual: describe(pairs) });
  const isSession = Array.isArray((reference as Partial<ReferenceSession> | null)?.trainingInputNames);
  mustBe(isSession, "reference", "a TrainingSession with the loss 'DPOLoss'", reference);
  refuseIf(!reference.trainingInputNames.includes(REFERENCE), "NO_REFERENCE");
  const texts = Array.from(pairs, withPrompt).flatMap((pair, position) => {
    const names = isObject(pair) ? Object.keys(pair) : [];
    const column = PAIR.find((name) => !names.includes(name));
    refuseIf(column !== undefined, "NOT_A_PAIR", { position, column });
    const { chosen, rejected, ...others } = pair;
    return [chosen, rejected].map((completion) => ({ ...others, completion }));
  });
  const inputs = reference.trainingInputNames.filter((name) => name !== REFERENCE);
  checkInteger("length", length, SHORTEST, LONGEST);
  const tokens = textColumns(texts, tokenizer, { length, endToken, pack: false, maskPrompt: true, inputs });
  const columns = { ...tokens, [REFERENCE]: new Tensor("float32", new Float32Array(texts.length), [texts.length]) };
  const outputs = await reference.predict(columns, { outputs: [LOG_PROBABILITIES] });
  const all = { ...columns, [REFERENCE]: outputs[LOG_PROBABILITIES] as Tensor };
  return reshaped(all, ([rows = 0, ...rest]) => [rows / 2, 2, ...rest]);
}

/** A pair with its prompt; without one it is what both answers begin with, less a space at its end, as in TRL. */
function withPrompt(pair: Preference): Required<Preference> {
  const { chosen, rejected } = (pair ?? {}) as Partial<Preference>;
  const isText = typeof chosen === "string" && typeof rejected === "string";
  if (typeof pair !== "object" || pair === null || "prompt" in pair || !(isText || (Array.isArray(chosen) && Array.isArray(rejected)))) {
    return pair as Required<Preference>;
  }
  const [first, second] = [[...(chosen as string)], [...(rejected as string)]];
  const differs = (part: unknown, k: number): boolean => JSON.stringify(part) !== JSON.stringify(second[k]);
  const end = first.findIndex(differs);
  const shared = end < 0 ? first.length : end;
  const count = shared > 0 && first[shared - 1] === " " ? shared - 1 : shared;
  const joined = (parts: readonly string[]): string => (isText ? parts.join("") : parts) as string;
  const answers = { chosen: joined(first.slice(count)), rejected: joined(second.slice(count)) };
  return { ...(pair as object), prompt: joined(first.slice(0, count)), ...answers } as Required<Preference>;
}

export function joinedPairs(batch: Readonly<Record<string, Tensor>>): Record<string, Tensor> {
  return reshaped(batch, ([pairs = 0, two = 0, ...rest]) => [pairs * two, ...rest]);
}

function reshaped(
  tensors: Readonly<Record<string, Tensor>>,
  dimsOf: (dims: readonly number[]) => number[],
): Record<string, Tensor> {
  return Object.fromEntries(
    Object.entries(tensors).map(([name, tensor]) => [name, tensor.reshape(dimsOf(tensor.dims))]),
  );
}
