/** Read and change the one part of a module that the WebAssembly API hides: its memory import. */

const MEMORY_KIND = 2;
const IMPORT_SECTION = 2;
const HEADER_BYTES = 8;
const SHARED_WITH_MAXIMUM = 3;

/** Pages of 64 KiB that a 32-bit memory can have. */
export const MAX_PAGES = 65536;

/** Limits of an imported memory, in pages of 64 KiB. */
export interface MemoryLimits {
  readonly minimum: number;
  readonly maximum: number | null;
  readonly shared: boolean;
}

interface MemoryImport extends MemoryLimits {
  /** The section's start (its id), the start of its contents, and its end. */
  readonly section: { readonly start: number; readonly body: number; readonly end: number };
  /** Offset of the limits. */
  readonly start: number;
  readonly end: number;
}

class Reader {
  constructor(
    readonly bytes: Uint8Array,
    public at: number,
  ) {}

  byte(): number {
    const value = this.bytes[this.at++];
    if (value === undefined) {
      throw new WebAssembly.CompileError(`module ends at byte ${this.bytes.length}`);
    }
    return value;
  }

  /** An unsigned LEB128 number of up to 53 bits. */
  number(): number {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = this.byte();
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) {
        return value;
      }
    }
  }

  skipName(): void {
    const length = this.number();
    this.at += length;
  }

  limits(): MemoryLimits {
    const flags = this.byte();
    const minimum = this.number();
    const maximum = flags & 1 ? this.number() : null;
    return { minimum, maximum, shared: (flags & 2) !== 0 };
  }

  /** Skip the description of an import other than a memory. */
  skipImport(kind: number): void {
    if (kind === 0) {
      this.number();
    } else if (kind === 1) {
      this.byte();
      this.limits();
    } else if (kind === 3) {
      this.at += 2;
    } else {
      throw new WebAssembly.CompileError(`import of unknown kind ${kind}`);
    }
  }
}

function findMemoryImport(bytes: Uint8Array): MemoryImport | null {
  const reader = new Reader(bytes, HEADER_BYTES);
  while (reader.at < bytes.length) {
    const start = reader.at;
    const id = reader.byte();
    const size = reader.number();
    const body = reader.at;
    if (id !== IMPORT_SECTION) {
      reader.at = body + size;
      continue;
    }
    for (let left = reader.number(); left > 0; left--) {
      reader.skipName();
      reader.skipName();
      const kind = reader.byte();
      if (kind === MEMORY_KIND) {
        const at = reader.at;
        const limits = reader.limits();
        return { ...limits, section: { start, body, end: body + size }, start: at, end: reader.at };
      }
      reader.skipImport(kind);
    }
    return null;
  }
  return null;
}

/** The limits of the memory that a module imports. */
export function importedMemory(bytes: Uint8Array): MemoryLimits {
  const found = findMemoryImport(bytes);
  if (found === null) {
    throw new WebAssembly.LinkError("the kernel module imports no memory");
  }
  return found;
}

/**
 * The same module, importing a shared memory. Generated code does not depend on threads otherwise, so
 * that the compiler need not know of them.
 */
export function withSharedMemory(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const found = findMemoryImport(bytes);
  if (found === null || found.shared) {
    return new Uint8Array(bytes);
  }
  const { section, start, end } = found;
  const limits = [SHARED_WITH_MAXIMUM, ...leb(found.minimum), ...leb(MAX_PAGES)];
  const size = section.end - section.body - (end - start) + limits.length;
  const parts = [
    bytes.subarray(0, section.start),
    [IMPORT_SECTION, ...leb(size)],
    bytes.subarray(section.body, start),
    limits,
    bytes.subarray(end),
  ];
  const result = new Uint8Array(parts.reduce((total, part) => total + part.length, 0));
  let at = 0;
  for (const part of parts) {
    result.set(part, at);
    at += part.length;
  }
  return result;
}

function leb(value: number): number[] {
  const bytes: number[] = [];
  for (;;) {
    if (value < 128) {
      bytes.push(value);
      return bytes;
    }
    bytes.push((value % 128) | 128);
    value = Math.floor(value / 128);
  }
}
