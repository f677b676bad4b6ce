/** The kinds of plans that predict, or that make tokens; `trainweb/training/forward.py` names them in Python. */

import type { ForwardKind, PlanKind } from "./bundle/bundle.js";

/** Return the kind of a plan that predicts. */
export function forwardKind(outputs: readonly string[]): ForwardKind {
  return `predict ${JSON.stringify(outputs)}`;
}

/**
 * Return the kind of a plan that gives `output` of the last of `rows` new tokens.
 *
 * @param length - tokens that the cache has room for
 * @param adapter - false leaves out what adapters add
 */
export function tokensKind(output: string, length: number, rows: number, adapter: boolean): ForwardKind {
  return `generate ${JSON.stringify([output, length, rows, adapter])}`;
}

/** Tell whether a plan predicts or makes tokens. */
export function isForward(kind: PlanKind): kind is ForwardKind {
  return kind.startsWith("predict ") || kind.startsWith("generate ");
}

/** Return the outputs that a plan gives. */
export function outputsOf(kind: ForwardKind): readonly string[] {
  const request = JSON.parse(kind.slice(kind.indexOf(" ") + 1)) as string[];
  return kind.startsWith("predict ") ? request : request.slice(0, 1);
}
