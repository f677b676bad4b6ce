/** The sizes that the segments of a session must have. */

import { GRADIENTS, MOMENTUM1, SEGMENT_NAMES, STATE_WORDS } from "../../engine/layout.js";

/** In one segment, averages among them; some are smaller than the parameters. */
const MOST_MOMENTS = 4;

/** True if segments of these sizes fit a session with so many words of parameters. */
export function segmentsFit(
  sizes: readonly number[],
  session: { readonly words: number; readonly trainableSize: number; readonly hasAverages: boolean },
): boolean {
  const { words, trainableSize, hasAverages } = session;
  const moments = sizes.slice(GRADIENTS + 1, MOMENTUM1 + 1);
  // The segment of the second moment has the others, too.
  const isMoment = (bytes: number): boolean => bytes % 4 === 0 && bytes <= MOST_MOMENTS * 4 * trainableSize;
  const expected = [0, 0, 4 * words, 4 * trainableSize, ...moments, 4 * STATE_WORDS, 0, 0];
  const hasRoom = !hasAverages || (moments.at(-1) ?? 0) >= 4 * trainableSize;
  return String(sizes) === String(expected) && sizes.length === SEGMENT_NAMES.length && moments.every(isMoment) && hasRoom;
}
