/**
 * `fit` as the page sees it: it sends the data once, answers questions of the worker, tells events, and says pause, stop or
 * abort. The loop itself is worker/fit/loop.ts; `trainweb/fit/trainer.py` is both in Python.
 */

import { Tensor } from "onnxruntime-common";

import type { Dataset } from "../../data/dataset.js";
import type { Draw } from "../../data/random.js";
import { numbersOf, type Batch, type Row } from "../../data/rows.js";
import { isObject } from "../../wire/kinds.js";
import { FeedError } from "../../wire/errors.js";
import { FIT_ORDERS, FIT_TELL } from "../../wire/fit.js";
import type {
  EpochRecord,
  EvalValues,
  FitAnswer,
  FitAsk,
  FitAsks,
  FitCheckpoint,
  FitLosses,
  FitOrder,
  FitProgress,
  FitSpec,
  RateRange,
  StreamBatch,
  StreamPlace,
  WireBatch,
  WireEvaluation,
} from "../../wire/fit.js";
import { refuseIf, warnIf } from "../../wire/messages.js";
import { canShareMemory } from "../../wire/platform.js";
import type { Answer, Call, Feed, MaybePromise, Method, NamedTensor, SessionInfo } from "../../wire/protocol.js";
import { buffersIn, callOf } from "../client.js";
import { FrameGate, Listeners, type EpochEvent, type FitControl, type FitEvent, type History, type ProgressEvent } from "./events.js";
import { resolveFit, type ResolvedCheckpoint, type ResolvedFit } from "./options.js";
import { withFunctions } from "../own-metrics.js";
import { describe, isTensor } from "../../data/checks.js";
import { bytesOf, copyBytes, isOnCpu, packTensor, type SpareBuffers } from "../tensors.js";
import { Opaque } from "../../wire/opaque.js";

/** The fit was stopped or aborted before something came. */
const ENDED = Symbol("ended");

type MutableHistory<V extends EvalValues> = { -readonly [Name in keyof History]: History<V>[Name] } & { epochs: EpochEvent<V>[]; losses: number[] };

export interface FitHost {
  readonly info: SessionInfo;
  /** Send a call after all earlier ones of the session. */
  send<M extends Method>(make: () => Call<M>): Promise<Answer<M>>;
  /** Send a call that other calls of the session do not wait for. */
  run<M extends Method>(call: Call<M>): Promise<Answer<M>>;
}

type Answers = {
  readonly [Name in keyof FitAsks]: (about: FitAsks[Name]["about"]) => MaybePromise<FitAsks[Name]["answer"] | null>;
};

/** A fit under way: a promise of its history, and an async iterable of its events. */
export class FitRun<Values extends EvalValues = EvalValues> extends Opaque implements FitControl, PromiseLike<History<Values>>, AsyncIterable<FitEvent<Values>> {
  readonly #host: FitHost;
  readonly #listeners = new Listeners<FitEvent>();
  readonly #history: MutableHistory<Values> = { epochs: [], losses: [], optimizerSteps: 0, bestEpoch: null, ended: "done" };
  readonly #done: Promise<History<Values>>;
  readonly #port: MessagePort;
  readonly #workerPort: MessagePort;
  /** The last order, where worker and page share memory. */
  readonly #order = canShareMemory() ? new Int32Array(new SharedArrayBuffer(4)) : null;
  #aborted: { readonly reason: unknown } | null = null;
  #isStopping = false;
  /** End waits for data or callbacks, which may never come. */
  readonly #waits = new Set<() => void>();
  /** @internal Rows that were trained on, each counted once. */
  rows = 0;
  /** The batches of streams that the worker is at. */
  readonly #streams = new Map<StreamPlace["of"], AsyncGenerator<WireBatch>>();

  /** @internal */
  constructor(host: FitHost, data: unknown, options: unknown) {
    super();
    this.#host = host;
    const { port1, port2 } = new MessageChannel();
    this.#port = port1;
    this.#workerPort = port2;
    this.#done = this.#run(data, options);
  }

