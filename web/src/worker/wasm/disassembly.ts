/** Plans as text, from their words and the kernels' description of themselves. */

import * as layout from "../../engine/layout.js";

/** One argument of a kernel; pointers and numbers are of different kinds. */
interface Argument {
  readonly name: string;
  readonly kind: string;
  readonly count: number;
}

export interface KernelDescription {
  readonly name: string;
  readonly opcode: number;
  readonly args: readonly Argument[];
}

const NUMBERS: ReadonlySet<string> = new Set(["i32", "s32", "f32"]);

/** One line per instruction: kernel, operands as segment+offset:bytes, numbers. */
export function disassemble(bytes: Uint8Array, kernels: readonly KernelDescription[]): string[] {
  const words = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const word = (at: number): number => words.getUint32(4 * at, true);
  const buffers = layout.HEADER_WORDS + layout.SEGMENT_WORDS * word(layout.HEADER_N_SEGMENTS);
  const code = buffers + layout.BUFFER_WORDS * word(layout.HEADER_N_BUFFERS);
  const operand = (index: number): string => {
    if (index === layout.PLAN_NO_BUFFER) {
      return "null";
    }
    const field = (place: number): number => word(buffers + layout.BUFFER_WORDS * index + place);
    const segment = layout.SEGMENT_NAMES[field(layout.BUFFER_SEGMENT)];
    return `${segment}+${field(layout.BUFFER_OFFSET)}:${field(layout.BUFFER_NBYTES)}`;
  };
  const number = (kind: string, at: number): number =>
    kind === "f32" ? words.getFloat32(4 * at, true) : words.getInt32(4 * at, true);

  const lines: string[] = [];
  for (let at = code; at < code + word(layout.HEADER_N_CODE); at += 1 + (word(at) >>> 16)) {
    const opcode = word(at) & 0xffff;
    const kernel = kernels.find((one) => one.opcode === opcode);
    if (kernel === undefined) {
      lines.push(`generated f${word(at + 1)} ${word(at + 2)}`);
      continue;
    }
    let next = at + 1;
    const shown = kernel.args.map(({ name, kind, count }) => {
      const values = Array.from({ length: count }, (_, k) =>
        NUMBERS.has(kind) ? number(kind, next + k) : operand(word(next + k)),
      );
      next += count;
      return `${name}=${count === 1 ? values[0] : `[${values.join(", ")}]`}`;
    });
    lines.push(`${kernel.name}(${shown.join(", ")})`);
  }
  return lines;
}
