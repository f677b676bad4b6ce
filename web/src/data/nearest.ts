/** What a name that does not exist may have been meant as. */

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
      const [nearest] = [...known].sort((a, b) => distance(name, a) - distance(name, b));
      throw new TypeError(`${what} '${name}' is not known; did you mean '${nearest}'?`);
    }
  }
}
