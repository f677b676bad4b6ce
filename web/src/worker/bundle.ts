/**
 * Bundles: a compiled session in one file, as `trainweb compile` writes it (training/bundle.py has the
 * layout). Nothing in the file is believed: offsets, sizes and names are checked here, the words of a plan by
 * the kernels' verifier before its first run. Only its generated code is code, as a script is.
 */

import { ModelError } from "../wire/errors.js";
import type { WireDtype } from "../wire/protocol.js";

const MAGIC = "TWBUNDLE";
const VERSION = 1;
const PREFIX_BYTES = 16;
const ALIGNMENT = 64;

/** Segments of a plan, in order; those from PARAMETERS to STATE are the session's. */
export const ARENA = 0;
export const CONSTANTS = 1;
export const PARAMETERS = 2;
export const GRADIENTS = 3;
export const MOMENTUM1 = 5;
export const STATE = 6;
export const PREPARED = 7;
export const N_SEGMENTS = 8;

/** Places in a plan's words. */
export const HEADER_WORDS = 20;
export const SEGMENT_WORDS = 3;
export const STATE_WORD = 4;
export const CODE_BASE_WORD = 9;
const PLAN_MAGIC = 0x4c505754;
const PLAN_VERSION = 1;
const STATE_BYTES = 64;
const MAX_BYTES = 2 ** 32 - 1;

const ITEM_SIZE: Readonly<Record<WireDtype, number>> = {
  float32: 4, float64: 8, float16: 2, int8: 1, uint8: 1, int16: 2, uint16: 2, int32: 4, uint32: 4,
  int64: 8, uint64: 8, bool: 1,
};

const PLAN_KINDS = ["train", "eval", "optimizer", "scheduler"] as const;
export type PlanKind = (typeof PLAN_KINDS)[number];

/** An input as the model declares it: a dim is a number, a symbol or null; null for no dims at all. */
export interface Declaration {
  readonly name: string;
  readonly dtype: WireDtype;
  readonly dims: readonly (number | string | null)[] | null;
}

/** A parameter, with its place among all and among the trainable ones, in elements; -1: frozen. */
export interface ParameterSlot {
  readonly name: string;
  readonly dims: readonly number[];
  readonly offset: number;
  readonly trainableOffset: number;
}

/** A feed or result in a plan's segments. */
export interface PlanSlot {
  readonly name: string;
  readonly segment: number;
  readonly offset: number;
  readonly nbytes: number;
  readonly dtype: WireDtype;
  readonly dims: readonly number[];
}

export interface FeedType {
  readonly name: string;
  readonly dtype: WireDtype;
  readonly dims: readonly number[];
}

/** What a memory budget costs a plan: its workspace without one, and what runs again. */
export interface Recomputation {
  readonly fullBytes: number;
  readonly instructions: number;
  readonly flops: number;
  /** Rough time of it, in parts of the time without a budget. */
  readonly share: number;
}

export interface BundlePlan {
  readonly kind: PlanKind;
  /** Whether its gradients overwrite instead of adding. */
  readonly overwrite: boolean;
  readonly signature: readonly FeedType[];
  readonly words: Uint8Array;
  readonly constants: Uint8Array;
  readonly code: Uint8Array;
  readonly arenaBytes: number;
  /** Size of the segment of what it keeps from run to run. */
  readonly preparedBytes: number;
  readonly inputs: readonly PlanSlot[];
  readonly outputs: readonly PlanSlot[];
  /** The node behind each instruction. */
  readonly nodes: readonly string[];
  readonly recomputation: Recomputation;
}

/** What Python needs to take the session over. */
export interface BundleModels {
  readonly trainModel: Uint8Array;
  readonly evalModel: Uint8Array | null;
  readonly optimizerModel: Uint8Array | null;
  /** What a checkpoint has besides the parameters and moments of the session. */
  readonly checkpoint: Uint8Array;
}

