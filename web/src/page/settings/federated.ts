/** Made by scripts/session_description.py of what Python declares: edit that. */

import type { Settings } from "./kinds.js";
import * as values from "./values.js";

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
  clipNorm: { kind: values.A_NUMBER_GREATER_THAN_0, isOptional: true, default: null },
  noiseMultiplier: { kind: values.A_NUMBER_AT_LEAST_0, default: 0.0 },
  noiseClients: { kind: values.AN_INTEGER_AT_LEAST_1, default: 1 },
  seed: { kind: values.AN_INTEGER_AT_LEAST_0_AND_AT_MOST_9007199254740991, isOptional: true, default: null },
};
