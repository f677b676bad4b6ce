/** What runs a training session in the worker: Python, or a bundle. */

import type { Answer, Bridge } from "../python/bridge.js";
import { EngineError } from "../wire/errors.js";
import type { BundleCache } from "./cache.js";
import type { Listing, LoadedPlan, PlanSource, Signature } from "./compiled-session.js";

export interface SessionHost extends PlanSource {
  /** Address of the session's state words. */
  readonly statePtr: number;
  /** Any call besides steps; `args` is the JSON text of a list. */
  call(method: string, args: string, data: Uint8Array | null): Answer;
  release(): void;
}

/** Plans of a session of Python's, training or inference. */
export class PythonPlans implements PlanSource {
  protected readonly bridge: Bridge;
  protected readonly handle: number;

  /** @param handle - of the session in Python */
  constructor(bridge: Bridge, handle: number) {
    this.bridge = bridge;
    this.handle = handle;
  }

  plan(kind: string, signature: Signature): LoadedPlan {
    return this.bridge.call("plan", this.handle, kind, JSON.stringify(signature)).value as LoadedPlan;
  }

  explain(ptr: number, status: number): Error {
    try {
      this.bridge.call("explain", this.handle, ptr, status);
    } catch (error) {
      return error as Error;
    }
    return new EngineError(`the plan failed with status ${status}.`);
  }

  listing(ptr: number): Listing {
    return this.bridge.call("listing", this.handle, ptr).value as Listing;
  }

  release(): void {
    this.bridge.call("release", this.handle);
  }
}

/** A training session of Python's. */
export class PythonSession extends PythonPlans implements SessionHost {
  readonly statePtr: number;
  readonly #cache: BundleCache | null;

  /** @param cache - what is told of the steps that the session runs */
  constructor(bridge: Bridge, handle: number, statePtr: number, cache: BundleCache | null) {
    super(bridge, handle);
    this.statePtr = statePtr;
    this.#cache = cache;
  }

  override plan(kind: string, signature: Signature): LoadedPlan {
    const loaded = super.plan(kind, signature);
    if (signature.length > 0) {
      this.#cache?.add(signature);
    }
    return loaded;
  }

  override release(): void {
    this.#cache?.finish();
    super.release();
  }

  call(method: string, args: string, data: Uint8Array | null): Answer {
    return this.bridge.call("call", this.handle, method, args, data);
  }
}
