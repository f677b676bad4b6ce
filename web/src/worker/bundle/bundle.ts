/**
 * Bundles: a compiled session, in a file as `trainweb compile` writes it (page/bundle.py has the layout), or right
 * from Python. A file is checked by its hash, and then nothing in it is believed. Offsets, sizes and names are checked
 * here, the words of a plan by the kernels' verifier before its first run. Only its generated code is code, as a script
 * is.
 */

import * as layout from "../../engine/layout.js";
import { WASM } from "../../wire/constants.js";
import { readKind, type BaseKind, type StepKind } from "../step-kind.js";
import { METRIC } from "./metrics.js";
import {
  ALIGNMENT, blob, checkUnlike, damagedIf, dims, dtype, file, flag, integer, integerFrom, ITEM_SIZE, kept, list, malformed, names, nullable,
  optional, positive, Reader, record, sizeOf, text, tuple, wrong, when, type ByteRange, type Form, type Of,
} from "./reader.js";
import { readProperties } from "../session-contents.js";
import { bytesOf, partAt, type BlobRange, type SourceData, type HeldBytes } from "../../wire/pieces.js";
import { sha256OfFile } from "../../wire/sha256.js";

const MAGIC = "TWBUNDLE";
const VERSION = 4;
/** The oldest version that can be read. Its models are whole. */
const OLDEST = 3;
const PREFIX_BYTES = 64;
const HASH = { start: 16, end: 48 };

const N_SEGMENTS = layout.SEGMENT_NAMES.length;
/** Most moments in one segment, averages among them; some are smaller than the parameters. */
const MOST_MOMENTS = 4;
/** The file of a large constant that is in the bundle itself. */
const IN_BLOBS = -1;

/** The outputs of a model. Without outputs there is nothing to train on. */
const someNames: Form<readonly string[]> = (value, where, reader) => {
  const outputs = names(value, where, reader);
  if (outputs.length === 0) {
    throw wrong(where, "a list of names", value);
  }
  return outputs;
};

const DECLARATION = record({
  name: text,
  dtype,
  dims: nullable(list(nullable((value, where, reader) => (typeof value === "string" ? value : integer(value, where, reader))))),
  /** Most elements up to which its value belongs to the signature, because it determines shapes; 0: never. */
  decides: integer,
});
/** An input, with the facts about it that a plan depends on. */
export type Declaration = Of<typeof DECLARATION>;

const DECLARATIONS: Form<readonly Declaration[]> = (value, where, reader) => {
  const declarations = list(DECLARATION)(value, where, reader);
  checkUnlike(declarations.map(({ name }) => name), where);
  return declarations;
};

/** Frozen matrices may have 16 bits. */
const STORED: readonly unknown[] = ["float32", "float16", "bfloat16"];
const slotType = when<"float32" | "float16" | "bfloat16">("float32, float16 or bfloat16", (value) =>
  STORED.includes(value),
);

const SLOT = record({ name: text, dims, offset: integer, trainableOffset: integerFrom(-1), dtype: slotType });
/** A parameter, with its offset among all and among the trainable ones, in words of 4 bytes; -1: frozen. */
export type ParameterSlot = Of<typeof SLOT>;

const PLACE = record({ name: text, dtype, dims, segment: integer, offset: integer, nbytes: integer });
/** A feed or result in a plan's segments. */
export type TensorPlace = Of<typeof PLACE>;

const FEED = record({
  name: text,
  dtype,
  dims,
  /** Bytes of the elements, in hexadecimal, if the plan is only for this value; else null. */
  value: nullable(text),
});
export type FeedType = Of<typeof FEED>;

/** The cost of a memory budget for a plan: its workspace without one, and the instructions that run again. */
const RECOMPUTATION = record({
  fullBytes: positive,
  instructions: positive,
  flops: positive,
  /** Rough time of it, in parts of the time without a budget. */
  share: positive,
});

export interface LargeConstant {
  /** Its offset in their segment. */
  readonly offset: number;
  readonly nbytes: number;
  /** The file of the session that holds it, from `start` on; -1: a blob. */
  readonly file: number;
  readonly start: number;
  /** Its bytes; null: they lie in the file. Plans with the same `data` share them. */
  readonly data: HeldBytes | null;
}

