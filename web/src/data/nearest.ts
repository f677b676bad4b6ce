/** What a name that does not exist may have been meant as. */

import { shortened } from "../wire/errors.js";

/** Characters of a name that is not known: those that are known have fewer. */
const SHOWN = { head: 80, tail: 0 };

/** A value that is not what it must be, as an error shows it. */
export function brief(value: unknown): string {
  return shortened(String(value), SHOWN);
}

/** How many characters must change, come or go to make one text of the other. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, k) => k);
  for (const [i, letter] of [...a].entries()) {
    const next = [i + 1];
    for (let k = 1; k <= b.length; k++) {
      const replaced = (row[k - 1] as number) + (letter === b[k - 1] ? 0 : 1);
      next.push(Math.min(replaced, (row[k] as number) + 1, (next[k - 1] as number) + 1));
    }
    row = next;
  }
  return row[b.length] as number;
}

/**
 * Refuse names that are not known.
 *
 * @param what - what a name is called in the error
 * @throws TypeError that names the nearest of those that are known
 */
export function checkKnown(what: string, given: object, known: readonly string[]): void {
  for (const name of Object.keys(given)) {
    if (!known.includes(name)) {
      const shown = brief(name);
      const [nearest] = [...known].sort((a, b) => distance(shown, a) - distance(shown, b));
      throw new TypeError(`${what} '${shown}' is not known; did you mean '${nearest}'?`);
    }
  }
}

/**
 * The options of a call, none of which is misspelt: every call that takes some has this check.
 *
 * @param call - what the call is in the error
 * @param known - all names that there are
 * @throws TypeError when they are no object, or have a name that is not known: it names the nearest
 */
export function checkOptions<T extends object>(
  call: string,
  options: T,
  known: Readonly<Record<keyof NoInfer<T>, true>>,
): T {
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`'options' of ${call} must be an object.`);
  }
  checkKnown(`The option of ${call}`, options, Object.keys(known));
  return options;
}
