/** Plans of a session on the GPU, and their steps. */

import { ARENA, CONSTANTS, LARGE_CONSTANTS, PARAMETERS, SEGMENT_NAMES } from "../engine/layout.js";
import type { Feed, PlacedTensor } from "../wire/protocol.js";
import type { BundlePlan, TensorPlace, Window } from "../worker/bundle/bundle.js";
import { fillLarge, largeBytesOf, sameLarge } from "../worker/bundle/large.js";
import type { LoadedPlan, ReadFile, StepHost } from "../worker/host.js";
import { Commands } from "./commands.js";
import { sessionError, USAGE, type GpuDevice } from "./device.js";
import { bodyFor, DISPATCH_WORDS, dispatchesOf, LASTING, Pipelines, type Body, type Dispatches } from "./plans.js";
import { Segments } from "./segments.js";

type WholePlan = BundlePlan & { readonly body: Body };

/** Buffers that only some plans use. */
export interface OwnBuffers {
  readonly constants: GPUBuffer;
  readonly large: GPUBuffer;
  readonly numbers: GPUBuffer;
  /** Of each group. */
  readonly windows: readonly (readonly Window[])[];
  /** With the segments' buffers of this generation. */
  groups: { readonly bound: readonly GPUBindGroup[]; readonly generation: number } | null;
}

/** Dispatches, and all that they need. */
export interface Program {
  readonly dispatches: Dispatches;
  readonly pipelines: readonly GPUComputePipeline[];
  readonly own: OwnBuffers;
}

/** A plan whose body is on the GPU. */
export class GpuPlan implements LoadedPlan, Program {
  /** True once the device took a step of it without an error. */
  hasRun = false;

  constructor(
    readonly plan: WholePlan,
    /** The head, which the kernels run. */
    readonly head: LoadedPlan,
    readonly dispatches: Dispatches,
    readonly pipelines: readonly GPUComputePipeline[],
    readonly own: OwnBuffers,
  ) {}
}

/** Runs the dispatches of a pass with times. */
export type TimedPass = (encode: (pass: GPUComputePassEncoder) => void, dispatch: number) => void;

export class GpuRunner {
  readonly segments: Segments;
  readonly commands: Commands;
  readonly pipelines: Pipelines;
  /** Plans on the GPU, by what the kernels loaded of them. */
  readonly plans = new Map<LoadedPlan, GpuPlan>();
  /** Has each dispatch in a separate pass. */
  timed: TimedPass | null = null;

  constructor(readonly gpu: GpuDevice, readonly kernels: StepHost) {
    this.commands = new Commands(gpu.device);
    this.segments = new Segments(gpu, kernels, this.commands);
    this.pipelines = new Pipelines(gpu);
  }

  /** Load a plan; `tell` is told how many shaders are compiled. @throws DeviceError of a refused shader, or of no memory */
  async load(key: string, plan: WholePlan, read: ReadFile, tell: (compiled: number, total: number) => void): Promise<GpuPlan> {
    const body = bodyFor(plan.body, this.gpu.adapter);
    const dispatches = dispatchesOf(this.gpu, { ...plan, body }, this.kernels.sizes);
    const pipelines = await this.pipelines.compile(body, dispatches, tell);
    await this.segments.reserve(body.arenaBytes);
    const own = await this.#ownBuffers(body, read);
    const head = await this.kernels.load(key, plan, read);
    const loaded = new GpuPlan(plan, head, dispatches, pipelines, own);
    this.plans.set(head, loaded);
    return loaded;
  }

  async #ownBuffers(body: Body, read: ReadFile): Promise<OwnBuffers> {
    const { segments, commands } = this;
    const constants = await segments.make(body.constants.length, "constants");
    commands.write(constants, 0, body.constants);
    const numbers = await segments.make(body.uniforms.length, "numbers", USAGE.UNIFORM);
    commands.write(numbers, 0, body.uniforms);
    const twin = [...this.plans.values()].find(({ plan }) => sameLarge(plan.body.large, body.large));
    const large = twin?.own.large ?? (await this.#largeConstants(body, read));
    return { constants, numbers, large, windows: body.windows, groups: null };
  }

