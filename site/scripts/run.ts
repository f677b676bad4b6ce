/** Runs the code of a cell: JavaScript and pages in a frame of their own, Python in a worker; each ends with all it started. */

/** Code that runs. */
export interface Run {
  /** Settles when the code has ended or was stopped; rejects with its error. */
  readonly done: Promise<void>;
  stop(): void;
}

/** Globals of the frame of run.html. */
interface Frame extends Window {
  execute(code: string, print: (line: string) => void): Promise<void>;
}

/** What python.js says. */
export type PythonReply = { line: string } | { end: true } | { error: string };

const ASSETS = new URL("./", import.meta.url);

/** Run a module, which can import `trainweb`. Relative addresses lie in the examples' folder. */
export function runJavaScript(code: string, print: (line: string) => void): Run {
  const frame = document.createElement("iframe");
  frame.hidden = true;
  frame.title = "running code";
  frame.src = new URL("run.html", ASSETS).href;
  const { promise, resolve, reject } = settled();
  frame.addEventListener("load", () => {
    const inside = frame.contentWindow as Frame;
    inside.execute(code, print).then(resolve, reject);
  });
  document.body.append(frame);
  return { done: promise.finally(() => frame.remove()), stop: resolve };
}

/** Show a page at a place; it runs until it is stopped. Its relative addresses are resolved as on this page. */
export function runPage(code: string, print: (line: string) => void, place: HTMLElement): Run {
  const frame = document.createElement("iframe");
  frame.className = "page";
  frame.title = "the example";
  frame.allow = "camera";
  frame.addEventListener("line", (event) => print((event as CustomEvent<string>).detail));
  const { promise, resolve } = settled();
  const added = `<script type="module" src="${new URL("page.js", ASSETS).href}"></script><base target="_top">`;
  const { length } = /^\s*<!doctype[^>]*>/i.exec(code)?.[0] ?? "";
  frame.srcdoc = code.slice(0, length) + added + code.slice(length);
  place.append(frame);
  return { done: promise.finally(() => frame.remove()), stop: resolve };
}

/** Run Python as a notebook's cell; packages that it imports are loaded, and first.onnx is there. */
export function runPython(code: string, print: (line: string) => void): Run {
  const worker = new Worker(new URL("python.js", ASSETS), { type: "module" });
  const { promise, resolve, reject } = settled();
  worker.addEventListener("message", ({ data }: MessageEvent<PythonReply>) => {
    if ("line" in data) {
      print(data.line);
    } else if ("error" in data) {
      reject(new Error(data.error));
    } else {
      resolve();
    }
  });
  worker.addEventListener("error", (event) => reject(new Error(event.message || "the worker did not start")));
  worker.postMessage(code);
  return { done: promise.finally(() => worker.terminate()), stop: resolve };
}

function settled(): { promise: Promise<void>; resolve: () => void; reject: (reason: unknown) => void } {
  let resolve = (): void => undefined;
  let reject: (reason: unknown) => void = () => undefined;
  const promise = new Promise<void>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}
