/** The models of a session in Python, which compiles plans and writes files. Python keeps no state of the session. */

import type { SourceData } from "../wire/pieces.js";
import type { Bridge } from "../python/bridge.js";
import { PythonFiles, type PythonFile } from "../python/python-files.js";
import type { Handout } from "../python/handout.js";
import type { ArtifactName } from "../wire/session-calls.js";
import { raise } from "../wire/messages.js";
import type { MaybePromise, Origin, ValueMetadata } from "../wire/protocol.js";
import type { DeadUnits, FloatType } from "../wire/values.js";
import { FLOAT_BYTES, readFloats } from "../wire/floats.js";
import type {
  Bundle, Declaration, FeedType, KeptValue, RawBundle, RawPlan, TensorPlace,
} from "./bundle/bundle.js";
import type { Property } from "./session-contents.js";
import type { StepKind } from "./step-kind.js";

export interface FilledSegments {
  /** Their addresses. */
  readonly bases: readonly number[];
  /** Bytes of a segment in place. */
  range(segment: number, offset: number, nbytes: number): Uint8Array;
}

/**
 * A copy that the worker makes for Python: bytes of a file, from an offset, to an offset of a segment. Floats may be
 * converted, and a matrix of `rows` rows transposed, as in a `Place`.
 */
export type Copy = readonly [
  segment: number, at: number, file: number, offset: number, nbytes: number, from?: FloatType, to?: FloatType, rows?: number,
];

/** Bytes of a segment. */
export type Run = readonly [segment: number, at: number, nbytes: number];

/** The contents that a session starts from. */
export interface Start {
  readonly copies: readonly Copy[];
  /** The places of `data`, which no file holds. */
  readonly rest: readonly Run[];
  readonly data: Uint8Array;
}

/** The answer of `fill`; its file is the `data`. */
interface Filling extends Pick<Start, "copies" | "rest"> {
  /** The parts of files that Python may still read. */
  readonly places: readonly (readonly [file: number, offset: number, nbytes: number])[];
}

/** A plan that keeps every float tensor. */
export interface InspectedPlan {
  readonly raw: RawPlan;
  /** All tensors that it keeps. */
  readonly outputs: readonly string[];
  /** Nodes that it computes, in order, for Python. */
  readonly nodes: readonly unknown[];
  /** Its activations, with all units as not fired yet. */
  readonly units: readonly DeadUnits[];
}

/** A moment of a parameter: its name in checkpoints, and its place. */
interface MomentPlace {
  readonly moment: string;
  readonly segment: number;
  readonly offset: number;
  readonly dims: readonly number[];
}

/** Python's answer for an opened session. */
interface Opened {
  readonly handle: number;
  readonly header?: unknown;
}

/** Functions of the bridge about a session's models: arguments after the handle, and the value of the answer. */
interface Questions {
  readonly adapter: [args: [bases: Bases], value: string];
  readonly artifact: [args: [name: ArtifactName, bases: Bases], value: null];
  /** Throw the error of the first fault; of an inspected step without one, count NaN and infinities in the results. */
  readonly check_numerics: [
    args:
      | [step: "inspected", kind: string, overwrite: boolean, memory: Addresses, outputs: Places, nodes: readonly unknown[]]
      | [step: "results", kind: string, memory: Addresses, outputs: Places, before: Readonly<Record<string, number>>]
      | [step: "optimizer", memory: Addresses],
    value: Readonly<Record<string, number>>,
  ];
  readonly checkpoint: [args: [withOptimizer: boolean, properties: readonly Property[], bases: Bases], value: null];
  readonly compile_inspected: [
    args: [kind: string, overwrite: boolean, signature: readonly FeedType[]],
    value: Omit<InspectedPlan, "raw"> & Pick<RawPlan, "header">,
  ];
  readonly compile_plan: [
    args: [kind: string, overwrite: boolean, signature: readonly FeedType[], kept: readonly KeptValue[], target: string],
    value: RawPlan["header"],
  ];
  readonly explain: [args: [kind: string, overwrite: boolean, signature: readonly FeedType[], target: string], value: string];
  readonly export: [args: [outputNames: readonly string[], bases: Bases], value: null];
  readonly export_weights: [args: [format: string, bases: Bases], value: null];
  readonly fill: [args: [bases: Bases], value: Filling];
  /** The inputs of a step that predicts or makes tokens. */
  readonly forward_inputs: [args: [kind: string], value: readonly Declaration[]];
  readonly load_adapter: [args: [weights: Uint8Array, config: string, bases: Bases], value: null];
  readonly load_checkpoint: [args: [file: Uint8Array, bases: Bases], value: readonly Property[]];
  readonly load_weights: [args: [weights: Uint8Array, strict: boolean, bases: Bases], value: null];
  readonly merge_adapter: [args: [bases: Bases], value: null];
  readonly moment_places: [args: [name: string], value: readonly MomentPlace[]];
  readonly output_metadata: [args: [training: boolean], value: readonly ValueMetadata[]];
}

/** Addresses of a session's segments. */
type Bases = readonly number[];