  /** The course so far. */
  get history(): History<Values> {
    return this.#history;
  }

  /** Pause the worker after the current step. */
  pause(): void {
    this.#say("pause");
  }

  /** Continue a paused fit. */
  resume(): void {
    this.#say("resume");
  }

  /** End after the current step, without waiting for data or callbacks; the history contains the finished part. */
  stop(): void {
    this.#isStopping = true;
    this.#endWaits();
    this.#say("stop");
  }

  /** As `stop`, but fail with this reason; the session keeps its progress. */
  abort(reason: unknown = new DOMException("The fit was aborted.", "AbortError")): void {
    this.#aborted ??= { reason };
    this.#endWaits();
    this.#say("abort");
  }

  then<A = History<Values>, B = never>(
    onDone?: ((history: History<Values>) => A | PromiseLike<A>) | null,
    onError?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return this.#done.then(onDone, onError);
  }

  /** As for a promise. A fit fails with the error of its steps, data or callbacks. */
  catch<B = never>(onError?: ((reason: unknown) => B | PromiseLike<B>) | null): Promise<History<Values> | B> {
    return this.#done.catch(onError);
  }

  /** As for a promise. */
  finally(action?: (() => void) | null): Promise<History<Values>> {
    return this.#done.finally(action);
  }

  /** Later events; of several unread reports of progress only the last. Leaving the loop stops the fit. */
  [Symbol.asyncIterator](): AsyncIterator<FitEvent<Values>> {
    // The loop receives the error.
    this.#done.catch(() => {});
    this.#port.postMessage(FIT_TELL);
    return this.#listeners.listen(() => this.stop()) as AsyncIterator<FitEvent<Values>>;
  }

