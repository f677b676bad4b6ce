import { EngineError } from "../wire/errors.js";

/** Run a call of a session by its name. */
export function performCall(core: object, name: string, args: readonly unknown[]): unknown {
  const call = (core as unknown as Readonly<Record<string, unknown>>)[name];
  if (typeof call !== "function") {
    throw new EngineError(`sessions have no call ${name}.`);
  }
  return call.apply(core, args) as unknown;
}
