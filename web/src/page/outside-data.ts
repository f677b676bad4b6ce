/** The data that an ONNX file has elsewhere. Only what leads to tensors is decoded: a page fetches no other file. */

import { isAddress } from "../data/checks.js";
import { bytesOf, sizeOf, type SourceData } from "../wire/pieces.js";
import type { ExternalSource, Source } from "./sources.js";

/** Data outside of a graph. */
export interface OutsideData {
  /** Locations of external data. */
  readonly locations: ReadonlySet<string>;
  /** Names of tensors without data. */
  readonly missing: ReadonlySet<string>;
}

/** Fields of onnx.proto that hold messages, by message. */
const MESSAGES: Readonly<Record<string, Readonly<Record<number, string>>>> = {
  model: { 7: "graph", 25: "function" },
  graph: { 1: "node", 5: "tensor", 15: "sparse" },
  function: { 7: "node" },
  node: { 5: "attribute" },
  attribute: { 5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse" },
  sparse: { 1: "tensor", 2: "tensor" },
};
/** Fields of TensorProto; NUMBERS hold its elements. */
const [DIMS, NAME, EXTERNAL] = [1, 8, 13];
const NUMBERS = [4, 5, 6, 7, 9, 10, 11];
/** Wire types. */
const [VARINT, FIXED64, SIZED, FIXED32] = [0, 1, 2, 5];
/** Bytes that are read of a file at once. */
const WINDOW = 2 ** 16;

/** A field of a message, and where its value lies. */
interface Field {
  readonly number: number;
  readonly start: number;
  readonly end: number;
}

/** Find the data that a graph has elsewhere. A damaged file is read up to the damage, which the worker reports. */
export async function outsideData(file: SourceData): Promise<OutsideData> {
  const outside = { locations: new Set<string>(), missing: new Set<string>() };
  const reader = new Reader(file);
  const walk = async (kind: string, start: number, end: number): Promise<void> => {
    if (kind === "tensor") {
      await readTensor(reader, start, end, outside);
      return;
    }
    for await (const field of reader.fields(start, end)) {
      const inner = MESSAGES[kind]?.[field.number];
      if (inner !== undefined) {
        await walk(inner, field.start, field.end);
      }
    }
  };
  await walk("model", 0, sizeOf(file));
  return outside;
}

/** The files at the locations of a graph; locations without a file are left out. */
export function externalFiles(locations: Iterable<string>, at: (location: string) => Source | null): ExternalSource[] {
  // The worker refuses other locations.
  const inside = [...locations].filter((location) => !/^$|^[/\\]|^[a-z]+:|(^|[/\\])\.\.([/\\]|$)/iu.test(location));
  return inside.flatMap((path) => {
    const data = at(path);
    return data === null ? [] : [{ what: `externalData of '${path}'`, path, data }];
  });
}

/** The files that a graph has beside it; without an address of the graph there are none. */
export async function externalBeside(model: Source, graph: SourceData): Promise<ExternalSource[]> {
  const url = isAddress(model) ? String(model) : "blob:";
  if (/^(blob|data):/iu.test(url)) {
    return [];
  }
  const folder = /^(.*[/\\])?/su.exec(url.replace(/(?<=^\w+:\/\/.*)[?#].*$/su, ""))?.[0] ?? "";
  const { locations } = await outsideData(graph);
  return externalFiles(locations, (path) => folder + path);
}

async function readTensor(
  reader: Reader,
  start: number,
  end: number,
  { locations, missing }: { readonly locations: Set<string>; readonly missing: Set<string> },
): Promise<void> {
  let name = "";
  let isMissing = true;
  for await (const field of reader.fields(start, end)) {
    if (field.number === NAME) {
      name = await reader.text(field);
    } else if (field.number === EXTERNAL) {
      isMissing = false;
      const entry = new Map<number, string>();
      for await (const part of reader.fields(field.start, field.end)) {
        entry.set(part.number, await reader.text(part));
      }
      if (entry.get(1) === "location") {
        locations.add(entry.get(2) ?? "");
      }
    } else if (field.number === DIMS) {
      // A number ends in a byte of 0 only if it is 0.
      isMissing &&= !(await reader.bytes(field.start, field.end)).includes(0);
    } else if (NUMBERS.includes(field.number)) {
      isMissing &&= field.start === field.end;
    }
  }
  if (isMissing) {
    missing.add(name);
  }
}

/** Reads a file by windows. */
class Reader {
  readonly #file: SourceData;
  #start = 0;
  #window: Uint8Array = new Uint8Array();

  constructor(file: SourceData) {
    this.#file = file;
  }

  async bytes(start: number, end: number): Promise<Uint8Array> {
    if (start < this.#start || end > this.#start + this.#window.length) {
      const nbytes = Math.min(Math.max(WINDOW, end - start), sizeOf(this.#file) - start);
      this.#window = await bytesOf(this.#file, start, nbytes);
      this.#start = start;
    }
    return this.#window.subarray(start - this.#start, end - this.#start);
  }

  async text({ start, end }: Field): Promise<string> {
    return new TextDecoder().decode((await this.bytes(start, end)).slice());
  }

  /** The fields of a message, up to the first malformed one. */
  async *fields(start: number, end: number): AsyncGenerator<Field> {
    for (let at = start; at < end; ) {
      const head = await this.bytes(at, Math.min(end, at + 20));
      const [tag, after] = varint(head, 0);
      const [size, behind] = varint(head, after);
      const kind = tag % 8;
      const from = at + (kind === SIZED ? behind : after);
      const lengths = { [VARINT]: behind - after, [FIXED64]: 8, [SIZED]: size, [FIXED32]: 4 };
      const stop = from + (lengths[kind] ?? Infinity);
      if (tag < 8 || stop > end) {
        return;
      }
      yield { number: Math.floor(tag / 8), start: from, end: stop };
      at = stop;
    }
  }
}

/** A number of protobuf and the place behind it; one that does not end is infinite. */
function varint(bytes: Uint8Array, at: number): readonly [number, number] {
  let value = 0;
  for (let k = at; k < bytes.length; k++) {
    const byte = bytes[k] as number;
    value += (byte % 128) * 2 ** (7 * (k - at));
    if (byte < 128) {
      return [value, k + 1];
    }
  }
  return [Infinity, bytes.length];
}