  #endWaits(): void {
    this.#waits.forEach((end) => end());
  }

  /** The result of the user's code, or `ENDED` if the fit ends before. */
  #orEnded<T>(result: T | PromiseLike<T>): Promise<T | typeof ENDED> {
    return new Promise((resolve, reject) => {
      const end = (): void => resolve(ENDED);
      this.#waits.add(end);
      Promise.resolve(result)
        .then(resolve, reject)
        .finally(() => this.#waits.delete(end));
      if (this.#isStopping || this.#aborted !== null) {
        // After the events that are there already.
        queueMicrotask(end);
      }
    });
  }

  /** The batches of a stream as they are sent, without the first ones, until they or the fit end; or again and again. */
  async *#batches(batches: Dataset, draw: Draw | null, inputNames: readonly string[], start = 0, goesOn = false): AsyncGenerator<WireBatch> {
    let next = draw;
    for (let left = start, read = 1; read > 0; left = Math.max(left - read, 0)) {
      read = yield* this.#iteration(batches.read(next), inputNames, left);
      if (!goesOn || next === null) {
        return;
      }
      next = { ...next, epoch: next.epoch + 1 };
    }
  }

  /** One iteration over a stream; returns the number of its batches, 0 where the fit ends. */
  async *#iteration(batches: AsyncIterable<Row | Batch>, inputNames: readonly string[], start: number): AsyncGenerator<WireBatch, number> {
    const iterator = batches[Symbol.asyncIterator]();
    try {
      for (let [k, first] = [0, 0]; ; k++) {
        const next = await this.#orEnded(iterator.next());
        if (next === ENDED || next.done === true) {
          return next === ENDED ? 0 : k;
        }
        const batch = await this.#orEnded(packBatch(next.value, inputNames, k, first));
        if (batch === ENDED) {
          return 0;
        }
        first += batch.rows;
        if (k >= start) {
          yield batch;
        }
      }
    } finally {
      // Not awaited: it may never settle.
      iterator.return?.().catch(() => {});
    }
  }

  #say(order: FitOrder): void {
    // A fit that ends does not begin again.
    const isFinal = this.#order !== null && Atomics.load(this.#order, 0) >= FIT_ORDERS.indexOf("stop");
    if (this.#order !== null && (!isFinal || order === "abort")) {
      Atomics.store(this.#order, 0, FIT_ORDERS.indexOf(order));
    }
    this.#port.postMessage(order);
  }

  async #run(data: unknown, options: unknown): Promise<History<Values>> {
    let error: unknown = null;
    try {
      await this.#fit(resolveFit(this.#host.info, data, options));
      return this.#history;
    } catch (reason) {
      error = reason;
      throw reason;
    } finally {
      this.#port.close();
      this.#listeners.end(error);
    }
  }

  async #fit(plan: ResolvedFit): Promise<void> {
    const { signal } = plan;
    signal?.throwIfAborted();
    const abort = (): void => this.abort(signal?.reason);
    signal?.addEventListener("abort", abort);
    const { info } = this.#host;
    const gate = new FrameGate<FitProgress>((progress) => this.#tellProgress(plan, progress));
    this.#port.onmessage = ({ data }: MessageEvent<FitProgress | FitLosses | FitAsk>) => {
      if ("ask" in data) {
        if (data.ask === "epoch") {
          gate.flush();
        }
        void this.#answer(plan, data);
      } else if ("losses" in data) {
        this.#noteLosses(data);
      } else {
        gate.push(data);
      }
    };
    try {
      const packed = specOf(info, plan, this.#order);
      // Only a tensor of the GPU may never come.
      const spec = await (isOnHand(plan) ? packed : this.#orEnded(packed));
      this.#throwIfAborted();
      if (spec === ENDED) {
        this.#history.ended = "stopped";
        return;
      }
      const make = (): Call<"startFit"> => callOf("startFit", [info.handle, spec, this.#workerPort], [this.#workerPort]);
      // History and schedule go on from the checkpoint.
      const { optimizerSteps, losses, epochs, bestEpoch } = await this.#host.send(make);
      this.#noteLosses({ losses, optimizerSteps, isNaN: false });
      epochs.forEach((epoch) => this.#noteEpoch(plan, epoch));
      this.#history.bestEpoch = bestEpoch;
      await this.#host.run(callOf("runFit", [info.handle]));
      const trained = this.#history.losses.filter((loss) => !Number.isNaN(loss)).length;
      this.rows = Math.min(plan.train.size ?? 0, trained * plan.batchSize);
      this.#throwIfAborted();
      const wasDone = epochs.length > 0 && this.#history.losses.length === losses.length && this.#history.ended !== "stopped";
      warnIf(wasDone, "DONE_FIT", { name: plan.checkpoint?.name, epochs: epochs.length });
    } finally {
      signal?.removeEventListener("abort", abort);
      gate.close();
      // A source that nobody reads any more is left.
      this.#isStopping = true;
      this.#endWaits();
      this.#streams.forEach((batches) => void batches.return(undefined).catch(() => {}));
    }
  }

  #noteLosses({ losses, optimizerSteps, isNaN }: FitLosses): void {
    // An epoch may have more batches than a call may have arguments.
    losses.forEach((loss) => this.#history.losses.push(loss));
    this.#history.optimizerSteps = optimizerSteps;
    this.#isStopping ||= isNaN;
  }

  #noteEpoch({ schedule }: ResolvedFit, record: EpochRecord): EpochEvent {
    const event: EpochEvent = { type: "epoch", ...record };
    this.#history.epochs.push(event as EpochEvent<Values>);
    if (!this.#isStopping) {
      schedule?.observe((event.validation?.["loss"] as number | undefined) ?? event.loss);
    }
    return event;
  }

  /** Answer the worker; what fails here fails the fit. */
  async #answer(plan: ResolvedFit, { id, ask, about }: FitAsk): Promise<void> {
    const answers: Answers = {
      rates: (steps) => ratesOf(plan, steps),
      batch: (stream) => this.#nextBatch(plan, stream),
      values: (evaluated) => withFunctions(evaluated, plan.evaluation as WireEvaluation, plan.functions),
      epoch: async ({ record, bestEpoch }) => {
        this.#history.bestEpoch = bestEpoch;
        await this.#tell(plan, this.#noteEpoch(plan, record));
        return null;
      },
      end: (ended) => {
        this.#history.ended = ended;
        return null;
      },
    };
    let answer: FitAsks[keyof FitAsks]["answer"] | null = null;
    try {
      answer = await answers[ask](about as never);
    } catch (error) {
      this.abort(error);
    }
    this.#port.postMessage({ id, answer } satisfies FitAnswer, ask === "batch" ? buffersIn(answer) : []);
  }

  /** The next batch of a stream; null: there are no more. */
  async #nextBatch(plan: ResolvedFit, { of, start, steps }: StreamPlace): Promise<StreamBatch | null> {
    const { trainingInputNames, evalInputNames } = this.#host.info;
    const [data, names] = of === "train" ? [plan.train, trainingInputNames] : [plan.validation as Dataset, evalInputNames];
    const goesOn = of === "train" && plan.stepsPerEpoch !== null;
    // Only what trains is shuffled and augmented.
    const draw = of === "train" ? { epoch: goesOn ? 0 : this.#history.epochs.length, seed: plan.seed ?? 0, shuffles: plan.shuffles } : null;
    const batches = this.#streams.get(of) ?? this.#batches(data, draw, names, start, goesOn);
    this.#streams.set(of, batches);
    const next = await batches.next();
    if (next.done === true) {
      this.#streams.delete(of);
      return null;
    }
    return { batch: next.value, rates: steps && ratesOf(plan, steps) };
  }

  #tellProgress(plan: ResolvedFit, progress: FitProgress): void {
    const event: ProgressEvent = { type: "progress", ...progress, steps: plan.stepsPerEpoch };
    this.#tell(plan, event).catch((error: unknown) => this.abort(error));
  }

  async #tell({ callbacks }: ResolvedFit, event: FitEvent): Promise<void> {
    this.#listeners.push(event);
    for (const callback of callbacks) {
      await this.#orEnded(callback(event, this));
    }
  }

  #throwIfAborted(): void {
    if (this.#aborted !== null) {
      throw this.#aborted.reason;
    }
  }
}