/** Addresses at which Python reads the numbers of a session: segments, and their copies from before a step. */
export interface Addresses {
  readonly bases: Bases;
  readonly copies: Bases;
}

type Places = readonly TensorPlace[];

export class PythonModels {
  readonly #bridge: Bridge;
  readonly #handle: number;
  /** Files that the models were read from, in the order of `LazyModels.sources`. */
  readonly #sources: readonly number[];
  /** The files that are still needed. */
  #files: readonly number[];
  /** Feeds of steps that predict or make tokens, by their kinds. */
  readonly #forwards = new Map<string, readonly Declaration[]>();

  private constructor(bridge: Bridge, handle: number, files: readonly number[]) {
    this.#bridge = bridge;
    this.#handle = handle;
    this.#sources = files;
    this.#files = files;
  }

  /** Open models, and prepare a session's initial state except for its weights, which `fill` writes. */
  static open(
    bridge: Bridge,
    call: Origin["call"] | "create_inference",
    args: Origin["args"],
  ): { readonly models: PythonModels; readonly raw: RawBundle } {
    const { converted, files } = addFiles(bridge, args);
    try {
      const { value, file } = bridge.call(call, ...converted);
      const { handle, header } = value as Opened;
      const models = new PythonModels(bridge, handle, files);
      return { models, raw: { header, blobs: file?.data ?? new Uint8Array() } };
    } catch (error) {
      files.forEach((index) => bridge.files.drop(index));
      throw error;
    }
  }

