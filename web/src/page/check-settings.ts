/** Checks of settings by Python's declarations (settings/). */

import { badSetting, isTensor, refuseSettingIf } from "../data/checks.js";
import { nearest, suggestion } from "../data/nearest.js";
import { areTexts, isObject, isRecord } from "../wire/kinds.js";
import { refuseIf, sessionError } from "../wire/messages.js";
import type { Kind, Setting, Settings } from "./setting-kinds.js";

export type Fields = Readonly<Record<string, unknown>>;

/**
 * A loss or an optimizer, given by its name or as an object with a `type`. `others` are settings that were taken before.
 *
 * @throws TypeError with the nearest name for one that is not known; ModelError for a value that is not allowed
 */
export function resolveKind(
  what: string,
  choice: unknown,
  kinds: Readonly<Record<string, Settings>>,
  others: readonly string[] = [],
): Record<string, unknown> {
  const { type, ...settings } = asFields(what, choice);
  const known = Object.keys(kinds);
  const names = known.join(", ");
  if (typeof type !== "string") {
    throw sessionError("MISSING_SETTING", { what, name: "type", expected: `one of ${names}` });
  }
  refuseIf(!Object.hasOwn(kinds, type), "UNKNOWN_TYPE", { what, name: type, nearest: nearest(type, known), names });
  return { type, ...checkFields(type, `${what}.`, settings, kinds[type] as Settings, others) };
}

export function asFields(what: string, choice: unknown): Fields {
  if (typeof choice === "string") {
    return { type: choice };
  }
  const ofYours = what.startsWith("loss") ? "; the gradient of a loss that you compute goes to 'OutputGradient'" : typeof choice === "function" ? "; a function needs a name: { name: function }" : "";
  refuseSettingIf(!isObject(choice), what, choice, `the name of one, or an object with a 'type'${ofYours}`);
  return choice as Fields;
}

/** A name in the spelling of Python. */
export function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

export function pythonName(name: string, { python }: Setting): string {
  return python ?? snakeCase(name);
}

/** The values by Python's names; `undefined` is left out. `others` are settings that were taken before. */
export function checkFields(
  what: string,
  path: string,
  fields: Fields,
  settings: Settings,
  others: readonly string[] = [],
): Record<string, unknown> {
  const resolved: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(fields)) {
    const documented = Object.keys(settings).find((one) => one === name || settings[one]?.otherName === name);
    const setting = documented === undefined ? undefined : settings[documented];
    if (setting === undefined) {
      const known = [...others, ...Object.keys(settings)];
      throw sessionError("UNKNOWN_SETTING", { what, name, suggestion: suggestion(name, known) });
    }
    const python = pythonName(documented as string, setting);
    refuseIf(value !== undefined && python in resolved, "SETTING_TWICE", { what, name: documented, other: setting.otherName });
    if (value !== undefined) {
      const isNull = value === null && setting.isOptional === true;
      resolved[python] = isNull ? null : checkValue(`${path}${name}`, value, setting.kind);
    }
  }
  for (const [name, setting] of Object.entries(settings)) {
    const isMissing = !("default" in setting) && !(pythonName(name, setting) in resolved);
    refuseIf(isMissing, "MISSING_SETTING", { what, name: `${path}${name}`, expected: setting.kind.expected });
  }
  return resolved;
}

/** Checked values by the page's names, with the defaults of the others. */
export function withDefaults(checked: Fields, settings: Settings): Fields {
  return Object.fromEntries(
    Object.entries(settings).map(([name, setting]) => [name, checked[pythonName(name, setting)] ?? setting.default]),
  );
}

/** Checked settings with their defaults, by the page's names. */
export function settingsOf<T>(what: string, fields: object, settings: Settings, others: readonly string[] = []): T {
  return withDefaults(checkFields(what, "", fields as Fields, settings, others), settings) as T;
}

/** The learning rate, which may also be given somewhere else. */
export function oneRate(first: number | null, where: string, second: unknown): unknown {
  refuseIf(first !== null && second !== null && second !== first, "TWO_RATES", { first, where, second });
  return second ?? first;
}

/** The value as JSON can have it. */
function checkValue(name: string, value: unknown, kind: Kind): unknown {
  if (kind.kind === "several") {
    if (!Array.isArray(value) || value.length !== kind.count) {
      throw badSetting(name, value, kind.expected);
    }
    return value.map((x: unknown, k) => checkValue(`${name}[${k}]`, x, kind.of));
  }
  if (kind.kind === "array") {
    const numbers = nestedNumbers(value);
    refuseSettingIf(numbers === null, name, value, kind.expected);
    return numbers;
  }
  refuseSettingIf(!accepts(value, kind), name, value, kind.expected);
  return value;
}

function accepts(value: unknown, kind: Kind): boolean {
  switch (kind.kind) {
    case "number":
      return typeof value === "number" && Number.isFinite(value) && isWithin(value, kind);
    case "integer":
      return typeof value === "number" && Number.isSafeInteger(value) && isWithin(value, kind);
    case "flag":
      return typeof value === "boolean";
    case "flag or name":
      return ["boolean", "string"].includes(typeof value);
    case "text":
      return typeof value === "string";
    case "choice":
      return kind.options.some((option) => option === value);
    case "names":
      return (kind.mayBeText === true && typeof value === "string") || (areTexts(value) && (kind.mayBeEmpty || value.length > 0));
    case "sizes":
      return isRecord(value) && Object.values(value).every((size) => Number.isSafeInteger(size) && (size as number) >= 1);
    default:
      return false;
  }
}

function isWithin(value: number, bounds: Extract<Kind, { readonly kind: "number" | "integer" }>): boolean {
  const { least = -Infinity, above = -Infinity, most = Infinity, below = Infinity } = bounds;
  return value >= least && value > above && value <= most && value < below;
}

/** Convert an array, a Float32Array or a float32 tensor to nested arrays of numbers; null for other values. */
function nestedNumbers(value: unknown): unknown {
  if (value instanceof Float32Array) {
    return nestedNumbers([...value]);
  }
  if (isTensor(value)) {
    if (value.type !== "float32" || value.location !== "cpu") {
      return null;
    }
    return nestedNumbers(nest([...(value.data as Float32Array)], value.dims));
  }
  if (!Array.isArray(value) || value.length === 0) {
    return typeof value === "number" && Number.isFinite(value) ? value : null;
  }
  const items = value.map(nestedNumbers);
  return items.includes(null) ? null : items;
}

function nest(flat: readonly number[], dims: readonly number[]): unknown {
  const [first, ...rest] = dims;
  if (first === undefined) {
    return flat[0];
  }
  const size = rest.reduce((a, b) => a * b, 1);
  return Array.from({ length: first }, (_, k) => nest(flat.slice(k * size, (k + 1) * size), rest));
}
