/** The configuration of `createFromModel`, checked against Python's declarations (settings/) and written for Python. */

import { ALL_BUT_HEAD } from "../wire/constants.js";
import { throwIf } from "../wire/errors.js";
import { isObject, isRecord } from "../wire/kinds.js";
import { refuseIf } from "../wire/messages.js";
import { badSetting, refuseSettingIf } from "../data/checks.js";
import { asFields, checkFields, type Fields, oneRate, resolveKind } from "./check-settings.js";
import type { Settings } from "./setting-kinds.js";
import {
  CONFIG,
  EMA,
  HEAD,
  LORA,
  SAMPLE_WEIGHT,
  type ConfigFields,
  type EmaFields,
  type HeadFields,
  type LoraFields,
  type SampleWeightFields,
} from "./settings/config.js";
import { LOSSES, type LossSettings, type LossType } from "./settings/losses.js";
import { GROUP, OPTIMIZERS, type OptimizerSettings, type OptimizerType } from "./settings/optimizers.js";

/** Settings of adapters in PEFT's format. */
export interface PeftAdapterConfig {
  /** The contents of `adapter_config.json`. */
  readonly adapterConfig: string;
}

/** A loss by its name. */
export interface LossName<Type> {
  /** The loss. */
  readonly name: Type;
}

/** A loss by its type, which is the same. */
export interface LossKind<Type> {
  /** The loss. */
  readonly type: Type;
}

/** Settings whose `type` may be given as `name`. */
export type Named<Settings> = Settings extends LossKind<infer Type>
  ? Settings | (Omit<Settings, "type"> & LossName<Type>)
  : never;

/** The weight of a term. */
export interface TermWeight {
  /** The factor of the term in the sum. */
  readonly weight?: number;
}

/** Settings of a loss whose `weight` is the term's. */
export type Weighted<Settings> = Settings extends unknown ? Omit<Settings, "weight"> & TermWeight : never;

/** A loss of one output, and its weight in the sum of all, 1 by default. Weights of classes are `weights` here. */
export type LossTerm = LossType | Weighted<Named<LossSettings>>;

/** Losses by outputs. The labels of the output `age` are the input `age_labels`. */
export type LossByOutput = Readonly<Record<string, LossTerm | readonly LossTerm[]>>;

/** Settings for building training artifacts from a forward model. */
export interface TrainingConfig extends Omit<ConfigFields, "frozenParams"> {
  /**
   * A loss, by name or with its settings, or losses of several outputs, whose weighted sum is trained. A list is
   * of the only output. Null: the first output of the model already is the loss.
   */
  readonly loss: LossType | Named<LossSettings> | LossByOutput | readonly LossTerm[] | null;
  /**
   * A new input with the weight of each row. The loss, its validation and metrics weight rows as Keras does. Labels of
   * weight 0 may be NaN. `{ name: "present", of: "labels" }` takes weights in the shape of the labels, such as the mask of
   * missing labels. With losses by outputs, an object of outputs may have weights for each.
   */
  readonly sampleWeight?: string | SampleWeightFields | Readonly<Record<string, string | SampleWeightFields>> | null;
  /**
   * An optimizer, by name or with its settings. Default "AdamW" for a session, none for artifacts. Without one a session
   * cannot update parameters.
   */
  readonly optimizer?: OptimizerType | (OptimizerSettings & { readonly learningRate?: number }) | null;
  /** The rate of a new session; default 0.001. It may also be a setting of `optimizer`. */
  readonly learningRate?: number | null;
  /** Also keep an average of the trainable parameters, for evaluation and export. */
  readonly ema?: EmaFields | null;
  /**
   * Names or regular expressions of the parameters to freeze; by default no parameter. A batch normalization whose running
   * mean or variance is among them stays in inference mode. With `head`, "all but head" freezes all other parameters.
   */
  readonly frozenParams?: readonly string[] | "all but head" | null;
  /**
   * Replace the last layer by one for so many classes, whose weights are random. A notice names the layer. The rest of the
   * model keeps its weights.
   */
  readonly head?: HeadFields | null;
  /**
   * Freeze the model and train low-rank adapters beside its weights. Give settings, or the contents of PEFT's
   * `adapter_config.json` as `adapterConfig`. `requiresGrad` and `frozenParams` are then not allowed.
   */
  readonly lora?: LoraFields | PeftAdapterConfig | null;
}

/**
 * The configuration as JSON, by Python's names.
 *
 * @param more - further options of the call in the same object, which are left out
 * @throws TypeError when it is not an object; ModelError when a name is unknown or a value is not allowed
 */
