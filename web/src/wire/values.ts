/** The values that calls take and give. */

import type { ModelMetadata, ModelReport } from "./records.js";

export type { DeadUnits, ModelMetadata, ModelReport, SessionLimits, SessionMemory, SuggestedLoss } from "./records.js";

/** Element types as onnxruntime-common names them. */
export type WireDtype =
  | "float32"
  | "float64"
  | "float16"
  | "bfloat16"
  | "int8"
  | "uint8"
  | "int16"
  | "uint16"
  | "int32"
  | "uint32"
  | "int64"
  | "uint64"
  | "bool";

/** Types of floats that parameters may have in files. */
export type FloatType = "float16" | "bfloat16" | "float32" | "float64";

/** Element type and dims of a tensor. */
export interface TensorType {
  readonly dtype: WireDtype;
  readonly dims: readonly number[];
}

/** A tensor as raw little-endian bytes, row-major. */
export interface WireTensor extends TensorType {
  readonly data: Uint8Array;
}

/** Bytes in the kernels' memory. */
export interface PlacedBytes {
  readonly ptr: number;
  readonly nbytes: number;
}

/** A feed with its name. */
export interface Feed extends TensorType {
  readonly name: string;
  readonly data: Uint8Array | PlacedBytes;
}

/** The form of a returned file: bytes in the page's memory, or a Blob, which the browser keeps elsewhere. */
export type FileForm = "bytes" | "blob";

/** A file in this form. */
export type FileOf<Form extends FileForm> = Form extends "blob" ? Blob : Uint8Array<ArrayBuffer>;

/** A file, in memory or where the browser keeps it. */
export type FileData = Uint8Array | Blob;

/** A file that is handed out. */
export interface FileBytes {
  readonly data: FileData;
}

/** An input as the model declares it: a dim is a number, a symbol or null; null for no dims at all. */
export interface InputDeclaration {
  readonly name: string;
  readonly dtype: WireDtype;
  readonly dims: readonly (number | string | null)[] | null;
}

/** The type that a property is stored as. */
export type PropertyKind = "int" | "float" | "string";

/** An input of a model, as onnxruntime-common describes it; a dim without a size is its name. */
export interface ValueMetadata {
  /** Of the input or output. */
  readonly name: string;
  /** Sequences and maps cannot be fed. */
  readonly isTensor: true;
  /** Type of the elements. */
  readonly type: WireDtype;
  /** A number for each dim, or its name. */
  readonly shape: readonly (number | string)[];
}

/** The same between page and worker. */
export type WireModelMetadata = Omit<ModelMetadata, "version"> & { readonly version: string };

/** The same between page and worker. */
export type WireModelReport = Omit<ModelReport, "modelMetadata"> & { readonly modelMetadata: WireModelMetadata | null };

/** The value of a checkpoint's property: an int64, a float32 or a text. */
export type PropertyValue = number | bigint | string;

/** A low-rank adapter as PEFT saves it. */
export interface AdapterFiles {
  /** `adapter_model.safetensors`. */
  readonly weights: Uint8Array;
  /** `adapter_config.json`. */
  readonly config: string;
}

/** A result with its name. */
export interface NamedTensor extends WireTensor {
  readonly name: string;
}

/** The GPU of a session. */
export interface GpuAdapter {
  /** The browser's name of its maker, which may be empty. */
  readonly vendor: string;
  /** The browser's name of its family, which may be empty. */
  readonly architecture: string;
  /** The browser's description of it, which may be empty. */
  readonly description: string;
  /** True if it computes in software. */
  readonly isFallback: boolean;
}

/** A kind of step, and the device that runs it. */
export interface DevicePlan {
  /** "train", "optimizer", "clip", "scheduler", "eval", "predict" or "generate". */
  readonly step: string;
  /** "wasm" is the CPU. */
  readonly device: "wasm" | "webgpu";
  /** Dispatches of the plan that was loaded last; null: none was, or they run on the CPU. */
  readonly dispatches: number | null;
  /** Different shaders among these. */
  readonly pipelines: number | null;
  /** The reason for the CPU; "" on the GPU. */
  readonly why: string;
}

/** The device of a session's steps. */
export interface SessionDevice {
  /** The device of train steps; "wasm" is the CPU. */
  readonly kind: "wasm" | "webgpu";
  /** The GPU; null: the session has none. */
  readonly adapter: GpuAdapter | null;
  /** The reason. */
  readonly why: string;
  /** Steps by the device of their plans. */
  readonly plans: readonly DevicePlan[];
}
