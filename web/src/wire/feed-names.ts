/** Check that feeds have the names of the inputs; training/models.py checks the same in the same order. */

import { LABELS } from "./constants.js";
import { refuseIf, sessionError } from "./messages.js";

/** The input that a feed or a column is meant for; trainweb/spelling.py is the same. */
export function inputName(name: string, inputNames: readonly string[]): string {
  if (inputNames.includes(name)) {
    return name;
  }
  if (inputNames.includes(`${name}_labels`)) {
    return `${name}_labels`;
  }
  const plain = inputNames.filter((one) => LABELS.includes(one));
  const [label, ...others] = plain.length > 0 ? plain : inputNames.filter((one) => one.endsWith("_labels"));
  return LABELS.includes(name) && label !== undefined && others.length === 0 ? label : name;
}

/** Feeds or columns by the names of inputs; two that are meant for one input keep their names. */
export function byInputs<T>(feeds: Readonly<Record<string, T>>, inputNames: readonly string[]): Readonly<Record<string, T>> {
  const names = Object.keys(feeds).map((name) => inputName(name, inputNames));
  const isOne = (name: string): boolean => names.indexOf(name) === names.lastIndexOf(name);
  return Object.fromEntries(Object.entries(feeds).map(([name, value], k) => {
    const meant = names[k] as string;
    return [isOne(meant) ? meant : name, value];
  }));
}

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
  refuseIf(other !== undefined, "UNKNOWN_FEED", { name: other, names });
}
