/**
 * `debug: { checkNumerics: true }`: which node of a step makes the first NaN or infinity. training/debug/numerics.py is the same
 * in Python, says how it is done, and has the rules, which it is asked for.
 */

import type { Engine } from "../engine/engine.js";
import { COPY_CHECK, GRADIENTS, PARAMETERS, STATE, STATE_LEARNING_RATE, STATE_STEP } from "../engine/layout.js";
import type { TensorRange } from "../wire/errors.js";
import { sessionError } from "../wire/messages.js";
import type { MaybePromise, StepKind } from "../wire/protocol.js";
import { type ParameterSlot, type TensorPlace } from "./bundle/bundle.js";
import { sizeOf } from "./bundle/reader.js";
import type { InspectedHost, InspectedPlans, InspectedStep } from "./inspected-plans.js";
import type { LoadedPlan } from "./plan-memory.js";
import type { InspectedNode, PythonModels } from "./python-models.js";
import type { Run } from "./runner.js";

const DIGITS = 6;

/** Place of a tensor in a segment. */
interface SegmentPlace {
  readonly name: string;
  readonly segment: number;
  readonly offset: number;
  readonly dims: readonly number[];
}

/** A parameter with its moments. */
interface Optimized {
  readonly slot: ParameterSlot;
  readonly places: readonly SegmentPlace[];
}

export class NumericsCheck {
  readonly #host: InspectedHost;
  readonly #plans: InspectedPlans;
  #optimized: readonly Optimized[] | null = null;

  constructor(host: InspectedHost, plans: InspectedPlans) {
    this.#host = host;
    this.#plans = plans;
  }

  /** Run a train or eval step by `run`, unless a tensor of it is at fault. */
  async step(step: InspectedStep, run: () => MaybePromise<Run>): Promise<Run> {
    const { kind, overwrite, signature, feeds } = step;
    const { memory, runner } = this.#host;
    const models = await this.#host.models.get("debug.checkNumerics");
    memory.save(COPY_CHECK);
    try {
      const inspected = this.#plans.load(models, step);
      runner.execute(inspected, feeds);
      this.#checkInspected(models, step, inspected);
      const before = this.#results(kind, inspected);
      memory.putBack(COPY_CHECK);
      const { loaded } = await runner.prepare(kind, overwrite, signature);
      const result = await run();
      const after = this.#results(kind, loaded);
      const worse = after.find((found, k) => badOf(found) > badOf(before[k] as TensorRange));
      if (worse !== undefined) {
        throw this.#error(kind, { name: `The compiled ${kind} step`, op: "" }, worse, []);
      }
      return result;
    } catch (error) {
      memory.putBack(COPY_CHECK);
      throw error;
    } finally {
      memory.forget(COPY_CHECK);
    }
  }

