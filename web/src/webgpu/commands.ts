/** Commands that go to the GPU together, with the few bytes that they need. */

import { USAGE, writable } from "./device.js";

/** Bytes that may go up with a submit. */
const STAGED_BYTES = 2 ** 14;

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
    this.#pass ??= this.#encode().beginComputePass(timestampWrites && { timestampWrites });
    return this.#pass;
  }

  /** Commands between passes. */
  between(): GPUCommandEncoder {
    this.#pass?.end();
    this.#pass = null;
    return this.#encode();
  }

  /** Write whole words to a buffer, after the commands so far. */
  write(target: GPUBuffer, offset: number, bytes: Uint8Array): void {
    if (bytes.length > STAGED_BYTES) {
      this.submit();
      this.#device.queue.writeBuffer(target, offset, writable(bytes));
      return;
    }
    if (this.#stagedBytes + bytes.length > STAGED_BYTES) {
      this.submit();
    }
    this.#staged.set(bytes, this.#stagedBytes);
    this.between().copyBufferToBuffer(this.#source, this.#stagedBytes, target, offset, bytes.length);
    this.#stagedBytes += bytes.length;
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

  #encode(): GPUCommandEncoder {
    this.#encoder ??= this.#device.createCommandEncoder();
    return this.#encoder;
  }
}
