/// <reference lib="esnext.disposable" preserve="true" />
/** `CheckpointState`: parameters, properties and optimizer state, independent of any session. */

import type { Tensor } from "onnxruntime-common";

import type { FileForm, FileOf } from "../wire/protocol.js";
import { checkForm, type FileOptions } from "./call-arguments.js";
import { checkFlag } from "./call-values.js";
import { expectFiles } from "./integrity.js";
import { resolveOptions, type SessionOptions } from "./options.js";
import { StateMethods } from "./session-methods.js";
import { SharedContents } from "./shared-contents.js";
import { checkSource, loadSource, type Source } from "./sources.js";
import { isTensor, mustBe } from "../data/checks.js";
import { checkOptions } from "../data/nearest.js";
import { copyBytes, packTensor } from "./tensors.js";

const KEY = Symbol("CheckpointState");

/**
 * A checkpoint that is not bound to a session. Given to `TrainingSession.create` as `checkpointState`, it shows the
 * session's current values, and keeps them when the session is released.
 *
 * Several sessions on one state share its parameters, moments, step count, learning rate, schedule and properties. A
 * call moves them to the memory of its session, so alternating between two sessions costs a copy each time.
 * Gradients, the reset flag and random numbers are each session's own.
 */
export class CheckpointState extends StateMethods {
  readonly #contents: SharedContents;

  private constructor(key: symbol, contents: SharedContents) {
    if (key !== KEY) {
      throw new TypeError("use CheckpointState.load().");
    }
    super(contents);
    this.#contents = contents;
  }

  /**
   * Read a checkpoint, as trainweb or onnxruntime-training wrote it.
   *
   * @param source - a URL, bytes or a Blob
   * @throws CheckpointError when it is not a checkpoint, or cannot be fetched
   */
  static async load(source: Source, sessionOptions?: SessionOptions): Promise<CheckpointState> {
    checkSource("source", source);
    const options = resolveOptions(sessionOptions);
    expectFiles(options.integrity, ["checkpointState"]);
    const file = await loadSource("checkpointState", source, options);
    return new CheckpointState(KEY, await SharedContents.open(file, options));
  }

  /** Overwrite one parameter; type and dims must match. */
  async updateParameter(name: string, tensor: Tensor): Promise<void> {
    mustBe(isTensor(tensor), "tensor", "a Tensor", tensor);
    await this.#contents.call("updateParameter", await packTensor(name, tensor, copyBytes));
  }

  /**
   * The checkpoint as a file; as `TrainingSession.saveCheckpoint`.
   *
   * @throws CheckpointError when it has no values yet (nominal); LimitError when it would be larger than 2 GiB
   */
  async save<Form extends FileForm = "bytes">(
    options: FileOptions<Form> & { readonly includeOptimizerState?: boolean } = {},
  ): Promise<FileOf<Form>> {
    const known = { includeOptimizerState: true, as: true } as const;
    const { includeOptimizerState = false, as } = checkOptions("save", options, known);
    checkFlag("includeOptimizerState", includeOptimizerState);
    return (await this.#contents.call("saveCheckpoint", includeOptimizerState, checkForm(as))).data as FileOf<Form>;
  }

  /** Free the state's memory in the worker. A session that uses the state continues. You may repeat the call. */
  async release(): Promise<void> {
    await this.#contents.release();
  }

  /** `release`, at the end of a block with `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }

  /** @internal */
  get contents(): SharedContents {
    return this.#contents;
  }
}
