/**
 * Compiled sessions of a page, stored as bundles for its next visit. A session then starts from its bundle, without
 * Python.
 */

import type { KnownHashes } from "../wire/protocol.js";
import { VERSION } from "../wire/version.js";
import {
  joinBundle,
  splitBundle,
  withPlans,
  withSegments,
  type RawBundle,
  type RawPlan,
  type SegmentSize,
} from "./bundle/bundle.js";
import type { FilledSegments, Origin } from "./python-models.js";
import { hashOf, readChunks, readFile, removeFile, writeChunks, writeFile, type Chunks } from "./store.js";

/** Segments up to this size are in the bundle itself, which is written again with each plan. */
const SMALL_BYTES = 2 ** 22;

/** A bundle is written when nothing was asked of the session for this long, */
const QUIET_MS = 500;
/** or this long after the first plan that it is about, however busy the session is. */
const PATIENCE_MS = 5_000;

/**
 * The name of the bundle for a session made of these; null where nothing can be kept.
 *
 * @param hashes - of its files
 */
export function cacheName(fingerprint: number, { call, args }: Origin, hashes: KnownHashes): Promise<string | null> {
  const files = args.filter((arg) => typeof arg !== "string");
  const known = new Map(files.map((file, index) => [file, hashes[index] ?? null]));
  return hashOf([`trainweb ${VERSION}`, String(fingerprint), call, ...args], known);
}

/** A stored bundle's record of segments in a separate file. */
interface StoredSegments {
  readonly segments: readonly SegmentSize[];
  readonly chunks: Chunks;
}

/** The bundle of one session: collects the plans that are compiled for it, and writes it in the background. */
export class BundleCache {
  readonly #name: string;
  readonly #lastUse: () => number;
  /** The bundle that the session started from, until it is stored; null: the stored bundle. */
  #start: RawBundle | null = null;
  #unwritten: RawPlan[] = [];
  #due = 0;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #writing: Promise<void> = Promise.resolve();
  #isRefused = false;

  /**
   * @param lastUse - when anything was last asked of the worker
   */
  constructor(name: string, lastUse: () => number) {
    this.#name = name;
    this.#lastUse = lastUse;
  }

  /** Store the initial state of the session: large segments at once, in a separate file, the others with the plans. */
  async setStart(raw: RawBundle, contents: readonly SegmentSize[], segments: FilledSegments): Promise<void> {
    const small = contents.filter(({ nbytes }) => nbytes <= SMALL_BYTES);
    const large = contents.filter(({ nbytes }) => nbytes > SMALL_BYTES);
    const held = small.map(({ segment, nbytes }) => [segment, segments.range(segment, 0, nbytes)] as const);
    const start = withSegments(raw, new Map(held));
    if (large.length === 0) {
      this.#start = start;
      return;
    }
    const chunks = await writeChunks(this.#name, large, ({ segment }, offset, target) =>
      target.set(segments.range(segment, offset, target.length)),
    );
    if (chunks !== null) {
      this.#start = { ...start, header: { ...(start.header as object), large: { segments: large, chunks } } };
    }
  }

  /**
   * Fill the large segments of a session that was made of the stored bundle, which hold zeros.
   *
   * @throws Error when they cannot be had
   */
  async fill({ header }: RawBundle, segments: FilledSegments): Promise<void> {
    const { large } = header as { readonly large?: StoredSegments };
    if (large !== undefined) {
      await readChunks(this.#name, large.segments, large.chunks, ({ segment }, offset, data) =>
        segments.range(segment, offset, data.length).set(data),
      );
    }
  }

  /** Keep a plan, too. */
  add(raw: RawPlan): void {
    this.#unwritten.push(raw);
    this.#due = performance.now() + PATIENCE_MS;
    this.#timer ??= setTimeout(() => this.#tick(), QUIET_MS);
  }

  /** The verifier refused a plan: nothing of this session is kept, and the next session compiles again. */
  discard(): void {
    this.#isRefused = true;
    this.#writing = this.#writing.then(() => removeFile(this.#name));
  }

  /** Settles when nothing is being written. */
  get written(): Promise<void> {
    return this.#writing;
  }

  /** Write the collected plans, because the session is about to end. */
  finish(): void {
    if (this.#timer !== null) {
      clearTimeout(this.#timer);
      this.#write();
    }
  }

  #tick(): void {
    const now = performance.now();
    if (now - this.#lastUse() < QUIET_MS && now < this.#due) {
      this.#timer = setTimeout(() => this.#tick(), QUIET_MS);
      return;
    }
    this.#write();
  }

  #write(): void {
    this.#timer = null;
    const plans = this.#unwritten;
    this.#unwritten = [];
    this.#writing = this.#writing.then(() => this.#append(plans)).catch(() => {
      // There is no room: the next visit compiles.
    });
  }

  async #append(plans: readonly RawPlan[]): Promise<void> {
    if (this.#isRefused) {
      return;
    }
    const start = this.#start ?? (await this.#stored());
    this.#start = null;
    if (start !== null) {
      await writeFile(this.#name, await joinBundle(withPlans(start, plans)));
    }
  }

  async #stored(): Promise<RawBundle | null> {
    const bytes = await readFile(this.#name);
    return bytes === null ? null : splitBundle(bytes);
  }
}
