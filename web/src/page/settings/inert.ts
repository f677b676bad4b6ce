/** Made by scripts/session_description.py of what Python declares: edit that. */

/** Values that describe what is done anyway, and why others change nothing. */
export const INERT = {
  "interOpNumThreads": {"asIs": [0, 1], "why": "instructions run one after the other"},
  "executionMode": {"asIs": ["sequential"], "why": "instructions run one after the other"},
  "graphOptimizationLevel": {"asIs": ["all"], "why": "every plan is optimized"},
  "enableCpuMemArena": {"asIs": [true], "why": "the workspace of a plan is one arena"},
  "enableMemPattern": {"asIs": [true], "why": "the workspace is planned ahead"},
} as const;

/** Entries that describe what is done anyway. */
export const ENTRIES_AS_IS: readonly (readonly string[])[] = [["session.disable_prepacking", "1"], ["session.load_model_format", "ONNX"], ["session.load_model_format", "ORT"]];

/** Entries that would change numbers, or promise what is not done. */
export const ENTRIES_REFUSED: Readonly<Record<string, { readonly value: string; readonly why: string }>> = {
  "session.disable_prepacking": {"value": "0", "why": "Prepacking is not supported for training scenarios."},
  "session.set_denormal_as_zero": {"value": "1", "why": "Denormal numbers stay as they are."},
  "session.disable_cpu_ep_fallback": {"value": "1", "why": "Everything is computed on the CPU."},
  "optimization.enable_gelu_approximation": {"value": "1", "why": "Gelu is computed without an approximation."},
};

export const MODEL_FORMAT = "session.load_model_format";
export const MODEL_FORMATS: readonly string[] = ["ONNX", "ORT"];
export const OTHER_BACKENDS = "it is for other backends";
export const ON_THE_CPU = "everything is computed on the CPU";
