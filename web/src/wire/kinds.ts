/** Kinds of values from outside. */

export function isObject(value: unknown): value is object {
  return typeof value === "object" && value !== null;
}

/** True for an object by names. */
export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return isObject(value) && !Array.isArray(value);
}

export function areTexts(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((one) => typeof one === "string");
}
