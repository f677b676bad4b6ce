/** The GPU of a worker. A device is opened once and shared by sessions. */

import type { GpuAdapter } from "../wire/protocol.js";
import type { WorkerTools } from "../worker/host.js";

/** Functions of the worker that imports this script, which so needs no second table of messages. */
export let { sessionError, log, tellShaders } = {} as WorkerTools;

export function useTools(tools: WorkerTools): void {
  ({ sessionError, log, tellShaders } = tools);
}

/** Flags of WebGPU. Node has no globals of these. */
export const USAGE = { MAP_READ: 0x1, COPY_SRC: 0x4, COPY_DST: 0x8, UNIFORM: 0x40, STORAGE: 0x80 } as const;
export const COMPUTE = 0x4;

/** Limits of buffers and of windows. A device gets what its adapter has, since plans of later sessions may need it. */
export const [BUFFER, BINDING] = ["maxBufferSize", "maxStorageBufferBindingSize"] as const;
/** Times of dispatches, for profiles. */
export const TIMES: GPUFeatureName = "timestamp-query";
/** Firefox looks for finished work 10 times a second, unless it is given other work. */
const IS_FIREFOX = /Firefox\//.test(globalThis.navigator?.userAgent ?? "");
const [POKE_MS, GRACE_MS, ADAPTER_MS] = [1, 100, 5000];

/** A device, and what has gone wrong with it. */
export class GpuDevice {
  /** The pipelines of all sessions, by the text of their shader. */
  readonly pipelines = new Map<string, Promise<GPUComputePipeline>>();
  /** Settles when the device is lost. Waits for a GPU race against it. */
  readonly #lost: Promise<void>;
  /** The reason why all later calls fail. */
  #fault: { readonly name: "DEVICE_LOST" | "DEVICE_ERROR"; readonly reason: string; readonly message: string } | null = null;

  private constructor(readonly device: GPUDevice, readonly adapter: GpuAdapter) {
    this.#lost = device.lost.then(({ reason, message }) => {
      this.#fault ??= { name: "DEVICE_LOST", reason, message: sentence(message) };
    });
    // Errors of calls outside of error scopes come late. Results after them are garbage.
    device.addEventListener("uncapturederror", ({ error }) => {
      this.#fault ??= { name: "DEVICE_ERROR", reason: error.constructor.name, message: sentence(error.message) };
    });
  }

  /** Open a device of `navigator.gpu`, or of another implementation; undefined: there is none here. @throws DeviceError */
  static async open(gpu: GPU | undefined): Promise<GpuDevice> {
    if (gpu === undefined) {
      throw sessionError(globalThis.isSecureContext === false ? "INSECURE_WEBGPU" : "NO_WEBGPU", {});
    }
    // Firefox also rejects the first, where it has blocked the driver.
    const refuse = ({ message }: Error): Promise<never> => Promise.reject(sessionError("NO_DEVICE", { message: sentence(message) }));
    // A driver that hangs never answers.
    const late = new Promise<null>((resolve) => setTimeout(resolve, ADAPTER_MS, null));
    const adapter = await Promise.race([gpu.requestAdapter({ powerPreference: "high-performance" }), late]).catch(refuse);
    if (adapter === null) {
      throw sessionError("NO_GPU_ADAPTER", {});
    }
    const { vendor, architecture, description, isFallbackAdapter: isFallback } = adapter.info;
    const requiredLimits = Object.fromEntries([BUFFER, BINDING].map((name) => [name, adapter.limits[name]]));
    const requiredFeatures = adapter.features?.has(TIMES) ? [TIMES] : [];
    const device = await adapter.requestDevice({ requiredLimits, requiredFeatures }).catch(refuse);
    return new GpuDevice(device, { vendor, architecture, description, isFallback });
  }

  /** True if all later calls fail. */
  get isBroken(): boolean {
    return this.#fault !== null;
  }

  /** @throws DeviceError when the device is lost, or a call failed outside of error scopes. @param step - optimizer steps until now */
  check(step = 0): void {
    if (this.#fault !== null) {
      const { name, reason, message } = this.#fault;
      throw Object.assign(sessionError(name, { reason, message, step }), { reason, step });
    }
  }

  /** Wait for a GPU, but not for a lost one, whose promises may stay pending. */
  async settled<T>(result: Promise<T>): Promise<T> {
    const poke = IS_FIREFOX ? setInterval(() => this.device.queue.submit([]), POKE_MS) : undefined;
    const lost = this.#lost.then(() => this.check() as never);
    try {
      return await Promise.race([result, lost]);
    } catch (error) {
      // Calls of a device that is lost may fail before it says so.
      await Promise.race([this.#lost, new Promise((resolve) => setTimeout(resolve, GRACE_MS))]);
      throw error instanceof DOMException ? sessionError("DEVICE_ERROR", { message: sentence(error.message) }) : error;
    } finally {
      clearInterval(poke);
      this.check();
    }
  }
}

const opened = new Map<GPU | undefined, Promise<GpuDevice | null>>();

/** The device of this worker: another one is opened only after a loss. @throws DeviceError as `GpuDevice.open` */
export function sharedDevice(gpu: GPU | undefined): Promise<GpuDevice> {
  const next = (opened.get(gpu) ?? Promise.resolve(null)).then((current) => {
    if (current?.isBroken === false) {
      return current;
    }
    current?.device.destroy();
    return GpuDevice.open(gpu);
  });
  opened.set(gpu, next.catch(() => null));
  return next;
}

/** @throws DeviceError for a buffer or a binding that is larger than the device allows */
export function checkSize({ device }: GpuDevice, nbytes: number, what: string, name: typeof BUFFER | typeof BINDING = BUFFER): void {
  if (nbytes > device.limits[name]) {
    throw sessionError("DEVICE_LIMIT", { what, needed: nbytes, name, offered: device.limits[name] });
  }
}

/** Bytes that may be written to a buffer. Node's package crashes on shared memory; browsers have a name for themselves. */
export function writable(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const isCopied = !(bytes.buffer instanceof ArrayBuffer) && globalThis.navigator.userAgent === "";
  return (isCopied ? bytes.slice() : bytes) as Uint8Array<ArrayBuffer>;
}

/** The first line of a browser's text, with a full stop. */
export function sentence(text: string): string {
  const [line = ""] = text.trim().split("\n");
  return line === "" ? "no details." : /[.!?]$/.test(line) ? line : `${line}.`;
}