export interface Bundle {
  readonly inputs: Readonly<Record<"train" | "eval", readonly Declaration[]>>;
  readonly outputs: Readonly<Record<"train" | "eval", readonly string[]>>;
  readonly hasEval: boolean;
  readonly hasOptimizer: boolean;
  readonly nominal: boolean;
  readonly parameters: readonly ParameterSlot[];
  readonly size: number;
  readonly trainableSize: number;
  /** By segment, its size and what it starts from; null for zeros. */
  readonly segments: readonly { readonly bytes: number; readonly data: Uint8Array | null }[];
  readonly models: BundleModels | null;
  readonly plans: readonly BundlePlan[];
}

/**
 * Read a bundle.
 *
 * @param bytes - the file; of the result only the contents of segments are views of it
 * @param fingerprint - of the kernels that are to run it
 * @throws ModelError when it is no bundle, of another version, for other kernels, or damaged
 */
export function parseBundle(bytes: Uint8Array, fingerprint: number): Bundle {
  const { header, blobs } = split(bytes);
  const reader = new Reader(blobs);
  const root = reader.object(header, "the header");
  const found = reader.integer(root["fingerprint"], "fingerprint");
  if (found !== fingerprint) {
    throw malformed(
      `it was compiled for other kernels (${hex(found)}, these are ${hex(fingerprint)}); ` +
        "compile it again with this version of trainweb",
    );
  }
  const session = readSession(reader, root);
  const plans = reader.list(root["plans"], "plans", (plan, where) =>
    readPlan(reader, plan, where, session, fingerprint),
  );
  const keys = plans.map((plan) => planKey(plan.kind, plan.overwrite, plan.signature));
  if (new Set(keys).size !== keys.length) {
    throw malformed("two plans are for the same feeds");
  }
  return { ...session, plans };
}

/** What a plan is found by. */
export function planKey(kind: string, overwrite: boolean, feeds: readonly FeedType[]): string {
  const types = feeds.map(({ name, dtype, dims }) => [name, dtype, ...dims]);
  return JSON.stringify([kind, overwrite, ...types]);
}

function split(bytes: Uint8Array): { readonly header: unknown; readonly blobs: Uint8Array } {
  const magic = String.fromCharCode(...bytes.subarray(0, MAGIC.length));
  if (magic !== MAGIC || bytes.length < PREFIX_BYTES) {
    throw malformed(`the ${bytes.length} bytes do not start with ${MAGIC}`);
  }
  const words = new DataView(bytes.buffer, bytes.byteOffset, PREFIX_BYTES);
  const version = words.getUint32(8, true);
  if (version !== VERSION) {
    throw malformed(`it has version ${version}, this trainweb reads version ${VERSION}`);
  }
  const end = PREFIX_BYTES + words.getUint32(12, true);
  if (end > bytes.length || end % ALIGNMENT !== 0) {
    throw malformed(`its header ends at byte ${end} of ${bytes.length}`);
  }
  let header: unknown;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes.slice(PREFIX_BYTES, end));
    header = JSON.parse(text);
  } catch (error) {
    throw malformed(`its header cannot be read: ${error instanceof Error ? error.message : error}`);
  }
  return { header, blobs: bytes.subarray(end) };
}

type Fields = Readonly<Record<string, unknown>>;

/** Values of the header, each of the type it should have. */
class Reader {
  readonly #blobs: Uint8Array;
  readonly #kept = new Map<string, Uint8Array>();

  constructor(blobs: Uint8Array) {
    this.#blobs = blobs;
  }

