/** Python's work on files apart from sessions: artifacts, gradient graphs, checkpoint states. */

import { publicName, type Bridge } from "../python/bridge.js";
import type { Handout } from "../python/handout.js";
import { raise } from "../wire/messages.js";
import type { SourceData } from "../wire/pieces.js";
import type {
  BridgeArguments,
  FileBytes,
  FileData,
  FileForm,
  ModelCall,
  NamedTensor,
  StateCalls,
  TensorType,
  WireTensor,
} from "../wire/protocol.js";
import type { Property } from "./session-contents.js";
import { assemble, converting } from "./files.js";
import { PropertyCalls } from "./properties.js";
import { addFiles } from "./python-models.js";

/** Call a function of the bridge with files, which are dropped afterwards, and use its result. */
function withFiles<T>(
  bridge: Bridge,
  call: string,
  args: readonly (BridgeArguments[number] | number)[],
  use: (answer: { readonly value: unknown; readonly file: Handout | null }) => T,
): T {
  const { converted, files } = addFiles(bridge, args);
  try {
    return use(bridge.call(call, ...converted));
  } finally {
    files.forEach((index) => bridge.files.drop(index));
  }
}

function dataOf(bridge: Bridge, call: string, file: Handout | null, form: FileForm): FileData | null {
  if (file === null) {
    return null;
  }
  const read = converting(([, index, offset], start, target) => bridge.files.copy(index, offset + start, target));
  return assemble(publicName(call), file, read, form);
}

/** Have Python work on a model, without keeping it. */
export function ofModel(
  bridge: Bridge,
  call: ModelCall,
  args: BridgeArguments,
  form: FileForm,
): { readonly value: unknown; readonly data: FileData | null } {
  return withFiles(bridge, call, args, ({ value, file }) =>
    call === "build_files"
      ? { value: artifactsOf(bridge, value as number, form), data: null }
      : { value, data: dataOf(bridge, call, file, form) },
  );
}

/** The artifacts that Python built, which it forgets then. */
function artifactsOf(bridge: Bridge, handle: number, form: FileForm): unknown {
  const read = (name: string): FileData | null => dataOf(bridge, "build_files", bridge.call("artifact", handle, name).file, form);
  try {
    return {
      trainModel: read("training_model"),
      checkpoint: read("checkpoint"),
      nominalCheckpoint: read("nominal_checkpoint"),
      evalModel: read("eval_model"),
      optimizerModel: read("optimizer_model"),
    };
  } finally {
    bridge.call("release", handle);
  }
}

interface StateParameter extends TensorType {
  readonly name: string;
  readonly trainable: boolean;
}

/** The answer of `open_state`. */
interface OpenedState {
  readonly handle: number;
  readonly parameters: readonly StateParameter[];
  readonly properties: readonly Property[];
}

/** A checkpoint state apart from sessions. */
export class StateCore extends PropertyCalls implements StateCalls {
  readonly #bridge: Bridge;
  readonly #file: number;
  readonly #handle: number;
  readonly #parameters: readonly StateParameter[];

  /** @throws CheckpointError for any other file */
  constructor(bridge: Bridge, file: SourceData) {
    super();
    const added = bridge.files.add(file);
    try {
      const { handle, parameters, properties } = bridge.call("open_state", added).value as OpenedState;
      this.#handle = handle;
      this.#parameters = parameters;
      this.properties = properties;
    } catch (error) {
      bridge.files.drop(added.index);
      throw error;
    }
    this.#bridge = bridge;
    // Large parameters are read of it when they are asked for.
    this.#file = added.index;
    void bridge.files.settle(added.index);
  }

  parameterNames(trainableOnly: boolean): readonly string[] {
    return this.#parameters.filter(({ trainable }) => trainable || !trainableOnly).map(({ name }) => name);
  }

  getParameterTypeAndShape(name: string): TensorType {
    const parameter = this.#parameters.find((one) => one.name === name);
    const { dtype, dims } = parameter ?? raise("UNKNOWN_PARAMETER", { name, names: this.parameterNames(false).join(", ") });
    return { dtype, dims };
  }

  getParameter(name: string): WireTensor {
    const type = this.getParameterTypeAndShape(name);
    const { file } = this.#bridge.call("state_parameter", this.#handle, name);
    return { ...type, data: dataOf(this.#bridge, "state_parameter", file, "bytes") as Uint8Array };
  }

  updateParameter({ name, dtype, dims, data }: NamedTensor): null {
    this.getParameterTypeAndShape(name);
    return withFiles(this.#bridge, "set_state_parameter", [this.#handle, name, dtype, JSON.stringify(dims), data], () => null);
  }

  saveCheckpoint(includeOptimizerState: boolean, form: FileForm): FileBytes {
    const properties = JSON.stringify(this.properties);
    const { file } = this.#bridge.call("save_state", this.#handle, includeOptimizerState, properties);
    return { data: dataOf(this.#bridge, "save_state", file, form) as FileData };
  }

  release(): void {
    this.#bridge.call("release", this.#handle);
    this.#bridge.files.drop(this.#file);
  }
}
