/** All that a session goes on from, as one file, the same in Python (`training/snapshot.py`, which describes it). */

import {
  GRADIENTS,
  MOMENTUM0,
  MOMENTUM1,
  PARAMETERS,
  STATE,
  STATE_LAZY_RESET,
  STATE_LEARNING_RATE,
  STATE_LOADS,
  STATE_SEED,
} from "../engine/layout.js";
import { CheckpointError } from "../wire/errors.js";
import { sessionError } from "../wire/messages.js";
import type { NamedTensor } from "../wire/values.js";
import type { ParameterSlot, Property } from "./bundle.js";
import { readSafetensors, type TensorFile } from "./safetensors.js";

const FORMAT = "trainweb-session-1";
const SEGMENTS = { parameters: PARAMETERS, gradients: GRADIENTS, momentum0: MOMENTUM0, momentum1: MOMENTUM1 };
/** Bytes of the state that a session goes on from; behind them are counts of its own memory. */
const STATE_KEPT = 4 * STATE_LOADS;

/** The part of it that sessions on one checkpoint state share: rate, step and schedule. */
const STATE_SHARED: readonly [number, number] = [4 * STATE_LEARNING_RATE, 4 * STATE_SEED];

/** What of a session is kept. */
export interface SnapshotHost {
  readonly sizes: readonly number[];
  readonly parameters: readonly ParameterSlot[];
  /** What updates them. */
  readonly optimizer: string;
  /** The bytes of a segment. */
  view(segment: number): Uint8Array;
}

/** What a session is made of now. Gradients are kept unless the next train step overwrites them. */
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

/** What sessions on one checkpoint state share: all but gradients, the reset flag, and seed and place of random numbers. */
export function sharedPart({ metadata, tensors }: TensorFile): TensorFile {
  return { metadata: { ...metadata, shared: "true" }, tensors: new Map([...tensors].filter(([name]) => name !== "gradients")) };
}

/** @throws CheckpointError for a file that is none */
export function readSnapshot(file: Uint8Array): TensorFile {
  const found = readSafetensors(file);
  const given = found.metadata["format"] ?? "none";
  if (given !== FORMAT) {
    throw sessionError("NO_SNAPSHOT", { given, expected: FORMAT });
  }
  return found;
}

/**
 * Write a snapshot into the segments.
 *
 * @returns the properties
 * @throws CheckpointError when it is of a session with other parameters or another optimizer; nothing was changed
 */
export function restoreSnapshot(host: SnapshotHost, { metadata, tensors }: TensorFile): readonly Property[] {
  if (canonical(metadata["parameters"]) !== canonical(placesOf(host))) {
    throw sessionError("OTHER_SNAPSHOT", { what: "parameters" });
  }
  const stored = metadata["optimizer"] ?? "";
  if (stored !== "" && host.optimizer !== "" && stored !== host.optimizer) {
    throw sessionError("OTHER_OPTIMIZER", { stored, own: host.optimizer });
  }
  if (metadata["shared"] !== undefined) {
    return restoreShared(host, { metadata, tensors });
  }
  for (const [name, segment] of Object.entries(SEGMENTS)) {
    const tensor = tensors.get(name);
    const nbytes = host.sizes[segment] as number;
    if (tensor === undefined ? name !== "gradients" && nbytes > 0 : tensor.data.length !== nbytes) {
      throw sessionError("OTHER_SNAPSHOT", { what: name === "parameters" ? "parameters" : "optimizer state" });
    }
  }
  const state = tensors.get("state");
  if (state?.data.length !== STATE_KEPT || metadata["properties"] === undefined) {
    throw new CheckpointError("The checkpoint lacks the state of its session.");
  }
  for (const [name, segment] of Object.entries(SEGMENTS)) {
    const tensor = tensors.get(name);
    if (host.sizes[segment] !== 0) {
      host.view(segment).set(tensor?.data ?? new Uint8Array(host.sizes[segment] as number));
    }
  }
  host.view(STATE).set(state.data);
  return JSON.parse(metadata["properties"]) as readonly Property[];
}

/** Write what is shared, as far as this session has it: one without an optimizer has no moments to give or to take. */
function restoreShared(host: SnapshotHost, { metadata, tensors }: TensorFile): readonly Property[] {
  for (const [name, segment] of Object.entries(SEGMENTS)) {
    const tensor = tensors.get(name);
    if (tensor !== undefined && host.sizes[segment] === tensor.data.length) {
      host.view(segment).set(tensor.data);
    }
  }
  const state = tensors.get("state");
  if (state !== undefined && metadata["optimizer"] !== "") {
    host.view(STATE).set(state.data.subarray(...STATE_SHARED), STATE_SHARED[0]);
  }
  return JSON.parse(metadata["properties"] ?? "[]") as readonly Property[];
}

/** Names, shapes and places of the parameters: a session takes back what has the same. */
function placesOf({ parameters }: SnapshotHost): string {
  return JSON.stringify(parameters.map(({ name, dims, offset, trainableOffset }) => [name, dims, offset, trainableOffset]));
}

function canonical(text: string | undefined): string {
  return JSON.stringify(JSON.parse(text ?? "null"));
}
