/** Files packed with gzip, which some servers mark as such: the browser has unpacked them already, then. */

/** True if the bytes start with gzip's magic number. */
export function isPacked([first, second]: Uint8Array): boolean {
  return first === 0x1f && second === 0x8b;
}

/** The contents of a packed stream. */
export function unpack(stream: ReadableStream<Uint8Array<ArrayBuffer>>): ReadableStream<Uint8Array<ArrayBuffer>> {
  return stream.pipeThrough(new DecompressionStream("gzip"));
}