export function resolveConfig(config: unknown, more: readonly string[] = []): string {
  const [settings, rate] = takeRate(config);
  const entries = Object.entries(settings).filter(([name]) => !more.includes(name));
  const { loss, optimizer, lora, ema, head, frozenParams, sampleWeight, ...rest } = Object.fromEntries(entries) as Fields;
  const isHeadLeft = frozenParams === ALL_BUT_HEAD && head !== undefined && head !== null;
  refuseSettingIf(frozenParams === ALL_BUT_HEAD && !isHeadLeft, "frozenParams", frozenParams, "used with 'head'");
  refuseSettingIf(typeof frozenParams === "string" && !isHeadLeft, "frozenParams", frozenParams, 'an array of names, or "all but head"');
  const others: Fields = frozenParams === undefined || isHeadLeft ? rest : { ...rest, frozenParams };
  const besides = ["loss", "optimizer", "learningRate", "lora", "ema", "head", "sampleWeight", ...more];
  const resolved = checkFields("config", "", others, CONFIG, besides);
  const resolve = <T>(value: T, how: (setting: NonNullable<T>) => unknown): unknown => (value ?? null) === null ? undefined : how(value as NonNullable<T>);
  const parts = {
    head: resolve(head, (setting) => resolveObject("head", setting, "an object with 'classes'", HEAD)),
    lora: resolve(lora, (setting) => resolveLora(setting, others)),
    loss: resolve(loss, resolveLoss),
    sample_weight: resolve(sampleWeight, (setting) => resolveWeights(setting, isByOutput(loss) || Array.isArray(loss))),
    ema: resolve(ema, (setting) => resolveObject("ema", setting, "an object of its settings, such as 'decay'", EMA)),
    optimizer: resolve(optimizer, resolveOptimizer),
  };
  const idle = ["ema", "clipGradNorm", "clipGradValue"].find((name) => ({ ...others, ema }[name] ?? null) !== null);
  refuseIf(parts.optimizer === undefined && idle !== undefined, "NEEDS_OPTIMIZER", { name: idle });
  const frozen = isHeadLeft ? { frozen_params: ALL_BUT_HEAD } : {};
  return JSON.stringify({ ...resolved, ...frozen, ...parts, learning_rate: rate ?? undefined });
}

/** @throws ModelError for a configuration without a loss */
export function requireLoss(config: unknown): void {
  const expected = "a loss, or null for a model whose first output is one";
  refuseIf(isRecord(config) && config["loss"] === undefined, "MISSING_SETTING", { what: "config", name: "loss", expected });
}

function resolveLoss(loss: unknown): unknown {
  if (Array.isArray(loss) || !isByOutput(loss)) {
    return Array.isArray(loss) ? loss.map((term) => resolveTerm("loss", term)) : resolveKind("loss", withType(loss), LOSSES);
  }
  const terms = Object.entries(loss).map(([output, term]): [string, unknown] => {
    const resolve = (one: unknown): unknown => resolveTerm(`loss.${output}`, one);
    refuseSettingIf(Array.isArray(term) && term.length === 0, `loss.${output}`, term, "a loss, or a list of losses");
    return [output, Array.isArray(term) ? term.map(resolve) : resolve(term)];
  });
  return Object.fromEntries(terms);
}

function resolveTerm(path: string, term: unknown): unknown {
  const { weight = 1, ...settings } = withType(asFields(path, term)) as Fields;
  const isWeight = typeof weight === "number" && Number.isFinite(weight) && weight >= 0;
  refuseSettingIf(!isWeight, `${path}.weight`, weight, "a number at least 0; weights of classes are 'weights'");
  const { weight: weights, ...resolved } = resolveKind(path, settings, LOSSES);
  return { ...resolved, ...(weights !== undefined && { weights }), weight };
}

/** A loss whose `type` is given as `name`. */
function withType(loss: unknown): unknown {
  if (typeof loss !== "object" || loss === null || !("name" in loss) || "type" in loss) {
    return loss;
  }
  const { name, ...settings } = loss;
  return { type: name, ...settings };
}

/** True for an object of outputs, and not of a name and settings. */
function isByOutput(loss: unknown): loss is Fields {
  if (typeof loss !== "object" || loss === null || Array.isArray(loss)) {
    return false;
  }
  const { type, name, reduction } = loss as Fields;
  const terms = Object.values(loss).flat() as unknown[];
  const hasTerms = terms.some((term) => ["string", "function"].includes(typeof term) || isRecord(term));
  return hasTerms && [type, name, reduction].every((setting) => typeof setting !== "string");
}

