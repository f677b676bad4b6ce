/** An inference session in the worker: Python compiles a plan for each kind of feeds. */

import type { Feed, Fetch, InferenceInfo, MaybePromise } from "../wire/protocol.js";
import { parsePlan, type BundlePlan, type Declaration, type FeedType, type InferenceBundle } from "./bundle/bundle.js";
import type { TokenHost } from "./decoder.js";
import { checkFeeds } from "./feeds.js";
import type { HostOpener, HostOptions, ReadFile, StepHost } from "./host.js";
import type { PythonModels } from "./python-models.js";
import { PlanRunner, type PlanSource, type Run } from "./runner.js";
import { INFERENCE, isForward, outputsOf, type StepKind } from "./step-kind.js";

export class InferenceCore implements PlanSource, TokenHost {
  readonly host: StepHost;
  readonly runner: PlanRunner;
  readonly #fingerprint: number;
  readonly #bundle: InferenceBundle;
  readonly #models: PythonModels;

  /** @throws EngineError when the kernels' memory has no room */
  constructor(
    openHost: HostOpener,
    fingerprint: number,
    bundle: InferenceBundle,
    options: HostOptions,
    models: PythonModels,
  ) {
    const { segments } = bundle;
    this.#fingerprint = fingerprint;
    this.#models = models;
    this.#bundle = { ...bundle, segments: segments.map(({ bytes }) => ({ bytes, data: null })) };
    this.host = openHost({ segments, reserved: [], trained: [] }, options);
    this.runner = new PlanRunner(this.host, this);
  }

  get info(): Omit<InferenceInfo, "handle" | "about"> {
    const { inputs, outputs } = this.#bundle;
    const valuesDecide = inputs.some(({ decides }) => decides > 0);
    return { inputs, inputNames: inputs.map(({ name }) => name), outputNames: outputs, valuesDecide };
  }

  /** @param stop - ends the run between two of its instructions; null: it runs through */
  step(_kind: StepKind, feeds: readonly Feed[], fetches: readonly Fetch[], stop: AbortSignal | null): MaybePromise<Run> {
    return this.runner.run(INFERENCE, true, feeds, fetches, stop);
  }

  /** It has no averages. */
  withAverages<T>(_on: boolean, action: () => MaybePromise<T>): MaybePromise<T> {
    return action();
  }

  openForward(kind: StepKind): readonly Declaration[] {
    return this.#models.forwardInputs(kind);
  }

  check(kind: StepKind, signature: readonly FeedType[]): void {
    checkFeeds(this.inputsOf(kind), signature, true);
  }

  inputsOf(kind: StepKind): readonly Declaration[] {
    return isForward(kind) ? this.openForward(kind) : this.#bundle.inputs;
  }

  make(kind: StepKind, overwrite: boolean, signature: readonly FeedType[]): BundlePlan {
    const { outputs, segments } = this.#bundle;
    const raw = this.#models.compile(kind, overwrite, signature, this.host.plans.flatMap((plan) => plan.kept), this.host.targetOf(kind));
    const names = isForward(kind) ? outputsOf(kind) : outputs;
    const owner = { segments, inputs: { [kind.base]: this.inputsOf(kind) }, outputs: { [kind.base]: names } };
    return parsePlan(raw, owner, this.#fingerprint);
  }

  readonly readFile: ReadFile = (file, start, target) => this.#models.readGiven(file, start, target);

  release(): void {
    this.host.release();
    this.#models.release();
  }
}
