/** Arguments of several classes: the kind of a property, and the form of a returned file. */

import type { FileForm, PropertyKind, PropertyValue } from "../wire/protocol.js";
import { throwIf } from "../wire/errors.js";
import { sessionError } from "../wire/messages.js";
import { describe, mustBe } from "../data/checks.js";
import { brief } from "../data/nearest.js";

/**
 * The form of a returned file. "bytes" is a Uint8Array in the page's memory (the default). "blob" is a Blob, which the
 * browser keeps elsewhere. It can be stored, sent, downloaded or given to `create` again without being in memory.
 */
export interface FileOptions<Form extends FileForm = FileForm> {
  /** "bytes" by default. */
  readonly as?: Form;
}

/** @throws TypeError for another form than there are */
export function checkForm(as: unknown = "bytes"): FileForm {
  mustBe(as === "bytes" || as === "blob", "as", '"bytes" or "blob"', as);
  return as;
}

/** @throws TypeError when a value is not a property, or cannot be stored as this kind */
export function checkKind(value: PropertyValue, kind: PropertyKind | null): void {
  mustBe(["number", "bigint", "string"].includes(typeof value), "value", "a number, bigint or string", value);
  if (typeof value === "bigint" && kind !== "float" && BigInt.asIntN(64, value) !== value) {
    throw sessionError("PROPERTY_RANGE", { bits: bitsOf(value) });
  }
  if (kind === null) {
    return;
  }
  throwIf(!["int", "float", "string"].includes(kind), TypeError, `'kind' must be "int", "float" or "string", got ${brief(kind)}.`);
  throwIf((kind === "string") !== (typeof value === "string"), TypeError, `'value' is ${describe(value)}, which is not kept as "${kind}".`);
  if (kind === "int" && typeof value === "number" && !Number.isSafeInteger(value)) {
    throw new TypeError(`'value' is ${value}; "int" keeps integers, those beyond 2^53 as bigint.`);
  }
}

/** Count the bits of an integer, its sign among them. */
function bitsOf(value: bigint): number {
  const hex = (value < 0n ? ~value : value).toString(16);
  return 4 * (hex.length - 1) + parseInt(hex[0] ?? "0", 16).toString(2).length + 1;
}
