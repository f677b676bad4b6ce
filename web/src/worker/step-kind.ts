/** The kind of a step: its name, and the results that are asked of it. `trainweb/training/step_kind.py` is the same in Python. */

const BASES = ["train", "eval", "optimizer", "scheduler", "clip", "inference", "predict", "generate"] as const;
export type BaseKind = (typeof BASES)[number];

export interface StepKind {
  readonly base: BaseKind;
  /**
   * JSON: of "eval" the metrics to sum up (`request_of` of trainweb/metrics.py), of "predict" the names of the outputs,
   * of "generate" the arguments of `tokensKind`. null asks for what the model gives.
   */
  readonly request: unknown;
  /** The text by which bundles and caches name the kind. */
  readonly key: string;
}

export function stepKind(base: BaseKind, request: unknown = null): StepKind {
  return { base, request, key: request === null ? base : `${base} ${JSON.stringify(request)}` };
}

/** Return the kind that has a key; null if there is none. */
export function readKind(key: string): StepKind | null {
  const [name, ...rest] = key.split(" ");
  const base = BASES.find((known) => known === name);
  try {
    return base === undefined ? null : stepKind(base, rest.length === 0 ? null : JSON.parse(rest.join(" ")));
  } catch {
    return null;
  }
}

export const TRAIN = stepKind("train");
export const EVAL = stepKind("eval");
export const OPTIMIZER = stepKind("optimizer");
export const CLIP = stepKind("clip");
export const INFERENCE = stepKind("inference");

/**
 * Return the kind of a step that gives `output` of the last of `rows` new tokens.
 *
 * @param length - tokens that the cache has room for
 * @param adapter - false leaves out what adapters add
 */
export function tokensKind(output: string, length: number, rows: number, adapter: boolean): StepKind {
  return stepKind("generate", [output, length, rows, adapter]);
}

/** Tell whether a step predicts or makes tokens. */
export function isForward({ base }: StepKind): boolean {
  return base === "predict" || base === "generate";
}

/** Return the outputs of a step that predicts or makes tokens. */
export function outputsOf({ base, request }: StepKind): readonly string[] {
  const names = request as readonly string[];
  return base === "predict" ? names : names.slice(0, 1);
}