/** Offset in its segment, file of the session, offset in the file and bytes of a large constant; file -1: a blob. */
const RAW_LARGE = tuple(integer, integerFrom(IN_BLOBS), integer, integer);
type RawLarge = Of<typeof RAW_LARGE>;

const LARGE: Form<LargeConstant> = (value, where, reader) => {
  const [offset, file, start, nbytes] = RAW_LARGE(value, where, reader);
  const data = file === IN_BLOBS ? reader.hold([start, nbytes], where) : partAt(reader.files[file], start, nbytes);
  return { offset, file, start, nbytes, data };
};

const KEPT = tuple(text, integer, integer);
/** Name, offset and bytes of a value that plans keep; equal names are equal values. */
export type KeptValue = Of<typeof KEPT>;

const planKind: Form<StepKind> = (value, where, reader) => {
  const kind = readKind(text(value, where, reader));
  if (kind === null) {
    throw wrong(where, "a kind of step", value);
  }
  return kind;
};

/** A part of a segment that dispatches bind: binding, segment, offset, bytes, and its largest tensor. */
const WINDOW = tuple(integer, integer, integer, integer, text);
export type Window = Of<typeof WINDOW>;

/** The part of a plan that runs on a GPU (docs/architecture-webgpu.md). */
const BODY = record({
  texts: list(kept),
  uniforms: kept,
  windows: list(list(WINDOW)),
  dispatches: kept,
  /** The same for devices with fast workgroup memory. */
  tiled: kept,
  few: kept,
  arenaBytes: integer,
  constants: kept,
  large: list(LARGE),
  inputs: list(PLACE),
  outputs: list(PLACE),
  uploads: list(tuple(integer, integer, integer)),
  /** Tensors that the tail of the head's plan reads; empty without a tail. */
  downloads: optional(list(tuple(integer, integer, integer)), []),
  /** Place of two bytes that say whether the head runs, and whether the tail does. */
  turns: optional(integer, 0),
  nodes: list(text),
  /** Operations of each dispatch, roughly. */
  work: list(integer),
});

const PLAN = record({
  kind: planKind,
  /** True: its gradients overwrite instead of adding. */
  overwrite: flag,
  /** The back end that runs it. */
  target: optional(text, WASM),
  body: optional(BODY, null),
  signature: list(FEED),
  words: kept,
  constants: kept,
  large: list(LARGE),
  code: kept,
  arenaBytes: integer,
  /** Size of the segment of values kept from run to run. */
  preparedBytes: integer,
  inputs: list(PLACE),
  outputs: list(PLACE),
  /** The node behind each instruction. */
  nodes: list(text),
  recomputation: RECOMPUTATION,
  /** Values that it keeps from run to run: the kind of each, and its place. */
  kept: list(KEPT),
  /** Metrics that it sums up. */
  metrics: optional(list(METRIC), []),
  /** Its disassembly, where Python made it just now. */
  text: optional(list(text), null),
});

export interface BundlePlan extends Of<typeof PLAN> {
  /** Size of the segment of large constants. */
  readonly largeBytes: number;
}

/** Size of a segment and its initial contents; null for zeros. */
export interface SegmentStart {
  readonly bytes: number;
  readonly data: Uint8Array | BlobRange | null;
}

const SEGMENT: Form<SegmentStart> = (value, where, reader) => {
  const start = record({ bytes: integer, data: nullable(blob) })(value, where, reader);
  const { bytes, data } = start;
  const held = data === null ? bytes : "nbytes" in data ? data.nbytes : data.length;
  damagedIf(held !== bytes, `${where} has ${bytes} bytes, but ${held} bytes of data`);
  return start;
};

/** Files that Python needs to take the session over. */
const MODELS = record({
  trainModel: file,
  evalModel: optional(file, null),
  optimizerModel: optional(file, null),
  /** Contents of the checkpoint besides the parameters and moments of the session. */
  checkpoint: file,
});
const LOSS_COUNT = record({
  /** The output of a plan that has it, a float32; null: the batch's rows. */
  output: nullable(text),
  /** True if the loss is a sum, without a divisor: the loss of several batches is then the loss per row. */
  isSum: flag,
  /** The output that has the loss and its terms; null: the loss is no sum of terms. */
  losses: optional(nullable(text), null),
  terms: optional(names, []),
});
/** The divisor of a batch's loss. */
export type LossCount = Of<typeof LOSS_COUNT>;

