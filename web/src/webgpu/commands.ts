/** Commands that go to the GPU together, with the few bytes that they need. */

import { USAGE, writable } from "./device.js";

/** Bytes that may go up with a submit. */
const STAGED_BYTES = 2 ** 14;
/** Bytes of a segment that go up or down at once. */
export const PIECE = 2 ** 24;

export class Commands {
  readonly #device: GPUDevice;
  readonly #source: GPUBuffer;
  readonly #staged = new Uint8Array(STAGED_BYTES);
  #stagedBytes = 0;
  #encoder: GPUCommandEncoder | null = null;
  #pass: GPUComputePassEncoder | null = null;

  constructor(device: GPUDevice) {
    this.#device = device;
    this.#source = device.createBuffer({ size: STAGED_BYTES, usage: USAGE.COPY_SRC | USAGE.COPY_DST });
  }

  /** The pass under way, or a new one. */
  pass(timestampWrites?: GPUComputePassTimestampWrites): GPUComputePassEncoder {
    this.#pass ??= this.between().beginComputePass(timestampWrites && { timestampWrites });
    return this.#pass;
  }

  /** Commands between passes. */
  between(): GPUCommandEncoder {
    this.#pass?.end();
    this.#pass = null;
    this.#encoder ??= this.#device.createCommandEncoder();
    return this.#encoder;
  }

  /** Write to a buffer, after the commands so far; the bytes are copied. The last word is filled with zeros. */
  write(target: GPUBuffer, offset: number, bytes: Uint8Array): void {
    const nbytes = Math.ceil(bytes.length / 4) * 4;
    if (nbytes === 0) {
      return;
    }
    if (nbytes > STAGED_BYTES) {
      this.#writeLarge(target, offset, bytes);
      return;
    }
    if (this.#stagedBytes + nbytes > STAGED_BYTES) {
      this.submit();
    }
    const at = this.#stagedBytes;
    this.#staged.fill(0, at, at + nbytes).set(bytes, at);
    this.between().copyBufferToBuffer(this.#source, at, target, offset, nbytes);
    this.#stagedBytes += nbytes;
  }

  #writeLarge(target: GPUBuffer, offset: number, bytes: Uint8Array): void {
    this.submit();
    const whole = bytes.length - (bytes.length % 4);
    for (let start = 0; start < whole; start += PIECE) {
      this.#device.queue.writeBuffer(target, offset + start, writable(bytes.subarray(start, Math.min(start + PIECE, whole))));
    }
    this.write(target, offset + whole, bytes.subarray(whole));
  }

  submit(): void {
    if (this.#encoder === null) {
      return;
    }
    const buffer = this.between().finish();
    this.#encoder = null;
    const { queue } = this.#device;
    if (this.#stagedBytes > 0) {
      queue.writeBuffer(this.#source, 0, this.#staged, 0, this.#stagedBytes);
      this.#stagedBytes = 0;
    }
    queue.submit([buffer]);
  }

  release(): void {
    this.#encoder = null;
    this.#source.destroy();
  }
}
