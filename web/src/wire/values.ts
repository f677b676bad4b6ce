/** The values that calls take and give. */

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

/** Units of an activation that were zero for all that a model was fed. */
export interface DeadUnits {
  /** The activation. */
  readonly tensor: string;
  /** The node that makes it, as errors name it. */
  readonly node: string;
  /** The axis that counts units: channels of convolutions, else columns of products, else the second one. */
  readonly axis: number;
  /** Number of units. */
  readonly units: number;
  /** Numbers of the units that never fired. */
  readonly dead: readonly number[];
}

/** The form of a returned file: bytes in the page's memory, or a Blob, which the browser keeps elsewhere. */
export type FileForm = "bytes" | "blob";

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

/** A model's description of itself. */
export interface ModelMetadata {
  /** What wrote it. */
  readonly producerName: string;
  /** Of its graph; empty in ORT format. */
  readonly graphName: string;
  /** The domain of its owner, such as "org.example". */
  readonly domain: string;
  /** A text about it. */
  readonly description: string;
  /** A text about its graph. */
  readonly graphDescription: string;
  /** 2^63 - 1 where it has none. */
  readonly version: bigint;
  /** Texts by name. */
  readonly customMetadataMap: Readonly<Record<string, string>>;
}

/** The same between page and worker. */
export type WireModelMetadata = Omit<ModelMetadata, "version"> & { readonly version: string };

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

/** Bytes that a session takes of the kernels' memory, and the cost of `memoryBudget`. */
export interface SessionMemory {
  /** The parameters. */
  readonly parameters: number;
  /** Accumulated gradients. */
  readonly gradients: number;
  /** The optimizer's. */
  readonly moments: number;
  /** Workspace of the largest step so far, which `memoryBudget` limits. */
  readonly arena: number;
  /** Values that depend only on parameters, and are kept from step to step; none with a `memoryBudget`. */
  readonly prepared: number;
  /** Compiled steps and their constants. */
  readonly plans: number;
  /** Size of the workspace if no instruction ran again. */
  readonly arenaWithoutBudget: number;
  /** Instructions that run again in a step. */
  readonly recomputedInstructions: number;
  /** Operations of products and convolutions in them. */
  readonly recomputedFlops: number;
  /** Estimated time of them, in parts of the time of the step without a budget. */
  readonly recomputedShare: number;
}
