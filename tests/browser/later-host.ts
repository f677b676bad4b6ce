/**
 * A host whose results are on their way: the kernels' host, each of whose methods works and answers in later tasks. Between
 * them nobody may use it, and segments are in place only after a claim. `test_js_later_host.py` puts it into the worker.
 */

import { GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS } from "../../web/src/engine/layout.js";
import type { StepHost } from "../../web/src/worker/host.js";
import type { Held } from "../../web/src/wire/session-calls.js";
import * as kernels from "../../web/src/worker/wasm/wasm-host.js";

/** Methods of the host after which a segment must be claimed anew (true), or need not be. */
const LATER: Readonly<Record<string, boolean>> = {
  run: true, runBatches: true, tellFit: true, putBack: true, goBack: true,
  claim: false, clear: false, load: false, write: false, read: false, save: false, forget: false, exchangeAverages: false,
  isAnyBad: false, endFit: false,
};
const MEMORY = [PARAMETERS, GRADIENTS, MOMENTUM0, MOMENTUM1];

/** Misuses of hosts, for the test. */
const misuses: string[] = [];
/** Methods that answered. */
const calls: Record<string, number> = {};
Object.assign(globalThis, { misuses, calls });

function refuse(what: string): never {
  misuses.push(`${what} ${new Error().stack}`);
  throw new Error(what);
}

function task(): Promise<void> {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

function later(host: StepHost): StepHost {
  let busy: string | null = null;
  const held = new Set(MEMORY);
  const demand = (segment: number): void => {
    if (MEMORY.includes(segment) && !held.has(segment)) {
      refuse(`segment ${segment} was not claimed`);
    }
  };
  const methods: Readonly<Record<string, (segment: number, ...rest: number[]) => unknown>> = {
    view: (segment) => (demand(segment), host.view(segment)),
    range: (segment, offset = 0, nbytes = 0) => (demand(segment), host.range(segment, offset, nbytes)),
    squares: (segment, offset = 0, count = 0) => (demand(segment), host.squares(segment, offset, count)),
  };
  return new Proxy(host, {
    get(target, name) {
      if (busy !== null) {
        refuse(`${String(name)} before the end of ${busy}`);
      }
      if (name === "bases") {
        demand(PARAMETERS);
      }
      const value: unknown = Reflect.get(target, name, target);
      if (typeof value !== "function") {
        return value;
      }
      const text = String(name);
      if (!Object.hasOwn(LATER, text)) {
        return methods[text] ?? value.bind(target);
      }
      return async (...args: readonly unknown[]): Promise<unknown> => {
        busy = text;
        try {
          await task();
          return await value.apply(target, args);
        } finally {
          await task();
          calls[text] = (calls[text] ?? 0) + 1;
          busy = null;
          if (LATER[text]) {
            held.clear();
          }
          if (text === "claim") {
            const { reads, writes } = args[0] as Held;
            [...reads, ...writes].forEach((segment) => held.add(segment));
          }
        }
      };
    },
  });
}

export class WasmHost extends kernels.WasmHost {
  constructor(...args: ConstructorParameters<typeof kernels.WasmHost>) {
    super(...args);
    return later(this) as WasmHost;
  }
}
