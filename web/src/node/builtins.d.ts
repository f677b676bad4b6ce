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

declare module "node:fs" {
  export function existsSync(path: string): boolean;
}

declare module "node:fs/promises" {
  export interface FileHandle {
    writeFile(data: Uint8Array): Promise<void>;
    sync(): Promise<void>;
    close(): Promise<void>;
  }

  export function mkdir(folder: string, options: { readonly recursive: true }): Promise<string | undefined>;
  export function mkdtemp(prefix: string): Promise<string>;
  export function open(path: string, flags: "r" | "w"): Promise<FileHandle>;
  export function readdir(folder: string): Promise<string[]>;
  export function readFile(file: URL): Promise<Uint8Array<ArrayBuffer>>;
  export function realpath(path: string): Promise<string>;
  export function rename(path: string, to: string): Promise<void>;
  export function rm(path: string, options: { readonly recursive?: true; readonly force?: true }): Promise<void>;
  export function stat(path: string | URL): Promise<{ isDirectory(): boolean; readonly size: number; readonly mtimeMs: number }>;
  export function statfs(path: string): Promise<{ readonly bsize: number; readonly blocks: number; readonly bfree: number }>;
  export function writeFile(path: string, data: Uint8Array): Promise<void>;
}

declare module "node:module" {
  export function createRequire(script: string): unknown;
}

declare module "node:path" {
  export function join(...parts: readonly string[]): string;
  export function resolve(path: string): string;
}

declare module "node:zlib" {
  export function gunzipSync(data: Uint8Array): Uint8Array;
}

declare module "node:url" {
  export function fileURLToPath(url: URL): string;
  export function pathToFileURL(path: string): URL;
}

declare module "node:os" {
  export function availableParallelism(): number;
  export function tmpdir(): string;
}

declare module "node:process" {
  export function cwd(): string;
  export function exit(): never;
  const process: {
    readonly env: Readonly<Record<string, string>>;
    readonly pid: number;
    readonly platform: string;
    cwd(): string;
  };
  export default process;
}
