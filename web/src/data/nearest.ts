/** Suggest the known name that an unknown name may stand for. */

import { isObject } from "../wire/kinds.js";
import { shortened } from "../wire/errors.js";
import { ALIASES, FAR, OF_CALLS } from "../wire/message-texts.js";
import { isTensor } from "./checks.js";

/** Characters shown of an unknown name; known names have fewer. */
const SHOWN = { head: 80, tail: 0 };

/** A wrong value, as an error shows it. */
export function brief(value: unknown): string {
  return shortened(String(value), SHOWN);
}

/** The share of characters that must change, come or go to turn one text into the other. */
function difference(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, k) => k);
  for (const [i, letter] of [...a].entries()) {
    const next = [i + 1];
    for (let k = 1; k <= b.length; k++) {
      const replaced = (row[k - 1] as number) + (letter === b[k - 1] ? 0 : 1);
      next.push(Math.min(replaced, (row[k] as number) + 1, (next[k - 1] as number) + 1));
    }
    row = next;
  }
  return (row[b.length] as number) / Math.max(a.length, b.length, 1);
}

/** An alias among `known`, or the name that the least changes turn `name` into, in any case; `arguments.py` has the same. */
export function nearest(name: string, known: readonly string[]): string {
  const far = (one: string): number => (aliased(name).split(" ").includes(one) ? -1 : difference(brief(name).toLowerCase(), one.toLowerCase()));
  return known.reduce((a, b) => (far(b) < far(a) ? b : a));
}

const aliased = (name: string): string => ALIASES[name.toLowerCase().replaceAll("_", "")] ?? name;

/** The name to give in the place of an unknown one, or all names that are known; `arguments.py` has the same. */
export function suggestion(name: string, known: readonly string[]): string {
  const [near, meant] = [nearest(name, known), aliased(name)];
  const isOfCall = Object.hasOwn(OF_CALLS, meant);
  if (near === meant || near.startsWith(name) || difference(brief(name), near) <= (isOfCall ? FAR / 2 : FAR)) {
    return `did you mean '${near}'?`;
  }
  return isOfCall ? `did you mean '${meant}' of ${OF_CALLS[meant]}?` : `there are ${known.join(", ")}.`;
}

/**
 * Refuse unknown names.
 *
 * @param what - kind of the names, for the error
 * @throws TypeError with the nearest known name
 */
export function checkKnown(what: string, options: object, known: readonly string[]): void {
  for (const name of Object.keys(options)) {
    if (!known.includes(name)) {
      throw new TypeError(`${what} '${brief(name)}' is not known; ${suggestion(name, known)}`);
    }
  }
}

/** @throws TypeError when the options of a call are not an object, for example labels beside the data */
export function checkIsObject(call: string, options: unknown): asserts options is object {
  if (!isObject(options)) {
    throw new TypeError(`'options' of ${call} must be an object.`);
  }
  if (Array.isArray(options) || ArrayBuffer.isView(options) || isTensor(options)) {
    throw new TypeError(`'options' of ${call} must be an object, not an array. Give several arrays as one: [x, y].`);
  }
}

/**
 * Check the names of a call's options: every call that takes options has this check.
 *
 * @param call - name of the call, for the error
 * @param known - an object with all names that the call takes
 * @throws TypeError when they are not an object, or have an unknown name. It suggests the nearest
 */
export function checkOptions<T extends object>(
  call: string,
  options: T,
  known: Readonly<Record<keyof NoInfer<T>, unknown>>,
): T {
  checkIsObject(call, options);
  checkKnown(`The option of ${call}`, options, Object.keys(known));
  return options;
}
