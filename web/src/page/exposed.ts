/** Objects that sessions hand to a page as they are: nobody may change them. */

/** Freeze an object with all its contents: a change throws in modules and does nothing elsewhere. */
export function frozen<T>(value: T): T {
  if (typeof value === "object" && value !== null && !Object.isFrozen(value) && !ArrayBuffer.isView(value)) {
    Object.freeze(value);
    Object.values(value).forEach(frozen);
  }
  return value;
}
