/** The contents of a session: their checks, and their way into its segments. In Python `training/contents.py`. */

import * as layout from "../engine/layout.js";
import * as fields from "./fields.js";

/** A property: its name, its type, and its value as text. */
export type Property = readonly [name: string, type: "int" | "float" | "str", text: string];

export const SEGMENTS = {
  parameters: layout.PARAMETERS,
  gradients: layout.GRADIENTS,
  momentum0: layout.MOMENTUM0,
  momentum1: layout.MOMENTUM1,
};
/** Bytes of the state that files keep. Counts of the session's memory follow them. */
export const STATE_KEPT = 4 * layout.STATE_LOADS;
/** Texts of properties by their type. */
const TYPES = {
  int: /^-?[0-9]{1,19}$/,
  float: /^(-?([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|Infinity)|NaN)$/,
  str: /^/,
};
/** Elements of a property. */
const PARTS = 3;

/** The checked contents of a session. */
export interface SessionContents {
  /** The whole of each segment that the session has. */
  readonly segments: ReadonlyMap<number, Uint8Array>;
  /** The words of the state that files keep. */
  readonly state: Uint8Array;
  readonly properties: readonly Property[];
}

/** Raise CheckpointError for words of the state that no session writes. Seed and offset may have any value. */
export function checkState(words: Uint8Array): void {
  const state = new DataView(words.buffer, words.byteOffset, words.byteLength);
  fields.rate(state.getFloat32(4 * layout.STATE_LEARNING_RATE, true), "state.learningRate");
  fields.rate(state.getFloat32(4 * layout.STATE_INITIAL_LR, true), "state.initialLr");
  fields.count(state.getUint32(4 * layout.STATE_LAZY_RESET, true), "state.lazyReset", 0, 1);
  fields.count(state.getUint32(4 * layout.STATE_SCHEDULER, true), "state.scheduler", 0, 1);
  const long = (at: number): number => Number(state.getBigInt64(4 * at, true));
  fields.count(long(layout.STATE_STEP), "state.step");
  const total = fields.count(long(layout.STATE_TOTAL), "state.totalStepCount");
  fields.count(long(layout.STATE_WARMUP), "state.warmupStepCount", 0, total);
}

/** Read properties of JSON: name, type and text of each. */
export function readProperties(values: unknown): Property[] {
  const names = new Set<unknown>();
  return fields.array(values, "properties").map((entry, k) => {
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
export function writeContents(host: { view(segment: number): Uint8Array }, { segments, state }: SessionContents): void {
  for (const [segment, data] of segments) {
    if (data.length > 0) {
      host.view(segment).set(data);
    }
  }
  host.view(layout.STATE).set(state);
}