/** `SessionInfo` of the page says what most of them are. */
const START = record({
  inputs: record({ train: DECLARATIONS, eval: DECLARATIONS }),
  outputs: record({ train: someNames, eval: names }),
  hasEval: flag,
  hasOptimizer: flag,
  optimizer: text,
  scaling: optional(text, ""),
  constants: optional(text, ""),
  hasAverages: flag,
  compared: nullable(text),
  ownOutputs: names,
  pairs: optional(list(tuple(text, text)), []),
  defaultPair: optional(tuple(nullable(text), nullable(text)), undefined),
  entropies: optional(list(tuple(text, text)), [["", ""] as const]),
  unevenTerms: optional(nullable(names), null),
  sampleWeights: optional(names, []),
  weighedLabels: optional(names, []),
  terms: optional(names, []),
  moving: optional(names, []),
  /** Divisors of the losses. */
  lossCounts: record({ train: LOSS_COUNT, eval: LOSS_COUNT }),
  nominal: flag,
  parameters: list(SLOT),
  size: integer,
  trainableSize: integer,
  segments: list(SEGMENT),
  properties: (value: unknown) => readProperties(value),
  models: (value: unknown, where: string, reader: Reader) =>
    JSON.stringify(value) === "{}" ? null : MODELS(value, where, reader),
});
type BundleStart = Of<typeof START>;

export interface Bundle extends BundleStart {
  readonly plans: readonly BundlePlan[];
}

const INFERENCE = record({ inputs: DECLARATIONS, outputs: someNames, segments: list(SEGMENT) });
/** The parts of a bundle for an inference session, except plans. */
export type InferenceBundle = Of<typeof INFERENCE>;

/** A bundle before it is checked: the header as JSON, and the bytes that it refers to. */
export interface RawBundle<Blobs extends Uint8Array | Blob = Uint8Array> {
  readonly header: unknown;
  readonly blobs: Blobs;
  /** First byte of the blobs in a Blob. */
  readonly start?: number;
}

/**
 * Read a bundle.
 *
 * @param raw - contents of segments in the result are views of its bytes, or parts of its file
 * @param fingerprint - of the kernels that are to run it
 * @param files - number of files with constants that the session has besides
 * @throws ModelError when it is for other kernels, or damaged
 */
export function parseBundle(raw: RawBundle<Uint8Array | Blob>, fingerprint: number, files = 0): Bundle {
  const reader = new Reader(raw.blobs, raw.start);
  checkKernels(raw.header, reader, fingerprint);
  const start = START(raw.header, "", reader);
  checkStart(start);
  const { plans: encoded } = record({ plans: list((plan) => plan) })(raw.header, "", reader);
  const plans = encoded.map((plan, k) => readPlan(reader, plan, `plans[${k}]`, start, fingerprint));
  damagedIf(plans.some(({ large }) => large.some(({ file }) => file >= files)), "a plan has constants in other files");
  const keys = plans.map((plan) => planKey(plan.kind, plan.overwrite, plan.signature, plan.target));
  damagedIf(new Set(keys).size !== keys.length, "two plans are for the same feeds");
  return { ...start, plans };
}

/**
 * Read a plan that Python compiled.
 *
 * @param session - the owner of the plan
 * @param files - the files of the session
 */
export function parsePlan(
  { header, blobs }: RawBundle,
  session: PlanOwner,
  fingerprint: number,
  files: readonly SourceData[] = [],
): BundlePlan {
  return readPlan(new Reader(blobs, 0, files), header, "the plan", session, fingerprint);
}

/** Read Python's description of an inference session. */
export function parseInference({ header, blobs }: RawBundle, fingerprint: number): InferenceBundle {
  const reader = new Reader(blobs);
  checkKernels(header, reader, fingerprint);
  return INFERENCE(header, "", reader);
}

function checkKernels(header: unknown, reader: Reader, fingerprint: number): void {
  const { fingerprint: compiled } = record({ fingerprint: integer })(header, "", reader);
  damagedIf(
    compiled !== fingerprint,
    `it was compiled for other kernels (${hex(compiled)}, these are ${hex(fingerprint)}); ` +
      "compile it again with this version of trainweb",
  );
}

