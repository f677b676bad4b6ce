/** What sessions hand to a page as it is: nobody may change it. */

/** The object, with all that is in it, made so that a change throws in modules and does nothing elsewhere. */
export function frozen<T>(value: T): T {
  if (typeof value === "object" && value !== null && !Object.isFrozen(value) && !ArrayBuffer.isView(value)) {
    Object.freeze(value);
    Object.values(value).forEach(frozen);
  }
  return value;
}
