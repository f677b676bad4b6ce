/**
 * What a page's sessions were compiled to, kept for its next visit as a bundle: the session starts from it
 * then, without Python.
 */

import type { Bridge } from "../python/bridge.js";
import { VERSION } from "../wire/version.js";
import type { Signature } from "./compiled-session.js";
import { hashOf, readFile, writeFile } from "./store.js";

/** A bundle is written when nothing was asked of the session for this long, */
const QUIET_MS = 500;
/** or this long after the first step that it is about, however busy the session is. */
const PATIENCE_MS = 5_000;

/** The name of the bundle for a session made of these; null where nothing can be kept. */
export function cacheName(
  fingerprint: number,
  sources: readonly (string | Uint8Array | null)[],
): Promise<string | null> {
  return hashOf([`trainweb ${VERSION}`, String(fingerprint), ...sources]);
}

/** The bundle of one session of Python's: collects the signatures that it runs, and writes it in the background. */
export class BundleCache {
  readonly #name: string;
  readonly #bridge: Bridge;
  readonly #handle: number;
  readonly #lastUse: () => number;
  /** Whether Python must be given the stored bundle first, because it was not there at the start. */
  #isRecalled: boolean;
  readonly #known: Set<string>;
  #unwritten: Signature[] = [];
  #due = 0;
  #timer: ReturnType<typeof setTimeout> | null = null;

  /**
   * @param handle - of the session in Python
   * @param known - signatures that are in the stored bundle; null where Python remembers the session's start
   * @param lastUse - when anything was last asked of the worker
   */
  constructor(
    name: string,
    bridge: Bridge,
    handle: number,
    known: readonly Signature[] | null,
    lastUse: () => number,
  ) {
    this.#name = name;
    this.#bridge = bridge;
    this.#handle = handle;
    this.#lastUse = lastUse;
    this.#isRecalled = known === null;
    this.#known = new Set((known ?? []).map(keyOf));
  }

  /** The session ran a step with such feeds. */
  add(signature: Signature): void {
    const key = keyOf(signature);
    if (this.#known.has(key)) {
      return;
    }
    this.#known.add(key);
    this.#unwritten.push(signature);
    this.#due = performance.now() + PATIENCE_MS;
    this.#timer ??= setTimeout(() => this.#tick(), QUIET_MS);
  }

  /** Make the bundle now, the session being about to go; it is written later. */
  finish(): void {
    if (this.#timer !== null) {
      clearTimeout(this.#timer);
      this.#timer = null;
    }
    // Reading the stored one would take a turn; it stays as it is then.
    if (this.#unwritten.length > 0 && this.#isRecalled) {
      this.#write();
    }
  }

  #tick(): void {
    const now = performance.now();
    if (now - this.#lastUse() < QUIET_MS && now < this.#due) {
      this.#timer = setTimeout(() => this.#tick(), QUIET_MS);
      return;
    }
    this.#timer = null;
    void this.#recallAndWrite();
  }

  async #recallAndWrite(): Promise<void> {
    if (!this.#isRecalled) {
      const stored = await readFile(this.#name);
      if (stored === null) {
        return;
      }
      try {
        this.#bridge.call("recall", this.#handle, stored);
      } catch {
        return;
      }
      this.#isRecalled = true;
    }
    this.#write();
  }

  #write(): void {
    const signatures = this.#unwritten;
    this.#unwritten = [];
    let data: Uint8Array | null;
    try {
      data = this.#bridge.call("bundle", this.#handle, JSON.stringify(signatures)).data;
    } catch {
      // The session was released meanwhile, or there is no room to compile: the next visit compiles.
      return;
    }
    if (data !== null) {
      void writeFile(this.#name, data);
    }
  }
}

function keyOf(signature: Signature): string {
  return JSON.stringify(signature.map(({ name, dtype, dims }) => [name, dtype, ...dims]));
}
