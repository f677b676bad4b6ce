/** The package's environment in Node, Deno and Bun: workers are threads, and files are read. */

import type { Platform } from "../wire/platform.js";
import { currentFolder, withFiles } from "./files.js";
import { ThreadWorker } from "./thread-worker.js";

export const NODE: Platform = {
  startWorker: (url, gpu) => new ThreadWorker(url, { gpu }) as unknown as Worker,
  fetch: withFiles(fetch),
  baseURL: currentFolder,
};
