/** `Worker` of the web on threads of Node, as far as the package uses it. */

import process from "node:process";
import { Worker as Thread } from "node:worker_threads";

const LONG_MS = 2 ** 30;

/** Start a thread, which Bun does by way of the global `process`; worker-scope.ts takes that from the package's workers. */
function startThread(scope: URL, url: string, gpu: string | null): Thread {
  const isHidden = !("process" in globalThis);
  if (isHidden) {
    Object.defineProperty(globalThis, "process", { value: process, configurable: true, writable: true });
  }
  try {
    // The flags of the process are for its own script: with some, as --input-type, none would start here.
    return new Thread(scope, { workerData: [url, gpu], execArgv: [] });
  } finally {
    if (isHidden) {
      Reflect.deleteProperty(globalThis, "process");
    }
  }
}

/** A module worker in a thread. Any end of it is reported as an error: there is no other sign. */
export class ThreadWorker extends EventTarget {
  readonly #thread: Thread;
  #awaited: ReturnType<typeof setInterval> | undefined;
  onerror: ((event: ErrorEvent) => void) | null = null;

  /** @param url - of the script, absolute @param options - those of `Worker`, and the module that has WebGPU as `gpu` */
  constructor(url: string, { gpu = null }: WorkerOptions & { readonly gpu?: string | null } = {}) {
    super();
    // Not in the call: there webpack would take the script apart.
    const scope = new URL("./worker-scope.js", import.meta.url);
    this.#thread = startThread(scope, url, gpu);
    this.#thread.on("message", (data) => this.dispatchEvent(new MessageEvent("message", { data })));
    this.#thread.on("messageerror", () => this.dispatchEvent(new Event("messageerror")));
    this.#thread.on("error", (error) => this.#fail(error instanceof Error ? error.message : String(error)));
    this.#thread.on("exit", () => this.#fail("it ended"));
    // Last, for a listener holds the process, too.
    this.#thread.unref();
  }

  postMessage(message: unknown, options?: readonly Transferable[] | StructuredSerializeOptions): void {
    this.#thread.postMessage(message, transferred(options));
  }

  terminate(): void {
    this.unref();
    void this.#thread.terminate();
  }

  /** Let the process wait for an answer. By a timer: threads whose `ref` is called after `unref` are lost in Deno. */
  ref(): void {
    this.#awaited ??= setInterval(() => {}, LONG_MS);
  }

  unref(): void {
    clearInterval(this.#awaited);
    this.#awaited = undefined;
  }

  #fail(message: string): void {
    this.unref();
    // Not every runtime has ErrorEvent.
    const event = Object.assign(new Event("error"), { message }) as ErrorEvent;
    this.onerror?.(event);
    this.dispatchEvent(event);
  }
}

/** Objects to transfer instead of copying, from either form of `postMessage`. */
export function transferred(
  options: readonly Transferable[] | StructuredSerializeOptions | undefined,
): readonly Transferable[] {
  return options === undefined || Array.isArray(options)
    ? ((options ?? []) as readonly Transferable[])
    : ((options as StructuredSerializeOptions).transfer ?? []);
}
