/** The profile of a step: its time per instruction, kernel and node, as a table or a Chrome trace. */

import { Opaque } from "./opaque.js";

/** One instruction of a plan. */
export interface ProfileEntry {
  /** "generated" for fused elementwise groups. */
  readonly kernel: string;
  /** Node of the model that it came from; of a fused group the last one. */
  readonly node: string;
  /** Disassembly. */
  readonly text: string;
  /** The mean over the runs. */
  readonly milliseconds: number;
}

/** The worker's measurements. */
export interface WireProfile {
  readonly text: readonly string[];
  readonly nodes: readonly string[];
  readonly ofSubmits: boolean;
  readonly milliseconds: readonly number[];
}

/** Options of `profile`. */
export interface ProfileOptions {
  /** Runs to take the mean of; default 10. */
  readonly runs?: number;
  /** The training model (default) or the eval model. */
  readonly training?: boolean;
}

/** Times of the instructions of a step, in order; as text a table by kernel. */
export class Profile extends Opaque {
  /** The instructions, in their order. */
  readonly entries: readonly ProfileEntry[];
  /** True if each time is of a whole submit: a GPU without timestamps has no others. */
  readonly ofSubmits: boolean;

  /** @internal */
  constructor({ text, nodes, ofSubmits, milliseconds }: WireProfile) {
    super();
    this.ofSubmits = ofSubmits;
    this.entries = text.map((line, index) => ({
      kernel: /^[^( ]*/.exec(line)?.[0] ?? "",
      node: nodes[index] ?? "",
      text: line,
      milliseconds: milliseconds[index] ?? 0,
    }));
  }

  /** Milliseconds of all instructions. */
  get total(): number {
    return this.entries.reduce((sum, { milliseconds }) => sum + milliseconds, 0);
  }

  /** Milliseconds by kernel, largest first. */
  byKernel(): Record<string, number> {
    return this.#sums(({ kernel }) => kernel);
  }

  /** Milliseconds by node of the model (a fused group counts for its last node), largest first. */
  byNode(): Record<string, number> {
    return this.#sums(({ node }) => node);
  }

  /** JSON for chrome://tracing or Perfetto: the instructions one after the other. */
  chromeTrace(): string {
    let ts = 0;
    const traceEvents = this.entries.map(({ kernel, node, text, milliseconds }, instruction) => {
      const dur = 1e3 * milliseconds;
      ts += dur;
      const args = { node, instruction, text };
      return { name: kernel, cat: "step", ph: "X", pid: 1, tid: 1, ts: ts - dur, dur, args };
    });
    return JSON.stringify({ traceEvents, displayTimeUnit: "ms" });
  }

  /** A table of milliseconds and shares by kernel. */
  override toString(): string {
    const all = this.total;
    const row = (name: string, ms: string, share: string): string =>
      `${name.padEnd(28)} ${ms.padStart(9)} ${share.padStart(6)}`.trimEnd();
    const rows = Object.entries(this.byKernel()).map(([name, ms]) =>
      row(name, ms.toFixed(3), `${((100 * ms) / (all || 1)).toFixed(1)}%`),
    );
    return [row("kernel", this.ofSubmits ? "ms/submit" : "ms", "share"), ...rows, row("all", all.toFixed(3), "")].join("\n");
  }

  #sums(keyOf: (entry: ProfileEntry) => string): Record<string, number> {
    const sums = new Map<string, number>();
    for (const entry of this.entries) {
      const key = keyOf(entry);
      sums.set(key, (sums.get(key) ?? 0) + entry.milliseconds);
    }
    return Object.fromEntries([...sums].sort(([, a], [, b]) => b - a));
  }
}
