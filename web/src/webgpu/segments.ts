/** Segments of a session on the GPU, and their mirror in the kernels' memory, which those have that were claimed. */

import { ARENA, SEGMENT_NAMES } from "../engine/layout.js";
import type { MaybePromise } from "../wire/protocol.js";
import { free } from "../wire/pieces.js";
import type { Held } from "../wire/session-calls.js";
import type { StepHost } from "../worker/host.js";
import { PIECE, type Commands } from "./commands.js";
import { BUFFER, checkSize, sentence, sessionError, USAGE, type GpuDevice } from "./device.js";
import { BOUND, LASTING, STATUS_BYTES } from "./plans.js";

/** Size of the buffer of an empty segment. */
const LEAST = 256;

export class Segments {
  readonly #gpu: GpuDevice;
  readonly #host: StepHost;
  readonly #commands: Commands;
  /** By segment. */
  readonly buffers: GPUBuffer[] = [];
  /** All buffers of the session, by what they are for. */
  readonly #made = new Map<GPUBuffer, string>();
  /** The sides on which the bytes of a segment are up to date. */
  readonly #isHere = new Set<number>();
  readonly #isThere = new Set(LASTING);
  /** Whole words of a segment that are being filled. */
  #room: { readonly segment: number; readonly start: number; readonly words: Uint8Array<ArrayBuffer> } | null = null;
  /** Words that several such rooms share, by their places. */
  readonly #shared = new Map<string, Uint8Array>();
  #staging: GPUBuffer | null = null;
  /** Changes with a buffer. */
  generation = 0;
  /** The word that stops dispatches. */
  readonly status: GPUBuffer;

  constructor(gpu: GpuDevice, host: StepHost, commands: Commands) {
    this.#gpu = gpu;
    this.#host = host;
    this.#commands = commands;
    this.status = this.#noted(gpu.device.createBuffer({ size: STATUS_BYTES, usage: USAGE.UNIFORM | USAGE.COPY_DST }), "guard");
  }

  get bytes(): Record<string, number> {
    const sums: Record<string, number> = {};
    for (const [{ size }, what] of this.#made) {
      sums[what] = (sums[what] ?? 0) + size;
    }
    return sums;
  }

