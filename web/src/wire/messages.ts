/** Errors of a session, in the words that Python and the page share. */

import { fromWire, shortened } from "./errors.js";
import { log } from "./log.js";
import { MESSAGES } from "./message-texts.js";

/** Characters of a value that a message shows; as in trainweb/messages.py. */
const VALUE = { head: 500, tail: 0 };

type Texts = typeof MESSAGES;
type TextOf<Name> = { [Class in keyof Texts]: Name extends keyof Texts[Class] ? Texts[Class][Name] : never }[keyof Texts];

export type MessageName = { [Class in keyof Texts]: keyof Texts[Class] }[keyof Texts];

/** Names of the values in a template. */
type Fields<Text extends string> = Text extends `${string}{${infer Field}}${infer Rest}`
  ? (Field extends `${infer Name}!r` ? Name : Field) | Fields<Rest>
  : never;

export type MessageValues<Name extends MessageName> = Readonly<Record<Fields<TextOf<Name>>, unknown>>;

export function sessionError<Name extends MessageName>(name: Name, values: MessageValues<Name>): Error {
  const classes: [string, Readonly<Record<string, string>>][] = Object.entries(MESSAGES);
  const [error, texts] = classes.find(([, texts]) => name in texts) as (typeof classes)[0];
  const text = texts[name] as string;
  const fields: Readonly<Record<string, unknown>> = values;
  const message = text.replace(/\{(\w+)(!r)?\}/g, (_, field: string, isShown?: string) =>
    shortened(isShown === undefined ? String(fields[field]) : show(fields[field]), VALUE),
  );
  return fromWire({ name: error, message });
}

/** Values of a message; it may have none. */
type ValuesOf<Name extends MessageName> = [Fields<TextOf<Name>>] extends [never] ? [] : [MessageValues<Name>];

/** Throw an error of this name in the place of a value: `known ?? raise("UNKNOWN_PROPERTY", { name })`. */
export function raise<Name extends MessageName>(name: Name, ...[values]: ValuesOf<Name>): never {
  throw sessionError(name, values ?? ({} as MessageValues<Name>));
}

/** Throw an error of this name if something is wrong. */
export function refuseIf<Name extends MessageName>(isWrong: boolean, name: Name, ...values: ValuesOf<Name>): void {
  if (isWrong) {
    raise(name, ...values);
  }
}

/** Warn by the text of this name if something is so. */
export function warnIf<Name extends MessageName>(isSo: boolean, name: Name, values: MessageValues<Name>): void {
  if (isSo) {
    log("warning", sessionError(name, values).message);
  }
}

/** A value as Python shows it, but null and undefined; of an object, its kind. */
export function show(value: unknown): string {
  if (Array.isArray(value)) {
    return `[${value.map(show).join(", ")}]`;
  }
  if (value === null || value === undefined) {
    return String(value);
  }
  if (typeof value === "boolean") {
    return value ? "True" : "False";
  }
  if (typeof value === "number" && !Number.isFinite(value)) {
    return String(value).toLowerCase().replace("inity", "");
  }
  if (typeof value === "object") {
    return value.constructor?.name ?? "an object";
  }
  if (typeof value !== "string") {
    return String(value);
  }
  const escaped = value.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
  return escaped.includes("'") && !escaped.includes('"') ? `"${escaped}"` : `'${escaped.replaceAll("'", "\\'")}'`;
}
