/** The environment of a script outside of browsers: Node, Deno and Bun. The package's entry for them sets it. */

export interface Platform {
  /**
   * Start one of the package's workers in a thread. The worker reports its end by an error.
   *
   * @param gpu - the module that has WebGPU
   */
  startWorker(url: string, gpu: string | null): Worker;
  /** As `fetch`, of files, too: a string that is no URL is a path. */
  fetch(source: string | URL, init?: RequestInit): Promise<Response>;
  /** The base of relative URLs. */
  baseURL(): string;
}

let current: Platform | null = null;

/** Run here as `platform` says. */
export function setPlatform(platform: Platform): void {
  current = platform;
}

/** The platform that is set; null in browsers, and in workers, which get a browser's globals. */
export function otherPlatform(): Platform | null {
  return current;
}

/** True if memory can be shared with workers: not in a page without cross-origin isolation. */
export function canShareMemory(): boolean {
  return current !== null || globalThis.crossOriginIsolated === true;
}

/** Methods of timers and workers in Node that decide if they keep a process from ending. */
interface Counted {
  ref?(): void;
  unref?(): void;
}

/** Let a process end though this goes on. Browsers have nothing of the kind. */
export function keepInBackground(counted: unknown): void {
  (counted as Counted).unref?.();
}

/** Let a process wait for this. */
export function keepInForeground(counted: unknown): void {
  (counted as Counted).ref?.();
}