  object(value: unknown, where: string): Fields {
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      throw wrong(where, "an object", value);
    }
    return value as Fields;
  }

  list<T>(value: unknown, where: string, read: (item: unknown, where: string) => T): T[] {
    if (!Array.isArray(value)) {
      throw wrong(where, "a list", value);
    }
    return value.map((item, index) => read(item, `${where}[${index}]`));
  }

  integer(value: unknown, where: string, minimum = 0): number {
    if (typeof value !== "number" || !Number.isSafeInteger(value) || value < minimum || value > MAX_BYTES) {
      throw wrong(where, "a 32-bit number", value);
    }
    return value;
  }

  number(value: unknown, where: string): number {
    if (typeof value !== "number" || !(value >= 0)) {
      throw wrong(where, "a number >= 0", value);
    }
    return value;
  }

  boolean(value: unknown, where: string): boolean {
    if (typeof value !== "boolean") {
      throw wrong(where, "true or false", value);
    }
    return value;
  }

  text(value: unknown, where: string): string {
    if (typeof value !== "string") {
      throw wrong(where, "a string", value);
    }
    return value;
  }

  names(value: unknown, where: string): string[] {
    const names = this.list(value, where, (item, at) => this.text(item, at));
    if (new Set(names).size !== names.length) {
      throw malformed(`${where} has a name twice`);
    }
    return names;
  }

  dtype(value: unknown, where: string): WireDtype {
    const dtype = this.text(value, where);
    if (!Object.hasOwn(ITEM_SIZE, dtype)) {
      throw wrong(where, "a dtype", value);
    }
    return dtype as WireDtype;
  }

  dims(value: unknown, where: string): number[] {
    const dims = this.list(value, where, (item, at) => this.integer(item, at));
    if (!(sizeOf(dims) <= MAX_BYTES)) {
      throw wrong(where, "the dims of a tensor", value);
    }
    return dims;
  }

  /** A view of a blob. */
  blob(value: unknown, where: string): Uint8Array {
    const [offset = -1, length = -1, ...rest] = this.list(value, where, (item, at) => this.integer(item, at));
    const fits = rest.length === 0 && length >= 0 && offset + length <= this.#blobs.length;
    if (!fits || offset % ALIGNMENT !== 0) {
      throw malformed(`${where} is at [${offset}, ${offset + length}) of ${this.#blobs.length} bytes`);
    }
    return this.#blobs.subarray(offset, offset + length);
  }

  /** A copy of a blob, one for all who refer to it, so that the file itself need not stay in memory. */
  keep(value: unknown, where: string): Uint8Array {
    const view = this.blob(value, where);
    const key = `${view.byteOffset} ${view.length}`;
    const kept = this.#kept.get(key) ?? view.slice();
    this.#kept.set(key, kept);
    return kept;
  }
}

type Session = Omit<Bundle, "plans">;

function readSession(reader: Reader, root: Fields): Session {
  const inputs = reader.object(root["inputs"], "inputs");
  const outputs = reader.object(root["outputs"], "outputs");
  const declarations = (kind: "train" | "eval"): Declaration[] => {
    const list = reader.list(inputs[kind], `inputs.${kind}`, (item, at) => readDeclaration(reader, item, at));
    reader.names(list.map(({ name }) => name), `inputs.${kind}`);
    return list;
  };
  const parameters = readParameters(reader, root);
  const total = ({ size, trainableSize }: typeof parameters): number[] => [size, trainableSize];
  const declared = ["size", "trainableSize"].map((name) => reader.integer(root[name], name));
  if (String(declared) !== String(total(parameters))) {
    throw malformed(`its parameters have ${total(parameters)} elements, not ${declared}`);
  }
  return {
    inputs: { train: declarations("train"), eval: declarations("eval") },
    outputs: {
      train: reader.names(outputs["train"], "outputs.train"),
      eval: reader.names(outputs["eval"], "outputs.eval"),
    },
    hasEval: reader.boolean(root["hasEval"], "hasEval"),
    hasOptimizer: reader.boolean(root["hasOptimizer"], "hasOptimizer"),
    nominal: reader.boolean(root["nominal"], "nominal"),
    ...parameters,
    segments: readSegments(reader, root, parameters.size, parameters.trainableSize),
    models: readModels(reader, root),
  };
}

