/**
 * Messages between a page and the bridge to Flower. A WebSocket message is a header of JSON and the numbers of its
 * arrays. Bytes 0 to 3 are the length of the header (little-endian). Then comes the header in UTF-8, then the numbers
 * of all arrays, one after the other, as little-endian float32. trainweb/flower/frames.py is the same.
 */

/** Version of the messages; a bridge of another version rejects the page. */
export const VERSION = 1;

/** An array as a header describes it. */
export interface ArrayShape {
  readonly name: string;
  readonly shape: readonly number[];
}

/** A value that a server may give to its clients. */
export type ConfigValue = number | string | boolean | readonly (number | string | boolean)[];

export type BridgeMessage =
  | { readonly type: "joined"; readonly version: number; readonly node: string }
  | {
      readonly type: "task";
      readonly id: string;
      readonly kind: "train" | "evaluate";
      readonly config: Readonly<Record<string, ConfigValue>>;
    };

export type PageMessage =
  | { readonly type: "join"; readonly version: number; readonly parameters: readonly ArrayShape[] }
  | { readonly type: "result"; readonly id: string; readonly metrics: Readonly<Record<string, number>> }
  | { readonly type: "failure"; readonly id: string; readonly reason: string };

/** Pack a message; `numbers` are all arrays one after the other. */
export function packFrame(
  header: PageMessage,
  arrays: readonly ArrayShape[] = [],
  numbers = new Float32Array(),
): Uint8Array<ArrayBuffer> {
  const text = new TextEncoder().encode(JSON.stringify({ ...header, arrays }));
  const frame = new Uint8Array(4 + text.length + numbers.byteLength);
  new DataView(frame.buffer).setUint32(0, text.length, true);
  frame.set(text, 4);
  frame.set(new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength), 4 + text.length);
  return frame;
}

/** Read a message and its arrays by name. A text as result says why the frame is not a message. */
export function unpackFrame(frame: unknown): [BridgeMessage, ReadonlyMap<string, ArrayShape & { readonly data: Float32Array }>] | string {
  if (!(frame instanceof ArrayBuffer) || frame.byteLength < 4) {
    return "no frame";
  }
  const length = new DataView(frame).getUint32(0, true);
  if (length > frame.byteLength - 4) {
    return `a header of ${length} bytes in a frame of ${frame.byteLength}`;
  }
  let header: BridgeMessage & { readonly arrays: readonly ArrayShape[] };
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(frame, 4, length)));
  } catch {
    return "a header that is not JSON";
  }
  const arrays = new Map<string, ArrayShape & { readonly data: Float32Array }>();
  let start = 4 + length;
  if (!areShapes(header.arrays)) {
    return "arrays that are none";
  }
  for (const { name, shape } of header.arrays) {
    const size = 4 * shape.reduce((product, dim) => product * dim, 1);
    if (start + size > frame.byteLength) {
      return `too few numbers for '${name}'`;
    }
    arrays.set(name, { name, shape, data: new Float32Array(frame.slice(start, start + size)) });
    start += size;
  }
  return start === frame.byteLength ? [header, arrays] : `${frame.byteLength - start} bytes too many`;
}

function areShapes(value: unknown): value is readonly ArrayShape[] {
  return Array.isArray(value) && value.every(({ name, shape }) => typeof name === "string" && Array.isArray(shape));
}
