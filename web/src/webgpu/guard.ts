/**
 * The guard of a fit. Behind a train step it notes loss and divisor on a page, and looks for numbers that are not finite. A
 * batch that must not count sets the status: all dispatches from then on do nothing. A copy of the segments undoes it.
 */

import { GRADIENTS, NEXT_BATCH, NEXT_UPDATE } from "../engine/layout.js";
import { MOST_BATCHES } from "../worker/constants.js";
import type { Commands } from "./commands.js";
import type { GpuDevice } from "./device.js";
import { Pipelines, STATUS_BYTES } from "./plans.js";
import { LASTING, type Segments } from "./segments.js";

/** Words of the page. The order of a batch and its factor for gradients follow the record's head. */
const [STOPPED, COUNT, FAULT, IS_UPDATE, ORDER, LOSS, WEIGHT, TOTAL, FACTOR] = [0, 1, 2, 3, 4, 5, 6, 7, 8] as const;
/** Words from a tally of a segment to the next: bindings start at multiples of 256 bytes. */
const APART = 64;
const USUAL = APART * (1 + LASTING.length);
const RECORDS = USUAL + APART;
const PAGE_BYTES = 4 * (RECORDS + 2 * MOST_BATCHES);

/** Bits of an order. */
export const STOPS = 1;
export const IS_TRAINED = 2;
export const IS_FIRST = 4;
export const IS_DUE = 8;
const IS_START = 16;

const LANES = 256;
const MOST_GROUPS = 65_535;
const HEAD = `@group(0) @binding(17) var<uniform> status: vec4u;
@group(0) @binding(0) var<storage, read_write> a: array<u32>;
`;
const GATE = "  if (status.x != 0u) { return; }\n";
const WORDS = `@compute @workgroup_size(${LANES})
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
${GATE}  let step = groups.x * ${LANES}u;
`;
const LOOP = "for (var i = id.x; i < arrayLength(&a); i += step)";
const B = "@group(0) @binding(1) var<storage, read_write> b: array<u32>;\n";

/** Copies a segment. */
const SAVE = `${HEAD}${B}${WORDS}  ${LOOP} { b[i] = a[i]; }\n}\n`;
/** Multiplies gradients by the factor of the page. */
const SCALE = `${HEAD}${B}${WORDS}  let factor = bitcast<f32>(b[${FACTOR}]);
  ${LOOP} { a[i] = bitcast<u32>(bitcast<f32>(a[i]) * factor); }\n}\n`;
/** Counts numbers that are not finite. The order of additions of integers does not matter. */
const LOOK = `${HEAD}@group(0) @binding(1) var<storage, read_write> tally: array<atomic<u32>>;
${WORDS}  var n = 0u;
  ${LOOP} { n += select(0u, 1u, (a[i] & 0x7f800000u) == 0x7f800000u); }
  if (n != 0u) { atomicAdd(&tally[0], n); }\n}\n`;
/** Judges a batch by its loss and by the tallies. */
const JUDGE = `${HEAD}${B}@compute @workgroup_size(1)
fn main() {
${GATE}  let order = b[${ORDER}];
  var fault = 0u;
  for (var k = 0u; k < ${LASTING.length}u; k++) {
    let tally = b[${APART}u * (k + 1u)];
    b[${APART}u * (k + 1u)] = 0u;
    if ((order & ${IS_START}u) != 0u) { b[${USUAL}u + k] = select(tally, 0u, k == ${LASTING.indexOf(GRADIENTS)}u); }
    if (fault == 0u && tally > b[${USUAL}u + k]) { fault = k + ${LASTING[0]}u; }
  }
  if ((order & ${IS_START}u) != 0u) { return; }
  var stops = fault != 0u;
  if ((order & ${IS_TRAINED}u) != 0u) {
    let n = b[${COUNT}];
    let loss = b[${LOSS}];
    let weight = bitcast<f32>(b[${WEIGHT}]);
    b[${RECORDS}u + 2u * n] = loss;
    b[${RECORDS}u + 2u * n + 1u] = b[${WEIGHT}];
    b[${COUNT}] = n + 1u;
    let total = weight + select(bitcast<f32>(b[${TOTAL}]), 0.0f, (order & ${IS_FIRST}u) != 0u);
    b[${TOTAL}] = bitcast<u32>(total);
    b[${FACTOR}] = bitcast<u32>(select(weight, 1.0f / select(total, 1.0f, total == 0.0f), (order & ${IS_DUE}u) != 0u));
    if ((order & ${STOPS}u) != 0u && (loss & 0x7fffffffu) >= 0x7f800000u) { stops = true; fault = 0u; }
  }
  if (stops) {
    b[${STOPPED}] = 1u;
    b[${FAULT}] = fault;
    b[${IS_UPDATE}] = select(1u, 0u, (order & ${IS_TRAINED}u) != 0u);
  }
}
`;

