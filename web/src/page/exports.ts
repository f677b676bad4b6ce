/** The public names of the package. */

export { registerBackend, Tensor, type TypedTensor } from "onnxruntime-common";

export type { FeedsType, FetchesType, ReturnType } from "./arguments.js";
export type { RunOptions } from "./run-options.js";
export type { ParameterTypeAndShape, Strict, TrainableOnly } from "./call-values.js";
export * from "./build.js";
export type { FileOptions } from "./call-arguments.js";
export { CheckpointState } from "./checkpoint-state.js";
export { CheckpointStore, type StorageQuota, type StoredCheckpoint, type StoredSession } from "./fit/checkpoint-store.js";
export { env } from "./env.js";
export type { LogLevel } from "../wire/log.js";
export type { Env, InertFlags, PyodideFlags, Timeouts, WasmFlags, WebGpuFlags } from "./env.js";
export * from "../wire/error-classes.js";
export { TrainwebError, type TensorRange } from "../wire/base-error.js";
export type { CsvColumns, CsvDtype, CsvOptions, CsvSource } from "../data/csv.js";
export { Dataset, readCsv } from "../data/dataset.js";
export type { CategoryStep, ConcatStep, FillStep, PreprocessingStep, StandardizeStep, TableStep } from "../data/table.js";
export { example } from "../data/example.js";
export { listFolder, type FolderSource, type ListedFolder } from "../data/folder.js";
export { readObjectStore, type ObjectStoreSource } from "../data/indexed-db.js";
export type * from "./settings/images.js";
export { readImage, readImages, type ImageOptions, type ImageSource, type ImagesOptions } from "./images.js";
export type { Columns, DataSource, Rows } from "../data/dataset.js";
export type { Batch, Numbers, Row, RowValue, WrappedTensor } from "../data/rows.js";
export { FederatedClient, type FederatedSession, type RoundUpdate } from "./federated.js";
export type { ConfigValue } from "../federated/frames.js";
export { addMasked, SecureMember, type MaskedSum, type MaskOptions } from "../federated/secure.js";
export { addNoise, averageUpdates, clipUpdate, type ClientUpdate, type ClippedUpdate, type NoiseOptions, type WeightedUpdate } from "../federated/updates.js";
export { joinFlower, type FlowerEvaluation, type FlowerOptions, type FlowerSession, type FlowerTask, type FlowerTraining } from "./flower.js";
export type * from "./settings/federated.js";
export type { FitRun } from "./fit/run.js";
export type { FindRateOptions, LearningRates } from "./fit/find-rate.js";
export type { EpochEvent, FitControl, FitEvent, History, ProgressEvent } from "./fit/events.js";
export type {
  EarlyStoppingSettings,
  FitCallback,
  FitCheckpointSettings,
  FitOptions,
  FitScheduleSettings,
} from "./fit/options.js";
export type { EvaluateOptions, PredictOptions } from "./predict.js";
export type { PretrainedConfig, Repository } from "./pretrained.js";
export type { GeneratedToken, GenerateOptions, Prompt } from "./generate.js";
export type { GenerateFields } from "./settings/generate.js";
export type {
  Chat,
  ChatMessage,
  EncodedText,
  EncodeOptions,
  Preference,
  PreferenceOptions,
  PromptedText,
  ReferenceSession,
  TemplateOptions,
  TextInput,
  TextItem,
  TextOptions,
  TextTokenizer,
  TokenIds,
  WithFurther,
} from "../data/text.js";
export type { Tokenizer } from "./text.js";
export type { Metric, MetricFunction, MetricFunctions, Metrics, MetricsByOutput, ValuesOf } from "./own-metrics.js";
export type * from "./settings/fit.js";
export type { Remainder } from "../wire/fit.js";
export { InferenceSession } from "./inference.js";
export type * from "./common.js";
export { clearCache } from "./file-cache.js";
export type { FileName } from "./integrity.js";
export * from "./inspect.js";
export type * from "../wire/records.js";
export type { DebugOptions, ExternalData, SessionOptions } from "./options.js";
export type * from "./settings/losses.js";
export type * from "./settings/optimizers.js";
export type * from "./settings/schedules.js";
export { Profile, type ProfileEntry, type ProfileOptions } from "../wire/profile.js";
export type { SnapshotChoice } from "../wire/protocol.js";
export type { LoadProgress, LoadStage, ProgressListener } from "./progress.js";
export { type Schedule, schedule } from "./fit/schedule.js";
export { TrainingSession } from "./session.js";
export type * from "./session-types.js";
export type { ConfigFields, EmaFields, HeadFields, LoraFields, SampleWeightFields } from "./settings/config.js";
export type { AdapterFiles, DevicePlan, GpuAdapter, PropertyKind, PropertyValue, SessionDevice, ValueMetadata } from "../wire/protocol.js";
export type { Source } from "./sources.js";
export type { NumericArray } from "./tensors.js";
export type { FileForm, FileOf, WireDtype } from "../wire/values.js";
export type {
  LossByOutput, LossKind, LossName, LossTerm, Named, PeftAdapterConfig, TermWeight, TrainingConfig, Weighted,
} from "./training-config.js";
