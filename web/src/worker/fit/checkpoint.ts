/** The checkpoint of a fit, read at its start and written during its steps. `trainweb/fit/resume.py` is the same. */

import { holdCheckpoint, readCheckpoint, writeCheckpoint } from "../../storage/checkpoints.js";
import type { FitCheckpoint } from "../../wire/fit.js";
import { sessionError } from "../../wire/messages.js";
import { checkOptions, checkWatched, readFit, writeFit, type FitOptions, type FitRecord } from "./record.js";
import { writeSafetensors, type TensorFile } from "../safetensors.js";
import type { SessionCore } from "../session-core.js";
import { openSnapshot } from "../snapshot.js";

export class CheckpointWriter {
  readonly #core: SessionCore;
  readonly #spec: FitCheckpoint;
  readonly #release: () => void;
  /** The latest snapshot that waits to be written. */
  #waiting: TensorFile | null = null;
  #writing: Promise<void> | null = null;
  #fault: { readonly error: unknown } | null = null;
  /** Optimizer steps of the checkpoint in the file, and of the one that waits. */
  #saved: number | null = null;
  #next = 0;

  private constructor(core: SessionCore, spec: FitCheckpoint, release: () => void) {
    this.#core = core;
    this.#spec = spec;
    this.#release = release;
  }

  /** @throws StorageError when another tab has the checkpoint */
  static async open(core: SessionCore, spec: FitCheckpoint): Promise<CheckpointWriter> {
    return new CheckpointWriter(core, spec, await holdCheckpoint(spec.where, spec.name));
  }

  /**
   * Restore the session from the checkpoint, if there is one.
   *
   * @param watched - the metric of early stopping
   * @throws CheckpointError for a damaged or changed file, and for the file of another session or of no fit
   * @throws ModelError for a fit with other options or metrics. The session is as before
   */
  async resume(watched: string): Promise<FitRecord | null> {
    const { where, name, options } = this.#spec;
    const file = await readCheckpoint(where, name);
    if (file === null) {
      return null;
    }
    const snapshot = openSnapshot(file);
    checkOptions(snapshot, name, JSON.parse(options) as FitOptions);
    const session = this.#core.read(snapshot);
    const byRows = this.#core.lossCounts.train.output === null;
    const size = this.#core.getParametersSize(false);
    const record = readFit(snapshot, JSON.parse(options) as FitOptions, size, byRows);
    checkWatched(record.epochs, name, watched);
    await this.#core.restore(session);
    this.#saved = record.position.optimizerSteps;
    return record;
  }

  /** Optimizer steps until the next checkpoint is due. */
  untilDue(optimizerSteps: number): number {
    const { every } = this.#spec;
    return every === null ? Infinity : every - (optimizerSteps % every);
  }

  /** True if a checkpoint is due after so many optimizer steps. */
  isDue(optimizerSteps: number): boolean {
    const { every } = this.#spec;
    return every !== null && optimizerSteps % every === 0;
  }

  /**
   * Write the checkpoint in the background. The next train step must be one that overwrites the gradients.
   *
   * @throws the error of the previous write
   */
  async save(record: FitRecord): Promise<void> {
    this.#check();
    this.#waiting = writeFit(await this.#core.snapshot(), this.#spec.options, record);
    this.#next = record.position.optimizerSteps;
    this.#writing ??= this.#write();
  }

  /** The error of a lost GPU with the step of the checkpoint; another error as it is. */
  async named(error: unknown): Promise<unknown> {
    const { name, message } = error as Error;
    await this.#writing;
    if (name !== "DeviceError" || this.#saved === null) {
      return error;
    }
    const checkpoint = this.#saved;
    return Object.assign(sessionError("LOST_IN_FIT", { error: message, checkpoint }), error, { checkpoint });
  }

  /** Settles when all is written, or fails with the error of a write. */
  async end(): Promise<void> {
    try {
      await this.#writing;
      this.#check();
    } finally {
      this.#release();
    }
  }

  async #write(): Promise<void> {
    const { where, name } = this.#spec;
    while (this.#waiting !== null && this.#fault === null) {
      const [file, steps] = [this.#waiting, this.#next];
      this.#waiting = null;
      try {
        await writeCheckpoint(where, name, writeSafetensors(file));
        this.#saved = steps;
      } catch (error) {
        this.#fault = { error };
      }
    }
    this.#writing = null;
  }

  #check(): void {
    if (this.#fault !== null) {
      throw this.#fault.error;
    }
  }
}
