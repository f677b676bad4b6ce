/** The segments that calls of a session read and write in place. Steps, and copies for an undo, run where their segments are. */

import { GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS } from "../engine/layout.js";
import type { SessionCalls } from "../wire/session-calls.js";
import type { Claim } from "./host.js";

const ALL = [PARAMETERS, GRADIENTS, MOMENTUM0, MOMENTUM1];
const NOTHING: Claim = { reads: [], writes: [] };
const READS_PARAMETERS: Claim = { reads: [PARAMETERS], writes: [] };
const WRITES_PARAMETERS: Claim = { reads: [], writes: [PARAMETERS] };
const READS_GRADIENTS: Claim = { reads: [GRADIENTS], writes: [] };

/** The averages lie behind the second moment. */
export const EXCHANGES_AVERAGES: Claim = { reads: [], writes: [PARAMETERS, MOMENTUM1] };
export const READS_ALL: Claim = { reads: ALL, writes: [] };
export const WRITES_ALL: Claim = { reads: [], writes: ALL };

/** The state needs no claim. With `ema`, calls claim `EXCHANGES_AVERAGES` as well. */
export const CLAIMS: Readonly<Record<keyof SessionCalls, Claim>> = {
  lazyResetGrad: NOTHING,
  getLearningRate: NOTHING,
  setLearningRate: NOTHING,
  registerLinearLrScheduler: NOTHING,
  getParametersSize: NOTHING,
  getContiguousParameters: READS_PARAMETERS,
  loadParametersBuffer: WRITES_PARAMETERS,
  getParameter: READS_PARAMETERS,
  updateParameter: WRITES_PARAMETERS,
  getParameterTypeAndShape: NOTHING,
  parameterNames: NOTHING,
  getGradient: READS_GRADIENTS,
  getMoments: { reads: [MOMENTUM0, MOMENTUM1], writes: [] },
  gradientNorms: READS_GRADIENTS,
  deadUnits: NOTHING,
  stepCount: NOTHING,
  inputMetadata: NOTHING,
  outputMetadata: NOTHING,
  addProperty: NOTHING,
  getProperty: NOTHING,
  getPropertyKind: NOTHING,
  propertyNames: NOTHING,
  deleteProperty: NOTHING,
  memory: NOTHING,
  prepare: NOTHING,
  keepState: NOTHING,
  goBack: NOTHING,
  explain: NOTHING,
  getSeed: NOTHING,
  setSeed: NOTHING,
  saveCheckpoint: READS_ALL,
  exportModelForInferencing: READS_PARAMETERS,
  exportWeights: READS_PARAMETERS,
  loadWeights: WRITES_PARAMETERS,
  adapter: READS_PARAMETERS,
  loadAdapter: WRITES_PARAMETERS,
  mergeAdapter: READS_PARAMETERS,
  artifact: NOTHING,
};
