/** Reports of loading: the stage, in bytes and percent. */

import { log } from "../wire/log.js";
import type { FileProgress } from "../wire/progress.js";

/**
 * "script": the scripts; "kernels"; "python"; "model": the files of the session; "compile": all is there, Python works;
 * "shaders": the browser compiles the shaders of a step for the GPU, at the first step of each kind.
 */
export type LoadStage = "script" | "kernels" | "python" | "model" | "compile" | "shaders";

/** Progress of a session in the making. */
export interface LoadProgress {
  /** The stage of the report; files of several stages come at the same time. */
  readonly stage: LoadStage;
  /**
   * Received bytes of all files that this session fetches; a running worker already has the package's files. With
   * "shaders", the shaders of the step that are compiled.
   */
  readonly loaded: number;
  /** Bytes of these files, as far as they are known; with "shaders", the shaders of the step. */
  readonly total: number;
  /**
   * 0 to 100, never decreasing; 100 from "compile" on. With the option `cache`, "compile" is not reported. With
   * "shaders", the percentage of these.
   */
  readonly percent: number;
}

/** Called while a session is made. */
export type ProgressListener = (progress: LoadProgress) => void;

/** Facts about a file of the package. */
export interface KnownFile {
  readonly stage: LoadStage;
  /** 0 if it is unknown. */
  readonly nbytes: number;
}

/** Adds up the files of a session, and calls its listeners. */
export class LoadTracker {
  readonly #listeners: readonly ProgressListener[];
  readonly #files = new Map<string, Pick<LoadProgress, "loaded" | "total">>();
  #percent = 0;

  constructor(listeners: readonly (ProgressListener | null | undefined)[]) {
    this.#listeners = listeners.filter((listener) => listener instanceof Function);
  }

  get isWanted(): boolean {
    return this.#listeners.length > 0;
  }

  /**
   * Count the received bytes of a file of the package. Packed files that the browser unpacks count with their packed
   * size.
   */
  file({ stage, nbytes }: KnownFile, { url, loaded, isDone }: FileProgress): void {
    const total = nbytes > 0 ? nbytes : loaded;
    this.#count(stage, url, isDone ? total : Math.min(loaded, total), total);
  }

  /** Count the received bytes of a file of the user. */
  model(url: string, loaded: number, total: number): void {
    if (this.isWanted) {
      this.#count("model", url, loaded, total);
    }
  }

  /** All files are there. */
  compiles(): void {
    this.#percent = 100;
    this.#tell("compile");
  }

  /** So many shaders of a step are compiled. */
  shaders(loaded: number, total: number): void {
    this.#report({ stage: "shaders", loaded, total, percent: Math.floor((100 * loaded) / total) });
  }

  #count(stage: LoadStage, url: string, loaded: number, total: number): void {
    this.#files.set(url, { loaded, total });
    this.#tell(stage);
  }

  #tell(stage: LoadStage): void {
    const files = [...this.#files.values()];
    const loaded = files.reduce((sum, file) => sum + file.loaded, 0);
    const total = files.reduce((sum, file) => sum + file.total, 0);
    // Unexpected files make the total larger.
    this.#percent = Math.max(this.#percent, total > 0 ? Math.min(99, Math.floor((100 * loaded) / total)) : 0);
    this.#report({ stage, loaded, total, percent: this.#percent });
  }

  #report(progress: LoadProgress): void {
    for (const listener of this.#listeners) {
      try {
        listener(progress);
      } catch (error) {
        log("error", `onProgress failed: ${String(error)}`);
      }
    }
  }
}
