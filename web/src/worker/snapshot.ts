/** The contents of a session as one file. `training/store.py` describes it. */

import { GRADIENTS, STATE, STATE_LAZY_RESET, STATE_LEARNING_RATE, STATE_SEED } from "../engine/layout.js";
import { FORMAT, LONGEST_NAME } from "../wire/constants.js";
import { raise, refuseIf, sessionError } from "../wire/messages.js";
import type { NamedTensor } from "../wire/values.js";
import type { Bundle } from "./bundle/bundle.js";
import * as fields from "./fields.js";
import type { StepHost } from "./host.js";
import { readSafetensors, type TensorFile } from "./safetensors.js";
import { checkState, readProperties, SEGMENTS, STATE_KEPT, type Property, type SessionContents } from "./session-contents.js";

/** The part of it that sessions on one checkpoint state share: rate, step and schedule. */
const STATE_SHARED: readonly [number, number] = [4 * STATE_LEARNING_RATE, 4 * STATE_SEED];

/** The parameters of a session, the optimizer that updates them, the scaling of adapters, and a digest of constants. */
type Owner = Pick<Bundle, "parameters" | "optimizer" | "scaling" | "constants">;
/** Texts of the metadata that must be the session's, and the errors if they are not. */
const SAME = [["optimizer", "OTHER_OPTIMIZER"], ["scaling", "OTHER_SCALING"], ["constants", "OTHER_CONSTANTS"]] as const;

/** Take a snapshot of a session. Gradients are kept unless the next train step overwrites them. */
export function takeSnapshot(host: StepHost, owner: Owner, properties: readonly Property[]): TensorFile {
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
    parameters: placesOf(owner),
    properties: JSON.stringify(properties),
    optimizer: owner.optimizer,
    scaling: owner.scaling,
    constants: owner.constants,
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

/** True for a safetensors file: eight bytes of length, then JSON. */
export function isSafetensors(file: Uint8Array): boolean {
  return file[7] === 0 && file[8] === 0x7b;
}

/** @throws CheckpointError for a file that is not a snapshot */
export function openSnapshot(file: Uint8Array): TensorFile {
  const snapshot = readSafetensors(file);
  const format = snapshot.metadata["format"] ?? "none";
  refuseIf(format !== FORMAT || snapshot.metadata["shared"] !== undefined, "NO_SNAPSHOT", { actual: format.slice(0, LONGEST_NAME), expected: FORMAT });
  return snapshot;
}

/**
 * Check all parts of a snapshot that a session takes. Parameters, gradients and moments may be NaN or infinity, as in
 * the session that was saved.
 *
 * @throws CheckpointError when it is of a session with other parameters, optimizer, scaling or constants, or was changed
 */
export function readSnapshot(host: StepHost, owner: Owner, { metadata, tensors }: TensorFile): SessionContents {
  checkPlaces(fields.parse(metadata, "parameters"), JSON.parse(placesOf(owner)));
  for (const [name, error] of SAME) {
    const [stored, own] = [metadata[name] ?? "", owner[name]];
    refuseIf(stored !== "" && own !== "" && stored !== own, error, { stored, own });
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
  checkState(state.data);
  return { segments, state: state.data, properties: readProperties(fields.parse(metadata, "properties")) };
}

/** Throw for the first parameter that only one of two lists of places has, or that differs. */
function checkPlaces(stored: unknown, own: unknown): void {
  if (isSame(stored, own)) {
    return;
  }
  const [theirs, mine] = [described(stored), described(own)];
  for (const name of [...mine.keys(), ...theirs.keys()]) {
    const [there, here] = [theirs.get(name) ?? "missing", mine.get(name) ?? "missing"];
    refuseIf(there !== here, "OTHER_PARAMETER", { name, stored: there, own: here });
  }
  raise("OTHER_SNAPSHOT", { what: "parameters" });
}

/** The parameters of `placesOf` by name; a file may hold anything in their place. */
function described(places: unknown): ReadonlyMap<string, string> {
  const rows: readonly unknown[] = Array.isArray(places) ? places : [];
  return new Map(rows.flatMap((row): [string, string][] => {
    const [name, dims, , trainableOffset] = Array.isArray(row) ? row : [];
    return typeof name === "string" && Array.isArray(dims) && dims.every(Number.isInteger)
      ? [[name, `${trainableOffset === -1 ? "frozen" : "trained"} [${dims.join(", ")}]`]]
      : [];
  }));
}

/** True if two values of JSON are equal, however deep. */
function isSame(a: unknown, b: unknown): boolean {
  return Array.isArray(a) && Array.isArray(b)
    ? a.length === b.length && b.every((value, k) => isSame(a[k], value))
    : a === b;
}

/** Read the shared state, as far as this session has its parts: a session without an optimizer has no moments. */
function readShared(host: StepHost, { metadata, tensors }: TensorFile): SessionContents {
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
  return { segments, state, properties: readProperties(fields.parse(metadata, "properties")) };
}

/** Names, shapes, places and types of the parameters: a session only takes back the same ones. */
function placesOf({ parameters }: Owner): string {
  return JSON.stringify(
    parameters.map(({ name, dims, offset, trainableOffset, dtype }) => [name, dims, offset, trainableOffset, dtype]),
  );
}
