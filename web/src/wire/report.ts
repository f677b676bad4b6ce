/** The report of `inspectModel` on a model; session/check.py makes it. */

import type { ModelMetadata, WireModelMetadata } from "./values.js";

/** A tensor of the model, the decision to train it or not, and the reason. */
export interface ParameterDecision {
  /** Its name in the model. */
  readonly name: string;
  /** True if the tensor is trained. */
  readonly trained: boolean;
  /** The reason, in words. */
  readonly reason: string;
  /** The file does not settle it: name it in `requiresGrad` or `frozenParams`. */
  readonly doubtful: boolean;
}

/** An operator that prevents training, and its nodes. */
export interface ModelProblem {
  /** Operator type. */
  readonly op: string;
  /** Operator domain; "" is ai.onnx. */
  readonly domain: string;
  /** Names of the nodes that have it. */
  readonly nodes: readonly string[];
  /** A description of the problem. */
  readonly message: string;
}

/** An input or output of the model. */
export interface DescribedValue {
  /** Its name in the model. */
  readonly name: string;
  /** Type of the elements. */
  readonly dtype: string;
  /** A number or name for each dim. */
  readonly dims: readonly (number | string | null)[] | null;
}

/** An input of a train step. */
export interface ReportFeed {
  /** Its name in the train step. */
  readonly name: string;
  /** Type of the elements. */
  readonly dtype: string;
  /** A size for each dim. */
  readonly shape: readonly number[];
}

/** A loss with the settings that an output needs. */
export interface SuggestedLoss {
  /** Its name. */
  readonly type: "CrossEntropyLoss";
  /** The axis of the scores that holds the classes. */
  readonly classAxis: number;
}

/** What `inspectModel` found. */
export interface ModelReport {
  /** True if the model can be trained as asked. */
  readonly ok: boolean;
  /** Parameters of a session, with their dims. */
  readonly trainable: Readonly<Record<string, readonly number[]>>;
  /** Parameters that keep their values, with their dims. */
  readonly frozen: Readonly<Record<string, readonly number[]>>;
  /** Tensors that are trained. */
  readonly trained: readonly ParameterDecision[];
  /** Tensors that are not trained. */
  readonly leftOut: readonly ParameterDecision[];
  /** Tensors of both lists for which the file leaves the decision open. */
  readonly doubtful: readonly ParameterDecision[];
  /** Operators that cannot be executed. */
  readonly unsupported: readonly ModelProblem[];
  /** Operators on the way from the loss to a parameter that have no gradient. */
  readonly missingGradients: readonly ModelProblem[];
  /** Sizes that operators demand of dims that the model declares as symbols. */
  readonly refined: readonly string[];
  /** Warnings from building the model, besides the doubtful tensors: it trains, but maybe not as its maker means. */
  readonly remarks: readonly string[];
  /** The part of the model that is computed in float32 though it was declared as another type of float. */
  readonly precision: string | null;
  /** Facts that training depends on and that files of the model's exporter never contain. */
  readonly untold: string | null;
  /** A loss to name, if none was named and the first output is not a loss. */
  readonly missingLoss: string | null;
  /** Any other error. */
  readonly error: string | null;
  /** Kernel memory of a session for these sizes. */
  readonly peakBytes: number;
  /** Floating-point operations of products and convolutions in a train step. */
  readonly flops: number;
  /** Of the forward model. */
  readonly inputs: readonly DescribedValue[];
  /** Of the forward model. */
  readonly outputs: readonly DescribedValue[];
  /** Number of nodes per operator. An operator of another domain is named `domain.operator`. */
  readonly operators: Readonly<Record<string, number>>;
  /** The file's description of itself; null if it is not a model. */
  readonly modelMetadata: ModelMetadata | null;
  /**
   * A loss that fits the first output, if that output is not a loss: its name, or its name with the settings that it
   * needs.
   */
  readonly suggestedLoss: string | SuggestedLoss | null;
  /** Inputs of a train step, in the shape that the report is about. */
  readonly feeds: readonly ReportFeed[];
  /**
   * Sizes that `createFromModel` needs as well, if the model cannot be trained without the sizes given to
   * `inspectModel`.
   */
  readonly dims: Readonly<Record<string, number>>;
  /** Lines that train the model; none where the configuration has more than names and numbers. */
  readonly code: {
    /** For a page. */
    readonly javascript?: string;
    /** For Python. */
    readonly python?: string;
  };
}

/** The same between page and worker. */
export type WireModelReport = Omit<ModelReport, "modelMetadata"> & { readonly modelMetadata: WireModelMetadata | null };
