/** The kinds of plans that predict. */

import type { ForwardKind, PlanKind } from "./bundle/bundle.js";

/** Return the kind of a plan that predicts, as `kind_of_outputs` does in Python. */
export function forwardKind(outputs: readonly string[]): ForwardKind {
  return `predict ${JSON.stringify(outputs)}`;
}

/** Tell whether a plan predicts. */
export function isForward(kind: PlanKind): kind is ForwardKind {
  return kind.startsWith("predict ");
}

/** Return the outputs that a plan gives. */
export function outputsOf(kind: ForwardKind): readonly string[] {
  return JSON.parse(kind.slice("predict ".length)) as string[];
}
