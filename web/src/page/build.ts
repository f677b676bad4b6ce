/** Files that are built in the page without a session: training artifacts, and models with gradients. */

import { raise } from "../wire/messages.js";
import type { FileForm, FileOf } from "../wire/protocol.js";
import { checkForm, type FileOptions } from "./call-arguments.js";
import { checkFlag } from "./call-values.js";
import { resolveOptions, type SessionOptions } from "./options.js";
import { askOfModel } from "./load-model.js";
import type { Artifacts } from "./session-types.js";
import { checkSource, type Source } from "./sources.js";
import { describe } from "../data/checks.js";
import { brief } from "../data/nearest.js";
import { ModelError, throwIf } from "../wire/errors.js";
import { requireLoss, resolveConfig, type TrainingConfig } from "./training-config.js";
import { Opaque } from "../wire/opaque.js";

/** The result of `buildArtifacts`: files as `TrainingSession.create` and onnxruntime-training take them. */
export interface ArtifactSet<File extends Uint8Array | Blob = Uint8Array> extends Artifacts<File> {
  /** The checkpoint without weights: only names and shapes. */
  readonly nominalCheckpoint: File;
  /** The model of eval steps: the loss and the requested outputs (ONNX). */
  readonly evalModel: File;
}

/**
 * Build training artifacts from a forward model: `trainweb.artifacts.build_artifacts` of Python.
 *
 * @param config - as for `TrainingSession.createFromModel`
 * @param options - options of a session that matter here (limits, integrity, externalData), and `as`
 * @throws ModelError, UnsupportedError or GradientError as `TrainingSession.createFromModel`
 */
export async function buildArtifacts<Form extends FileForm = "bytes">(
  model: Source,
  config: TrainingConfig,
  options: SessionOptions & FileOptions<Form> = {},
): Promise<ArtifactSet<FileOf<Form>>> {
  checkSource("model", model);
  const configJson = resolveConfig(config);
  requireLoss(config);
  const resolved = resolveOptions(options, ["as"]);
  const { value } = await askOfModel(model, resolved, "build_files", [configJson, resolved.json], checkForm(options.as));
  return value as ArtifactSet<FileOf<Form>>;
}

/** Options of `quantize`. */
export interface QuantizeOptions {
  /**
   * Keep the last product in float32 unless it is tied to a table, because you may train it whole.
   *
   * @defaultValue `true`
   */
  readonly onlyFrozen?: boolean;
}

/**
 * Quantize the weights of a float32 model to 4 or 8 bits. `trainweb.quantize` in Python writes the same bytes.
 *
 * @param model - a forward model: a URL, bytes or a Blob
 * @param bits - bits of each number: 4 or 8
 * @param options - `onlyFrozen`, options of a session that matter here (limits, integrity, externalData, weights), and `as`
 * @throws ModelError if `bits` is neither 4 nor 8, or no weight in float32 is large enough
 */
export async function quantize<Form extends FileForm = "bytes">(
  model: Source,
  bits: 4 | 8 = 4,
  options: QuantizeOptions & SessionOptions & FileOptions<Form> = {},
): Promise<FileOf<Form>> {
  checkSource("model", model);
  throwIf(![4, 8].includes(bits), ModelError, `bits is ${brief(bits)}; it must be 4 or 8.`);
  const resolved = resolveOptions(options, ["as", "onlyFrozen"]);
  const { onlyFrozen = true } = options;
  checkFlag("onlyFrozen", onlyFrozen);
  const args = [String(bits), JSON.stringify(onlyFrozen), resolved.json];
  return (await askOfModel(model, resolved, "quantize", args, checkForm(options.as))).data as FileOf<Form>;
}

/** Adds gradients to a model, as onnxruntime-training's class of that name. */
export class GradientGraphBuilder extends Opaque {
  readonly #model: Source;
  readonly #y: readonly string[];
  readonly #x: readonly string[];
  readonly #loss: string;
  #built: Uint8Array | null = null;

  /**
   * @param model - a forward model: a URL, bytes or a Blob
   * @param yNodeArgNames - tensors to differentiate
   * @param xNodeArgNames - inputs or initializers to differentiate for; `<x>_grad` becomes an output for each
   * @param lossNodeArgName - the one of `yNodeArgNames` whose gradient is 1; the gradients of the others are new inputs
   *   `<y>_grad`
   */
  constructor(model: Source, yNodeArgNames: Iterable<string>, xNodeArgNames: Iterable<string>, lossNodeArgName = "") {
    super();
    checkSource("model", model);
    this.#model = model;
    this.#y = ordered("yNodeArgNames", yNodeArgNames);
    this.#x = ordered("xNodeArgNames", xNodeArgNames);
    this.#loss = lossNodeArgName;
  }

  /**
   * Build the gradient graph.
   *
   * @param sessionOptions - options of a session that matter here (limits, integrity, externalData)
   * @throws ModelError for a name that the model does not have; GradientError where an operator on the way has no
   *   gradient, or an x is unreachable
   */
  async build(sessionOptions?: SessionOptions): Promise<void> {
    const options = resolveOptions(sessionOptions);
    const args = [JSON.stringify(this.#y), JSON.stringify(this.#x), this.#loss, options.json];
    this.#built = (await askOfModel(this.#model, options, "gradient_graph", args)).data as Uint8Array;
  }

  /**
   * The model with gradients: the outputs of the forward model, then the gradients.
   *
   * @throws SessionError before `build`
   */
  getModel(): Uint8Array {
    return this.#built ?? raise("NOT_BUILT");
  }
}

/** Names without repetition. A set's names are sorted, as in Python, so that results are reproducible. */
function ordered(what: string, names: Iterable<string>): readonly string[] {
  const list = typeof names === "string" ? [names] : [...names];
  const wrong = list.find((name) => typeof name !== "string");
  throwIf(wrong !== undefined, TypeError, `'${what}' must hold strings, got ${describe(wrong)}.`);
  return names instanceof Set ? list.sort() : [...new Set(list)];
}
