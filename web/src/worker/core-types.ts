/** The types of a training session in the worker. */

import type { MaybePromise } from "../wire/protocol.js";
import type { SessionCalls } from "../wire/session-calls.js";
import type { RawPlan } from "./bundle/bundle.js";
import type { HostOptions } from "./host.js";

/** Options of a session. */
export interface CoreOptions extends HostOptions {
  /** Plans that use more are compiled by Python, which makes them do with it. */
  readonly memoryBudget: number;
  /** True if steps are checked for NaN and infinities. */
  readonly checkNumerics: boolean;
}

/** Called with each plan that Python compiled for the session. */
export type PlanListener = (raw: RawPlan) => void;

/** The calls of a session in the worker: one that is missing does not compile. */
export type CallTable = {
  readonly [Name in keyof SessionCalls]: (
    ...args: SessionCalls[Name]["args"]
  ) => MaybePromise<SessionCalls[Name]["result"]>;
};
