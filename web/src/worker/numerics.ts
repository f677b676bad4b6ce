/**
 * `debug: { checkNumerics: true }`: which node of a step makes the first NaN or infinity. The worker runs the steps, and
 * Python looks at the numbers in between (training/debug/numerics.py says how it is done).
 */

import { CONSTANTS, COPY_CHECK, LARGE_CONSTANTS, SEGMENT_NAMES } from "../engine/layout.js";
import type { MaybePromise } from "../wire/protocol.js";
import type { InspectedHost, InspectedPlans, InspectedStep } from "./inspected-plans.js";
import type { LoadedPlan } from "./plan-memory.js";
import type { PythonModels } from "./python-models.js";
import type { Run } from "./runner.js";

export class NumericsCheck {
  readonly #host: InspectedHost;
  readonly #plans: InspectedPlans;

  constructor(host: InspectedHost, plans: InspectedPlans) {
    this.#host = host;
    this.#plans = plans;
  }

  /** Run a train or eval step by `run`, unless a tensor of it is at fault. */
  step(step: InspectedStep, run: () => MaybePromise<Run>): Promise<Run> {
    const { kind, overwrite, signature, feeds } = step;
    const { memory, runner } = this.#host;
    return this.#undone(async (models) => {
      const inspected = this.#plans.load(models, step);
      runner.execute(inspected, feeds);
      const seen = [this.#addresses(inspected), inspected.plan.outputs, this.#plans.nodesOf(inspected)] as const;
      const { value: before } = models.ask("check_inspected", kind, overwrite, ...seen);
      memory.putBack(COPY_CHECK);
      const { loaded } = await runner.prepare(kind, overwrite, signature);
      const result = await run();
      models.ask("check_results", kind, this.#addresses(loaded), loaded.plan.outputs, before);
      return result;
    });
  }

  /** Run an optimizer step, unless it makes NaN or infinity in a parameter or moment. */
  optimizerStep(run: () => MaybePromise<Run>): Promise<Run> {
    return this.#undone(async (models) => {
      const result = await run();
      models.ask("check_optimizer", this.#addresses());
      return result;
    });
  }

  /** Do something that is undone when it fails. */
  async #undone(action: (models: PythonModels) => Promise<Run>): Promise<Run> {
    const { memory } = this.#host;
    const models = await this.#host.models.get("debug.checkNumerics");
    memory.save(COPY_CHECK);
    try {
      return await action(models);
    } catch (error) {
      memory.putBack(COPY_CHECK);
      throw error;
    } finally {
      memory.forget(COPY_CHECK);
    }
  }

  /** Addresses of the segments with the constants of a plan, and of the contents before the step; 0: there are none. */
  #addresses({ constants, large }: Pick<LoadedPlan, "constants" | "large"> = { constants: 0, large: 0 }): Addresses {
    const { memory } = this.#host;
    const bases = Object.assign([...memory.bases], { [CONSTANTS]: constants, [LARGE_CONSTANTS]: large });
    return { bases, copies: SEGMENT_NAMES.map((_, segment) => memory.call("tw_session_copy", COPY_CHECK, segment)) };
  }
}

/** Where Python finds the numbers of a session. */
export interface Addresses {
  readonly bases: readonly number[];
  readonly copies: readonly number[];
}
