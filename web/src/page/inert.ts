/** Options of onnxruntime-web that change no number here: accepted with one warning, or refused where they promise more. */

import { brief } from "../data/nearest.js";
import { isObject } from "../wire/kinds.js";
import { throwIf, UnsupportedError } from "../wire/errors.js";
import { log } from "../wire/log.js";
import { sessionError } from "../wire/messages.js";
import { DEVICE_CHOOSES, ENTRIES_AS_IS, ENTRIES_REFUSED, INERT, MODEL_FORMAT, MODEL_FORMATS, OTHER_BACKENDS } from "./settings/inert.js";

/** Texts of runs that were warned of: a run may be one of thousands. */
const warned = new Set<string>();

/**
 * Warn of the options of a session that change nothing, in one line.
 *
 * @param providers - names of execution providers
 * @param entries - the result of `entriesOf` for the option `extra`
 * @throws UnsupportedError for an entry that would change numbers, or promises something that is not done; RangeError
 *   for an unknown format
 */
export function warnWithoutEffect(options: object, providers: readonly string[], entries: ReadonlyMap<string, string>): void {
  const elsewhere = providers.find((name) => name !== "wasm" && name !== "cpu");
  const texts = elsewhere === undefined ? [] : [shown("executionProviders", elsewhere, DEVICE_CHOOSES)];
  for (const [name, { asIs, why }] of Object.entries(INERT)) {
    const value = (options as Readonly<Record<string, unknown>>)[name];
    if (value !== undefined && !(asIs as readonly unknown[]).includes(value)) {
      texts.push(shown(name, value, why));
    }
  }
  for (const [key, value] of entries) {
    checkEntry(key, value);
    if (!ENTRIES_AS_IS.some(([name, asIs]) => name === key && asIs === value)) {
      texts.push(shown(key, value, OTHER_BACKENDS));
    }
  }
  if (texts.length > 0) {
    log("warning", textOf(texts));
  }
}

/** Warn of the option `extra` of a run, once for all runs with the same. */
export function warnOfRunEntries(entries: ReadonlyMap<string, string>): void {
  const text = textOf([...entries].map(([key, value]) => shown(key, value, OTHER_BACKENDS)));
  if (entries.size > 0 && !warned.has(text)) {
    warned.add(text);
    log("warning", text);
  }
}

/**
 * The entries in the option `extra`, by their names with dots between.
 *
 * @throws Error as onnxruntime-web does: an object that contains itself, or a value that cannot be an entry
 */
export function entriesOf(extra: unknown, prefix = "", seen = new Set<object>()): Map<string, string> {
  const entries = new Map<string, string>();
  if (!isObject(extra)) {
    return entries;
  }
  throwIf(seen.has(extra), Error, "Circular reference in options");
  seen.add(extra);
  for (const [name, value] of Object.entries(extra) as [string, unknown][]) {
    if (isObject(value)) {
      entriesOf(value, `${prefix}${name}.`, seen).forEach((text, key) => entries.set(key, text));
    } else if (value === null || typeof value === "string" || typeof value === "number" || typeof value === "boolean") {
      entries.set(prefix + name, typeof value === "boolean" ? String(Number(value)) : String(value));
    } else {
      throw new Error(`Can't handle extra config type: ${typeof value}`);
    }
  }
  seen.delete(extra);
  return entries;
}

function checkEntry(key: string, value: string): void {
  throwIf(key === MODEL_FORMAT && !MODEL_FORMATS.includes(value), RangeError, `'${key}' must be ${MODEL_FORMATS.join(" or ")}, got '${brief(value)}'.`);
  const refused = ENTRIES_REFUSED[key];
  if (refused?.value === value) {
    throw new UnsupportedError(`The entry '${key}' with the value '${value}' is not supported: ${refused.why}`);
  }
}

function shown(name: string, value: unknown, why: string): string {
  return `${brief(name)}=${typeof value === "string" ? `'${brief(value)}'` : String(value)} (${why})`;
}

function textOf(options: readonly string[]): string {
  return sessionError("NO_EFFECT", { options: options.join(", ") }).message;
}
