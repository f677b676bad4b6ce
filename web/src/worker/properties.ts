/** Calls of sessions and checkpoint states on the values that a checkpoint keeps besides its parameters. */

import { EngineError } from "../wire/errors.js";
import { raise } from "../wire/messages.js";
import type { PropertyKind, PropertyValue } from "../wire/protocol.js";
import type { Property } from "./session-contents.js";

export class PropertyCalls {
  #properties = new Map<string, Property>();

  /** Call a method by its name. */
  call(name: string, args: readonly unknown[]): unknown {
    const method = (this as unknown as Readonly<Record<string, unknown>>)[name];
    if (typeof method !== "function") {
      throw new EngineError(`sessions have no call ${name}.`);
    }
    return method.apply(this, args) as unknown;
  }

  protected get properties(): readonly Property[] {
    return [...this.#properties.values()];
  }

  protected set properties(properties: readonly Property[]) {
    this.#properties = new Map(properties.map((property) => [property[0], property]));
  }

  addProperty(name: string, value: PropertyValue, kind: PropertyKind | null): null {
    this.#properties.set(name, propertyOf(name, value, kind));
    return null;
  }

  propertyNames(): readonly string[] {
    return [...this.#properties.keys()];
  }

  /** @throws CheckpointError for a name that is not there */
  deleteProperty(name: string): null {
    this.#find(name);
    this.#properties.delete(name);
    return null;
  }

  /** @throws CheckpointError for a name that is not there */
  getPropertyKind(name: string): PropertyKind {
    const [, type] = this.#find(name);
    return type === "str" ? "string" : type;
  }

  /** @throws CheckpointError for a name that is not there */
  getProperty(name: string): PropertyValue {
    const [, type, text] = this.#find(name);
    if (type === "str") {
      return text;
    }
    // A number holds no more than 53 bits of an integer.
    const number = Number(text);
    return type === "int" && !Number.isSafeInteger(number) ? BigInt(text) : number;
  }

  #find(name: string): Property {
    return this.#properties.get(name) ?? raise("UNKNOWN_PROPERTY", { name });
  }
}

/** Convert a value as a checkpoint stores it: to `kind` if given, else an integer of 64 bits, a float32, or a text. */
function propertyOf(name: string, value: PropertyValue, kind: PropertyKind | null): Property {
  if (typeof value === "string") {
    return [name, "str", value];
  }
  const text = String(value);
  const isInteger = kind !== "float" && /^-?\d+$/.test(text) && BigInt.asIntN(64, BigInt(text)) === BigInt(text);
  return isInteger ? [name, "int", text] : [name, "float", String(Math.fround(Number(text)))];
}
