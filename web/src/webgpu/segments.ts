/** Segments of a session on the GPU, and their mirror in the kernels' memory. */

import { ARENA, GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS, SEGMENT_NAMES } from "../engine/layout.js";
import type { StepHost } from "../worker/host.js";
import { MAP_READ, sentence, SIZES, USAGE, writable, type GpuDevice } from "./device.js";
import { BOUND, STATUS_BYTES } from "./plans.js";
import { sessionError } from "./worker-tools.js";

/** Segments that outlast a step. */
export const LASTING: readonly number[] = [PARAMETERS, GRADIENTS, MOMENTUM0, MOMENTUM1];
/** Bytes of a segment that go up or down at once. */
const PIECE = 2 ** 24;
/** Size of the buffer of an empty segment. */
const LEAST = 256;

export class Segments {
  readonly #gpu: GpuDevice;
  readonly #host: Pick<StepHost, "range" | "sizes">;
  readonly #buffers = new Map<number, GPUBuffer>();
  /** The sides on which the bytes of a segment are up to date. */
  readonly #isHere = new Set(LASTING);
  readonly #isThere = new Set<number>();
  #staging: GPUBuffer | null = null;
  /** Changes with a buffer. */
  generation = 0;
  /** The word that stops dispatches. */
  readonly status: GPUBuffer;

  constructor(gpu: GpuDevice, host: Pick<StepHost, "range" | "sizes">) {
    this.#gpu = gpu;
    this.#host = host;
    this.status = gpu.device.createBuffer({ size: STATUS_BYTES, usage: USAGE.UNIFORM | USAGE.COPY_DST });
  }

