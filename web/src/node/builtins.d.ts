/** The used parts of Node's modules. The full types of Node would change the types of a page. */

declare module "node:worker_threads" {
  export interface ThreadEvents {
    message(data: unknown): void;
    messageerror(error: Error): void;
    error(error: unknown): void;
    exit(code: number): void;
  }

  export class Worker {
    constructor(url: URL, options: { readonly workerData: unknown; readonly execArgv: readonly string[] });
    on<E extends keyof ThreadEvents>(event: E, listener: ThreadEvents[E]): void;
    postMessage(message: unknown, transfer?: readonly Transferable[]): void;
    terminate(): Promise<number>;
    unref(): void;
  }

  export const parentPort: MessagePort;
  export const workerData: unknown;
}

declare module "node:fs/promises" {
  export function readFile(file: URL): Promise<Uint8Array<ArrayBuffer>>;
}

declare module "node:url" {
  export function pathToFileURL(path: string): URL;
}

declare module "node:os" {
  export function availableParallelism(): number;
}

declare module "node:process" {
  export function cwd(): string;
  export function exit(): never;
}
