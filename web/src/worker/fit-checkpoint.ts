/** The checkpoint of a fit in the worker: written beside the steps, read when the fit begins. `trainweb/fit/resume.py` is the same. */

import { holdCheckpoint, readCheckpoint, writeCheckpoint } from "../storage/checkpoints.js";
import type { EpochRecord, FitCheckpoint, FitPosition, Resumed } from "../wire/fit.js";
import { sessionError } from "../wire/messages.js";
import { writeSafetensors, type TensorFile } from "./safetensors.js";
import type { SessionCore } from "./session-core.js";
import { readSnapshot } from "./snapshot.js";

interface Told {
  readonly options: Readonly<Record<string, unknown>>;
  readonly epochs: unknown;
}

export class CheckpointWriter {
  readonly #core: SessionCore;
  readonly #spec: FitCheckpoint;
  readonly #release: () => void;
  #epochs = "[]";
  #best: Uint8Array | null = null;
  /** What is to be written next; of several, the last. */
  #waiting: TensorFile | null = null;
  #writing: Promise<void> | null = null;
  #fault: { readonly error: unknown } | null = null;

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
   * Have the session as it was when the checkpoint was written, if there is one.
   *
   * @throws CheckpointError when it is damaged, of another session or of no fit; ModelError when it is of a fit with
   *   other options. Nothing was changed
   */
  async resume(): Promise<Resumed | null> {
    const { where, name, options } = this.#spec;
    const file = await readCheckpoint(where, name);
    if (file === null) {
      return null;
    }
    const snapshot = readSnapshot(file);
    const { history, position } = snapshot.metadata;
    const losses = snapshot.tensors.get("losses");
    if (history === undefined || position === undefined || losses === undefined) {
      throw sessionError("NO_FIT", { name });
    }
    const told = JSON.parse(history) as Told;
    for (const [option, given] of Object.entries(JSON.parse(options) as Told["options"])) {
      const stored = told.options[option] ?? null;
      if (stored !== given) {
        throw sessionError("OTHER_FIT", { name, option, stored, given });
      }
    }
    this.#core.restore(snapshot);
    this.#epochs = JSON.stringify(told.epochs);
    this.#best = snapshot.tensors.get("best")?.data.slice() ?? null;
    return {
      position: JSON.parse(position) as FitPosition,
      epochs: this.#epochs,
      losses: new Float32Array(losses.data.slice().buffer),
      best: this.#best,
    };
  }

  /** Take note of an epoch that is done. */
  note({ epochs, best }: EpochRecord): void {
    this.#epochs = epochs;
    this.#best = best ?? this.#best;
  }

  /** Whether a checkpoint is to be written after so many optimizer steps. */
  isDue(optimizerSteps: number): boolean {
    const { every } = this.#spec;
    return every !== null && optimizerSteps % every === 0;
  }

  /**
   * Have it written. The next train step must be one that overwrites the gradients.
   *
   * @throws what the write before failed with
   */
  save(position: FitPosition, losses: readonly number[]): void {
    this.#check();
    const { metadata, tensors } = this.#core.snapshot();
    const history = `{"options":${this.#spec.options},"epochs":${this.#epochs}}`;
    const found = new Map(tensors);
    const flat = Float32Array.from(losses);
    found.set("losses", { name: "losses", dtype: "float32", dims: [flat.length], data: new Uint8Array(flat.buffer) });
    if (this.#best !== null) {
      found.set("best", { name: "best", dtype: "float32", dims: [this.#best.length / 4], data: this.#best });
    }
    this.#waiting = { metadata: { ...metadata, history, position: JSON.stringify(position) }, tensors: found };
    this.#writing ??= this.#write();
  }

  /** Settles when all is written, or fails with what a write failed with. */
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
      const { metadata, tensors } = this.#waiting;
      this.#waiting = null;
      try {
        await writeCheckpoint(where, name, writeSafetensors([...tensors.values()], metadata));
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
