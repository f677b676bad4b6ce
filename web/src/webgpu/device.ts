/** The GPU of a worker. A device is opened once and shared by sessions; it has the limits that their plans need. */

import { log } from "../wire/log.js";
import { sessionError } from "../wire/messages.js";

/** Limits that plans need, by WebGPU's names. Limits that every device has need no mention. */
export type NeededLimits = Readonly<Partial<Record<LimitName, number>>>;

type LimitName = Exclude<keyof GPUSupportedLimits, "__brand">;

/** Flags of WebGPU. Node has no globals of these. */
export const USAGE = { MAP_READ: 0x1, COPY_SRC: 0x4, COPY_DST: 0x8, UNIFORM: 0x40, STORAGE: 0x80 } as const;
export const MAP_READ = 0x1;
export const COMPUTE = 0x4;

/** Limits for which a smaller number allows more. */
const ALIGNMENTS: ReadonlySet<string> = new Set(["minUniformBufferOffsetAlignment", "minStorageBufferOffsetAlignment"]);

/** The adapter of a device, as users see it. */
export interface AdapterInfo {
  readonly vendor: string;
  readonly architecture: string;
  readonly description: string;
  /** True if it computes in software. */
  readonly isFallback: boolean;
}

/** A device, and what has gone wrong with it. */
export class GpuDevice {
  readonly device: GPUDevice;
  readonly adapter: AdapterInfo;
  /** Settles when the device is lost, with the error of later calls. Waits for a GPU race against it. */
  readonly lost: Promise<Error>;
  /** The error of all later calls. */
  #fault: Error | null = null;
  #isClosed = false;

  private constructor(device: GPUDevice, adapter: AdapterInfo) {
    this.device = device;
    this.adapter = adapter;
    this.lost = device.lost.then(({ reason, message }) => {
      this.#fault ??= this.#isClosed
        ? sessionError("RELEASED", {})
        : Object.assign(sessionError("DEVICE_LOST", { reason, message: sentence(message) }), { reason });
      return this.#fault;
    });
    // Errors of calls outside of error scopes come late. Results after them are garbage.
    device.addEventListener("uncapturederror", ({ error }) => {
      this.#fault ??= Object.assign(sessionError("DEVICE_ERROR", { message: sentence(error.message) }), {
        reason: error.constructor.name,
      });
    });
  }

  /**
   * Open a device.
   *
   * @param gpu - `navigator.gpu`, or that of another implementation; undefined: there is no WebGPU here
   * @throws DeviceError when there is no WebGPU or adapter, or the adapter offers less than a limit
   */
  static async open(gpu: GPU | undefined, needed: NeededLimits): Promise<GpuDevice> {
    if (gpu === undefined) {
      throw sessionError(globalThis.isSecureContext === false ? "INSECURE_WEBGPU" : "NO_WEBGPU", {});
    }
    const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
    if (adapter === null) {
      throw sessionError("NO_GPU_ADAPTER", {});
    }
    const { vendor, architecture, description, isFallbackAdapter: isFallback } = adapter.info;
    const requiredLimits = limitsOf(adapter, needed);
    const device = await adapter.requestDevice({ requiredLimits }).catch((error: unknown) => {
      throw sessionError("NO_DEVICE", { message: sentence(error instanceof Error ? error.message : String(error)) });
    });
    if (isFallback) {
      log("warning", sessionError("SOFTWARE_ADAPTER", { adapter: description || vendor }).message);
    }
    return new GpuDevice(device, { vendor, architecture, description, isFallback });
  }

  /** True if plans with these limits can run on the device. */
  covers(needed: NeededLimits): boolean {
    const { limits } = this.device;
    const isCovered = ([name, value]: [string, number]): boolean => isEnough(name, limits[name as LimitName], value);
    return this.#fault === null && Object.entries(needed).every(isCovered);
  }

  /** @throws DeviceError when the device is lost, or a call failed outside of error scopes */
  check(): void {
    if (this.#fault !== null) {
      throw this.#fault;
    }
  }

  /** Wait for a GPU, but not for a lost one, whose promises may stay pending. */
  async settled<T>(result: Promise<T>): Promise<T> {
    const lost = this.lost.then((error) => {
      throw error;
    });
    const value = await Promise.race([result, lost]).catch((error: unknown) => {
      this.check();
      throw error;
    });
    this.check();
    return value;
  }

  /** Free the device and everything on it. */
  close(): void {
    this.#isClosed = true;
    this.device.destroy();
  }
}

/** The device of a worker: another one is opened only for plans that need higher limits, or after a loss. */
export class SharedDevice {
  readonly #gpu: GPU | undefined;
  #current: Promise<GpuDevice> | null = null;

  constructor(gpu: GPU | undefined) {
    this.#gpu = gpu;
  }

  /** @throws DeviceError as `GpuDevice.open` */
  get(needed: NeededLimits): Promise<GpuDevice> {
    this.#current = this.#after(this.#current, needed);
    return this.#current;
  }

  async #after(before: Promise<GpuDevice> | null, needed: NeededLimits): Promise<GpuDevice> {
    const current = await before?.catch(() => null);
    return current?.covers(needed) === true ? current : GpuDevice.open(this.#gpu, needed);
  }
}

/** @throws DeviceError for a limit of which the adapter offers less */
function limitsOf({ limits }: GPUAdapter, needed: NeededLimits): Record<string, number> {
  for (const [name, value] of Object.entries(needed)) {
    const offered = limits[name as LimitName];
    if (!isEnough(name, offered, value)) {
      throw sessionError("DEVICE_LIMIT", { name, needed: value, offered });
    }
  }
  return { ...needed };
}

function isEnough(name: string, offered: number, needed: number): boolean {
  return ALIGNMENTS.has(name) ? offered <= needed : offered >= needed;
}

/** The first line of a browser's text, with a full stop. */
export function sentence(text: string): string {
  const [line = ""] = text.trim().split("\n");
  return line === "" ? "no details." : /[.!?]$/.test(line) ? line : `${line}.`;
}