  /**
   * Write the initial contents into the segments, which hold zeros. Called once.
   *
   * @returns the copies from files, which are named as plans name them, and all else
   */
  async fill(segments: FilledSegments): Promise<Start> {
    const { files } = this.#bridge;
    const { value: { copies, places, rest }, file } = this.ask("fill", segments.bases);
    const { data } = file as Handout;
    eachPart(rest, segments, 0, data.length, (part, from) => part.set(data.subarray(from, from + part.length)));
    const narrow = this.#files.filter((index) => files.narrow(index, places.filter(([file]) => file === index)));
    await copyToSegments(files, copies, segments, (file, offset) => {
      if (narrow.includes(file)) {
        files.leave(file, offset);
      }
    });
    narrow.forEach((index) => files.leave(index, Infinity));
    this.#keepFiles([...new Set(places.map(([file]) => file))]);
    // The first plan copies constants of these files: its copy must not lie beside pieces and Blob.
    await Promise.all(this.#files.map((index) => files.settle(index)));
    return { copies: copies.map(([segment, at, file, ...more]): Copy => [segment, at, this.#sources.indexOf(file), ...more]), rest, data };
  }

  /** Fill a target with bytes of a file that the models were read from. */
  readFile(index: number, offset: number, target: Uint8Array): void {
    this.#bridge.files.copy(index, offset, target);
  }

  /** The same of a file as plans name it. */
  readGiven(file: number, offset: number, target: Uint8Array): void {
    this.readFile(this.#sources[file] as number, offset, target);
  }

  #keepFiles(needed: readonly number[]): void {
    for (const index of this.#files) {
      if (!needed.includes(index)) {
        this.#bridge.files.drop(index);
      }
    }
    this.#files = needed;
  }

  /** @param kept - values that plans of the session keep already */
  compile(
    { key }: StepKind,
    overwrite: boolean,
    signature: readonly FeedType[],
    kept: readonly KeptValue[],
    target: string,
  ): RawPlan {
    const { value, file } = this.ask("compile_plan", key, overwrite, signature, kept, target);
    return this.#planOf(value, file);
  }

  /** The inputs of a step that predicts or makes tokens. */
  forwardInputs({ key }: StepKind): readonly Declaration[] {
    const inputs = this.#forwards.get(key) ?? this.ask("forward_inputs", key).value;
    this.#forwards.set(key, inputs);
    return inputs;
  }

  /** A plan of Python, in which files have the names of bundles: the same in each visit. */
  #planOf(header: RawPlan["header"], file: Handout | null): RawPlan {
    const named = (large: RawPlan["header"]["large"]): RawPlan["header"]["large"] =>
      large.map(([offset, index, ...place]) => [offset, this.#sources.indexOf(index), ...place] as const);
    const body = header.body && { ...header.body, large: named(header.body.large) };
    return { header: { ...header, large: named(header.large), ...(body && { body }) }, blobs: file?.data ?? new Uint8Array() };
  }

  compileInspected(
    { key }: StepKind,
    overwrite: boolean,
    signature: readonly FeedType[],
  ): InspectedPlan {
    const { value, file } = this.ask("compile_inspected", key, overwrite, signature);
    const { header, ...inspected } = value;
    return { ...inspected, raw: this.#planOf(header, file) };
  }

  /** Ask Python about the models. Bytes go over as a file, other lists and objects as JSON. */
  ask<Name extends keyof Questions>(
    name: Name,
    ...args: Questions[Name][0]
  ): { readonly value: Questions[Name][1]; readonly file: Handout | null } {
    const plain = args.map((arg: unknown) =>
      typeof arg === "object" && !(arg instanceof Uint8Array) ? JSON.stringify(arg) : (arg as Uint8Array | string | number | boolean),
    );
    const { converted, files } = addFiles(this.#bridge, plain);
    try {
      const { value, file } = this.#bridge.call(name, this.#handle, ...converted);
      return { value: value as Questions[Name][1], file };
    } finally {
      files.forEach((index) => this.#bridge.files.drop(index));
    }
  }

  release(): void {
    this.#keepFiles([]);
    this.#bridge.call("release", this.#handle);
  }
}

/** Visit `length` bytes of consecutive runs, from `offset` on, part by part and in place. */
export function eachPart(
  runs: readonly Run[],
  segments: FilledSegments,
  offset: number,
  length: number,
  take: (part: Uint8Array, from: number) => void,
): void {
  let start = 0;
  for (const [segment, at, nbytes] of runs) {
    const [first, last] = [Math.max(offset, start), Math.min(offset + length, start + nbytes)];
    if (first < last) {
      take(segments.range(segment, at + first - start, last - first), first - offset);
    }
    start += nbytes;
  }
}

/**
 * Make copies to the segments of a session.
 *
 * @param leave - called with (file, offset): bytes before it are no longer needed
 */
export async function copyToSegments(
  files: PythonFiles,
  copies: readonly Copy[],
  segments: FilledSegments,
  leave: (file: number, offset: number) => void = () => {},
): Promise<void> {
  const sorted = [...copies].sort((a, b) => a[2] - b[2] || a[3] - b[3]);
  for (const [k, [segment, at, file, offset, nbytes, from, to, rows]] of sorted.entries()) {
    const next = sorted[k + 1];
    const until = next?.[2] === file ? next[3] : Infinity;
    leave(file, offset);
    if (from !== undefined && to !== undefined) {
      const target = segments.range(segment, at, (nbytes / FLOAT_BYTES[from]) * FLOAT_BYTES[to]);
      const read = (start: number, part: Uint8Array): void => {
        files.copy(file, offset + start, part);
        leave(file, Math.min(offset + start + part.length, until));
      };
      readFloats(read, from, to, target, rows);
      continue;
    }
    await files.stream(file, offset, nbytes, (start, data) => {
      segments.range(segment, at + start, data.length).set(data);
      leave(file, Math.min(offset + start + data.length, until));
    });
  }
}

/** The arguments of a call of the bridge, in which bytes and Blobs have become files; and the indexes of the files. */
export function addFiles<Plain extends string | number | boolean | null>(
  bridge: Bridge,
  args: readonly (SourceData | Plain)[],
): { readonly converted: readonly (PythonFile | Plain)[]; readonly files: readonly number[] } {
  const files: number[] = [];
  const converted = args.map((arg) => {
    if (arg === null || typeof arg !== "object") {
      return arg;
    }
    const file = bridge.files.add(arg);
    files.push(file.index);
    return file;
  });
  return { converted, files };
}

/** The models of a session. Python starts when they are first needed. */
export class LazyModels {
  readonly #boot: () => Promise<Bridge>;
  readonly #origin: Origin | null;
  #models: PythonModels | null;

  /**
   * @param origin - the call that opens them; null: they cannot be opened
   * @param models - the models, if they are open already
   */
  constructor(boot: () => Promise<Bridge>, origin: Origin | null, models: PythonModels | null) {
    this.#boot = boot;
    this.#origin = origin;
    this.#models = models;
  }

  /** True if `createFromModel` made the models, so that Python can give the artifacts. */
  get hasArtifacts(): boolean {
    return this.#origin?.call === "create_from_model";
  }

  /** The files among the arguments of the call that opens them. Plans name these by their positions. */
  get sources(): readonly SourceData[] {
    return (this.#origin?.args ?? []).filter((arg) => arg !== null && typeof arg === "object");
  }

  /** Null while they are not open. */
  get opened(): PythonModels | null {
    return this.#models;
  }

  /**
   * @param what - the use that needs them
   * @throws SessionError when they cannot be opened; EngineError when Python does not start
   */
  get(what: string): MaybePromise<PythonModels> {
    return this.#models ?? this.#open(this.#origin ?? raise("NOT_IN_BUNDLE", { what }));
  }

  async #open({ call, args }: Origin): Promise<PythonModels> {
    const bridge = await this.#boot();
    this.#models ??= PythonModels.open(bridge, call, args).models;
    return this.#models;
  }

  /** Fill a target with bytes of a file that the models are made of, as plans name it. */
  readGiven(file: number, start: number, target: Uint8Array): void {
    if (this.#models === null) {
      const files = new PythonFiles();
      files.copy(files.add(this.sources[file] as SourceData).index, start, target);
    } else {
      this.#models.readGiven(file, start, target);
    }
  }

  release(): void {
    this.#models?.release();
    this.#models = null;
  }
}

/** The call that opens a bundle's models in Python; null for a bundle without models. */
export function originOf({ models, parameters }: Bundle, optionsJson: string): Origin | null {
  if (models === null) {
    return null;
  }
  const { trainModel, checkpoint, evalModel, optimizerModel } = models;
  const args = [trainModel, checkpoint, evalModel, optimizerModel, JSON.stringify(parameters), optionsJson];
  return { call: "open_models", args };
}
