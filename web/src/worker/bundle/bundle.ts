/**
 * Bundles: a compiled session, in a file as `trainweb compile` writes it (training/page/bundle.py has the layout), or right
 * from Python. A file is checked by its hash, and then nothing in it is believed. Offsets, sizes and names are checked
 * here, the words of a plan by the kernels' verifier before its first run. Only its generated code is code, as a script
 * is.
 */

import {
  ARENA,
  CONSTANTS,
  HEADER_N_INSTRUCTIONS,
  HEADER_N_SEGMENTS,
  HEADER_WORDS,
  LARGE_CONSTANTS,
  PLAN_MAGIC,
  PLAN_VERSION,
  PREPARED,
  SEGMENT_NAMES,
  SEGMENT_WORDS,
} from "../../engine/layout.js";
import type { LossCount } from "../loss-counts.js";
import { readMetrics, type PlanMetric } from "./metrics.js";
import {
  ALIGNMENT, ITEM_SIZE, malformed, partOf, Reader, sizeOf, wrong, type Fields, type ByteRange,
} from "./reader.js";
import { segmentsFit } from "./segments.js";
import { readProperties, type Property } from "../session-record.js";
import { partAt, type BlobRange, type GivenData, type HeldBytes, type JoinedFile } from "../../wire/pieces.js";
import type { InputDeclaration, TensorType, WireDtype } from "../../wire/protocol.js";
import { sha256OfFile } from "../../wire/sha256.js";

const MAGIC = "TWBUNDLE";
const VERSION = 4;
/** The oldest version that can be read. Its models are whole. */
const OLDEST = 3;
const PREFIX_BYTES = 64;
const HASH = { start: 16, end: 48 };

const N_SEGMENTS = SEGMENT_NAMES.length;
/** The file of a large constant that is in the bundle itself. */
const IN_BLOBS = -1;
const PLAN_KINDS = ["train", "eval", "optimizer", "scheduler", "clip", "inference", "predict"] as const;
type BaseKind = (typeof PLAN_KINDS)[number];
/** An eval step that sums up metrics: they are named behind it, as `request_of` of trainweb/metrics.py does. */
export type MetricsKind = `eval ${string}`;
/** A step that predicts, whose outputs are named behind it, or one of new tokens (`forward-kind.ts`). */
export type ForwardKind = `predict ${string}` | `generate ${string}`;
export type PlanKind = BaseKind | MetricsKind | ForwardKind;

/** The kind of a step without its metrics or outputs. */
export function baseOf<Kind extends BaseKind>(kind: Kind | MetricsKind | ForwardKind): Kind | "eval" | "predict" {
  const isForward = kind.startsWith("predict ") || kind.startsWith("generate ");
  return kind.startsWith("eval ") ? "eval" : isForward ? "predict" : (kind as Kind);
}

/** An input, with the facts about it that a plan depends on. */
export interface Declaration extends InputDeclaration {
  /**
   * Most elements up to which its value belongs to the signature, because it determines shapes; 0: it determines none.
   */
  readonly decides: number;
}

/** A parameter, with its offset among all and among the trainable ones, in words of 4 bytes; -1: frozen. */
export interface ParameterSlot {
  readonly name: string;
  readonly dims: readonly number[];
  readonly offset: number;
  readonly trainableOffset: number;
  /** Frozen matrices may have 16 bits. */
  readonly dtype: "float32" | "float16" | "bfloat16";
}

/** A feed or result in a plan's segments. */
export interface TensorPlace {
  readonly name: string;
  readonly segment: number;
  readonly offset: number;
  readonly nbytes: number;
  readonly dtype: WireDtype;
  readonly dims: readonly number[];
}

export interface FeedType extends TensorType {
  readonly name: string;
  /** Bytes of the elements, in hexadecimal, if the plan is only for this value; else null. */
  readonly value: string | null;
}

/** The cost of a memory budget for a plan: its workspace without one, and the instructions that run again. */
export interface Recomputation {
  readonly fullBytes: number;
  readonly instructions: number;
  readonly flops: number;
  /** Rough time of it, in parts of the time without a budget. */
  readonly share: number;
}

/** A large constant. */
export interface LargeConstant {
  /** Its offset in their segment. */
  readonly offset: number;
  readonly nbytes: number;
  /** The file that the session was made of in which it lies, from `start` on; -1: a blob. */
  readonly file: number;
  readonly start: number;
  /** Its bytes; null: they are read of the file. Plans with the same `data` share them. */
  readonly data: HeldBytes | null;
}