function readDeclaration(reader: Reader, value: unknown, where: string): Declaration {
  const { name, dtype, dims } = reader.object(value, where);
  const readDim = (dim: unknown, at: string): number | string | null =>
    dim === null || typeof dim === "string" ? dim : reader.integer(dim, at);
  return {
    name: reader.text(name, `${where}.name`),
    dtype: reader.dtype(dtype, `${where}.dtype`),
    dims: dims === null ? null : reader.list(dims, `${where}.dims`, readDim),
  };
}

/** They lie one after the other, and the trainable ones' gradients and moments likewise. */
function readParameters(
  reader: Reader,
  root: Fields,
): { readonly parameters: ParameterSlot[]; readonly size: number; readonly trainableSize: number } {
  let size = 0;
  let trainableSize = 0;
  const parameters = reader.list(root["parameters"], "parameters", (item, where) => {
    const fields = reader.object(item, where);
    const slot = {
      name: reader.text(fields["name"], `${where}.name`),
      dims: reader.dims(fields["dims"], `${where}.dims`),
      offset: reader.integer(fields["offset"], `${where}.offset`),
      trainableOffset: reader.integer(fields["trainableOffset"], `${where}.trainableOffset`, -1),
    };
    const isFrozen = slot.trainableOffset === -1;
    if (slot.offset !== size || (!isFrozen && slot.trainableOffset !== trainableSize)) {
      throw malformed(`${where} does not lie behind the parameter before it`);
    }
    size += sizeOf(slot.dims);
    trainableSize += isFrozen ? 0 : sizeOf(slot.dims);
    return slot;
  });
  reader.names(parameters.map(({ name }) => name), "parameters");
  return { parameters, size, trainableSize };
}

function readSegments(reader: Reader, root: Fields, size: number, trainableSize: number): Bundle["segments"] {
  const segments = reader.list(root["segments"], "segments", (item, where) => {
    const fields = reader.object(item, where);
    const bytes = reader.integer(fields["bytes"], `${where}.bytes`);
    const data = fields["data"] === null ? null : reader.blob(fields["data"], `${where}.data`);
    if (data !== null && data.length !== bytes) {
      throw malformed(`${where} has ${bytes} bytes, but ${data.length} bytes of data`);
    }
    return { bytes, data };
  });
  const sizes = segments.map(({ bytes }) => bytes);
  const moments = sizes.slice(GRADIENTS + 1, MOMENTUM1 + 1);
  const isMoment = (bytes: number): boolean => bytes === 0 || bytes === 4 * trainableSize;
  const expected = [0, 0, 4 * size, 4 * trainableSize, ...moments, STATE_BYTES, 0];
  if (String(sizes) !== String(expected) || sizes.length !== N_SEGMENTS || !moments.every(isMoment)) {
    throw malformed(`its segments have ${sizes.join(", ")} bytes for ${size} parameters`);
  }
  return segments;
}

function readModels(reader: Reader, root: Fields): BundleModels | null {
  const models = reader.object(root["models"], "models");
  if (Object.keys(models).length === 0) {
    return null;
  }
  const optional = (name: string): Uint8Array | null =>
    models[name] === undefined ? null : reader.keep(models[name], `models.${name}`);
  return {
    trainModel: reader.keep(models["train_model"], "models.train_model"),
    checkpoint: reader.keep(models["checkpoint"], "models.checkpoint"),
    evalModel: optional("eval_model"),
    optimizerModel: optional("optimizer_model"),
  };
}

