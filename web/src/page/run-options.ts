/** Options of a step. */

/** Options of a step, from onnxruntime-web and from trainweb. All are optional. */
export interface RunOptions {
  /** Transfer the feeds' buffers instead of copying them. You cannot use the tensors afterwards. */
  readonly transfer?: boolean;
  /**
   * If it is aborted before the step has ended, the step fails with the signal's reason and changes nothing. A waiting
   * step never starts; a running step stops between two instructions, within some 10 ms. Such a step waits for the
   * answers to earlier steps, and copies the state that it writes before it starts.
   */
  readonly signal?: AbortSignal;
  /** The least severity that the step logs, 0 (verbose: how long it took) to 4; default: that of `env.logLevel`. */
  readonly logSeverityLevel?: 0 | 1 | 2 | 3 | 4;
  /** There is one level of verbose lines. */
  readonly logVerbosityLevel?: number;
  /** Fail with a SessionError instead of running. */
  readonly terminate?: boolean;
  /** A tag: errors of this step have it as their field `tag`. */
  readonly tag?: string | undefined;
  /** In an eval step: use averages of the parameters, which the session must keep. Default false. */
  readonly ema?: boolean;
  /** Configuration of onnxruntime, which changes nothing here; a warning says so once. */
  readonly extra?: Record<string, unknown>;
}

const NAMES: Readonly<Record<keyof RunOptions, true>> = {
  transfer: true, signal: true, logSeverityLevel: true, logVerbosityLevel: true, terminate: true, tag: true, ema: true, extra: true,
};

/** Their names. */
export const RUN_OPTIONS: readonly string[] = Object.keys(NAMES);
