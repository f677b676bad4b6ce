/** Plans for the GPU: their checks, and pipelines by the text of their shaders. */

import { ARENA, CONSTANTS, GRADIENTS, LARGE_CONSTANTS, MOMENTUM0, MOMENTUM1, PARAMETERS, PREPARED } from "../engine/layout.js";
import type { BundlePlan, TensorPlace, Window } from "../worker/bundle/bundle.js";
import { largeBytesOf } from "../worker/bundle/large.js";
import type { GpuAdapter } from "../wire/protocol.js";
import { BINDING, checkSize, COMPUTE, log, sentence, sessionError, type GpuDevice } from "./device.js";

/** The part of a plan that runs on the GPU. */
export type Body = NonNullable<BundlePlan["body"]>;

/** Segments that outlast a step. */
export const LASTING: readonly number[] = [PARAMETERS, GRADIENTS, MOMENTUM0, MOMENTUM1];
/** Segments that shaders see. The number of a segment is its binding. */
export const BOUND: readonly number[] = [ARENA, CONSTANTS, ...LASTING, PREPARED, LARGE_CONSTANTS];
/** Steps that change nothing of it, and read parameters only. */
export const LOOKS: readonly string[] = ["eval", "predict", "generate"];
const NUMBERS = 16;
/** A word that is not 0 once a loss is not finite: dispatches behind it do nothing. */
export const STATUS = 17;
export const STATUS_BYTES = 16;
export const BLOCK_BYTES = 256;
/** Numbers of a dispatch: its pipeline, its grid, the first byte of its block of numbers, and its windows. */
export const DISPATCH_WORDS = 6;
export const MOST_GROUPS = 65_535;
/** Operations of a submit at most: 300 ms of a GPU of 20 GFLOPS. A system resets a GPU that is busy for 2 s. */
const MOST_WORK = 6e9;

export interface Dispatches {
  /** So many for each, as they are handed to WebGPU. */
  readonly words: Uint32Array;
  /** Dispatches before which the earlier ones are submitted. */
  readonly cuts: ReadonlySet<number>;
}

/** The body for an adapter. Arm's GPUs and software are slow at tiles in workgroup memory, and software at barriers. */
export function bodyFor(body: Body, { vendor, isFallback }: GpuAdapter): Body {
  return { ...body, dispatches: isFallback ? body.few : vendor.toLowerCase() === "arm" ? body.dispatches : body.tiled };
}

/** The dispatches of a body whose numbers are possible. @throws DeviceError for a window that is larger than the device binds */
export function dispatchesOf(gpu: GpuDevice, { body, arenaBytes }: BundlePlan & { readonly body: Body }, sizes: readonly number[]): Dispatches {
  const { dispatches: blob, uniforms, windows, texts, inputs, outputs, uploads, downloads, nodes, work } = body;
  const bounds = [...sizes];
  bounds[ARENA] = body.arenaBytes;
  bounds[CONSTANTS] = body.constants.length;
  bounds[LARGE_CONSTANTS] = largeBytesOf(body.large);
  const words = new Uint32Array(blob.slice().buffer, 0, Math.floor(blob.length / 4));
  const n = words.length / DISPATCH_WORDS;
  refuseUnless(blob.length === 4 * DISPATCH_WORDS * n && Number.isInteger(n) && nodes.length === n, "dispatches");
  refuseUnless(uniforms.length % BLOCK_BYTES === 0 && body.turns <= Math.max(0, arenaBytes - 2), "numbers");
  [...inputs, ...outputs].forEach((place) => refuseUnless(isInside(place, bounds), place.name));
  for (const [source, target, nbytes] of [...uploads, ...downloads.map(([there, here, length]) => [here, there, length] as const)]) {
    const fits = source + nbytes <= arenaBytes && target + nbytes <= body.arenaBytes && (target | nbytes | source) % 4 === 0;
    refuseUnless(fits, "uploads");
  }
  for (const [binding, segment, offset, nbytes, name] of windows.flat()) {
    refuseUnless(BOUND.includes(binding) && isInside({ segment, offset, nbytes }, bounds), name);
    checkSize(gpu, nbytes, name, BINDING);
  }
  const cuts = new Set<number>();
  let sum = 0;
  for (let k = 0; k < n; k++) {
    const [pipeline = 0, x = 0, y = 0, z = 0, block = 0, group = 0] = words.subarray(DISPATCH_WORDS * k);
    const isGrid = [x, y, z].every((count) => count >= 1 && count <= MOST_GROUPS);
    const isThere = pipeline < texts.length && (block + 1) * BLOCK_BYTES <= uniforms.length && group < windows.length;
    refuseUnless(isGrid && isThere, `dispatch ${k}`);
    words[DISPATCH_WORDS * k + 4] = BLOCK_BYTES * block;
    sum += work[k] ?? 0;
    if (k > 0 && sum > MOST_WORK) {
      cuts.add(k);
      sum = work[k] ?? 0;
    }
  }
  return { words, cuts };
}