/** The key that finds a plan of a target. */
export function planKey(
  { key }: StepKind,
  overwrite: boolean,
  feeds: readonly FeedType[],
  target: string = WASM,
): string {
  const types = feeds.map(({ name, dtype, dims, value }) => [name, dtype, value, ...dims]);
  return JSON.stringify([target, key, overwrite, ...types]);
}

/**
 * Split a file into its header and the parts that the header refers to.
 *
 * @param file - only the header of a Blob comes into memory
 * @throws ModelError when it is not a bundle, is of another version, or was changed
 */
export async function splitBundle<File extends Uint8Array<ArrayBuffer> | Blob>(
  file: File,
): Promise<RawBundle<File>> {
  const nbytes = file instanceof Blob ? file.size : file.length;
  const prefix = await bytesOf(file, 0, PREFIX_BYTES);
  const magic = String.fromCharCode(...prefix.subarray(0, MAGIC.length));
  damagedIf(magic !== MAGIC || nbytes < PREFIX_BYTES, `the ${nbytes} bytes do not start with ${MAGIC}`);
  const words = new DataView(prefix.buffer, prefix.byteOffset, PREFIX_BYTES);
  const version = words.getUint32(8, true);
  damagedIf(
    version < OLDEST || version > VERSION,
    `it has version ${version}, this trainweb reads versions ${OLDEST} to ${VERSION}; ` +
      "compile it again with this version of trainweb",
  );
  const end = PREFIX_BYTES + words.getUint32(12, true);
  damagedIf(end > nbytes || end % ALIGNMENT !== 0, `its header ends at byte ${end} of ${nbytes}`);
  const expected = prefix.subarray(HASH.start, HASH.end);
  damagedIf(String(await sha256OfFile(file, PREFIX_BYTES)) !== String(expected), "it is damaged: its bytes are not those that were written");
  let header: unknown;
  try {
    const text = await bytesOf(file, PREFIX_BYTES, end - PREFIX_BYTES);
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(text));
  } catch (error) {
    throw malformed(`its header cannot be read: ${error instanceof Error ? error.message : error}`);
  }
  return file instanceof Blob ? { header, blobs: file, start: end } : { header, blobs: file.subarray(end) as File };
}

/** The file of a bundle; the reverse of `splitBundle`. */
export async function joinBundle({ header, blobs }: RawBundle): Promise<Uint8Array<ArrayBuffer>> {
  const text = new TextEncoder().encode(JSON.stringify(header));
  const length = aligned(text.length);
  const bytes = new Uint8Array(PREFIX_BYTES + length + blobs.length);
  const words = new DataView(bytes.buffer);
  bytes.set(new TextEncoder().encode(MAGIC));
  words.setUint32(8, VERSION, true);
  words.setUint32(12, length, true);
  bytes.fill(SPACE, PREFIX_BYTES, PREFIX_BYTES + length);
  bytes.set(text, PREFIX_BYTES);
  bytes.set(blobs, PREFIX_BYTES + length);
  bytes.set(await sha256OfFile(bytes.subarray(PREFIX_BYTES)), HASH.start);
  return bytes;
}

/** A plan's JSON, and the bytes that it refers to. */
export interface RawPlan extends RawBundle {
  readonly header: RawPart & { readonly body?: RawPart };
}

/** The JSON of a plan, or of its body. */
interface RawPart {
  readonly large: readonly RawLarge[];
  readonly texts?: readonly ByteRange[];
  readonly [field: string]: unknown;
}

/** The fields with a range of the blobs, of a plan or its body. */
const RANGES = ["words", "constants", "code", "uniforms", "dispatches", "tiled", "few"] as const;

/** A bundle with more plans. */
export function withPlans({ header, blobs }: RawBundle, plans: readonly RawPlan[]): RawBundle {
  const starts: number[] = [];
  let size = aligned(blobs.length);
  for (const plan of plans) {
    starts.push(size);
    size = aligned(size + plan.blobs.length);
  }
  const bytes = new Uint8Array(size);
  bytes.set(blobs);
  const headers = plans.map(({ header: { body, ...plan }, blobs: own }, index) => {
    const start = starts[index] as number;
    bytes.set(own, start);
    return { ...moved(plan, start), ...(body && { body: moved(body, start) }), text: undefined };
  });
  const root = header as { readonly plans: readonly unknown[] };
  return { header: { ...root, plans: [...root.plans, ...headers] }, blobs: bytes };
}