export interface BundlePlan {
  readonly kind: PlanKind;
  /** True: its gradients overwrite instead of adding. */
  readonly overwrite: boolean;
  readonly signature: readonly FeedType[];
  readonly words: Uint8Array;
  readonly constants: Uint8Array;
  readonly large: readonly LargeConstant[];
  /** Size of the segment of large constants. */
  readonly largeBytes: number;
  readonly code: Uint8Array;
  readonly arenaBytes: number;
  /** Size of the segment of values kept from run to run. */
  readonly preparedBytes: number;
  readonly inputs: readonly TensorPlace[];
  readonly outputs: readonly TensorPlace[];
  /** The node behind each instruction. */
  readonly nodes: readonly string[];
  readonly recomputation: Recomputation;
  /** Values that it keeps from run to run: the kind of each, and its place. */
  readonly kept: readonly KeptValue[];
  /** Metrics that it sums up. */
  readonly metrics: readonly PlanMetric[];
  /** Its disassembly, where Python made it just now. */
  readonly text: readonly string[] | null;
}

/** Name, offset and bytes of a value that plans keep; equal names are equal values. */
export type KeptValue = readonly [name: string, offset: number, nbytes: number];

/** Files that Python needs to take the session over. */
export interface BundleModels {
  readonly trainModel: JoinedFile;
  readonly evalModel: JoinedFile | null;
  readonly optimizerModel: JoinedFile | null;
  /** Contents of the checkpoint besides the parameters and moments of the session. */
  readonly checkpoint: JoinedFile;
}

/** Size of a segment and its initial contents; null for zeros. */
export interface SegmentStart {
  readonly bytes: number;
  readonly data: Uint8Array | BlobRange | null;
}

/** A segment that is not all zeros. */
export interface SegmentSize {
  readonly segment: number;
  readonly nbytes: number;
}

/** A bundle before it is checked: the header as JSON, and the bytes that it refers to. */
export interface RawBundle<Blobs extends Uint8Array | Blob = Uint8Array> {
  readonly header: unknown;
  readonly blobs: Blobs;
  /** First byte of the blobs in a Blob. */
  readonly start?: number;
}

/** The parts of a bundle for an inference session, except plans. */
export interface InferenceBundle {
  readonly inputs: readonly Declaration[];
  readonly outputs: readonly string[];
  readonly segments: readonly SegmentStart[];
}

export interface Bundle {
  readonly inputs: Readonly<Record<"train" | "eval", readonly Declaration[]>>;
  readonly outputs: Readonly<Record<"train" | "eval", readonly string[]>>;
  readonly hasEval: boolean;
  readonly hasOptimizer: boolean;
  /** The optimizer that updates the parameters; "" without one. */
  readonly optimizer: string;
  /** True if averages of the trainable parameters lie behind the moments. */
  readonly hasAverages: boolean;
  /** The output that the loss of the eval model compares with its last input, if that is one tensor. */
  readonly compared: string | null;
  /** What `predict` gives: the outputs besides the loss, else the output that the loss compares. */
  readonly ownOutputs: readonly string[];
  /** Divisors of the losses. */
  readonly lossCounts: Readonly<Record<"train" | "eval", LossCount>>;
  readonly nominal: boolean;
  readonly parameters: readonly ParameterSlot[];
  readonly size: number;
  readonly trainableSize: number;
  readonly segments: readonly SegmentStart[];
  readonly properties: readonly Property[];
  readonly models: BundleModels | null;
  readonly plans: readonly BundlePlan[];
}

/**
 * Read a bundle.
 *
 * @param raw - of the result only the contents of segments are views of its bytes, or parts of its file
 * @param fingerprint - of the kernels that are to run it
 * @param files - number of files with constants that the session has besides
 * @throws ModelError when it is for other kernels, or damaged
 */
