/** Large constants of plans, which lie in files of the session or in a bundle. */

import { copyInto } from "../../python/python-files.js";
import { sameBytes } from "../../wire/pieces.js";
import type { ReadFile } from "../host.js";
import type { LargeConstant } from "./bundle.js";

/** Fill a target with a constant. */
export function fillLarge(target: Uint8Array, { file, start, data }: LargeConstant, read: ReadFile): void {
  if (data === null) {
    read(file, start, target);
  } else {
    copyInto(target, data);
  }
}

/** Size of a segment of these constants. */
export function largeBytesOf(large: readonly LargeConstant[]): number {
  return Math.max(0, ...large.map(({ offset, nbytes }) => offset + nbytes));
}

/** True if two plans have the same large constants. */
export function sameLarge(a: readonly LargeConstant[], b: readonly LargeConstant[]): boolean {
  const places = (large: readonly LargeConstant[]): string =>
    String(large.flatMap(({ offset, nbytes, file, start, data }) => [offset, nbytes, ...(data === null ? [file, start] : [])]));
  return (
    places(a) === places(b) &&
    a.every(({ data }, k) => {
      const other = b[k]?.data ?? null;
      return data === other || (data instanceof Uint8Array && other instanceof Uint8Array && sameBytes(data, other));
    })
  );
}

