/**
 * `debug: { checkNumerics: true }`: find the node of a step that makes the first NaN or infinity. The worker runs the
 * steps. If a number is not finite, Python decides whether that is a fault (training/debug/numerics.py has the rules).
 */

import { COPY_CHECK, GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS } from "../engine/layout.js";
import type { MaybePromise } from "../wire/protocol.js";
import type { InspectedPlans, InspectedStep } from "./inspected-plans.js";
import type { PythonModels } from "./python-models.js";
import type { Run } from "./runner.js";

export class NumericsCheck {
  readonly #plans: InspectedPlans;

  constructor(plans: InspectedPlans) {
    this.#plans = plans;
  }

  /** Run a train or eval step by `run`, unless a tensor of it is at fault. */
  step(step: InspectedStep, run: () => MaybePromise<Run>): Promise<Run> {
    const { kind, overwrite, signature, feeds } = step;
    const { host, runner } = this.#plans.host;
    return this.#undone(async (models) => {
      const inspected = await this.#plans.load(models, step);
      await runner.execute(inspected, feeds);
      let before = {};
      if (await host.isAnyBad([PARAMETERS, GRADIENTS], COPY_CHECK, inspected)) {
        const seen = [host.addresses(COPY_CHECK, inspected), inspected.plan.outputs, this.#plans.nodesOf(inspected)] as const;
        before = models.ask("check_numerics", "inspected", kind.key, overwrite, ...seen).value;
      }
      await host.putBack(COPY_CHECK);
      const loaded = await runner.prepare(kind, overwrite, signature);
      const result = await run();
      if (await host.isAnyBad([PARAMETERS, GRADIENTS], COPY_CHECK, loaded)) {
        models.ask("check_numerics", "results", kind.key, host.addresses(COPY_CHECK, loaded), loaded.plan.outputs, before);
      }
      return result;
    });
  }

  /** Run an optimizer step, unless it makes NaN or infinity in a parameter or moment. */
  optimizerStep(run: () => MaybePromise<Run>): Promise<Run> {
    const { host } = this.#plans.host;
    return this.#undone(async (models) => {
      const result = await run();
      if (await host.isAnyBad([PARAMETERS, MOMENTUM0, MOMENTUM1], COPY_CHECK)) {
        models.ask("check_numerics", "optimizer", host.addresses(COPY_CHECK));
      }
      return result;
    });
  }

  /** Do something that is undone when it fails. */
  async #undone(action: (models: PythonModels) => Promise<Run>): Promise<Run> {
    const { host } = this.#plans.host;
    const models = await this.#plans.host.models.get("debug.checkNumerics");
    await host.save(COPY_CHECK);
    try {
      return await action(models);
    } catch (error) {
      await host.putBack(COPY_CHECK);
      throw error;
    } finally {
      await host.forget(COPY_CHECK);
    }
  }
}