export function parseBundle(raw: RawBundle<Uint8Array | Blob>, fingerprint: number, files = 0): Bundle {
  const reader = new Reader(raw.blobs, raw.start);
  const root = reader.object(raw.header, "the header");
  checkKernels(reader, root, fingerprint);
  const session = readStart(reader, root);
  const plans = reader.list(root["plans"], "plans", (plan, where) =>
    readPlan(reader, plan, where, session, fingerprint),
  );
  if (plans.some(({ large }) => large.some(({ file }) => file >= files))) {
    throw malformed("a plan has constants in other files");
  }
  const keys = plans.map((plan) => planKey(plan.kind, plan.overwrite, plan.signature));
  if (new Set(keys).size !== keys.length) {
    throw malformed("two plans are for the same feeds");
  }
  return { ...session, plans };
}

/**
 * Read a plan that Python compiled.
 *
 * @param session - whose it is
 * @param files - that the session is made of
 */
export function parsePlan(
  { header, blobs }: RawBundle,
  session: PlanOwner,
  fingerprint: number,
  files: readonly GivenData[] = [],
): BundlePlan {
  return readPlan(new Reader(blobs, 0, files), header, "the plan", session, fingerprint);
}

/** Read Python's description of an inference session. */
export function parseInference({ header, blobs }: RawBundle, fingerprint: number): InferenceBundle {
  const reader = new Reader(blobs);
  const root = reader.object(header, "the header");
  checkKernels(reader, root, fingerprint);
  return {
    inputs: readDeclarations(reader, root["inputs"], "inputs"),
    outputs: someNames(reader, root["outputs"], "outputs"),
    segments: readSegments(reader, root),
  };
}

function checkKernels(reader: Reader, root: Fields, fingerprint: number): void {
  const found = reader.integer(root["fingerprint"], "fingerprint");
  if (found !== fingerprint) {
    throw malformed(
      `it was compiled for other kernels (${hex(found)}, these are ${hex(fingerprint)}); ` +
        "compile it again with this version of trainweb",
    );
  }
}

/** The key that finds a plan. */
export function planKey(kind: string, overwrite: boolean, feeds: readonly FeedType[]): string {
  const types = feeds.map(({ name, dtype, dims, value }) => [name, dtype, value, ...dims]);
  return JSON.stringify([kind, overwrite, ...types]);
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
  const prefix = await bytesOf(partOf(file, 0, PREFIX_BYTES));
  const magic = String.fromCharCode(...prefix.subarray(0, MAGIC.length));
  if (magic !== MAGIC || nbytes < PREFIX_BYTES) {
    throw malformed(`the ${nbytes} bytes do not start with ${MAGIC}`);
  }
  const words = new DataView(prefix.buffer, prefix.byteOffset, PREFIX_BYTES);
  const version = words.getUint32(8, true);
  if (version < OLDEST || version > VERSION) {
    throw malformed(
      `it has version ${version}, this trainweb reads versions ${OLDEST} to ${VERSION}; ` +
        "compile it again with this version of trainweb",
    );
  }
  const end = PREFIX_BYTES + words.getUint32(12, true);
  if (end > nbytes || end % ALIGNMENT !== 0) {
    throw malformed(`its header ends at byte ${end} of ${nbytes}`);
  }
  const expected = prefix.subarray(HASH.start, HASH.end);
  if (String(await sha256OfFile(file, PREFIX_BYTES)) !== String(expected)) {
    throw malformed("it is damaged: its bytes are not those that were written");
  }
  let header: unknown;
  try {
    const text = await bytesOf(partOf(file, PREFIX_BYTES, end));
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(text));
  } catch (error) {
    throw malformed(`its header cannot be read: ${error instanceof Error ? error.message : error}`);
  }
  return file instanceof Blob ? { header, blobs: file, start: end } : { header, blobs: partOf(file, end, nbytes) };
}