function isInside({ segment, offset, nbytes }: Pick<TensorPlace, "segment" | "offset" | "nbytes">, bounds: readonly number[]): boolean {
  // The end of a tensor of bytes is rounded up to a word.
  return BOUND.includes(segment) && offset % 4 === 0 && offset + nbytes <= (bounds[segment] ?? 0);
}

function refuseUnless(isRight: boolean, what: string): void {
  if (!isRight) {
    throw sessionError("GPU_PLAN_MALFORMED", { what });
  }
}

/** Pipelines of a device, and their layout. */
export class Pipelines {
  readonly #gpu: GpuDevice;
  readonly #groups: GPUBindGroupLayout;
  readonly #layout: GPUPipelineLayout;

  constructor(gpu: GpuDevice) {
    this.#gpu = gpu;
    const { device } = gpu;
    const entry = (binding: number, buffer: GPUBufferBindingLayout): GPUBindGroupLayoutEntry => ({ binding, visibility: COMPUTE, buffer });
    const numbers = entry(NUMBERS, { type: "uniform", hasDynamicOffset: true, minBindingSize: BLOCK_BYTES });
    const status = entry(STATUS, { type: "uniform", minBindingSize: STATUS_BYTES });
    this.#groups = device.createBindGroupLayout({ entries: [...BOUND.map((binding) => entry(binding, { type: "storage" })), numbers, status] });
    this.#layout = device.createPipelineLayout({ bindGroupLayouts: [this.#groups] });
  }

  /** A group of windows, or of segments without any as far as they are bound, the numbers of dispatches, and the status. */
  group(buffers: readonly GPUBuffer[], windows: readonly Window[], numbers: GPUBuffer, status: GPUBuffer): GPUBindGroup {
    const most = this.#gpu.device.limits[BINDING];
    const entries = BOUND.map((binding) => {
      const [, segment, offset, nbytes] = windows.find(([one]) => one === binding) ?? [binding, binding, 0, most];
      const buffer = buffers[segment] as GPUBuffer;
      return { binding, resource: { buffer, offset, size: Math.min(Math.ceil(nbytes / 4) * 4, buffer.size - offset) } };
    });
    const uniforms = [
      { binding: NUMBERS, resource: { buffer: numbers, size: BLOCK_BYTES } },
      { binding: STATUS, resource: { buffer: status } },
    ];
    return this.#gpu.device.createBindGroup({ layout: this.#groups, entries: [...entries, ...uniforms] });
  }

  /** The pipeline of each dispatch, compiled at once; `tell` is told how many are there. @throws DeviceError of a refused shader */
  async compile(body: Body, { words }: Dispatches, tell: (compiled: number, total: number) => void): Promise<GPUComputePipeline[]> {
    const nodes = new Map(body.nodes.map((node, k) => [words[DISPATCH_WORDS * k] as number, node]));
    const total = nodes.size;
    const slow = setInterval(() => log("warning", sessionError("SLOW_SHADER", { node: [...nodes.values()][0] ?? "" }).message), 60_000);
    const all = [...nodes].map(async ([index, node]) => {
      const pipeline = await this.get(new TextDecoder().decode(body.texts[index]), node);
      nodes.delete(index);
      tell(total - nodes.size, total);
      return [index, pipeline] as const;
    });
    const pipelines = new Map(await this.#gpu.settled(Promise.all(all)).finally(() => clearInterval(slow)));
    return body.nodes.map((_, k) => pipelines.get(words[DISPATCH_WORDS * k] as number) as GPUComputePipeline);
  }

  get(text: string, node: string): Promise<GPUComputePipeline> {
    const pipeline = this.#gpu.pipelines.get(text) ?? this.#make(text, node);
    this.#gpu.pipelines.set(text, pipeline);
    // A text that was refused is tried again, and its error is the caller's.
    pipeline.catch(() => this.#gpu.pipelines.delete(text));
    return pipeline;
  }

  async #make(text: string, node: string): Promise<GPUComputePipeline> {
    const { device } = this.#gpu;
    device.pushErrorScope("validation");
    const module = device.createShaderModule({ code: text });
    device.popErrorScope().catch(() => {}); // the pipeline's error says the same
    try {
      return await device.createComputePipelineAsync({ layout: this.#layout, compute: { module, entryPoint: "main" } });
    } catch (error) {
      this.#gpu.check();
      const { messages } = await module.getCompilationInfo();
      const first = messages.find(({ type }) => type === "error");
      const message = first === undefined ? (error as Error).message : `line ${first.lineNum}: ${first.message}`;
      // The first line is a comment.
      throw sessionError("SHADER_REFUSED", { template: text.slice(3, text.indexOf("\n")), node, message: sentence(message) });
    }
  }
}
