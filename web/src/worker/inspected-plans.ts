/** Plans that keep every float tensor of a step until its end, for inspection. */

import { COPY_CHECK, STATE } from "../engine/layout.js";
import type { DeadUnits, NamedTensor } from "../wire/values.js";
import { planKey, type BundlePlan, type FeedType, type RawPlan } from "./bundle/bundle.js";
import { sizeOf } from "./bundle/reader.js";
import type { LoadedPlan, ReadFile, StepHost } from "./host.js";
import type { InspectedPlan, LazyModels, PythonModels } from "./python-models.js";
import type { PlanRunner } from "./runner.js";
import type { StepKind } from "./step-kind.js";

/** Parts of a session that such plans need. */
export interface InspectedHost {
  readonly host: StepHost;
  readonly runner: PlanRunner;
  readonly models: LazyModels;
  readonly readFile: ReadFile;
  /** Reads a plan with these outputs that Python compiled for the session. */
  parse(raw: RawPlan, outputs: readonly string[]): BundlePlan;
}

/** A step to inspect. */
export interface InspectedStep {
  readonly kind: StepKind;
  readonly overwrite: boolean;
  readonly signature: readonly FeedType[];
  readonly feeds: readonly NamedTensor[];
}

export class InspectedPlans {
  readonly host: InspectedHost;
  readonly #ofPlans = new WeakMap<BundlePlan, InspectedPlan>();

  constructor(host: InspectedHost) {
    this.host = host;
  }

  async load(models: PythonModels, { kind, overwrite, signature }: InspectedStep): Promise<LoadedPlan> {
    const { host, parse, readFile } = this.host;
    const key = `inspected ${planKey(kind, overwrite, signature)}`;
    const known = host.find(key);
    if (known !== undefined) {
      return known;
    }
    host.evict();
    const inspected = models.compileInspected(kind, overwrite, signature);
    const plan = parse(inspected.raw, inspected.outputs);
    this.#ofPlans.set(plan, inspected);
    return host.load(key, plan, readFile);
  }

  /** The nodes that a plan computes, in order, for Python. */
  nodesOf({ plan }: LoadedPlan): readonly unknown[] {
    return this.#inspected(plan).nodes;
  }

  /** Run eval steps, and find the units that never fire. Nothing changes. In Python training/debug/units.py. */
  async deadUnits(steps: readonly InspectedStep[]): Promise<readonly DeadUnits[]> {
    const { host, runner } = this.host;
    const models = await this.host.models.get("deadUnits");
    await host.save(COPY_CHECK, 1 << STATE);
    const byTensor = new Map<string, { readonly units: DeadUnits; readonly fires: Uint8Array }>();
    try {
      for (const step of steps) {
        const loaded = await this.load(models, step);
        await runner.execute(loaded, step.feeds);
        for (const units of this.#inspected(loaded.plan).units) {
          const entry = byTensor.get(units.tensor) ?? { units, fires: new Uint8Array(units.units) };
          byTensor.set(units.tensor, entry);
          const place = loaded.plan.outputs.find(({ name }) => name === units.tensor);
          if (place !== undefined) {
            const [values] = await host.read(loaded, [place]);
            noteFiring(new Float32Array((values as NamedTensor).data.buffer), place.dims, units.axis, entry.fires);
          }
        }
      }
    } finally {
      await host.putBack(COPY_CHECK);
      await host.forget(COPY_CHECK);
    }
    return [...byTensor.values()].map(({ units, fires }) => ({ ...units, dead: units.dead.filter((unit) => fires[unit] === 0) }));
  }

  #inspected(plan: BundlePlan): InspectedPlan {
    return this.#ofPlans.get(plan) as InspectedPlan;
  }
}

function noteFiring(values: Float32Array, dims: readonly number[], axis: number, fires: Uint8Array): void {
  const inner = sizeOf(dims.slice(axis + 1));
  for (let k = 0; k < values.length; k++) {
    if ((values[k] as number) > 0) {
      fires[Math.floor(k / inner) % fires.length] = 1;
    }
  }
}
