/** Options of a step. */

/** Options of a step: those of onnxruntime-web, and trainweb's own. None of them is needed. */
export interface RunOptions {
  /** Hand the feeds' buffers over instead of copying them: the tensors cannot be used afterwards. */
  readonly transfer?: boolean;
  /**
   * Aborted before the step has ended, it fails with the signal's reason and changes nothing: one that waits never starts,
   * one that runs stops between two of its instructions, within some 10 ms. Such a step waits until those before it are
   * answered, and copies the state that it writes before it starts.
   */
  readonly signal?: AbortSignal;
  /** The least severity that the step logs, 0 (verbose: how long it took) to 4; default: that of `env.logLevel`. */
  readonly logSeverityLevel?: 0 | 1 | 2 | 3 | 4;
  /** There is one level of verbose lines. */
  readonly logVerbosityLevel?: number;
  /** Fail with a SessionError instead of running. */
  readonly terminate?: boolean;
  /** An error of this step has it as its field `tag`. */
  readonly tag?: string | undefined;
  /** Of an eval step: averages of the parameters stand in their place, where the session keeps some. Default false. */
  readonly ema?: boolean;
  /** Configuration of onnxruntime, which changes nothing here; a warning says so once. */
  readonly extra?: Record<string, unknown>;
}

const NAMES: Readonly<Record<keyof RunOptions, true>> = {
  transfer: true, signal: true, logSeverityLevel: true, logVerbosityLevel: true, terminate: true, tag: true, ema: true, extra: true,
};

/** Their names. */
export const RUN_OPTIONS: readonly string[] = Object.keys(NAMES);