function readPlan(
  reader: Reader,
  value: unknown,
  where: string,
  session: Session,
  fingerprint: number,
): BundlePlan {
  const fields = reader.object(value, where);
  const kind = PLAN_KINDS.find((name) => name === fields["kind"]);
  if (kind === undefined) {
    throw wrong(`${where}.kind`, `one of ${PLAN_KINDS.join(", ")}`, fields["kind"]);
  }
  const words = reader.keep(fields["words"], `${where}.words`);
  const constants = reader.keep(fields["constants"], `${where}.constants`);
  const arenaBytes = reader.integer(fields["arenaBytes"], `${where}.arenaBytes`);
  const preparedBytes = reader.integer(fields["preparedBytes"], `${where}.preparedBytes`);
  checkWords(words, where, fingerprint);
  const sizes = session.segments.map(({ bytes }) => bytes);
  sizes[ARENA] = arenaBytes;
  sizes[PREPARED] = preparedBytes;
  sizes[CONSTANTS] = constants.length;
  const slots = (name: string): PlanSlot[] =>
    reader.list(fields[name], `${where}.${name}`, (item, at) => readSlot(reader, item, at, sizes));
  const plan = {
    kind,
    overwrite: reader.boolean(fields["overwrite"], `${where}.overwrite`),
    signature: reader.list(fields["signature"], `${where}.signature`, (item, at) => readType(reader, item, at)),
    words,
    constants,
    code: reader.keep(fields["code"], `${where}.code`),
    arenaBytes,
    preparedBytes,
    inputs: slots("inputs"),
    outputs: slots("outputs"),
    nodes: reader.list(fields["nodes"], `${where}.nodes`, (item, at) => reader.text(item, at)),
    recomputation: readRecomputation(reader, fields["recomputation"], `${where}.recomputation`),
  };
  checkInterface(plan, where, session);
  return plan;
}

function readRecomputation(reader: Reader, value: unknown, where: string): Recomputation {
  const fields = reader.object(value, where);
  const number = (name: string): number => reader.number(fields[name], `${where}.${name}`);
  return {
    fullBytes: number("full_bytes"),
    instructions: number("instructions"),
    flops: number("flops"),
    share: number("share"),
  };
}

function checkWords(words: Uint8Array, where: string, fingerprint: number): void {
  const minimum = 4 * (HEADER_WORDS + N_SEGMENTS * SEGMENT_WORDS);
  if (words.length % 4 !== 0 || words.length < minimum) {
    throw malformed(`${where} has ${words.length} bytes of words`);
  }
  const view = new DataView(words.buffer, words.byteOffset, words.byteLength);
  const header = Array.from({ length: HEADER_WORDS }, (_, word) => view.getUint32(4 * word, true));
  const expected = [PLAN_MAGIC, PLAN_VERSION, words.length / 4, fingerprint];
  if (String(header.slice(0, expected.length)) !== String(expected) || header[5] !== N_SEGMENTS) {
    throw malformed(`${where} is no plan of ${words.length / 4} words for these kernels`);
  }
}

/** The plan takes the feeds it says, in the arena, and gives outputs that the model has. */
function checkInterface(plan: BundlePlan, where: string, session: Session): void {
  const { kind, signature, inputs, outputs } = plan;
  const isStep = kind === "train" || kind === "eval";
  const declared = isStep ? session.inputs[kind].map(({ name }) => name) : [];
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
  const names = isStep ? session.outputs[kind] : [];
  if (names.some((name) => !outputs.some((slot) => slot.name === name))) {
    throw malformed(`${where} does not give the outputs ${names.join(", ")}`);
  }
}

function readType(reader: Reader, value: unknown, where: string): FeedType {
  const { name, dtype, dims } = reader.object(value, where);
  return {
    name: reader.text(name, `${where}.name`),
    dtype: reader.dtype(dtype, `${where}.dtype`),
    dims: reader.dims(dims, `${where}.dims`),
  };
}

function readSlot(reader: Reader, value: unknown, where: string, sizes: readonly number[]): PlanSlot {
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

/** Number of elements. */
export function sizeOf(dims: readonly number[]): number {
  return dims.reduce((product, dim) => product * dim, 1);
}

function hex(word: number): string {
  return `0x${word.toString(16).padStart(8, "0")}`;
}

function wrong(where: string, wanted: string, value: unknown): ModelError {
  const text = JSON.stringify(value)?.slice(0, 80) ?? "missing";
  return malformed(`${where} must be ${wanted}, got ${text}`);
}

function malformed(what: string): ModelError {
  return new ModelError(`the bundle cannot be used: ${what}.`);
}
