/** The values that a checkpoint keeps besides its parameters. */

import { sessionError } from "../wire/messages.js";
import type { PropertyKind, PropertyValue } from "../wire/protocol.js";
import type { Property } from "./session-record.js";

const INT64 = { least: -(2n ** 63n), most: 2n ** 63n - 1n };

export class PropertyTable {
  readonly #properties: Map<string, Property>;

  constructor(properties: readonly Property[]) {
    this.#properties = new Map();
    this.replace(properties);
  }

  /** Have these and no others. */
  replace(properties: readonly Property[]): void {
    this.#properties.clear();
    properties.forEach((property) => this.#properties.set(property[0], property));
  }

  get all(): readonly Property[] {
    return [...this.#properties.values()];
  }

  get names(): readonly string[] {
    return [...this.#properties.keys()];
  }

  add(name: string, value: PropertyValue, kind: PropertyKind | null): void {
    this.#properties.set(name, propertyOf(name, value, kind));
  }

  /** @throws CheckpointError for a name that is not there */
  delete(name: string): void {
    if (!this.#properties.delete(name)) {
      throw sessionError("UNKNOWN_PROPERTY", { name });
    }
  }

  /** @throws CheckpointError for a name that is not there */
  kind(name: string): PropertyKind {
    const [, type] = this.#find(name);
    return type === "str" ? "string" : type;
  }

  /** @throws CheckpointError for a name that is not there */
  get(name: string): PropertyValue {
    const [, type, text] = this.#find(name);
    if (type === "str") {
      return text;
    }
    // A number holds no more than 53 bits of an integer.
    const number = Number(text);
    return type === "int" && !Number.isSafeInteger(number) ? BigInt(text) : number;
  }

  #find(name: string): Property {
    const property = this.#properties.get(name);
    if (property === undefined) {
      throw sessionError("UNKNOWN_PROPERTY", { name });
    }
    return property;
  }
}

/** Convert a value as a checkpoint stores it: to `kind` if given, else an integer of 64 bits, a float32, or a text. */
function propertyOf(name: string, value: PropertyValue, kind: PropertyKind | null): Property {
  if (typeof value === "string") {
    return [name, "str", value];
  }
  const text = String(value);
  if (kind === "float") {
    return [name, "float", String(Math.fround(Number(text)))];
  }
  const isInteger = /^-?\d+$/.test(text) && BigInt(text) >= INT64.least && BigInt(text) <= INT64.most;
  return isInteger ? [name, "int", text] : [name, "float", String(Math.fround(Number(text)))];
}