function ratesOf({ schedule }: ResolvedFit, { from, count }: RateRange): Float64Array {
  return Float64Array.from({ length: count }, (_, k) => schedule?.rate(from + k) as number);
}

/** The description of a fit for the worker, with the data that lies there. */
async function specOf(info: SessionInfo, plan: ResolvedFit, order: FitSpec["order"]): Promise<FitSpec> {
  const { train, validation, schedule, functions, callbacks, signal, checkpoint, ...plain } = plan;
  return {
    ...plain,
    loss: info.trainingOutputNames[0] as string,
    hasSchedule: schedule !== null,
    train: await packColumns(train),
    validation: validation === null ? null : await packColumns(validation),
    hasValidation: validation !== null,
    checkpoint: checkpoint === null ? null : await checkpointOf(checkpoint),
    order,
    tells: callbacks.length > 0,
  };
}

async function checkpointOf({ store, name, every, options }: ResolvedCheckpoint): Promise<FitCheckpoint> {
  return { where: await store.where(), name, every, options: JSON.stringify(options) };
}

/** True if no tensor of the data must be downloaded from the GPU. */
function isOnHand({ train, validation }: ResolvedFit): boolean {
  return [train, validation].every((data) => [...(data?.columns?.values() ?? [])].every(isOnCpu));
}

async function packColumns({ columns }: Dataset): Promise<NamedTensor[] | null> {
  return columns && Promise.all([...columns].map(([name, tensor]) => packTensor(name, tensor, sentBytes)));
}

