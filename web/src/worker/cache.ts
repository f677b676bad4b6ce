/**
 * Compiled sessions of a page, stored as bundles for its next visit. A session then starts from its bundle, without
 * Python.
 */

import { PythonFiles } from "../python/python-files.js";
import type { FileHashes, SourceData } from "../wire/pieces.js";
import type { KnownHashes, Origin } from "../wire/protocol.js";
import { hasHashes } from "../wire/sha256.js";
import { VERSION } from "../wire/version.js";
import { joinBundle, splitBundle, withPlans, type RawBundle, type RawPlan } from "./bundle/bundle.js";
import { copyToSegments, eachPart, type Copy, type FilledSegments, type Run, type Start } from "./python-models.js";
import { hashOf, readChunks, readFile, removeFile, writeChunks, writeFile, type Chunks } from "./cached-files.js";

/** The bundle contains up to so many bytes that no file holds. It is written again with each plan. */
const SMALL_BYTES = 2 ** 22;

/** A bundle is written when nothing was asked of the session for this long, */
const QUIET_MS = 500;
/** or this long after the first plan that it is about, however busy the session is. */
const PATIENCE_MS = 5_000;

/** The files of a session, and what the page knows of them. */
export type Files = readonly (readonly [file: SourceData, hashes: FileHashes | null])[];

/** @param cached - for each argument that may be a file */
export function filesOf({ args }: Origin, cached: KnownHashes): Files {
  const slots = args.filter((arg) => typeof arg === "object");
  return slots.flatMap((file, k) => (file === null ? [] : [[file, cached[k] ?? null] as const]));
}

/** The name of the bundle of a session that a call makes of these arguments; null if bundles cannot be kept. */
export function cacheName(fingerprint: number, { call, args }: Origin, files: Files): Promise<string | null> {
  return hashOf([`trainweb ${VERSION}`, String(fingerprint), call, ...args], new Map(files));
}

/** A kept file has other bytes than when it was kept. */
export class DamagedFile extends Error {}

/**
 * Check the files that nobody has checked.
 *
 * @param use - takes their bytes before they are checked
 * @throws DamagedFile
 */
export async function checkFiles(
  files: Files,
  use: (index: number, start: number, bytes: Uint8Array) => void = () => {},
): Promise<void> {
  for (const [index, [file, hashes]] of files.entries()) {
    if (hashes?.areChecked === false && !(await hasHashes(file, hashes.pieces, (...piece) => use(index, ...piece)))) {
      throw new DamagedFile("a kept file is damaged");
    }
  }
}

/** The record of the start of a stored session. */
interface StoredStart {
  /** From the files of the session. */
  readonly copies: readonly Copy[];
  /** Bytes that no file holds, one run after the other. */
  readonly rest: readonly Run[];
  /** The chunks of a separate file with these bytes; null: they are the first bytes of the blobs. */
  readonly chunks: Chunks | null;
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

  /** @param lastUse - when anything was last asked of the worker */
  constructor(name: string, lastUse: () => number) {
    this.#name = name;
    this.#lastUse = lastUse;
  }

  /**
   * Store the initial state of the session: places in its files, and the bytes that no file holds.
   *
   * @param copies - from its files
   * @param data - the bytes of `rest`
   */
  async setStart(raw: RawBundle, { copies, rest, data }: Start): Promise<void> {
    const isSmall = data.length <= SMALL_BYTES;
    const read = (offset: number, target: Uint8Array): void => target.set(data.subarray(offset, offset + target.length));
    const chunks = isSmall ? null : await writeChunks(this.#name, data.length, read);
    const blobs = isSmall ? data : new Uint8Array();
    if (!isSmall && chunks === null) {
      return;
    }
    this.#start = { header: { ...(raw.header as object), start: { copies, rest, chunks } satisfies StoredStart }, blobs };
  }

  /**
   * Fill the segments of a session that was made of the stored bundle, which hold zeros.
   *
   * @throws DamagedFile for a damaged file, and Error for a missing one
   */
  async fill({ header, blobs }: RawBundle, segments: FilledSegments, files: Files): Promise<void> {
    const { copies, rest, chunks } = (header as { readonly start: StoredStart }).start;
    const isOnTheWay = ([, , file, , , from]: Copy): boolean => from === undefined && files[file]?.[1]?.areChecked === false;
    const passing = copies.filter(isOnTheWay);
    await checkFiles(files, (index, start, bytes) => {
      for (const [segment, at, file, offset, nbytes] of passing) {
        const [first, last] = [Math.max(start, offset), Math.min(start + bytes.length, offset + nbytes)];
        if (file === index && first < last) {
          const target = segments.range(segment, at + first - offset, last - first);
          target.set(bytes.subarray(first - start, last - start));
        }
      }
    });
    const others = new PythonFiles();
    const indexes = files.map(([file]) => others.add(file).index);
    const moved = copies
      .filter((copy) => !isOnTheWay(copy))
      .map(([segment, at, file, ...more]): Copy => [segment, at, indexes[file] ?? -1, ...more]);
    await copyToSegments(others, moved, segments);
    const write = (offset: number, data: Uint8Array): void =>
      eachPart(rest, segments, offset, data.length, (part, from) => part.set(data.subarray(from, from + part.length)));
    const nbytes = rest.reduce((sum, [, , size]) => sum + size, 0);
    if (chunks === null) {
      write(0, blobs.subarray(0, nbytes));
    } else {
      await readChunks(this.#name, nbytes, chunks, write);
    }
  }

  /** Keep a plan, too. */
  add(raw: RawPlan): void {
    this.#unwritten.push(raw);
    this.#due = performance.now() + PATIENCE_MS;
    this.#timer ??= setTimeout(() => this.#tick(), QUIET_MS);
  }

  /** Keep nothing of this session, because the verifier refused a plan. The next session compiles again. */
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