async function bytesOf(part: Uint8Array<ArrayBuffer> | Blob): Promise<Uint8Array<ArrayBuffer>> {
  return part instanceof Blob ? new Uint8Array(await part.arrayBuffer()) : part;
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

/** Offset in its segment, file of the session, offset in the file and bytes of a large constant; file -1: a blob. */
type RawLarge = readonly [offset: number, file: number, start: number, nbytes: number];

/** A plan's JSON, and the bytes that it refers to. */
export interface RawPlan extends RawBundle {
  readonly header: {
    readonly words: ByteRange;
    readonly constants: ByteRange;
    readonly large: readonly RawLarge[];
    readonly code: ByteRange;
  };
}

/** A bundle with more plans. */
export function withPlans({ header, blobs }: RawBundle, plans: readonly RawPlan[]): RawBundle {
  const starts: number[] = [];
  let size = aligned(blobs.length);
  for (const plan of plans) {
    starts.push(size);
    size = aligned(size + plan.blobs.length);
  }
  const joined = new Uint8Array(size);
  joined.set(blobs);
  const added = plans.map(({ header: { words, constants, code, large: parts, ...rest }, blobs: own }, index) => {
    const start = starts[index] as number;
    joined.set(own, start);
    const moved = ([offset, length]: ByteRange): ByteRange => [start + offset, length];
    const large = parts.map(([offset, file, at, nbytes]): RawLarge => [offset, file, file === IN_BLOBS ? start + at : at, nbytes]);
    return { ...rest, large, text: undefined, words: moved(words), constants: moved(constants), code: moved(code) };
  });
  const root = header as { readonly plans: readonly unknown[] };
  return { header: { ...root, plans: [...root.plans, ...added] }, blobs: joined };
}

function aligned(nbytes: number): number {
  return Math.ceil(nbytes / ALIGNMENT) * ALIGNMENT;
}

const SPACE = 0x20;

type BundleStart = Omit<Bundle, "plans">;

function readStart(reader: Reader, root: Fields): BundleStart {
  const inputs = reader.object(root["inputs"], "inputs");
  const outputs = reader.object(root["outputs"], "outputs");
  const parameters = readParameters(reader, root);
  const total = ({ size, trainableSize }: typeof parameters): number[] => [size, trainableSize];
  const declared = ["size", "trainableSize"].map((name) => reader.integer(root[name], name));
  if (String(declared) !== String(total(parameters))) {
    throw malformed(`its parameters have ${total(parameters)} elements, not ${declared}`);
  }
  const hasEval = reader.boolean(root["hasEval"], "hasEval");
  const hasAverages = reader.boolean(root["hasAverages"], "hasAverages");
  const ofEval = hasEval ? someNames(reader, outputs["eval"], "outputs.eval") : reader.names(outputs["eval"], "outputs.eval");
  return {
    inputs: {
      train: readDeclarations(reader, inputs["train"], "inputs.train"),
      eval: readDeclarations(reader, inputs["eval"], "inputs.eval"),
    },
    outputs: { train: someNames(reader, outputs["train"], "outputs.train"), eval: ofEval },
    hasEval,
    hasOptimizer: reader.boolean(root["hasOptimizer"], "hasOptimizer"),
    optimizer: reader.text(root["optimizer"], "optimizer"),
    hasAverages,
    compared: root["compared"] === null ? null : reader.text(root["compared"], "compared"),
    ownOutputs: reader.names(root["ownOutputs"], "ownOutputs"),
    lossCounts: readLossCounts(reader, root["lossCounts"]),
    nominal: reader.boolean(root["nominal"], "nominal"),
    ...parameters,
    segments: checkSegments(readSegments(reader, root), { ...parameters, hasAverages }),
    properties: readProperties(root["properties"]),
    models: readModels(reader, root),
  };
}

/** A model without outputs gives nothing to train by. */
function someNames(reader: Reader, value: unknown, where: string): string[] {
  const names = reader.names(value, where);
  if (names.length === 0) {
    throw wrong(where, "a list of names", value);
  }
  return names;
}

function readDeclarations(reader: Reader, value: unknown, where: string): Declaration[] {
  const list = reader.list(value, where, (item, at) => readDeclaration(reader, item, at));
  reader.names(list.map(({ name }) => name), where);
  return list;
}

function readDeclaration(reader: Reader, value: unknown, where: string): Declaration {
  const { name, dtype, dims, decides } = reader.object(value, where);
  const readDim = (dim: unknown, at: string): number | string | null =>
    dim === null || typeof dim === "string" ? dim : reader.integer(dim, at);
  return {
    name: reader.text(name, `${where}.name`),
    dtype: reader.dtype(dtype, `${where}.dtype`),
    dims: dims === null ? null : reader.list(dims, `${where}.dims`, readDim),
    decides: reader.integer(decides, `${where}.decides`),
  };
}

/** Parameters lie one after the other, and so do gradients and moments of the trainable ones. */
function readParameters(
  reader: Reader,
  root: Fields,
): { readonly parameters: ParameterSlot[]; readonly size: number; readonly words: number; readonly trainableSize: number } {
  let size = 0;
  let words = 0;
  let trainableSize = 0;
  const parameters = reader.list(root["parameters"], "parameters", (item, where) => {
    const fields = reader.object(item, where);
    const slot = {
      name: reader.text(fields["name"], `${where}.name`),
      dims: reader.dims(fields["dims"], `${where}.dims`),
      offset: reader.integer(fields["offset"], `${where}.offset`),
      trainableOffset: reader.integer(fields["trainableOffset"], `${where}.trainableOffset`, -1),
      dtype: reader.dtype(fields["dtype"], `${where}.dtype`) as ParameterSlot["dtype"],
    };
    const isFrozen = slot.trainableOffset === -1;
    if (slot.dtype !== "float32" && !(isFrozen && isHalf(slot.dtype))) {
      throw wrong(`${where}.dtype`, isFrozen ? "float32, float16 or bfloat16" : "float32", slot.dtype);
    }
    if (slot.offset !== words || (!isFrozen && slot.trainableOffset !== trainableSize)) {
      throw malformed(`${where} does not lie behind the parameter before it`);
    }
    size += sizeOf(slot.dims);
    words += wordsOf(slot);
    trainableSize += isFrozen ? 0 : sizeOf(slot.dims);
    return slot;
  });
  reader.names(parameters.map(({ name }) => name), "parameters");
  return { parameters, size, words, trainableSize };
}

function isHalf(dtype: string): boolean {
  return dtype === "float16" || dtype === "bfloat16";
}

/** Words of 4 bytes that a parameter takes. */
function wordsOf({ dims, dtype }: ParameterSlot): number {
  return Math.ceil((sizeOf(dims) * ITEM_SIZE[dtype]) / 4);
}

function readSegments(reader: Reader, root: Fields): SegmentStart[] {
  return reader.list(root["segments"], "segments", (item, where) => {
    const fields = reader.object(item, where);
    const bytes = reader.integer(fields["bytes"], `${where}.bytes`);
    const data = fields["data"] === null ? null : reader.blob(fields["data"], `${where}.data`);
    const given = data === null ? bytes : "nbytes" in data ? data.nbytes : data.length;
    if (given !== bytes) {
      throw malformed(`${where} has ${bytes} bytes, but ${given} bytes of data`);
    }
    return { bytes, data };
  });
}

function checkSegments(segments: SegmentStart[], owner: Parameters<typeof segmentsFit>[1]): SegmentStart[] {
  const sizes = segments.map(({ bytes }) => bytes);
  if (!segmentsFit(sizes, owner)) {
    throw malformed(`its segments have ${sizes.join(", ")} bytes for ${owner.words} words of parameters`);
  }
  return segments;
}

function readModels(reader: Reader, root: Fields): BundleModels | null {
  const models = reader.object(root["models"], "models");
  if (Object.keys(models).length === 0) {
    return null;
  }
  const optional = (name: string): JoinedFile | null =>
    models[name] === undefined ? null : reader.file(models[name], `models.${name}`);
  return {
    trainModel: reader.file(models["trainModel"], "models.trainModel"),
    checkpoint: reader.file(models["checkpoint"], "models.checkpoint"),
    evalModel: optional("evalModel"),
    optimizerModel: optional("optimizerModel"),
  };
}

/** Inputs of a plan that clips gradients: the limit of each magnitude, and of the joint norm; infinity: no limit. */
export const CLIP_INPUTS: readonly Declaration[] = [{ name: "limits", dtype: "float32", dims: [2], decides: 0 }];

/** The session that a plan must fit: sizes of the segments, and by kind of step the names of inputs and outputs. */
export interface PlanOwner {
  readonly segments: readonly SegmentStart[];
  readonly inputs: Readonly<Partial<Record<BaseKind, readonly Declaration[]>>>;
  readonly outputs: Readonly<Partial<Record<BaseKind, readonly string[]>>>;
  readonly lossCounts?: Readonly<Partial<Record<BaseKind, LossCount>>>;
}

function readPlan(
  reader: Reader,
  value: unknown,
  where: string,
  session: PlanOwner,
  fingerprint: number,
): BundlePlan {
  const fields = reader.object(value, where);
  const kind = reader.text(fields["kind"], `${where}.kind`) as PlanKind;
  if (!PLAN_KINDS.includes(baseOf(kind))) {
    throw wrong(`${where}.kind`, `one of ${PLAN_KINDS.join(", ")}`, fields["kind"]);
  }
  const words = reader.keep(fields["words"], `${where}.words`);
  const constants = reader.keep(fields["constants"], `${where}.constants`);
  const large = readLarge(reader, fields["large"], `${where}.large`);
  const largeBytes = Math.max(0, ...large.map(({ offset, nbytes }) => offset + nbytes));
  const arenaBytes = reader.integer(fields["arenaBytes"], `${where}.arenaBytes`);
  const preparedBytes = reader.integer(fields["preparedBytes"], `${where}.preparedBytes`);
  const instructions = checkWords(words, where, fingerprint, largeBytes > 0 ? N_SEGMENTS : N_SEGMENTS - 1);
  const sizes = session.segments.map(({ bytes }) => bytes);
  sizes[ARENA] = arenaBytes;
  sizes[PREPARED] = preparedBytes;
  sizes[CONSTANTS] = constants.length;
  sizes[LARGE_CONSTANTS] = largeBytes;
  const slots = (name: string): TensorPlace[] =>
    reader.list(fields[name], `${where}.${name}`, (item, at) => readPlace(reader, item, at, sizes));
  const plan = {
    kind,
    overwrite: reader.boolean(fields["overwrite"], `${where}.overwrite`),
    signature: reader.list(fields["signature"], `${where}.signature`, (item, at) => readFeed(reader, item, at)),
    words,
    constants,
    large,
    largeBytes,
    code: reader.keep(fields["code"], `${where}.code`),
    arenaBytes,
    preparedBytes,
    inputs: slots("inputs"),
    outputs: slots("outputs"),
    nodes: readNodes(reader, fields["nodes"], `${where}.nodes`, instructions),
    recomputation: readRecomputation(reader, fields["recomputation"], `${where}.recomputation`),
    kept: reader.list(fields["kept"], `${where}.kept`, (item, at) => readKept(reader, item, at, preparedBytes)),
    metrics: readMetrics(reader, fields["metrics"] ?? [], `${where}.metrics`),
    text:
      fields["text"] === undefined
        ? null
        : reader.list(fields["text"], `${where}.text`, (item, at) => reader.text(item, at)),
  };
  checkInterface(plan, where, session);
  return plan;
}

function readLarge(reader: Reader, value: unknown, where: string): LargeConstant[] {
  return reader.list(value, where, (item, at) => {
    const [offset, file, start, nbytes] = reader.list(item, at, (one) => one);
    const place = {
      offset: reader.integer(offset, at),
      file: reader.integer(file, at, IN_BLOBS),
      start: reader.integer(start, at),
      nbytes: reader.integer(nbytes, at),
    };
    return { ...place, data: dataOf(reader, place, at) };
  });
}

function dataOf(reader: Reader, place: Omit<LargeConstant, "data">, where: string): HeldBytes | null {
  const { file, start, nbytes } = place;
  return file === IN_BLOBS ? reader.hold([start, nbytes], where) : partAt(reader.files[file], start, nbytes);
}

function readKept(reader: Reader, value: unknown, where: string, preparedBytes: number): KeptValue {
  const [name, offset, nbytes] = reader.list(value, where, (item) => item);
  const place = [reader.integer(offset, where), reader.integer(nbytes, where)] as const;
  if (place[0] + place[1] > preparedBytes) {
    throw malformed(`${where} is at [${place[0]}, ${place[0] + place[1]}) of ${preparedBytes} bytes`);
  }
  return [reader.text(name, where), ...place];
}

/** One for each instruction: a profile has room for so many times. */
function readNodes(reader: Reader, value: unknown, where: string, instructions: number): string[] {
  const nodes = reader.list(value, where, (item, at) => reader.text(item, at));
  if (nodes.length !== instructions) {
    throw malformed(`${where} has ${nodes.length} nodes for ${instructions} instructions`);
  }
  return nodes;
}

function readRecomputation(reader: Reader, value: unknown, where: string): Recomputation {
  const fields = reader.object(value, where);
  const number = (name: string): number => reader.number(fields[name], `${where}.${name}`);
  return {
    fullBytes: number("fullBytes"),
    instructions: number("instructions"),
    flops: number("flops"),
    share: number("share"),
  };
}

/** Return the number of instructions that the plan declares; the verifier counts them. */
function checkWords(words: Uint8Array, where: string, fingerprint: number, segments: number): number {
  const minimum = 4 * (HEADER_WORDS + segments * SEGMENT_WORDS);
  if (words.length % 4 !== 0 || words.length < minimum) {
    throw malformed(`${where} has ${words.length} bytes of words`);
  }
  const view = new DataView(words.buffer, words.byteOffset, words.byteLength);
  const header = Array.from({ length: HEADER_WORDS }, (_, word) => view.getUint32(4 * word, true));
  const expected = [PLAN_MAGIC, PLAN_VERSION, words.length / 4, fingerprint];
  if (String(header.slice(0, expected.length)) !== String(expected) || header[HEADER_N_SEGMENTS] !== segments) {
    throw malformed(`${where} is no plan of ${words.length / 4} words for these kernels`);
  }
  return header[HEADER_N_INSTRUCTIONS] as number;
}

/** The plan takes the feeds it says, in the arena, and gives outputs that the model has. */
function checkInterface(plan: BundlePlan, where: string, session: PlanOwner): void {
  const { signature, inputs, outputs, metrics } = plan;
  const kind = baseOf(plan.kind);
  const declared = (kind === "clip" ? CLIP_INPUTS : (session.inputs[kind] ?? [])).map(({ name }) => name);
  if (JSON.stringify(signature.map(({ name }) => name)) !== JSON.stringify(declared)) {
    throw malformed(`${where} is not for the inputs ${declared.join(", ")}`);
  }
  for (const slot of inputs) {
    const feed = signature.find(({ name }) => name === slot.name);
    const isFeed = feed?.dtype === slot.dtype && String(feed.dims) === String(slot.dims);
    if (!isFeed || slot.segment !== ARENA) {
      throw malformed(`${where} has an input '${slot.name}' that is no feed of its own`);
    }
  }
  const sums = metrics.flatMap(({ sums: one, faults }) => (faults === "" ? [one] : [one, faults]));
  const count = session.lossCounts?.[kind]?.output ?? null;
  const names = [...(session.outputs[kind] ?? []), ...sums, ...(count === null ? [] : [count])];
  const given = outputs.map((slot) => slot.name);
  if (JSON.stringify(given.sort()) !== JSON.stringify(names.sort())) {
    throw malformed(`${where} gives the outputs ${given.join(", ")}, not ${names.join(", ")}`);
  }
}

function readFeed(reader: Reader, item: unknown, where: string): FeedType {
  const { value } = reader.object(item, where);
  return { ...readType(reader, item, where), value: value === null ? null : reader.text(value, `${where}.value`) };
}

function readType(reader: Reader, value: unknown, where: string): TensorType & { readonly name: string } {
  const { name, dtype, dims } = reader.object(value, where);
  return {
    name: reader.text(name, `${where}.name`),
    dtype: reader.dtype(dtype, `${where}.dtype`),
    dims: reader.dims(dims, `${where}.dims`),
  };
}

function readPlace(reader: Reader, value: unknown, where: string, sizes: readonly number[]): TensorPlace {
  const fields = reader.object(value, where);
  const slot = {
    ...readType(reader, value, where),
    segment: reader.integer(fields["segment"], `${where}.segment`),
    offset: reader.integer(fields["offset"], `${where}.offset`),
    nbytes: reader.integer(fields["nbytes"], `${where}.nbytes`),
  };
  const size = sizes[slot.segment] ?? -1;
  const expected = sizeOf(slot.dims) * ITEM_SIZE[slot.dtype];
  if (slot.nbytes !== expected || slot.offset + slot.nbytes > size) {
    throw malformed(
      `${where} is at [${slot.offset}, ${slot.offset + slot.nbytes}) of segment ${slot.segment} ` +
        `with ${size} bytes, for ${slot.dtype} of dims [${slot.dims.join(", ")}]`,
    );
  }
  return slot;
}

const hex = (word: number): string => `0x${word.toString(16).padStart(8, "0")}`;

function readLossCounts(reader: Reader, value: unknown): Bundle["lossCounts"] {
  const counts = reader.object(value, "lossCounts");
  const read = (kind: "train" | "eval"): LossCount => {
    const where = `lossCounts.${kind}`;
    const { output, isSum } = reader.object(counts[kind], where);
    return {
      output: output === null ? null : reader.text(output, `${where}.output`),
      isSum: reader.boolean(isSum, `${where}.isSum`),
    };
  };
  return { train: read("train"), eval: read("eval") };
}