/** Bytes of which a message makes a copy, without more around them; shared ones are shared. */
function sentBytes(view: ArrayBufferView): Uint8Array {
  const isWhole = view.byteLength === view.buffer.byteLength || !(view.buffer instanceof ArrayBuffer);
  return isWhole ? bytesOf(view) : copyBytes(view);
}

/**
 * A batch for the worker: the inputs in the order of the model, then inputs that the model does not know.
 *
 * @param number - which it is, from 0
 * @param first - the number of its first row in the data
 */
export async function packBatch(batch: unknown, inputNames: readonly string[], number = 0, first = 0): Promise<WireBatch> {
  const isBatch = isObject(batch) && !isTensor(batch) && !ArrayBuffer.isView(batch);
  refuseIf(!isBatch, "NOT_A_BATCH", { position: number, actual: describe(batch) });
  const tensors = batch as Readonly<Record<string, Tensor>>;
  const batchNames = Object.keys(tensors);
  const names = [...inputNames.filter((name) => batchNames.includes(name)), ...batchNames.filter((name) => !inputNames.includes(name))];
  const feeds = await Promise.all(names.map((name) => packTensor(name, tensors[name] as Tensor, copyBytes)));
  const rows = feeds[0]?.dims[0] ?? 1;
  return { feeds, rows, first, numbers: numbersOf(tensors, rows) };
}

/**
 * Steps on batches, each with its optimizer step, in one message; the losses.
 *
 * @param spare - a buffer for batches that are all alike
 */
export async function runTrainSteps(host: FitHost, batches: unknown, spare: SpareBuffers): Promise<Float32Array> {
  const { handle, hasOptimizer, trainingInputNames, trainingOutputNames, valuesDecide } = host.info;
  refuseIf(!hasOptimizer, "NO_OPTIMIZER_MODEL");
  if (!Array.isArray(batches)) {
    throw new FeedError(`'batches' must be an array of feeds, got ${describe(batches)}.`);
  }
  const loss = trainingOutputNames[0] as string;
  const stacked = valuesDecide ? null : stackBatches(batches, spare);
  const packed = stacked ? [] : await Promise.all(batches.map((batch: unknown) => packBatch(batch, trainingInputNames)));
  const answer = await host.send(() => callOf("trainSteps", [handle, { batches: packed, stacked }, loss]));
  spare.keep(answer.buffers);
  return answer.losses;
}

/** One tensor an input, whose first axis counts batches; null where they are not all alike, on the CPU, and right. */
function stackBatches(batches: readonly unknown[], spare: SpareBuffers): NamedTensor[] | null {
  const [first] = batches;
  if (!isObject(first) || Object.keys(first).length === 0) {
    return null;
  }
  const names = Object.keys(first);
  const stacked: NamedTensor[] = [];
  for (const name of names) {
    const tensors = batches.map((batch) => (batch as Readonly<Record<string, unknown>> | null)?.[name]);
    const [one] = tensors;
    if (!isTensor(one) || !isOnCpu(one)) {
      return null;
    }
    const { dtype, data } = packTensor(name, one, bytesOf) as Feed & { readonly data: Uint8Array };
    const dims = one.dims.join();
    const all = spare.take(data.length * batches.length);
    for (const [k, tensor] of tensors.entries()) {
      if (!isTensor(tensor) || tensor.type !== one.type || !isOnCpu(tensor) || tensor.dims.join() !== dims) {
        return null;
      }
      const bytes = bytesOf(tensor.data as Uint8Array);
      if (bytes.length !== data.length) {
        return null;
      }
      all.set(bytes, k * data.length);
    }
    stacked.push({ name, dtype, dims: [batches.length, ...one.dims], data: all });
  }
  return batches.every((batch) => Object.keys(batch as object).length === names.length) ? stacked : null;
}