  /** Bytes of buffers, by segment. */
  get bytes(): Record<string, number> {
    const sizes = [...this.#buffers].map(([segment, { size }]) => [SEGMENT_NAMES[segment] as string, size] as const);
    return { ...Object.fromEntries(sizes), staging: this.#staging?.size ?? 0 };
  }

  /** Buffers by segment. */
  get buffers(): GPUBuffer[] {
    return SEGMENT_NAMES.map((_, segment) => this.#buffers.get(segment) as GPUBuffer);
  }

  /** The segments that last and have bytes. */
  get filled(): number[] {
    return LASTING.filter((segment) => (this.#host.sizes[segment] as number) > 0);
  }

  buffer(segment: number): GPUBuffer {
    return this.#buffers.get(segment) as GPUBuffer;
  }

  /** Have buffers for all segments, and this room in the arena. @throws DeviceError when there is no memory */
  async reserve(arenaBytes: number): Promise<void> {
    for (const segment of BOUND) {
      const nbytes = segment === ARENA ? arenaBytes : LASTING.includes(segment) ? (this.#host.sizes[segment] as number) : 0;
      const former = this.#buffers.get(segment);
      if (former === undefined || former.size < nbytes) {
        this.#buffers.set(segment, await this.make(nbytes, SEGMENT_NAMES[segment] as string));
        former?.destroy();
        this.generation++;
      }
    }
  }

  /** A buffer for shaders; zeros. @throws DeviceError when there is no memory, or the device has not the limit for it */
  async make(nbytes: number, what: string, more: number = USAGE.STORAGE): Promise<GPUBuffer> {
    const { device } = this.#gpu;
    const size = Math.max(LEAST, Math.ceil(nbytes / 4) * 4);
    checkSize(this.#gpu, size, what, more === USAGE.STORAGE ? SIZES : ["maxBufferSize"]);
    device.pushErrorScope("out-of-memory");
    const buffer = device.createBuffer({ size, usage: USAGE.COPY_SRC | USAGE.COPY_DST | more });
    const error = await this.#gpu.settled(device.popErrorScope());
    if (error !== null) {
      const help = what === SEGMENT_NAMES[ARENA] ? " Smaller batches need less." : "";
      throw sessionError("DEVICE_MEMORY", { nbytes: size, what, message: sentence(error.message), help });
    }
    return buffer;
  }

  /** Write to a buffer; the bytes are copied. The last word is filled with zeros. */
  write(buffer: GPUBuffer, offset: number, bytes: Uint8Array): void {
    const whole = bytes.length - (bytes.length % 4);
    const { queue } = this.#gpu.device;
    for (let start = 0; start < whole; start += PIECE) {
      queue.writeBuffer(buffer, offset + start, writable(bytes.subarray(start, Math.min(start + PIECE, whole))));
    }
    if (whole < bytes.length) {
      const word = new Uint8Array(4);
      word.set(bytes.subarray(whole));
      queue.writeBuffer(buffer, offset + whole, word);
    }
  }

  /** Have all that lasts on the GPU. */
  bringUp(): void {
    for (const segment of LASTING) {
      const nbytes = this.#host.sizes[segment] as number;
      if (!this.#isThere.has(segment)) {
        this.write(this.buffer(segment), 0, this.#host.range(segment, 0, nbytes));
        this.#isThere.add(segment);
      }
    }
  }

  /** Note that a step on the GPU may have written all that lasts. */
  wroteThere(): void {
    this.#isHere.clear();
  }

  /** Note that all that lasts was replaced on the GPU. */
  replacedThere(): void {
    this.wroteThere();
    LASTING.forEach((segment) => this.#isThere.add(segment));
  }

  /** Note that segments change on the host. */
  writesHere(segments: readonly number[]): void {
    segments.forEach((segment) => this.#isThere.delete(segment));
  }

  /** The segments among these whose bytes lie on the GPU only. */
  missing(segments: readonly number[]): number[] {
    return LASTING.filter((segment) => segments.includes(segment) && !this.#isHere.has(segment));
  }

  /** Copy segments to the host. */
  async bringDown(segments: readonly number[]): Promise<void> {
    for (const segment of segments) {
      const nbytes = this.#host.sizes[segment] as number;
      for (let start = 0; start < nbytes; start += PIECE) {
        const length = Math.min(PIECE, nbytes - start);
        const bytes = await this.read(this.buffer(segment), start, length);
        this.#host.range(segment, start, length).set(bytes);
      }
      this.#isHere.add(segment);
    }
  }

  /** A copy of bytes of a buffer. */
  async read(buffer: GPUBuffer, offset: number, nbytes: number): Promise<Uint8Array> {
    const { device } = this.#gpu;
    const encoder = device.createCommandEncoder();
    const target = this.staging(nbytes);
    encoder.copyBufferToBuffer(buffer, offset, target, 0, Math.ceil(nbytes / 4) * 4);
    device.queue.submit([encoder.finish()]);
    return (await this.mapped(target, nbytes)).slice(0, nbytes);
  }

  /** A buffer that copies go to before they are mapped. */
  staging(nbytes: number): GPUBuffer {
    if (this.#staging === null || this.#staging.size < nbytes) {
      this.#staging?.destroy();
      const size = Math.max(LEAST, 2 ** Math.ceil(Math.log2(nbytes)));
      this.#staging = this.#gpu.device.createBuffer({ size, usage: USAGE.MAP_READ | USAGE.COPY_DST });
    }
    return this.#staging;
  }

  /** A copy of the first bytes of such a buffer. */
  async mapped(buffer: GPUBuffer, nbytes: number): Promise<Uint8Array> {
    const length = Math.ceil(nbytes / 4) * 4;
    await this.#gpu.settled(buffer.mapAsync(MAP_READ, 0, length));
    const bytes = new Uint8Array(buffer.getMappedRange(0, length)).slice();
    buffer.unmap();
    return bytes;
  }

  release(): void {
    this.status.destroy();
    this.#staging?.destroy();
    this.#buffers.forEach((buffer) => buffer.destroy());
    this.#buffers.clear();
  }
}

/** @throws DeviceError for a buffer that is larger than the device allows */
export function checkSize(
  { device }: GpuDevice,
  nbytes: number,
  what: string,
  limits: readonly (typeof SIZES)[number][] = SIZES,
): void {
  for (const name of limits) {
    if (nbytes > device.limits[name]) {
      throw sessionError("DEVICE_LIMIT", { what, needed: nbytes, name, offered: device.limits[name] });
    }
  }
}
