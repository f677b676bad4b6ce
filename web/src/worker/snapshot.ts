/** All that a session goes on from, as one file, the same in Python (`training/snapshot.py`, which describes it). */

import {
  GRADIENTS,
  MOMENTUM0,
  MOMENTUM1,
  PARAMETERS,
  STATE,
  STATE_INITIAL_LR,
  STATE_LAZY_RESET,
  STATE_LEARNING_RATE,
  STATE_LOADS,
  STATE_SCHEDULER,
  STATE_SEED,
  STATE_STEP,
  STATE_TOTAL,
  STATE_WARMUP,
} from "../engine/layout.js";
import { sessionError } from "../wire/messages.js";
import type { NamedTensor } from "../wire/values.js";
import type { ParameterSlot, Property } from "./bundle.js";
import * as fields from "./fields.js";
import { readSafetensors, type Metadata, type TensorFile } from "./safetensors.js";

const FORMAT = "trainweb-session-1";
const SEGMENTS = { parameters: PARAMETERS, gradients: GRADIENTS, momentum0: MOMENTUM0, momentum1: MOMENTUM1 };
/** Bytes of the state that a session goes on from; behind them are counts of the session's memory. */
const STATE_KEPT = 4 * STATE_LOADS;
/** Texts of properties by their type. */
const TYPES = {
  int: /^-?[0-9]{1,19}$/,
  float: /^(-?([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|Infinity)|NaN)$/,
  str: /^/,
};
/** Of a property: name, type and text. */
const PARTS = 3;
/** Letters of an optimizer's name that a message shows. */
export const LONGEST_NAME = 40;

/** The part of it that sessions on one checkpoint state share: rate, step and schedule. */
const STATE_SHARED: readonly [number, number] = [4 * STATE_LEARNING_RATE, 4 * STATE_SEED];

/** Parts of a session that a snapshot keeps. */
export interface SnapshotHost {
  readonly sizes: readonly number[];
  readonly parameters: readonly ParameterSlot[];
  /** What updates them. */
  readonly optimizer: string;
  /** The bytes of a segment. */
  view(segment: number): Uint8Array;
}

/** Return the host of a session's bundle and memory. */
export function snapshotHost(
  { parameters, optimizer }: Pick<SnapshotHost, "parameters" | "optimizer">,
  memory: Pick<SnapshotHost, "sizes" | "view">,
): SnapshotHost {
  return { sizes: memory.sizes, parameters, optimizer, view: (segment) => memory.view(segment) };
}

/** Take a snapshot of a session. Gradients are kept unless the next train step overwrites them. */
export function takeSnapshot(host: SnapshotHost, properties: readonly Property[]): TensorFile {
  const state = host.view(STATE).slice(0, STATE_KEPT);
  const resets = new DataView(state.buffer).getUint32(4 * STATE_LAZY_RESET, true) !== 0;
  const tensors: NamedTensor[] = [{ name: "state", dtype: "uint8", dims: [state.length], data: state }];
  for (const [name, segment] of Object.entries(SEGMENTS)) {
    if (host.sizes[segment] !== 0 && (segment !== GRADIENTS || !resets)) {
      const data = host.view(segment).slice();
      tensors.push({ name, dtype: "float32", dims: [data.length / 4], data });
    }
  }
  const metadata = {
    format: FORMAT,
    parameters: placesOf(host),
    properties: JSON.stringify(properties),
    optimizer: host.optimizer,
  };
  return { metadata, tensors: new Map(tensors.map((tensor) => [tensor.name, tensor])) };
}

/**
 * The part of a snapshot that sessions on one checkpoint state share: all but gradients, the reset flag, and seed and
 * place of random numbers.
 */
export function sharedPart({ metadata, tensors }: TensorFile): TensorFile {
  return { metadata: { ...metadata, shared: "true" }, tensors: new Map([...tensors].filter(([name]) => name !== "gradients")) };
}

/** @throws CheckpointError for a file that is not a snapshot */
export function readSnapshot(file: Uint8Array): TensorFile {
  const found = readSafetensors(file);
  const given = found.metadata["format"] ?? "none";
  if (given !== FORMAT || found.metadata["shared"] !== undefined) {
    throw sessionError("NO_SNAPSHOT", { given: given.slice(0, LONGEST_NAME), expected: FORMAT });
  }
  return found;
}

/** The contents of a snapshot after all checks. */
export interface SessionRecord {
  /** The whole of each segment that the session has. */
  readonly segments: ReadonlyMap<number, Uint8Array>;
  /** The words of the state that a session goes on from. */
  readonly state: Uint8Array;
  readonly properties: readonly Property[];
}

/**
 * Check all parts of a snapshot that a session takes. Parameters, gradients and moments may be NaN or infinity, as in
 * the session that was saved.
 *
 * @throws CheckpointError when it is of a session with other parameters or another optimizer, or was changed
 */
export function readSession(host: SnapshotHost, { metadata, tensors }: TensorFile): SessionRecord {
  if (!isSame(fields.parse(metadata, "parameters"), JSON.parse(placesOf(host)))) {
    throw sessionError("OTHER_SNAPSHOT", { what: "parameters" });
  }
  const stored = metadata["optimizer"] ?? "";
  if (stored !== "" && host.optimizer !== "" && stored !== host.optimizer) {
    throw sessionError("OTHER_OPTIMIZER", { stored: stored.slice(0, LONGEST_NAME), own: host.optimizer });
  }
  if (metadata["shared"] !== undefined) {
    return readShared(host, { metadata, tensors });
  }
  const segments = new Map<number, Uint8Array>();
  for (const [name, segment] of Object.entries(SEGMENTS)) {
    const tensor = tensors.get(name);
    const nbytes = host.sizes[segment] as number;
    if (tensor === undefined && (name === "gradients" || nbytes === 0)) {
      segments.set(segment, new Uint8Array(nbytes));
    } else if (tensor?.dtype !== "float32" || tensor.data.length !== nbytes) {
      throw sessionError("OTHER_SNAPSHOT", { what: name === "parameters" ? "parameters" : "optimizer state" });
    } else {
      segments.set(segment, tensor.data);
    }
  }
  const state = tensors.get("state");
  if (state?.dtype !== "uint8" || state.data.length !== STATE_KEPT) {
    return fields.refuse(state && "", "state", `${STATE_KEPT} bytes`);
  }
  checkState(new DataView(state.data.buffer, state.data.byteOffset, state.data.byteLength));
  return { segments, state: state.data, properties: readProperties(metadata) };
}

/** Raise CheckpointError for words of the state that no session has; any seed and offset will do. */
function checkState(state: DataView): void {
  fields.rate(state.getFloat32(4 * STATE_LEARNING_RATE, true), "state.learningRate");
  fields.rate(state.getFloat32(4 * STATE_INITIAL_LR, true), "state.initialLr");
  fields.count(state.getUint32(4 * STATE_LAZY_RESET, true), "state.lazyReset", 0, 1);
  fields.count(state.getUint32(4 * STATE_SCHEDULER, true), "state.scheduler", 0, 1);
  const long = (at: number): number => Number(state.getBigInt64(4 * at, true));
  fields.count(long(STATE_STEP), "state.step");
  const total = fields.count(long(STATE_TOTAL), "state.totalStepCount");
  fields.count(long(STATE_WARMUP), "state.warmupStepCount", 0, total);
}

/** Check the properties of a snapshot: name, type and text of each. */
function readProperties(metadata: Metadata): Property[] {
  const names = new Set<unknown>();
  return fields.array(fields.parse(metadata, "properties"), "properties").map((entry, k) => {
    const field = `properties[${k}]`;
    const [name, kind, text] = Array.isArray(entry) && entry.length === PARTS && entry.every(isText) ? (entry as string[]) : [];
    if (name === undefined || text === undefined || !(kind === "int" || kind === "float" || kind === "str") || names.has(name)) {
      return fields.refuse(entry, field, "a new name, a type and a value, as texts");
    }
    if (!TYPES[kind].test(text) || (kind === "int" && BigInt.asIntN(64, BigInt(text)) !== BigInt(text))) {
      return fields.refuse(text, field, `the digits of ${kind}`);
    }
    names.add(name);
    return [name, kind, text];
  });
}

/** True if UTF-8 has the text: half of a surrogate pair cannot be written again. */
function isText(value: unknown): boolean {
  return typeof value === "string" && !/\p{Surrogate}/u.test(value);
}

/** Write the checked values into the segments; the session takes the properties itself. */
export function writeSession(host: SnapshotHost, { segments, state }: SessionRecord): void {
  for (const [segment, data] of segments) {
    if (data.length > 0) {
      host.view(segment).set(data);
    }
  }
  host.view(STATE).set(state);
}

/** True if two values of JSON are equal, however deep. */
function isSame(a: unknown, b: unknown): boolean {
  return Array.isArray(a) && Array.isArray(b)
    ? a.length === b.length && b.every((value, k) => isSame(a[k], value))
    : a === b;
}

/** Read the shared state, as far as this session has its parts: a session without an optimizer has no moments. */
function readShared(host: SnapshotHost, { metadata, tensors }: TensorFile): SessionRecord {
  const segments = new Map<number, Uint8Array>();
  for (const [name, segment] of Object.entries(SEGMENTS)) {
    const data = tensors.get(name)?.data;
    if (data !== undefined && host.sizes[segment] === data.length) {
      segments.set(segment, data);
    }
  }
  const state = host.view(STATE).slice(0, STATE_KEPT);
  const shared = tensors.get("state");
  if (shared !== undefined && metadata["optimizer"] !== "") {
    state.set(shared.data.subarray(...STATE_SHARED), STATE_SHARED[0]);
  }
  return { segments, state, properties: readProperties(metadata) };
}

/** Names, shapes and places of the parameters: a session only takes back the same ones. */
function placesOf({ parameters }: SnapshotHost): string {
  return JSON.stringify(parameters.map(({ name, dims, offset, trainableOffset }) => [name, dims, offset, trainableOffset]));
}