  /** Have buffers for all segments, and this room in the arena. @throws DeviceError when there is no memory */
  async reserve(arenaBytes: number): Promise<void> {
    for (const segment of BOUND) {
      const nbytes = segment === ARENA ? arenaBytes : LASTING.includes(segment) ? (this.#host.sizes[segment] as number) : 0;
      const former = this.buffers[segment];
      if (former === undefined || former.size < nbytes) {
        this.buffers[segment] = await this.make(nbytes, SEGMENT_NAMES[segment] as string);
        this.generation++;
        if (former !== undefined) {
          this.drop(former);
        }
      }
    }
  }

  /** A buffer for shaders; zeros. @throws DeviceError when there is no memory, or the device has not the limit for it */
  async make(nbytes: number, what: string, more: number = USAGE.STORAGE): Promise<GPUBuffer> {
    const { device } = this.#gpu;
    const size = Math.max(LEAST, Math.ceil(nbytes / 4) * 4);
    checkSize(this.#gpu, size, what);
    device.pushErrorScope("out-of-memory");
    const buffer = device.createBuffer({ size, usage: USAGE.COPY_SRC | USAGE.COPY_DST | more });
    const error = await this.#gpu.settled(device.popErrorScope());
    if (error !== null) {
      const help = what === SEGMENT_NAMES[ARENA] ? " Smaller batches need less." : "";
      throw sessionError("DEVICE_MEMORY", { nbytes: size, what, message: sentence(error.message), help });
    }
    return this.#noted(buffer, what);
  }

  #noted(buffer: GPUBuffer, what: string): GPUBuffer {
    this.#made.set(buffer, what);
    return buffer;
  }

  /** Give back a buffer, which commands so far may use. */
  drop(buffer: GPUBuffer): void {
    this.#commands.submit();
    this.#made.delete(buffer);
    buffer.destroy();
  }

  /** Room for bytes that a segment starts with, which have a place once. They go up with the next call. */
  room(segment: number, offset: number, nbytes: number): Uint8Array {
    this.sendRoom();
    const lead = offset % 4;
    const words = new Uint8Array(4 * Math.ceil((lead + nbytes) / 4));
    this.#room = { segment, start: offset - lead, words };
    return words.subarray(lead, lead + nbytes);
  }

  sendRoom(): void {
    if (this.#room === null) {
      return;
    }
    const { segment, start, words } = this.#room;
    this.#room = null;
    for (const at of new Set([0, words.length - 4])) {
      const key = `${segment} ${start + at}`;
      const others = this.#shared.get(key);
      const word = words.subarray(at, at + 4);
      word.forEach((byte, k) => (word[k] = byte | (others?.[k] ?? 0)));
      this.#shared.set(key, word.slice());
    }
    this.#commands.write(this.buffers[segment] as GPUBuffer, start, words);
    free(words);
  }

  /** Have all that lasts on the host for good, before anything was written. */
  leave(): void {
    this.buffers.splice(0).forEach((buffer) => this.drop(buffer));
    LASTING.forEach((segment) => {
      this.#host.hold(segment);
      this.#isHere.add(segment);
    });
  }

  /** Have segments that last on the GPU. */
  bringUp(segments: readonly number[]): void {
    for (const segment of segments.filter((one) => !this.#isThere.has(one))) {
      this.#commands.write(this.buffers[segment] as GPUBuffer, 0, this.#host.view(segment));
      this.#isThere.add(segment);
    }
  }

  /** Note that all that lasts may have been written on the GPU, where it lies. */
  wroteThere(): void {
    this.#isHere.clear();
    LASTING.forEach((segment) => this.#isThere.add(segment));
  }

  /** Have segments up to date on the host, which may write some of them. */
  claim({ reads, writes }: Held): MaybePromise<void> {
    const missing = LASTING.filter((segment) => !this.#isHere.has(segment) && [...reads, ...writes].includes(segment));
    const note = (): void => writes.forEach((segment) => this.#isThere.delete(segment));
    return missing.length === 0 ? note() : this.#bringDown(missing).then(note);
  }

  async #bringDown(segments: readonly number[]): Promise<void> {
    for (const segment of segments) {
      this.#host.hold(segment);
      const nbytes = this.#host.sizes[segment] as number;
      for (let start = 0; start < nbytes; start += PIECE) {
        const length = Math.min(PIECE, nbytes - start);
        const [bytes] = await this.readAll([[this.buffers[segment] as GPUBuffer, start, length]]);
        this.#host.range(segment, start, length).set(bytes as Uint8Array);
      }
      this.#isHere.add(segment);
    }
  }

  /** Copies of parts of buffers; the commands so far go with them. */
  async readAll(parts: readonly (readonly [buffer: GPUBuffer, offset: number, nbytes: number])[]): Promise<Uint8Array[]> {
    const words = parts.map(([, , nbytes]) => Math.ceil(nbytes / 4) * 4);
    const starts = words.map((_, k) => words.slice(0, k).reduce((sum, length) => sum + length, 0));
    const total = words.reduce((sum, length) => sum + length, 0);
    const target = this.#target(total);
    parts.forEach(([buffer, offset], k) => {
      this.#commands.between().copyBufferToBuffer(buffer, offset, target, starts[k] as number, words[k] as number);
    });
    this.#commands.submit();
    await this.#gpu.settled(target.mapAsync(USAGE.MAP_READ, 0, total));
    const bytes = new Uint8Array(target.getMappedRange(0, total)).slice();
    target.unmap();
    return parts.map(([, , nbytes], k) => bytes.slice(starts[k], (starts[k] as number) + nbytes));
  }

  /** A buffer that copies go to before they are mapped. */
  #target(nbytes: number): GPUBuffer {
    if (this.#staging === null || this.#staging.size < nbytes) {
      if (this.#staging !== null) {
        this.drop(this.#staging);
      }
      checkSize(this.#gpu, nbytes, "results");
      const most = Math.floor(this.#gpu.device.limits[BUFFER] / 4) * 4;
      const size = Math.min(Math.max(LEAST, 2 ** Math.ceil(Math.log2(nbytes))), most);
      this.#staging = this.#noted(this.#gpu.device.createBuffer({ size, usage: USAGE.MAP_READ | USAGE.COPY_DST }), "staging");
    }
    return this.#staging;
  }

  release(): void {
    [...this.#made.keys()].forEach((buffer) => buffer.destroy());
  }
}