function resolveWeights(weights: unknown, hasTerms: boolean, path = "sampleWeight"): unknown {
  if (hasTerms && isRecord(weights) && typeof weights["name"] !== "string") {
    return Object.fromEntries(Object.entries(weights).map(([output, one]) => [output, resolveWeights(one, false, `${path}.${output}`)]));
  }
  return checkFields(path, `${path}.`, isRecord(weights) ? weights : { name: weights }, SAMPLE_WEIGHT);
}

function resolveObject(name: string, value: unknown, expected: string, settings: Settings): Fields {
  refuseSettingIf(!isRecord(value), name, value, expected);
  return checkFields(name, `${name}.`, value as Fields, settings);
}

function resolveLora(lora: unknown, others: Fields): Fields {
  refuseSettingIf(!isRecord(lora), "lora", lora, "an object");
  for (const name of ["requiresGrad", "frozenParams"]) {
    refuseSettingIf((others[name] ?? null) !== null, name, others[name], `left out with 'lora': the adapters are trained, and the model is frozen`);
  }
  const { adapterConfig, ...settings } = lora as Fields;
  if (adapterConfig === undefined) {
    return checkFields("lora", "lora.", settings, LORA, ["adapterConfig"]);
  }
  const [more] = Object.keys(settings);
  if (typeof adapterConfig !== "string" || more !== undefined) {
    const [name, value] = more === undefined ? ["adapterConfig", adapterConfig] : [more, settings[more]];
    throw badSetting(`lora.${name}`, value, "the text of an adapter_config.json, alone");
  }
  return { adapter_config: adapterConfig };
}

function resolveOptimizer(value: unknown): Record<string, unknown> {
  const { groups, decayBiasesAndNorms, ...settings } = asFields("optimizer", value);
  const resolved = resolveKind("optimizer", settings, OPTIMIZERS, ["learningRate", "groups", "decayBiasesAndNorms"]);
  const name = resolved["type"] as OptimizerType;
  if (decayBiasesAndNorms !== undefined) {
    refuseSettingIf(typeof decayBiasesAndNorms !== "boolean", "optimizer.decayBiasesAndNorms", decayBiasesAndNorms, "true or false");
    resolved["decay_biases_and_norms"] = decayBiasesAndNorms;
  }
  if (groups !== undefined) {
    if (!Array.isArray(groups)) {
      throw badSetting("optimizer.groups", groups, "a list of objects");
    }
    resolved["groups"] = groups.map((group: unknown, k) => {
      const path = `optimizer.groups[${k}]`;
      refuseSettingIf(!isObject(group), path, group, "an object with 'parameters'");
      return checkFields(name, `${path}.`, group as Fields, { ...GROUP, ...OPTIMIZERS[name] });
    });
  }
  return resolved;
}

/**
 * The configuration without its learning rate, and that; null: the default.
 *
 * @throws TypeError when it is not an object; ModelError when there are two different rates, an invalid one, or one without
 *   an optimizer
 */
export function takeRate(config: unknown): readonly [config: TrainingConfig, rate: number | null] {
  throwIf(!isRecord(config), TypeError, "'config' must be an object that names at least a 'loss'.");
  const { learningRate = null, ...rest } = config as TrainingConfig;
  const others: { -readonly [Name in keyof TrainingConfig]: TrainingConfig[Name] } = rest;
  const { optimizer } = others;
  let rate = learningRate;
  if (isObject(optimizer) && "learningRate" in optimizer) {
    const { learningRate: optimizerRate, ...settings } = optimizer;
    checkRate("optimizer.learningRate", optimizerRate);
    rate = oneRate(rate, "optimizer", optimizerRate) as number;
    others.optimizer = settings as OptimizerSettings;
  }
  if (rate === null) {
    return [others, null];
  }
  checkRate("learningRate", rate);
  refuseIf(optimizer === undefined || optimizer === null, "NEEDS_OPTIMIZER", { name: "learningRate" });
  return [others, rate];
}

/** The configuration of a session, whose optimizer is AdamW by default. */
export function withOptimizer(config: TrainingConfig): TrainingConfig {
  return isRecord(config) && config["optimizer"] === undefined ? { ...config, optimizer: "AdamW" } : config;
}

function checkRate(name: string, rate: unknown): void {
  refuseSettingIf(typeof rate !== "number" || !Number.isFinite(Math.fround(rate)) || rate < 0, name, rate, "a number at least 0 and at most 3.40282e+38");
}
