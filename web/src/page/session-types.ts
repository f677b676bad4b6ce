/** Files of a training session: the forms in which calls take and give them. */

import type { FileForm } from "../wire/protocol.js";
import type { FileOptions } from "./call-arguments.js";
import type { CheckpointState } from "./checkpoint-state.js";
import type { Source } from "./sources.js";

/** The files of a training session: URLs, bytes or Blobs. `checkpointState` is onnxruntime-web's name for `checkpoint`. */
export type TrainingSessionCreateOptions = TrainingSessionModels & (WithCheckpoint | WithCheckpointState);

/** The checkpoint of a training session. */
export interface WithCheckpoint {
  /** The parameters. */
  readonly checkpoint: CheckpointSource;
}

/** The checkpoint of a training session by onnxruntime-web's name. */
export interface WithCheckpointState {
  /** The parameters. */
  readonly checkpointState: CheckpointSource;
}

/** The file of a checkpoint, or a `CheckpointState`, which the session then updates. */
export type CheckpointSource = Source | CheckpointState;

/** The models of a training session. */
export interface TrainingSessionModels {
  /** The model of train steps, from `buildArtifacts`, Python or onnxruntime-training. */
  readonly trainModel: Source;
  /** The model of eval steps, which need it. */
  readonly evalModel?: Source | null;
  /** The model of optimizer steps, which need it. */
  readonly optimizerModel?: Source | null;
}

/** A session that `trainweb compile` compiled ahead: it trains without Python. */
export interface TrainingSessionBundle {
  /** Its file. */
  readonly bundle: Source;
}

/** Contents and form of a saved checkpoint. */
export interface SaveCheckpointOptions<Form extends FileForm = FileForm> extends FileOptions<Form> {
  /**
   * Also save what an exact resume needs: moments, step count, learning rate and schedule, accumulated gradients, and
   * the
   * seed and position of random numbers. Training that resumes from it gives the same bytes as training without a
   * break.
   */
  readonly includeOptimizerState?: boolean;
}

/** Settings of `getContiguousParameters`. */
export interface ContiguousOptions {
  /** Return averages in place of the trainable parameters; the session must keep them. Default false. */
  readonly ema?: boolean;
  /** The array to copy them into. */
  readonly out?: Float32Array;
}

/** Parameters and form of an exported file. */
export interface ExportOptions<Form extends FileForm = FileForm> extends FileOptions<Form> {
  /** Export averages in place of the trainable parameters; the session must keep them. Default false. */
  readonly ema?: boolean;
}

/** Settings of `export`. */
export interface NamedExportOptions<Form extends FileForm = FileForm> extends ExportOptions<Form> {
  /** Tensors of the eval model; by default the outputs of the model. */
  readonly outputs?: readonly string[];
}

/** Training artifacts, as `TrainingSession.create` takes them. */
export interface Artifacts<File extends Uint8Array | Blob = Uint8Array> {
  /** The model of train steps, with gradients (ONNX). */
  readonly trainModel: File;
  /** The parameters before training. */
  readonly checkpoint: File;
  /** The model of eval steps (ONNX). */
  readonly evalModel: File | null;
  /** The model of optimizer steps (ONNX). */
  readonly optimizerModel: File | null;
}