type Source = readonly [buffer: GPUBuffer, offset: number];

/** The record of the guard. */
export interface Page {
  /** True if nothing ran behind the last batch. */
  readonly isStopped: boolean;
  /** The segment that the last batch has spoiled; 0: its loss is not finite. */
  readonly fault: number;
  /** True if its optimizer step did it. */
  readonly isUpdate: boolean;
  readonly losses: Float32Array;
  readonly counts: Float32Array;
}

export class Guard {
  readonly #gpu: GpuDevice;
  readonly #segments: Segments;
  readonly #commands: Commands;
  readonly #tools = new Map<string, GPUComputePipeline>();
  /** By segment, the copy. */
  readonly #copies = new Map<number, GPUBuffer>();
  readonly #groups = new Map<string, GPUBindGroup>();
  #generation = -1;
  /** Sum of the divisors of batches whose gradients wait. */
  #total = 0;
  #page: GPUBuffer | null = null;

  constructor(gpu: GpuDevice, segments: Segments, commands: Commands) {
    this.#gpu = gpu;
    this.#segments = segments;
    this.#commands = commands;
  }

  /** Bytes of its buffers. */
  get bytes(): number {
    return [...this.#copies.values()].reduce((sum, { size }) => sum + size, this.#page?.size ?? 0);
  }

  /** Have all that the guard needs. @param copies - room for a copy of the segments @throws DeviceError */
  async open(copies: boolean): Promise<void> {
    const segments = this.#segments;
    await segments.reserve(0);
    if (this.#page === null) {
      this.#page = await segments.make(PAGE_BYTES, "page");
      const texts = { save: SAVE, look: LOOK, scale: SCALE, judge: JUDGE };
      const pipelines = Pipelines.of(this.#gpu);
      await this.#gpu.settled(Promise.all(Object.entries(texts).map(async ([tool, text]) => {
        this.#tools.set(tool, await pipelines.get(text, `guard (${tool})`, pipelines.toolLayout));
      })));
    }
    for (const segment of copies ? segments.filled : []) {
      if (!this.#copies.has(segment)) {
        this.#copies.set(segment, await segments.make(segments.buffer(segment).size, "copies"));
      }
    }
  }

  /** Count the numbers that are not finite on purpose. */
  start(): void {
    this.#order(IS_START, 0);
    this.#look();
    this.#judge();
  }

  /** Begin a record. */
  begin(): void {
    this.#commands.between().clearBuffer(this.#page as GPUBuffer, 0, 4 * ORDER);
    this.#commands.write(this.#page as GPUBuffer, 4 * TOTAL, bytesOf([this.#total]));
    this.goOn();
  }

  /** Copy all that a batch may change. */
  save(): void {
    this.#segments.bringUp();
    for (const segment of this.#segments.filled) {
      const copy = this.#copies.get(segment) as GPUBuffer;
      this.#run("save", `copy ${segment}`, segment, { buffer: copy });
    }
  }

  /** Have all as it was when it was copied. */
  putBack(): void {
    this.#copies.forEach((copy, segment) => {
      this.#commands.between().copyBufferToBuffer(copy, 0, this.#segments.buffer(segment), 0, copy.size);
    });
    this.#segments.replacedThere();
    this.goOn();
  }

  /** Note loss and divisor of a train step. @param weight - the divisor, or its place @param looks - at segments as well */
  trained(order: number, loss: Source, weight: Source | number, looks: boolean): void {
    const page = this.#page as GPUBuffer;
    this.#order(order | IS_TRAINED, typeof weight === "number" ? weight : 0);
    this.#commands.between().copyBufferToBuffer(...loss, page, 4 * LOSS, 4);
    if (typeof weight !== "number") {
      this.#commands.between().copyBufferToBuffer(...weight, page, 4 * WEIGHT, 4);
    }
    if (looks) {
      this.#look();
    }
    this.#judge();
  }

  /** Look at segments behind an optimizer step. */
  updated(): void {
    this.#order(0, 0);
    this.#look();
    this.#judge();
  }

  /** Take note of a batch that the host knows of. @param next - the next action of the fit */
  noteWeight(weight: number, isFirst: boolean, next: number): void {
    if (next === NEXT_BATCH || next === NEXT_UPDATE) {
      this.#total = weight + (isFirst ? 0 : this.#total);
    }
  }

  /** Divide gradients by the sum of the divisors. */
  average(): void {
    this.scale(1 / (this.#total || 1));
  }

  /** Multiply gradients by the factor of the page, or by this one. */
  scale(factor: number | null): void {
    if (factor !== null) {
      this.#commands.write(this.#page as GPUBuffer, 4 * FACTOR, bytesOf([factor]));
    }
    this.#segments.bringUp();
    this.#run("scale", "page", GRADIENTS, { buffer: this.#page as GPUBuffer });
    this.#segments.wroteThere();
  }

  /** Have later dispatches run again. */
  goOn(): void {
    this.#commands.between().clearBuffer(this.#segments.status);
  }

  /** The place of the record. */
  get record(): readonly [buffer: GPUBuffer, offset: number, nbytes: number] {
    return [this.#page as GPUBuffer, 0, PAGE_BYTES];
  }

  /** Give back the copies. */
  forget(): void {
    this.#copies.forEach((copy, segment) => {
      copy.destroy();
      this.#groups.delete(`copy ${segment}`);
    });
    this.#copies.clear();
  }

  release(): void {
    this.forget();
    this.#page?.destroy();
  }

  #order(order: number, weight: number): void {
    const words = new Uint8Array(12);
    words.set(new Uint8Array(Uint32Array.of(order).buffer));
    words.set(bytesOf([weight]), 8);
    this.#commands.write(this.#page as GPUBuffer, 4 * ORDER, words);
  }

  #look(): void {
    this.#segments.bringUp();
    for (const segment of this.#segments.filled) {
      const offset = 4 * APART * (1 + LASTING.indexOf(segment));
      const tally = { buffer: this.#page as GPUBuffer, offset, size: 4 * APART };
      this.#run("look", `tally ${segment}`, segment, tally);
    }
  }

  #judge(): void {
    this.#run("judge", "page", GRADIENTS, { buffer: this.#page as GPUBuffer }, 1);
    this.#commands.between().copyBufferToBuffer(this.#page as GPUBuffer, 0, this.#segments.status, 0, STATUS_BYTES);
  }

  /** Run a tool on the words of a segment and another buffer. @param key - of the two */
  #run(tool: string, key: string, segment: number, b: GPUBufferBinding, invocations?: number): void {
    const { generation, status } = this.#segments;
    if (this.#generation !== generation) {
      this.#groups.clear();
      this.#generation = generation;
    }
    const buffer = this.#segments.buffer(segment);
    const group = this.#groups.get(key) ?? Pipelines.of(this.#gpu).toolGroup({ buffer }, b, status);
    this.#groups.set(key, group);
    const pass = this.#commands.pass();
    pass.setPipeline(this.#tools.get(tool) as GPUComputePipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(Math.min(Math.ceil((invocations ?? buffer.size / 4) / LANES), MOST_GROUPS));
  }
}

function bytesOf(numbers: readonly number[]): Uint8Array {
  return new Uint8Array(Float32Array.from(numbers).buffer);
}

/** The record of the last batches. */
export function readPage(bytes: Uint8Array): Page {
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset);
  const n = words[COUNT] as number;
  const pairs = new Float32Array(bytes.buffer, bytes.byteOffset + 4 * RECORDS, 2 * n);
  const every = (first: number): Float32Array => Float32Array.from({ length: n }, (_, k) => pairs[2 * k + first] as number);
  return {
    isStopped: words[STOPPED] !== 0,
    fault: words[FAULT] as number,
    isUpdate: words[IS_UPDATE] !== 0,
    losses: every(0),
    counts: every(1),
  };
}
