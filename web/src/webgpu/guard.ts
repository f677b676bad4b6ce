/**
 * The guard: a dispatch behind each train step of a fit. It notes loss and divisor on a page behind the arena. A loss that is
 * not finite sets the status, and all dispatches from then on do nothing.
 */

import type { TensorPlace } from "../worker/bundle/bundle.js";
import { MOST_BATCHES } from "../worker/constants.js";

/** Words of a page before the losses: the status and the number of losses. */
const HEAD_WORDS = 4;
export const PAGE_BYTES = 4 * (HEAD_WORDS + 2 * MOST_BATCHES);

export const GUARD = `struct Numbers { loss: u32, count: u32, page: u32, stops: u32 }
@group(0) @binding(16) var<uniform> u: Numbers;
@group(0) @binding(17) var<uniform> status: vec4u;
@group(0) @binding(0) var<storage, read_write> arena: array<u32>;
@compute @workgroup_size(1)
fn main() {
  if (status.x != 0u) { return; }
  let loss = arena[u.loss];
  let n = arena[u.page + 1u];
  arena[u.page + ${HEAD_WORDS}u + 2u * n] = loss;
  arena[u.page + ${HEAD_WORDS}u + 2u * n + 1u] = arena[u.count];
  arena[u.page + 1u] = n + 1u;
  if (u.stops != 0u && (loss & 0x7fffffffu) >= 0x7f800000u) { arena[u.page] = 1u; }
}
`;

/** The numbers of the guard. Losses and counts lie in the arena. */
export function guardBlock(loss: TensorPlace, count: TensorPlace | null, page: number, stops: boolean): Uint8Array {
  const words = [loss.offset / 4, (count ?? loss).offset / 4, page / 4, Number(stops)];
  return new Uint8Array(Uint32Array.from(words).buffer);
}

/** The record of the guard. */
export interface Page {
  /** True if the last loss is not finite, and nothing ran behind it. */
  readonly isStopped: boolean;
  readonly losses: Float32Array;
  readonly counts: Float32Array;
}

export function readPage(bytes: Uint8Array): Page {
  const [status = 0, n = 0] = new Uint32Array(bytes.buffer, bytes.byteOffset, HEAD_WORDS);
  const pairs = new Float32Array(bytes.buffer, bytes.byteOffset + 4 * HEAD_WORDS, 2 * n);
  const every = (first: number): Float32Array => Float32Array.from({ length: n }, (_, k) => pairs[2 * k + first] as number);
  return { isStopped: status !== 0, losses: every(0), counts: every(1) };
}