  async #largeConstants(body: Body, read: ReadFile): Promise<GPUBuffer> {
    const buffer = await this.segments.make(largeBytesOf(body.large), SEGMENT_NAMES[LARGE_CONSTANTS] as string);
    for (const large of body.large) {
      const bytes = new Uint8Array(large.nbytes);
      fillLarge(bytes, large, read);
      this.commands.write(buffer, large.offset, bytes);
    }
    return buffer;
  }

  unload({ head, own }: GpuPlan): void {
    this.plans.delete(head);
    this.segments.drop(own.constants);
    this.segments.drop(own.numbers);
    if (![...this.plans.values()].some((other) => other.own.large === own.large)) {
      this.segments.drop(own.large);
    }
  }

  /** Write the feeds of a plan's head and, after the commands so far, of its body. */
  feed(loaded: GpuPlan, feeds: readonly Feed[]): void {
    const sources = loaded.plan.body.inputs.map((place) => {
      const source = this.kernels.bytesOf(feeds.find(({ name }) => name === place.name) as Feed);
      checkWidth(place, source);
      return [place, source] as const;
    });
    void this.kernels.write(loaded.head, feeds);
    // Large ones submit the commands so far: they come first.
    for (const [place, source] of sources.sort(([, a], [, b]) => b.length - a.length)) {
      this.commands.write(this.#bufferOf(loaded, place), place.offset, source);
    }
  }

  /** Run the head of a plan; its faults end the step before anything has changed. */
  runHead(loaded: GpuPlan): void {
    this.#take(loaded, [1, 0]);
    for (const [source, target, nbytes] of loaded.plan.body.uploads) {
      this.commands.write(this.segments.buffers[ARENA] as GPUBuffer, target, this.kernels.range(ARENA, source, nbytes));
    }
  }

  /** Let the kernels run head or tail: `turns` says which, of a plan that has both. */
  #take({ head, plan: { body } }: GpuPlan, turns: readonly number[]): void {
    if (body.downloads.length > 0) {
      this.kernels.range(ARENA, body.turns, turns.length).set(turns);
    }
    // Without a stop the kernels answer at once.
    void this.kernels.run(head, null);
  }

  /** Add the dispatches of a program to the commands. @param looks - they change nothing that lasts, and read parameters only */
  encode({ dispatches: { words, cuts }, pipelines, own }: Program, looks = false): void {
    this.segments.bringUp(looks ? [PARAMETERS] : LASTING);
    const groups = this.#groupsOf(own);
    let former: GPUComputePassEncoder | null = null;
    const encode = (pass: GPUComputePassEncoder, k: number): void => {
      if (pass !== former || pipelines[k] !== pipelines[k - 1]) {
        pass.setPipeline(pipelines[k] as GPUComputePipeline);
        former = pass;
      }
      const at = DISPATCH_WORDS * k;
      pass.setBindGroup(0, groups[words[at + 5] as number] as GPUBindGroup, words, at + 4, 1);
      pass.dispatchWorkgroups(words[at + 1] as number, words[at + 2], words[at + 3]);
    };
    pipelines.forEach((_, k) => {
      if (cuts.has(k)) {
        this.commands.submit();
      }
      this.timed === null ? encode(this.commands.pass(), k) : this.timed((pass) => encode(pass, k), k);
    });
    if (!looks) {
      this.segments.wroteThere();
    }
  }

  /** Submit a step. Settles when the device took it, where a plan has not run before. @throws DeviceError */
  async submit(plans: readonly GpuPlan[], action: () => void): Promise<void> {
    const { device } = this.gpu;
    const isFirst = plans.some(({ hasRun }) => !hasRun);
    if (isFirst) {
      device.pushErrorScope("validation");
    }
    let fault: Promise<GPUError | null> | null = null;
    try {
      action();
      this.commands.submit();
    } finally {
      fault = isFirst ? device.popErrorScope() : null;
    }
    const error = fault && (await this.gpu.settled(fault));
    if (error !== null) {
      throw sessionError("DEVICE_ERROR", { message: error.message });
    }
    plans.forEach((plan) => {
      plan.hasRun = true;
    });
  }

  /** Copies of results; the commands so far go with them. Those of a plan with a tail are the kernels'. */
  async read(loaded: GpuPlan, places: readonly TensorPlace[]): Promise<readonly PlacedTensor[]> {
    const { head, plan: { body: { downloads } } } = loaded;
    if (downloads.length > 0) {
      const arena = this.segments.buffers[ARENA] as GPUBuffer;
      const parts = await this.segments.readAll(downloads.map(([source, , nbytes]) => [arena, source, nbytes]));
      downloads.forEach(([, target, nbytes], k) => this.kernels.range(ARENA, target, nbytes).set(parts[k] as Uint8Array));
      this.#take(loaded, [0, 1]);
      return this.kernels.read(head, places);
    }
    const bytes = await this.segments.readAll(places.map((place) => [this.#bufferOf(loaded, place), place.offset, place.nbytes]));
    return places.map(({ name, dtype, dims, nbytes }, k) => ({ name, dtype, dims, ptr: 0, nbytes, data: bytes[k] as Uint8Array }));
  }

  #groupsOf(own: OwnBuffers): readonly GPUBindGroup[] {
    const { generation, buffers, status } = this.segments;
    if (own.groups?.generation !== generation) {
      const all = Object.assign([...buffers], { [CONSTANTS]: own.constants, [LARGE_CONSTANTS]: own.large });
      const bound = own.windows.map((windows) => this.pipelines.group(all, windows, own.numbers, status));
      own.groups = { bound, generation };
    }
    return own.groups.bound;
  }

  /** The place of an output that a plan has. */
  output(loaded: GpuPlan, name: string): readonly [buffer: GPUBuffer, offset: number] {
    const place = loaded.plan.outputs.find((one) => one.name === name) as TensorPlace;
    return [this.#bufferOf(loaded, place), place.offset];
  }

  #bufferOf({ own }: GpuPlan, { segment }: TensorPlace): GPUBuffer {
    return { [CONSTANTS]: own.constants, [LARGE_CONSTANTS]: own.large }[segment] ?? (this.segments.buffers[segment] as GPUBuffer);
  }

  release(): void {
    this.commands.release();
    this.segments.release();
  }
}

/** @throws FeedError for an integer of more than 32 bits, of which shaders would read the lower half */
function checkWidth({ name, dtype, nbytes }: TensorPlace, bytes: Uint8Array): void {
  if (dtype !== "int64" && dtype !== "uint64") {
    return;
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, nbytes);
  for (let at = 0; at < nbytes; at += 8) {
    const low = view.getInt32(at, true);
    if (view.getInt32(at + 4, true) !== (dtype === "int64" ? low >> 31 : 0)) {
      const value = dtype === "int64" ? view.getBigInt64(at, true) : view.getBigUint64(at, true);
      const position = at / 8;
      throw Object.assign(sessionError("WIDE_FEED", { name, value, position }), { input: name, position, value: Number(value) });
    }
  }
}
