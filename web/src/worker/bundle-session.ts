/**
 * A training session in the worker that runs from a bundle: no Python, until a call needs it. The memory of
 * parameters, gradients, moments and state then goes over to Python where it lies; the bundle's plans stay.
 */

import type { Engine } from "../engine/engine.js";
import { withJavaScriptAdvice, type Answer } from "../python/bridge.js";
import {
  BufferSizeError,
  CheckpointError,
  EngineError,
  FeedError,
  LimitError,
  SessionError,
} from "../wire/errors.js";
import type { SessionInfo } from "../wire/protocol.js";
import {
  ARENA,
  CODE_BASE_WORD,
  CONSTANTS,
  HEADER_WORDS,
  N_SEGMENTS,
  PARAMETERS,
  planKey,
  PREPARED,
  SEGMENT_WORDS,
  sizeOf,
  STATE,
  STATE_WORD,
  type Bundle,
  type BundleModels,
  type BundlePlan,
  type Declaration,
  type FeedType,
  type ParameterSlot,
  type PlanSlot,
} from "./bundle.js";
import type { Listing, LoadedPlan, Signature, Slot } from "./compiled-session.js";
import { disassemble, type KernelDescription } from "./disassembly.js";
import type { SessionHost } from "./host.js";

/** State words. */
const LAZY_RESET = 0;
const LEARNING_RATE = 1;
const INITIAL_LR = 4;
const SCHEDULER = 5;
const WARMUP = 6;
const TOTAL = 8;
const SEED = 10;
const LOADS = 14;

/** Header words of a plan that say how its last run failed. */
const FAILED_WORD = 12;
const VALUE_WORD = 13;
const POSITION_WORD = 15;

/** Thrown where a session from a bundle can go on only with Python. */
export class NeedsPython extends Error {
  /** @param what - what it is needed for, e.g. "saveCheckpoint" */
  constructor(readonly what: string) {
    super(`${what} needs Python.`);
  }
}

/** The kernels' own description of themselves, as far as bundles need it. */
export interface Kernels {
  readonly fingerprint: number;
  readonly status: Readonly<Record<string, number>>;
  readonly kernels: readonly KernelDescription[];
}

/** Where a session's memory lies, for Python to take over. */
export interface SessionMemory {
  readonly bases: readonly number[];
  readonly sizes: readonly number[];
  readonly parameters: readonly ParameterSlot[];
  readonly nominal: boolean;
}

export interface BundleOptions {
  /** Bytes that a step may use besides parameters, gradients and moments. */
  readonly arenaLimit: number;
  /** Plans that use more are left to Python, which makes them do with it. */
  readonly memoryBudget: number;
  /** Whether Python can make the artifacts of the session, if asked for them. */
  readonly hasArtifacts: boolean;
}

/** Fields of Python's `SessionMemory`. */
interface MemoryAnswer {
  readonly parameters: number;
  readonly gradients: number;
  readonly moments: number;
  readonly arena: number;
  readonly prepared: number;
  readonly plans: number;
  readonly arena_without_budget: number;
  readonly recomputed_instructions: number;
  readonly recomputed_flops: number;
  readonly recomputed_share: number;
}

interface Loaded {
  readonly plan: BundlePlan;
  readonly ptr: number;
  readonly constants: number;
  /** Table slot of its generated functions; 0: it has none. */
  readonly codeBase: number;
}

type Call = (args: readonly unknown[], data: Uint8Array | null) => Answer;

export class BundleSession implements SessionHost {
  readonly #engine: Engine;
  readonly #kernels: Kernels;
  readonly #bundle: Omit<Bundle, "models" | "segments">;
  readonly #plans: ReadonlyMap<string, BundlePlan>;
  readonly #bases: number[] = new Array<number>(N_SEGMENTS).fill(0);
  readonly #sizes: number[];
  readonly #loaded = new Map<BundlePlan, Loaded>();
  /** Addresses of constants; the bundle has equal ones once. */
  readonly #constants = new Map<Uint8Array, number>();
  readonly #calls: Readonly<Record<string, Call>>;
  readonly #options: BundleOptions;
  #models: BundleModels | null;
  #nominal: boolean;
  #python: SessionHost | null = null;
  #generation = 0;