/** The same JSON, where its blobs begin at `start`. */
function moved(part: RawPart, start: number): RawPart {
  const behind = ([offset, length]: ByteRange): ByteRange => [start + offset, length];
  const ranges = RANGES.filter((name) => name in part).map((name) => [name, behind(part[name] as ByteRange)]);
  const large = part.large.map(([offset, file, at, nbytes]): RawLarge => [offset, file, file === IN_BLOBS ? start + at : at, nbytes]);
  return { ...part, ...Object.fromEntries(ranges), large, ...(part.texts && { texts: part.texts.map(behind) }) };
}

function aligned(nbytes: number): number {
  return Math.ceil(nbytes / ALIGNMENT) * ALIGNMENT;
}

const SPACE = 0x20;

/** Parameters lie one after the other, and so do gradients and moments of the trainable ones. */
function checkStart({ parameters, outputs, hasEval, hasAverages, segments, ...declared }: BundleStart): void {
  let [size, words, trainableSize] = [0, 0, 0];
  for (const [k, { dims, dtype, offset, trainableOffset }] of parameters.entries()) {
    const isFrozen = trainableOffset === -1;
    if (dtype !== "float32" && !isFrozen) {
      throw wrong(`parameters[${k}].dtype`, "float32", dtype);
    }
    damagedIf(offset !== words || (!isFrozen && trainableOffset !== trainableSize), `parameters[${k}] does not lie behind the parameter before it`);
    size += sizeOf(dims);
    words += Math.ceil((sizeOf(dims) * ITEM_SIZE[dtype]) / 4);
    trainableSize += isFrozen ? 0 : sizeOf(dims);
  }
  checkUnlike(parameters.map(({ name }) => name), "parameters");
  const [actual, said] = [`${size},${trainableSize}`, `${declared.size},${declared.trainableSize}`];
  damagedIf(actual !== said, `its parameters have ${actual} elements, not ${said}`);
  if (hasEval && outputs.eval.length === 0) {
    throw wrong("outputs.eval", "a list of names", outputs.eval);
  }
  const sizes = segments.map(({ bytes }) => bytes);
  damagedIf(!segmentsFit(sizes, { words, trainableSize, hasAverages }), `its segments have ${sizes.join(", ")} bytes for ${words} words of parameters`);
}

/** True if segments of these sizes fit a session with so many words of parameters. */
function segmentsFit(
  sizes: readonly number[],
  session: { readonly words: number; readonly trainableSize: number; readonly hasAverages: boolean },
): boolean {
  const { words, trainableSize, hasAverages } = session;
  const moments = sizes.slice(layout.GRADIENTS + 1, layout.MOMENTUM1 + 1);
  // The segment of the second moment has the others, too.
  const isMoment = (bytes: number): boolean => bytes % 4 === 0 && bytes <= MOST_MOMENTS * 4 * trainableSize;
  const expected = [0, 0, 4 * words, 4 * trainableSize, ...moments, 4 * layout.STATE_WORDS, 0, 0];
  const hasRoom = !hasAverages || (moments.at(-1) ?? 0) >= 4 * trainableSize;
  return String(sizes) === String(expected) && sizes.length === layout.SEGMENT_NAMES.length && moments.every(isMoment) && hasRoom;
}

/** Inputs of a plan that clips gradients: the limit of each magnitude, and of the joint norm; infinity: no limit. */
export const CLIP_INPUTS: readonly Declaration[] = [{ name: "limits", dtype: "float32", dims: [2], decides: 0 }];

/** The session that a plan must fit: sizes of the segments, and by kind of step the names of inputs and outputs. */
interface PlanOwner {
  readonly segments: readonly SegmentStart[];
  readonly inputs: Readonly<Partial<Record<BaseKind, readonly Declaration[]>>>;
  readonly outputs: Readonly<Partial<Record<BaseKind, readonly string[]>>>;
  readonly lossCounts?: Readonly<Partial<Record<BaseKind, LossCount>>>;
}

