/** The configuration of `createFromModel`, checked by what Python declares (settings.ts), as Python takes it. */

import { sessionError } from "../wire/messages.js";
import {
  CONFIG,
  GROUP,
  type Kind,
  LOSSES,
  type LossSettings,
  type LossType,
  OPTIMIZERS,
  type OptimizerSettings,
  type OptimizerType,
  type Setting,
  type Settings,
} from "./settings.js";
import { isTensor } from "./tensors.js";

/** How to make training artifacts of a forward model. */
export interface TrainingConfig {
  /** A loss, by name or with its settings. Null: the first output of the model is the loss already. */
  readonly loss: LossType | LossSettings | null;
  /** An optimizer, by name or with its settings. Without one the session cannot update parameters. */
  readonly optimizer?: OptimizerType | OptimizerSettings | null;
  /** Joint L2 norm that the gradients have at most in an optimizer step. */
  readonly clipGradNorm?: number | null;
  /** Magnitude that each element of the gradients has at most in an optimizer step; before `clipGradNorm`. */
  readonly clipGradValue?: number | null;
  /** Names or regular expressions of the parameters to train; default: all but `frozenParams`. */
  readonly requiresGrad?: readonly string[] | null;
  readonly frozenParams?: readonly string[] | null;
  readonly additionalOutputNames?: readonly string[] | null;
  /** The outputs of the model that the loss takes. */
  readonly lossInputNames?: readonly string[] | null;
  /** Whether batch normalization learns its statistics. */
  readonly batchNorm?: "train" | "as_exported" | null;
  /** Start without weights, which `loadParametersBuffer` brings. Default false. */
  readonly nominalCheckpoint?: boolean | null;
}

type Fields = Readonly<Record<string, unknown>>;

/**
 * The configuration as JSON, by Python's names.
 *
 * @throws TypeError when it is no object; ModelError when a name is unknown or a value is none that it may have
 */
export function resolveConfig(config: unknown): string {
  if (typeof config !== "object" || config === null || Array.isArray(config)) {
    throw new TypeError("'config' must be an object that names at least a 'loss'.");
  }
  const { loss, optimizer, ...others } = config as Fields;
  const resolved = checkFields("config", "", others, CONFIG, ["loss", "optimizer"]);
  if (loss !== undefined && loss !== null) {
    resolved["loss"] = resolveKind("loss", loss, LOSSES);
  }
  if (optimizer !== undefined && optimizer !== null) {
    resolved["optimizer"] = resolveOptimizer(optimizer);
  } else if (others["clipGradNorm"] || others["clipGradValue"]) {
    throw sessionError("CLIP_WITHOUT_OPTIMIZER", {});
  }
  return JSON.stringify(resolved);
}

/** A loss or an optimizer, given by its name or as an object with a `type`. */
function resolveKind(what: string, given: unknown, kinds: Readonly<Record<string, Settings>>): Record<string, unknown> {
  const { type, ...settings } = asFields(what, given);
  if (typeof type !== "string" || !Object.hasOwn(kinds, type)) {
    throw sessionError("UNKNOWN_TYPE", { what, name: type, names: Object.keys(kinds).join(", ") });
  }
  return { type, ...checkFields(type, `${what}.`, settings, kinds[type] as Settings) };
}

function resolveOptimizer(given: unknown): Record<string, unknown> {
  const { groups, decayBiasesAndNorms, ...settings } = asFields("optimizer", given);
  const resolved = resolveKind("optimizer", settings, OPTIMIZERS);
  const name = resolved["type"] as OptimizerType;
  if (decayBiasesAndNorms !== undefined) {
    if (typeof decayBiasesAndNorms !== "boolean") {
      throw badSetting("optimizer.decayBiasesAndNorms", decayBiasesAndNorms, "true or false");
    }
    resolved["decay_biases_and_norms"] = decayBiasesAndNorms;
  }
  if (groups !== undefined) {
    if (!Array.isArray(groups)) {
      throw badSetting("optimizer.groups", groups, "a list of objects");
    }
    resolved["groups"] = groups.map((group: unknown, k) => {
      const path = `optimizer.groups[${k}]`;
      if (typeof group !== "object" || group === null) {
        throw badSetting(path, group, "an object with 'parameters'");
      }
      const fields = checkFields(name, `${path}.`, group as Fields, { ...GROUP, ...OPTIMIZERS[name] });
      if (fields["parameters"] === undefined) {
        throw badSetting(`${path}.parameters`, undefined, kindOf(GROUP, "parameters").expected);
      }
      return fields;
    });
  }
  return resolved;
}

function kindOf(settings: Settings, name: string): Kind {
  return (settings[name] as Setting).kind;
}

function asFields(what: string, given: unknown): Fields {
  if (typeof given === "string") {
    return { type: given };
  }
  if (typeof given !== "object" || given === null) {
    throw badSetting(what, given, `the name of one, or an object with a 'type'`);
  }
  return given as Fields;
}

/** The values by Python's names; `undefined` is left out. `others` are settings that were taken before. */
function checkFields(
  what: string,
  path: string,
  given: Fields,
  settings: Settings,
  others: readonly string[] = [],
): Record<string, unknown> {
  const resolved: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(given)) {
    const setting = Object.hasOwn(settings, name) ? settings[name] : undefined;
    if (setting === undefined) {
      throw sessionError("UNKNOWN_SETTING", { what, name, names: [...others, ...Object.keys(settings)].join(", ") });
    }
    if (value !== undefined) {
      const isNull = value === null && setting.isOptional;
      resolved[setting.python] = isNull ? null : checkValue(`${path}${name}`, value, setting.kind);
    }
  }
  return resolved;
}

function badSetting(name: string, value: unknown, expected: string): Error {
  return sessionError("BAD_SETTING", { name, value, expected });
}

/** The value as JSON can have it. */
function checkValue(name: string, value: unknown, kind: Kind): unknown {
  if (kind.kind === "pair") {
    if (!Array.isArray(value) || value.length !== 2) {
      throw badSetting(name, value, kind.expected);
    }
    return value.map((x: unknown, k) => checkValue(`${name}[${k}]`, x, kind.of));
  }
  if (kind.kind === "array") {
    const numbers = nestedNumbers(value);
    if (numbers === null) {
      throw badSetting(name, value, kind.expected);
    }
    return numbers;
  }
  if (!accepts(value, kind)) {
    throw badSetting(name, value, kind.expected);
  }
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
    case "choice":
      return kind.options.some((option) => option === value);
    case "names":
      return (
        Array.isArray(value) &&
        (kind.mayBeEmpty || value.length > 0) &&
        value.every((name: unknown) => typeof name === "string")
      );
    default:
      return false;
  }
}

interface Bounds {
  readonly least?: number;
  readonly above?: number;
  readonly most?: number;
  readonly below?: number;
}

function isWithin(value: number, { least, above, most, below }: Bounds): boolean {
  return (
    (least === undefined || value >= least) &&
    (above === undefined || value > above) &&
    (most === undefined || value <= most) &&
    (below === undefined || value < below)
  );
}

/** Numbers in nested arrays: of an array, a Float32Array or a float32 tensor; null where it is none of these. */
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
