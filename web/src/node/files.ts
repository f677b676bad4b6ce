/** `fetch` that reads files, too. */

import { readFile, stat } from "node:fs/promises";
import { cwd } from "node:process";
import { pathToFileURL } from "node:url";

/** Of two letters and more: one is a drive of Windows. */
const SCHEME = /^[a-z][a-z0-9+.-]+:/i;

const SCRIPT = /\.m?js$/;

/** The folder of the process, as a URL. */
export function currentFolder(): string {
  return `${pathToFileURL(cwd()).href}/`;
}

/** `fetch` of a runtime, with files; a string without a scheme is a path. */
export function withFiles(fetchUrl: typeof fetch): (source: string | URL | Request, init?: RequestInit) => Promise<Response> {
  return async (source, init) => {
    if (source instanceof Request) {
      return fetchUrl(source, init);
    }
    const url = typeof source === "string" && !SCHEME.test(source) ? pathToFileURL(source) : new URL(source);
    if (url.protocol !== "file:") {
      return fetchUrl(url, init);
    }
    if (init?.method === "HEAD") {
      const { size } = await stat(url);
      return new Response(null, { headers: { "Content-Length": String(size) } });
    }
    const bytes = await readFile(url);
    const type = SCRIPT.test(url.pathname) ? "text/javascript" : "application/octet-stream";
    return new Response(bytes, { headers: { "Content-Type": type, "Content-Length": String(bytes.length) } });
  };
}