  /** @throws EngineError when the kernels' memory has no room */
  constructor(engine: Engine, kernels: Kernels, bundle: Bundle, options: BundleOptions) {
    const { models, segments, ...rest } = bundle;
    this.#engine = engine;
    this.#kernels = kernels;
    this.#options = options;
    this.#bundle = rest;
    this.#models = models;
    this.#nominal = bundle.nominal;
    const usable = bundle.plans.filter(
      ({ arenaBytes, preparedBytes }) => arenaBytes + preparedBytes <= options.memoryBudget,
    );
    this.#plans = new Map(
      usable.map((plan) => [planKey(plan.kind, plan.overwrite, plan.signature), plan]),
    );
    this.#sizes = segments.map(({ bytes }) => bytes);
    const arenas = usable.map(({ arenaBytes }) => arenaBytes);
    this.#sizes[ARENA] = Math.max(0, ...arenas.filter((bytes) => bytes <= options.arenaLimit));
    this.#sizes[PREPARED] = Math.max(0, ...usable.map(({ preparedBytes }) => preparedBytes));
    this.#calls = this.#makeCalls();
    try {
      this.#fill(segments);
    } catch (error) {
      this.release();
      throw error;
    }
  }

  get statePtr(): number {
    return this.#bases[STATE] as number;
  }

  /** What the page is told of the session. */
  get info(): Omit<SessionInfo, "handle"> {
    const { inputs, outputs, hasEval, hasOptimizer } = this.#bundle;
    return {
      trainingInputNames: inputs.train.map(({ name }) => name),
      trainingOutputNames: outputs.train,
      evalInputNames: inputs.eval.map(({ name }) => name),
      evalOutputNames: outputs.eval,
      statePtr: this.statePtr,
      hasEval,
      hasOptimizer,
      nominal: this.#nominal,
    };
  }

  plan(kind: string, signature: Signature): LoadedPlan {
    if (this.#python !== null && this.#nominal) {
      return this.#python.plan(kind, signature);
    }
    this.#check(kind, signature);
    const overwrite = kind !== "train" || this.#words(LAZY_RESET, 1)[0] !== 0;
    const plan = this.#plans.get(planKey(kind, overwrite, signature));
    if (plan !== undefined) {
      return this.#describe(this.#load(plan));
    }
    if (this.#python === null) {
      const dims = signature.map((feed) => `${feed.name} ${feed.dtype}[${feed.dims.join(", ")}]`);
      throw new NeedsPython(signature.length === 0 ? `a ${kind} step` : `a ${kind} step of ${dims.join(", ")}`);
    }
    const loaded = this.#python.plan(kind, signature);
    this.#generation = loaded.generation;
    return loaded;
  }

  explain(ptr: number, status: number): Error {
    const loaded = this.#findLoaded(ptr);
    if (loaded !== undefined) {
      return this.#explainOwn(loaded, status);
    }
    return this.#python?.explain(ptr, status) ?? new EngineError(`the plan failed with status ${status}.`);
  }

  listing(ptr: number): Listing {
    const loaded = this.#findLoaded(ptr);
    if (loaded !== undefined) {
      const { words, nodes } = loaded.plan;
      return { text: disassemble(words, this.#kernels.kernels), nodes };
    }
    if (this.#python === null) {
      throw new EngineError(`no plan lies at ${ptr}.`);
    }
    return this.#python.listing(ptr);
  }

  call(method: string, args: string, data: Uint8Array | null): Answer {
    if (method === "set_seed" && this.#python === null) {
      return this.#setSeed(args);
    }
    if (method === "memory") {
      return this.#measure();
    }
    const call = Object.hasOwn(this.#calls, method) ? this.#calls[method] : undefined;
    if (this.#python !== null) {
      return this.#callPython(this.#python, method, args, data);
    }
    if (call === undefined) {
      throw new NeedsPython(method);
    }
    return call(JSON.parse(args || "[]") as unknown[], data);
  }

  /** The models for Python, which takes over at once; null where there are none. */
  get models(): BundleModels | null {
    return this.#models;
  }

  /** What Python must know of the memory. */
  get memory(): SessionMemory {
    return {
      bases: this.#bases,
      sizes: this.#sizes,
      parameters: this.#bundle.parameters,
      nominal: this.#nominal,
    };
  }

  /** Feeds that the bundle has plans for. */
  get signatures(): Signature[] {
    return this.#bundle.plans.flatMap(({ signature }) => (signature.length === 0 ? [] : [signature]));
  }

  /** Go on with a session of Python's on this memory, which belongs to that session now. */
  handOver(python: SessionHost): void {
    this.#python = python;
    this.#models = null;
  }

  release(): void {
    for (const { ptr, codeBase } of this.#loaded.values()) {
      this.#engine.free(ptr);
      if (codeBase !== 0) {
        this.#engine.unloadCode(codeBase);
      }
    }
    for (const ptr of this.#constants.values()) {
      this.#engine.free(ptr);
    }
    this.#loaded.clear();
    this.#constants.clear();
    const kept = [this.#bases[ARENA] as number, this.#bases[PREPARED] as number];
    for (const base of this.#python === null ? this.#bases : kept) {
      if (base !== 0) {
        this.#engine.free(base);
      }
    }
    this.#bases.fill(0);
    this.#python?.release();
    this.#python = null;
  }

  // Memory and plans.

  #fill(segments: Bundle["segments"]): void {
    segments.forEach(({ bytes, data }, segment) => {
      if (bytes === 0) {
        return;
      }
      const base = this.#engine.alloc(bytes);
      this.#bases[segment] = base;
      if (data === null) {
        this.#engine.view(base, bytes).fill(0);
      } else {
        this.#engine.write(base, data);
      }
    });
  }

  #load(plan: BundlePlan): Loaded {
    const known = this.#loaded.get(plan);
    if (known !== undefined) {
      return known;
    }
    if (plan.arenaBytes > this.#options.arenaLimit) {
      throw new LimitError(
        `This model needs ${plan.arenaBytes} bytes of workspace for these shapes; ` +
          `the limit arena_bytes is ${this.#options.arenaLimit}.`,
      );
    }
    const engine = this.#engine;
    if (this.#bases[ARENA] === 0 && this.#sizes[ARENA] !== 0) {
      this.#bases[ARENA] = engine.alloc(this.#sizes[ARENA] as number);
    }
    if (this.#bases[PREPARED] === 0 && plan.preparedBytes !== 0) {
      const bytes = this.#sizes[PREPARED] as number;
      this.#bases[PREPARED] = engine.alloc(bytes);
      // Nothing is prepared yet.
      engine.view(this.#bases[PREPARED], bytes).fill(0);
    }
    const constants = this.#loadConstants(plan.constants);
    const codeBase = plan.code.length === 0 ? 0 : engine.loadCode(plan.code);
    const words = new Uint8Array(plan.words);
    const view = new DataView(words.buffer);
    for (let segment = 0; segment < N_SEGMENTS; segment++) {
      const isConstants = segment === CONSTANTS;
      const at = 4 * (HEADER_WORDS + SEGMENT_WORDS * segment);
      view.setUint32(at, isConstants ? constants : (this.#bases[segment] as number), true);
      view.setUint32(at + 4, isConstants ? plan.constants.length : this.#allocated(segment), true);
    }
    view.setUint32(4 * CODE_BASE_WORD, codeBase, true);
    view.setUint32(4 * STATE_WORD, 0, true);
    const ptr = engine.alloc(words.length);
    engine.write(ptr, words);
    const loaded = { plan, ptr, constants, codeBase };
    this.#loaded.set(plan, loaded);
    return loaded;
  }

  #allocated(segment: number): number {
    return this.#bases[segment] === 0 ? 0 : (this.#sizes[segment] as number);
  }

  #findLoaded(ptr: number): Loaded | undefined {
    return [...this.#loaded.values()].find((one) => one.ptr === ptr);
  }

  #loadConstants(data: Uint8Array): number {
    if (data.length === 0) {
      return 0;
    }
    const known = this.#constants.get(data);
    if (known !== undefined) {
      return known;
    }
    const ptr = this.#engine.alloc(data.length);
    this.#constants.set(data, ptr);
    this.#engine.write(ptr, data);
    return ptr;
  }

  #describe({ plan, ptr, constants }: Loaded): LoadedPlan {
    const place = ({ name, segment, offset, nbytes, dtype, dims }: PlanSlot): Slot => {
      const base = segment === CONSTANTS ? constants : (this.#bases[segment] as number);
      return { name, ptr: base + offset, nbytes, dtype, dims };
    };
    const inputs = plan.inputs.map(place);
    const outputs = plan.outputs.map(place);
    // Plans of the bundle never move; with the generation of Python's they keep each other in the cache.
    return { ptr, generation: this.#generation, arenaBytes: plan.arenaBytes, inputs, outputs };
  }

  #explainOwn({ plan, ptr }: Loaded, status: number): Error {
    const header = this.#engine.read(ptr, 4 * HEADER_WORDS);
    const view = new DataView(header.buffer);
    const failed = view.getUint32(4 * FAILED_WORD, true);
    const value = view.getBigInt64(4 * VALUE_WORD, true);
    const position = view.getBigInt64(4 * POSITION_WORD, true);
    const known = Object.entries(this.#kernels.status).find(([, code]) => code === status);
    const name = known?.[0] ?? `status ${status}`;
    const node = plan.nodes[failed] ?? "the plan";
    switch (name) {
      case "TW_BAD_LABEL":
        return new FeedError(`${node}: the label ${value} at position ${position} is out of range.`);
      case "TW_BAD_INDEX":
        return new FeedError(`${node}: the index ${value} at position ${position} is out of range.`);
      case "TW_BAD_VALUE":
        return new FeedError(`${node}: the value ${value} at position ${position} is not allowed.`);
      default:
        return new EngineError(
          `${name} (status ${status}) in instruction ${failed} of ${node}: value ${value}, position ${position}.`,
        );
    }
  }

  // What must hold before a plan may run, in the words of Python's session.

  #check(kind: string, signature: Signature): void {
    if (kind === "train" || kind === "eval") {
      if (kind === "eval" && !this.#bundle.hasEval) {
        throw new SessionError("This TrainingSession has no EvalModel loaded.");
      }
      if (this.#nominal) {
        const step = kind === "train" ? "TrainStep" : "EvalStep";
        throw nominalError(`Cannot perform ${step} with a nominal state. Please load the model parameters first.`);
      }
      checkFeeds(kind, this.#bundle.inputs[kind], signature);
      return;
    }
    if (!this.#bundle.hasOptimizer) {
      throw new SessionError("This TrainingSession has no OptimizerModel loaded.");
    }
    if (kind === "optimizer" && this.#nominal) {
      throw nominalError("The optimizer state cannot be constructed. Please load the model parameters first.");
    }
    if (kind === "scheduler" && this.#words(SCHEDULER, 1)[0] === 0) {
      throw new SessionError(
        "No learning rate scheduler was registered. Please register a valid learning rate scheduler",
      );
    }
  }

  // Calls.

  #makeCalls(): Readonly<Record<string, Call>> {
    return {
      get_parameters_size: ([only]) => ({ value: this.#count(only), data: null }),
      get_contiguous_parameters: ([only]) => this.#getParameters(only),
      load_parameters_buffer: ([only], data) => this.#loadParameters(only, data),
      get_parameter: ([name]) => this.#getParameter(name),
      get_parameter_type_and_shape: ([name]) => ({ value: describeSlot(this.#slot(name)), data: null }),
      update_parameter: ([name, dtype, dims], data) => this.#updateParameter(name, dtype, dims, data),
      register_linear_lr_scheduler: ([warmup, total, rate]) => this.#register(warmup, total, rate),
      artifact: () => {
        if (this.#options.hasArtifacts) {
          throw new NeedsPython("getArtifacts");
        }
        throw new SessionError("This session was not made by createFromModel: it has no artifacts of its own.");
      },
    };
  }

  #callPython(python: SessionHost, method: string, args: string, data: Uint8Array | null): Answer {
    const answer = python.call(method, args, data);
    if (method === "load_parameters_buffer") {
      // Python refuses to load the trainable parameters alone into a nominal state.
      this.#nominal = false;
    }
    return answer;
  }

  /** What Python's `SessionMemory` says, of the bundle's plans and of Python's. */
  #measure(): Answer {
    const plans = [...this.#loaded.values()].map(({ plan }) => plan);
    const bytes = (some: Iterable<Uint8Array>): number => [...some].reduce((sum, { length }) => sum + length, 0);
    const [, , parameters = 0, gradients = 0, first = 0, second = 0] = this.#sizes;
    const costs = plans.map(({ recomputation }) => recomputation);
    const most = costs.sort((a, b) => b.fullBytes - a.fullBytes)[0];
    const own: MemoryAnswer = {
      parameters,
      gradients,
      moments: first + second,
      arena: this.#allocated(ARENA),
      prepared: this.#allocated(PREPARED),
      plans: bytes(plans.map(({ words }) => words)) + bytes(this.#constants.keys()),
      arena_without_budget: most?.fullBytes ?? 0,
      recomputed_instructions: most?.instructions ?? 0,
      recomputed_flops: most?.flops ?? 0,
      recomputed_share: most?.share ?? 0,
    };
    if (this.#python === null) {
      return { value: own, data: null };
    }
    const theirs = this.#python.call("memory", "[]", null).value as MemoryAnswer;
    const larger = own.arena_without_budget > theirs.arena_without_budget ? own : theirs;
    const sums = {
      arena: own.arena + theirs.arena,
      prepared: own.prepared + theirs.prepared,
      plans: own.plans + theirs.plans,
    };
    return { value: { ...larger, ...sums }, data: null };
  }

  #setSeed(args: string): Answer {
    // The seed has 64 bits, which JSON.parse would round.
    const [, digits = "0"] = /^\[(-?\d+)\]$/.exec(args) ?? [];
    const view = this.#stateView();
    view.setBigUint64(4 * SEED, BigInt.asUintN(64, BigInt(digits)), true);
    view.setBigUint64(4 * (SEED + 2), 0n, true);
    return NOTHING;
  }

  #register(warmup: unknown, total: unknown, rate: unknown): Answer {
    const view = this.#stateView();
    view.setFloat32(4 * LEARNING_RATE, Number(rate), true);
    view.setFloat32(4 * INITIAL_LR, Number(rate), true);
    view.setUint32(4 * SCHEDULER, 1, true);
    view.setBigInt64(4 * WARMUP, BigInt(Number(warmup)), true);
    view.setBigInt64(4 * TOTAL, BigInt(Number(total)), true);
    return NOTHING;
  }

  #count(trainableOnly: unknown): number {
    return isOnly(trainableOnly) ? this.#bundle.trainableSize : this.#bundle.size;
  }

  #getParameters(only: unknown): Answer {
    if (this.#nominal) {
      throw nominalError(
        "Cannot copy parameters from a nominal checkpoint state. Please load the model parameters first.",
      );
    }
    const size = this.#count(only);
    const all = this.#parameters();
    const data = new Uint8Array(4 * size);
    let at = 0;
    for (const { start, end } of this.#runs(only)) {
      data.set(all.subarray(start, end), at);
      at += end - start;
    }
    return { value: { dtype: "float32", dims: [size] }, data };
  }

  #loadParameters(only: unknown, data: Uint8Array | null): Answer {
    if (this.#nominal && isOnly(only)) {
      throw nominalError(
        "For nominal checkpoint state, all parameters need to be loaded into the model (trainable_only = false).",
      );
    }
    const expected = 4 * this.#count(only);
    const given = data ?? new Uint8Array();
    if (given.length !== expected) {
      throw new BufferSizeError(
        "Size of the buffer passed into loadParametersBuffer must match the number of parameters in the model. " +
          "Please use getParametersSize method to check. " +
          `Expected: ${expected} bytes, Actual: ${given.length} bytes.`,
      );
    }
    const all = this.#parameters();
    let at = 0;
    for (const { start, end } of this.#runs(only)) {
      all.set(given.subarray(at, at + end - start), start);
      at += end - start;
    }
    this.#countLoad();
    this.#nominal = false;
    return NOTHING;
  }

  #getParameter(name: unknown): Answer {
    const slot = this.#slot(name);
    if (this.#nominal) {
      throw nominalError("Cannot get parameter from a nominal state. Please load the parameter states first");
    }
    const { start, end } = bytesOf(slot);
    return { value: describeSlot(slot), data: new Uint8Array(this.#parameters().subarray(start, end)) };
  }

  #updateParameter(name: unknown, dtype: unknown, dims: unknown, data: Uint8Array | null): Answer {
    const slot = this.#slot(name);
    if (this.#nominal) {
      throw nominalError("Cannot copy parameter to a nominal state. Please load all the parameter states first");
    }
    const what = `Parameter ${quote(slot.name)} data`;
    if (dtype !== "float32") {
      throw new CheckpointError(`${what} type mismatch. Expected: float32, Got: ${String(dtype)}`);
    }
    const { start, end } = bytesOf(slot);
    if (String(dims) !== String(slot.dims) || data?.length !== end - start) {
      const given = Array.isArray(dims) ? dims : [];
      throw new CheckpointError(`${what} shape mismatch. Expected: ${listOf(slot.dims)}, Got: ${listOf(given)}`);
    }
    this.#parameters().set(data, start);
    this.#countLoad();
    return NOTHING;
  }

  /** What plans prepared of the parameters is void. */
  #countLoad(): void {
    const view = this.#stateView();
    view.setUint32(4 * LOADS, view.getUint32(4 * LOADS, true) + 1, true);
  }

  #slot(name: unknown): ParameterSlot {
    const { parameters } = this.#bundle;
    const slot = parameters.find((one) => one.name === name);
    if (slot === undefined) {
      const names = parameters.map((one) => one.name).join(", ");
      throw new CheckpointError(`The model has no parameter ${quote(name)}; it has ${names}.`);
    }
    return slot;
  }

  /** Bytes of the (trainable) parameters. */
  #runs(only: unknown): { readonly start: number; readonly end: number }[] {
    const { parameters } = this.#bundle;
    const wanted = isOnly(only) ? parameters.filter((slot) => slot.trainableOffset >= 0) : parameters;
    return wanted.map(bytesOf);
  }

  #parameters(): Uint8Array {
    return this.#engine.view(this.#bases[PARAMETERS] as number, this.#sizes[PARAMETERS] as number);
  }

  #words(word: number, count: number): Uint32Array {
    return new Uint32Array(this.#engine.u8.buffer, this.statePtr + 4 * word, count);
  }

  #stateView(): DataView {
    return new DataView(this.#engine.u8.buffer, this.statePtr, this.#sizes[STATE] as number);
  }
}

