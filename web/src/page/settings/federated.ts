/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Settings } from "./kinds.js";

/** The options of a federated client. */
export interface FederatedFields {
  /** The largest L2 norm of an update; a longer one is scaled down to it. By default no update is scaled. */
  readonly clipNorm?: number | null;
  /** Standard deviation of the Gaussian noise of the sum of all updates, as a multiple of the clip norm. Default 0.0. */
  readonly noiseMultiplier?: number;
  /** Number of clients that share the noise; each adds its part. With 1, this client adds all of it. Default 1. */
  readonly noiseClients?: number;
  /** Seed of the noise, for tests: it lets others remove the noise. By default the system's source for cryptography draws it. */
  readonly seed?: number | null;
}

/** @internal */
export const FEDERATED: Settings = {
  clipNorm: {
    python: "clip_norm",
    kind: {"kind": "number", "expected": "a number greater than 0", "above": 0},
    isOptional: true,
    default: null,
  },
  noiseMultiplier: {
    python: "noise_multiplier",
    kind: {"kind": "number", "expected": "a number at least 0", "least": 0},
    isOptional: false,
    default: 0.0,
  },
  noiseClients: {
    python: "noise_clients",
    kind: {"kind": "integer", "expected": "an integer >= 1", "least": 1},
    isOptional: false,
    default: 1,
  },
  seed: {
    python: "seed",
    kind: {"kind": "integer", "expected": "an integer >= 0 and <= 9007199254740991", "least": 0, "most": 9007199254740991},
    isOptional: true,
    default: null,
  },
};