function readPlan(reader: Reader, value: unknown, where: string, session: PlanOwner, fingerprint: number): BundlePlan {
  const plan = PLAN(value, where, reader);
  const { words, constants, large, arenaBytes, preparedBytes, nodes, inputs, body } = plan;
  // Results are the tail's, or of a body without a tail, whose host checks their places.
  const outputs = body === null || body.downloads.length > 0 ? plan.outputs : body.outputs;
  const largeBytes = Math.max(0, ...large.map(({ offset, nbytes }) => offset + nbytes));
  const instructions = checkWords(words, where, fingerprint, largeBytes > 0 ? N_SEGMENTS : N_SEGMENTS - 1);
  // A profile has room for so many times.
  damagedIf(nodes.length !== instructions, `${where} has ${nodes.length} nodes for ${instructions} instructions`);
  const sizes = session.segments.map(({ bytes }) => bytes);
  sizes[layout.ARENA] = arenaBytes;
  sizes[layout.PREPARED] = preparedBytes;
  sizes[layout.CONSTANTS] = constants.length;
  sizes[layout.LARGE_CONSTANTS] = largeBytes;
  [...inputs, ...plan.outputs].forEach((slot) => checkPlace(slot, where, sizes));
  for (const [name, offset, nbytes] of plan.kept) {
    damagedIf(offset + nbytes > preparedBytes, `'${name}' of ${where} is at [${offset}, ${offset + nbytes}) of ${preparedBytes} bytes`);
  }
  checkInterface({ ...plan, outputs }, where, session);
  return { ...plan, outputs, largeBytes };
}

/** Return the number of instructions that the plan declares; the verifier counts them. */
function checkWords(words: Uint8Array, where: string, fingerprint: number, segments: number): number {
  const minimum = 4 * (layout.HEADER_WORDS + segments * layout.SEGMENT_WORDS);
  damagedIf(words.length % 4 !== 0 || words.length < minimum, `${where} has ${words.length} bytes of words`);
  const view = new DataView(words.buffer, words.byteOffset, words.byteLength);
  const header = Array.from({ length: layout.HEADER_WORDS }, (_, word) => view.getUint32(4 * word, true));
  const expected = [layout.PLAN_MAGIC, layout.PLAN_VERSION, words.length / 4, fingerprint];
  const isPlan = String(header.slice(0, expected.length)) === String(expected) && header[layout.HEADER_N_SEGMENTS] === segments;
  damagedIf(!isPlan, `${where} is no plan of ${words.length / 4} words for these kernels`);
  return header[layout.HEADER_N_INSTRUCTIONS] as number;
}

/** Check that the plan takes its declared feeds, in the arena, and has the outputs of the model. */
function checkInterface(plan: Of<typeof PLAN>, where: string, session: PlanOwner): void {
  const { signature, inputs, outputs, metrics } = plan;
  const kind = plan.kind.base;
  const declared = (kind === "clip" ? CLIP_INPUTS : (session.inputs[kind] ?? [])).map(({ name }) => name);
  damagedIf(JSON.stringify(signature.map(({ name }) => name)) !== JSON.stringify(declared), `${where} is not for the inputs ${declared.join(", ")}`);
  for (const slot of inputs) {
    const feed = signature.find(({ name }) => name === slot.name);
    const isFeed = feed?.dtype === slot.dtype && String(feed.dims) === String(slot.dims);
    damagedIf(!isFeed || slot.segment !== layout.ARENA, `${where} has an input '${slot.name}' that is no feed of its own`);
  }
  const sums = metrics.flatMap(({ sums: one, faults }) => (faults === "" ? [one] : [one, faults]));
  const { output = null, losses = null } = session.lossCounts?.[kind] ?? {};
  const names = [...(session.outputs[kind] ?? []), ...sums, ...[output, losses].filter((name) => name !== null)];
  const outputNames = outputs.map((slot) => slot.name);
  damagedIf(JSON.stringify(outputNames.sort()) !== JSON.stringify(names.sort()), `${where} gives the outputs ${outputNames.join(", ")}, not ${names.join(", ")}`);
}

function checkPlace({ name, segment, offset, nbytes, dtype, dims }: TensorPlace, where: string, sizes: readonly number[]): void {
  const size = sizes[segment] ?? -1;
  const expected = sizeOf(dims) * ITEM_SIZE[dtype];
  damagedIf(
    nbytes !== expected || offset + nbytes > size,
    `'${name}' of ${where} is at [${offset}, ${offset + nbytes}) of segment ${segment} ` +
      `with ${size} bytes, for ${dtype} of dims [${dims.join(", ")}]`,
  );
}

const hex = (word: number): string => `0x${word.toString(16).padStart(8, "0")}`;