const NOTHING: Answer = { value: null, data: null };

/** Raise what Python's session raises for feeds that do not fit the model's inputs. */
function checkFeeds(kind: "train" | "eval", inputs: readonly Declaration[], feeds: readonly FeedType[]): void {
  const symbols = new Map<string, { readonly size: number; readonly name: string }>();
  for (const declared of inputs) {
    const given = feeds.find(({ name }) => name === declared.name);
    if (given === undefined) {
      throw new FeedError(`input '${declared.name}' is missing in 'feeds'.`);
    }
    checkFeed(declared, given, symbols);
    if (kind === "train" && sizeOf(given.dims) === 0) {
      throw new FeedError(
        `Feed ${quote(given.name)} has shape ${listOf(given.dims)}: an empty batch cannot be trained on.`,
      );
    }
  }
}

function checkFeed(
  { name, dtype, dims }: Declaration,
  given: FeedType,
  symbols: Map<string, { readonly size: number; readonly name: string }>,
): void {
  if (given.dtype !== dtype) {
    throw new FeedError(
      withJavaScriptAdvice(
        `Unexpected input data type of ${quote(name)}. Actual: (${given.dtype}), expected: (${dtype}). ` +
          `Convert it with .astype('${dtype}').`,
      ),
    );
  }
  if (dims === null) {
    return;
  }
  if (given.dims.length !== dims.length) {
    throw new FeedError(
      `Invalid rank for input: ${name} Got: ${given.dims.length} Expected: ${dims.length} ` +
        `(shape ${listOf(given.dims)} for ${listOf(dims)}).`,
    );
  }
  dims.forEach((dim, index) => {
    const size = given.dims[index] as number;
    if (typeof dim === "number" && size !== dim) {
      throw new FeedError(
        `Got invalid dimensions for input: ${name} for the following indices ` +
          `index: ${index} Got: ${size} Expected: ${dim}`,
      );
    }
    if (typeof dim !== "string") {
      return;
    }
    const known = symbols.get(dim) ?? { size, name };
    symbols.set(dim, known);
    if (known.size !== size) {
      throw new FeedError(
        `Feeds disagree on the dimension ${quote(dim)}: ${known.size} in ${quote(known.name)}, ` +
          `${size} in ${quote(name)}.`,
      );
    }
  });
}

function nominalError(message: string): CheckpointError {
  return new CheckpointError(message);
}

function isOnly(value: unknown): boolean {
  return value === undefined || Boolean(value);
}

function bytesOf({ offset, dims }: ParameterSlot): { readonly start: number; readonly end: number } {
  return { start: 4 * offset, end: 4 * (offset + sizeOf(dims)) };
}

function describeSlot({ dims }: ParameterSlot): { readonly dtype: string; readonly dims: readonly number[] } {
  return { dtype: "float32", dims };
}

/** As Python shows a value in a message. */
function quote(value: unknown): string {
  if (typeof value !== "string") {
    return JSON.stringify(value);
  }
  const escaped = value.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
  return escaped.includes("'") && !escaped.includes('"') ? `"${escaped}"` : `'${escaped.replaceAll("'", "\\'")}'`;
}

function listOf(dims: readonly unknown[]): string {
  return `[${dims.map((dim) => (typeof dim === "number" ? dim : dim === null ? "None" : quote(dim))).join(", ")}]`;
}
