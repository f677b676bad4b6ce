/**
 * `debug: { checkNumerics: true }`: which node of a step makes the first NaN or infinity. The worker runs the steps. Where
 * a number is not finite, Python finds out if that is a fault (training/debug/numerics.py says how it is done).
 */

import {
  CONSTANTS, COPY_CHECK, GRADIENTS, LARGE_CONSTANTS, MOMENTUM0, MOMENTUM1, PARAMETERS, SEGMENT_NAMES,
} from "../engine/layout.js";
import type { MaybePromise } from "../wire/protocol.js";
import type { InspectedHost, InspectedPlans, InspectedStep } from "./inspected-plans.js";
import type { LoadedPlan } from "./plan-memory.js";
import type { Addresses, PythonModels } from "./python-models.js";
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
      let before = {};
      if (this.#isAnyBad([PARAMETERS, GRADIENTS], inspected)) {
        const seen = [this.#addresses(inspected), inspected.plan.outputs, this.#plans.nodesOf(inspected)] as const;
        before = models.ask("check_numerics", "inspected", kind.key, overwrite, ...seen).value;
      }
      memory.putBack(COPY_CHECK);
      const { loaded } = await runner.prepare(kind, overwrite, signature);
      const result = await run();
      if (this.#isAnyBad([PARAMETERS, GRADIENTS], loaded)) {
        models.ask("check_numerics", "results", kind.key, this.#addresses(loaded), loaded.plan.outputs, before);
      }
      return result;
    });
  }

  /** Run an optimizer step, unless it makes NaN or infinity in a parameter or moment. */
  optimizerStep(run: () => MaybePromise<Run>): Promise<Run> {
    return this.#undone(async (models) => {
      const result = await run();
      if (this.#isAnyBad([PARAMETERS, MOMENTUM0, MOMENTUM1])) {
        models.ask("check_numerics", "optimizer", this.#addresses());
      }
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

  /** True if a number is not finite: in segments, in their contents before the step, or in the outputs of a plan. */
  #isAnyBad(segments: readonly number[], loaded?: LoadedPlan): boolean {
    const { engine, memory } = this.#host;
    const isBad = (ptr: number, nbytes: number): boolean => {
      const { nan, infinite } = engine.range(ptr, nbytes / 4);
      return nan + infinite > 0;
    };
    const held = segments.flatMap((segment) => {
      const nbytes = memory.call("tw_session_bytes", segment);
      return [memory.call("tw_session_base", segment), memory.call("tw_session_copy", COPY_CHECK, segment)].map((ptr) => [ptr, nbytes]);
    });
    const outputs = loaded?.plan.outputs.filter(({ dtype }) => dtype === "float32") ?? [];
    const made = outputs.map((place) => [memory.addressOf(loaded as LoadedPlan, place), place.nbytes]);
    return [...held, ...made].some(([ptr = 0, nbytes = 0]) => ptr > 0 && nbytes > 0 && isBad(ptr, nbytes));
  }

  /** Addresses of the segments with the constants of a plan, and of the contents before the step; 0: there are none. */
  #addresses({ constants, large }: Pick<LoadedPlan, "constants" | "large"> = { constants: 0, large: 0 }): Addresses {
    const { memory } = this.#host;
    const bases = Object.assign([...memory.bases], { [CONSTANTS]: constants, [LARGE_CONSTANTS]: large });
    return { bases, copies: SEGMENT_NAMES.map((_, segment) => memory.call("tw_session_copy", COPY_CHECK, segment)) };
  }
}
