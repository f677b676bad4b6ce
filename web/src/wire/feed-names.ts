/** Check that feeds have the names of the inputs; training/models.py checks the same in the same order. */

import { sessionError } from "./messages.js";

/** @throws FeedError for the first missing input, with the first unknown name; or for an unknown name */
export function checkFeedNames(inputNames: readonly string[], feedNames: readonly string[]): void {
  const name = inputNames.find((input) => !feedNames.includes(input));
  const other = feedNames.find((feed) => !inputNames.includes(feed));
  const names = inputNames.join(", ");
  if (name !== undefined) {
    throw other === undefined
      ? sessionError("MISSING_FEED", { name })
      : sessionError("MISNAMED_FEED", { name, other, names });
  }
  if (other !== undefined) {
    throw sessionError("UNKNOWN_FEED", { name: other, names });
  }
}