  /** Run an optimizer step, unless it makes NaN or infinity in a parameter or moment. */
  async optimizerStep(run: () => MaybePromise<Run>): Promise<Run> {
    const { memory, models } = this.#host;
    const python = await models.get("debug.checkNumerics");
    const optimized = (this.#optimized ??= this.#placesOf(python));
    memory.save(COPY_CHECK);
    try {
      const result = await run();
      for (const { slot, places } of optimized) {
        for (const place of places) {
          const found = this.#read(place);
          if (badOf(found) > badOf(this.#readBefore(place))) {
            throw this.#optimizerError(python, slot, places, found);
          }
        }
      }
      return result;
    } catch (error) {
      memory.putBack(COPY_CHECK);
      throw error;
    } finally {
      memory.forget(COPY_CHECK);
    }
  }

  #checkInspected(models: PythonModels, { kind, overwrite }: InspectedStep, inspected: LoadedPlan): void {
    const nodes = this.#plans.nodesOf(inspected);
    const made = new Set(nodes.flatMap(({ outputs }) => outputs));
    const ranges = new Map<string, TensorRange>();
    for (const place of inspected.plan.outputs.filter(({ dtype, nbytes }) => dtype === "float32" && nbytes > 0)) {
      const { name, segment } = place;
      // A step reads the tensors that it updates as they were before it; gradients that are overwritten are not read.
      const isBefore = this.#copyOf(segment) !== 0 && !made.has(name);
      if (!isBefore || segment !== GRADIENTS || !overwrite) {
        ranges.set(name, isBefore ? this.#readBefore(place) : this.#readOutput(inspected, place));
      }
    }
    const counts = [...ranges.values()].flatMap((range) =>
      badOf(range) > 0 ? [[range.name, range.nan, range.infinite] as const] : [],
    );
    const fault = counts.length === 0 ? null : models.firstFault(nodes, counts, this.#host.outputs[kind]);
    if (fault !== null) {
      const [number, name] = fault;
      const node = nodes[number] as InspectedNode;
      const inputs = node.inputs.flatMap((input) => ranges.get(input) ?? []);
      throw this.#error(kind, node, ranges.get(name) as TensorRange, inputs);
    }
  }

  /** The outputs of a step, and all parameters and gradients but weights of 16 bits, which no step changes. */
  #results(kind: "train" | "eval", loaded: LoadedPlan): TensorRange[] {
    const { outputs } = this.#host;
    const parameters = this.#host.parameters.filter(({ dtype }) => dtype === "float32");
    const given = loaded.plan.outputs.filter(({ name, dtype }) => outputs[kind].includes(name) && dtype === "float32");
    const order = outputs[kind].flatMap((name) => given.filter((place) => place.name === name));
    return [
      ...order.map((place) => this.#readOutput(loaded, place)),
      ...parameters.map((slot) => this.#read(parameterPlace(slot))),
      ...parameters.filter(({ trainableOffset }) => trainableOffset >= 0).map((slot) => this.#read(gradientPlace(slot))),
    ];
  }

  #placesOf(models: PythonModels): Optimized[] {
    const trained = this.#host.parameters.filter(({ trainableOffset }) => trainableOffset >= 0);
    return trained.map((slot) => {
      const moments = models.momentPlaces(slot.name).map(({ moment, ...place }) => {
        return { ...place, name: `${slot.name}.${moment}` };
      });
      return { slot, places: [parameterPlace(slot), ...moments] };
    });
  }

  #readOutput(loaded: LoadedPlan, place: TensorPlace): TensorRange {
    const { engine, memory } = this.#host;
    return rangeOf(engine, place.name, place.dims, memory.addressOf(loaded, place));
  }

  #read({ name, segment, offset, dims }: SegmentPlace): TensorRange {
    const { engine, memory } = this.#host;
    return rangeOf(engine, name, dims, memory.range(segment, offset, 4 * sizeOf(dims)).byteOffset);
  }

  /** The range of a tensor before the step. */
  #readBefore({ name, segment, offset, dims }: Omit<SegmentPlace, "nbytes">): TensorRange {
    return rangeOf(this.#host.engine, name, dims, this.#copyOf(segment) + offset);
  }

  /** Address of a segment's contents before the step; 0: they do not outlast it. */
  #copyOf(segment: number): number {
    return this.#host.memory.call("tw_session_copy", COPY_CHECK, segment);
  }

  #optimizerError(
    models: PythonModels,
    slot: ParameterSlot,
    places: readonly SegmentPlace[],
    found: TensorRange,
  ): Error {
    const rate = { name: "learning_rate", segment: STATE, offset: 4 * STATE_LEARNING_RATE, dims: [1] };
    const [parameter, ...moments] = places as readonly [SegmentPlace, ...SegmentPlace[]];
    const inputs = [parameter, gradientPlace(slot), ...moments, rate].map((place) => this.#readBefore(place));
    const op = models.optimizerOperator();
    return this.#error("optimizer", { name: `The optimizer ${op} of '${slot.name}'`, op }, found, inputs);
  }

  #error(kind: StepKind, node: Pick<InspectedNode, "name" | "op">, made: TensorRange, inputs: readonly TensorRange[]): Error {
    const state = this.#host.memory.range(STATE, 4 * STATE_STEP, 8);
    const step = Number(new DataView(state.buffer, state.byteOffset).getBigInt64(0, true));
    const read = inputs.length === 0 ? "" : ` Its inputs are ${inputs.map(textOf).join("; ")}.`;
    const text = { node: node.name, bad: badText(made), count: sizeOf(made.shape), tensor: made.name, kind, step, inputs: read };
    const fields = { node: node.name, op: node.op, tensor: made.name, step, made, inputs, epoch: null, batch: null };
    return Object.assign(sessionError("NUMERICS", text), fields);
  }
}

function parameterPlace({ name, offset, dims }: ParameterSlot): SegmentPlace {
  return { name, segment: PARAMETERS, offset: 4 * offset, dims };
}

function gradientPlace({ name, trainableOffset, dims }: ParameterSlot): SegmentPlace {
  return { name: `${name}_grad`, segment: GRADIENTS, offset: 4 * trainableOffset, dims };
}

/** The range of the float32 values at an address. */
function rangeOf(engine: Engine, name: string, shape: readonly number[], ptr: number): TensorRange {
  const count = sizeOf(shape);
  const { least, most, nan, infinite } = engine.range(ptr, count);
  const isEmpty = nan + infinite === count;
  return { name, shape, min: isEmpty ? null : rounded(least), max: isEmpty ? null : rounded(most), nan, infinite };
}

function rounded(value: number): number {
  return Number(value.toPrecision(DIGITS));
}

function badOf({ nan, infinite }: TensorRange): number {
  return nan + infinite;
}

function badText({ nan, infinite }: TensorRange): string {
  return [nan > 0 ? `${nan} NaN` : "", infinite > 0 ? `${infinite} infinite` : ""].filter(Boolean).join(" and ");
}

function textOf(range: TensorRange): string {
  const finite = range.min === null ? "nothing finite" : `${range.min} to ${range.max}`;
  return `'${range.name}' (${[`${sizeOf(range.shape)} values`, finite, badText(range)].filter(Boolean).join(", ")})`;
}
