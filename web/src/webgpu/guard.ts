/**
 * The guard of a fit. Behind a train step it notes loss and divisor on a page, and looks for numbers that are not finite. A
 * batch that must not count sets the status: all dispatches from then on do nothing. A copy of the segments undoes it.
 */

import { CONSTANTS, GRADIENTS, LARGE_CONSTANTS } from "../engine/layout.js";
import type { Window } from "../worker/bundle/bundle.js";
import { MOST_BATCHES } from "../wire/constants.js";
import { BINDING, USAGE } from "./device.js";
import { BLOCK_BYTES, LASTING, MOST_GROUPS, STATUS, STATUS_BYTES } from "./plans.js";
import type { GpuRunner, OwnBuffers, Program } from "./runner.js";

/** Words of the page. Tallies and usual tallies have one for each segment, and records two for each batch. */
const AT = {
  STOPPED: 0, COUNT: 1, FAULT: 2, IS_UPDATE: 3, ORDER: 4, LOSS: 5, WEIGHT: 6, TOTAL: 7, FORMER_TOTAL: 8, FACTOR: 9,
  TALLIES: 10, USUAL: 10 + LASTING.length, RECORDS: 10 + 2 * LASTING.length,
} as const;
const PAGE_BYTES = 4 * (AT.RECORDS + 2 * MOST_BATCHES);

const [STOPS, IS_TRAINED, IS_FIRST, IS_DUE, IS_START] = [1, 2, 4, 8, 16] as const;

const LANES = 256;
const NAMES = Object.entries({ ...AT, STOPS, IS_TRAINED, IS_FIRST, IS_DUE, IS_START })
  .map(([name, value]) => `const ${name} = ${value}u;\n`)
  .join("");

/** A shader on the words of a segment, the page, and a copy of the segment. @param own - of each word `i`, or of the page */
function textOf(segment: number, own: string, word = "u32"): string {
  return `// guard
${NAMES}@group(0) @binding(${STATUS}) var<uniform> status: vec4u;
@group(0) @binding(${segment}) var<storage, read_write> a: array<u32>;
@group(0) @binding(${CONSTANTS}) var<storage, read_write> page: array<${word}>;
@group(0) @binding(${LARGE_CONSTANTS}) var<storage, read_write> copy: array<u32>;
@compute @workgroup_size(${LANES})
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  if (status.x != 0u) { return; }
  var n = 0u;
${own}
}
`;
}

const EACH = `  for (var i = id.x; i < arrayLength(&a); i += groups.x * ${LANES}u)`;
const saveText = (segment: number): string => textOf(segment, `${EACH} { copy[i] = a[i]; }`);
/** Counts numbers that are not finite. The order of additions of integers does not matter. */
const lookText = (segment: number): string => textOf(segment, `${EACH} { n += select(0u, 1u, (a[i] & 0x7f800000u) == 0x7f800000u); }
  if (n != 0u) { atomicAdd(&page[TALLIES + ${LASTING.indexOf(segment)}u], n); }`, "atomic<u32>");
/** Multiplies gradients by the factor of the page. */
const SCALE = textOf(GRADIENTS, `  let factor = bitcast<f32>(page[FACTOR]);
${EACH} { a[i] = bitcast<u32>(bitcast<f32>(a[i]) * factor); }`);
/** Judges a batch by its loss and by the tallies. A batch that is undone leaves the sum of divisors as it was. */
const JUDGE = textOf(GRADIENTS, `  if (id.x != 0u) { return; }
  let order = page[ORDER];
  let is_trained = (order & IS_TRAINED) != 0u;
  var fault = 0u;
  for (var k = 0u; k < ${LASTING.length}u; k++) {
    let tally = page[TALLIES + k];
    page[TALLIES + k] = 0u;
    if ((order & IS_START) != 0u) { page[USUAL + k] = select(tally, 0u, k == ${LASTING.indexOf(GRADIENTS)}u); }
    if (fault == 0u && tally > page[USUAL + k]) { fault = k + ${LASTING[0]}u; }
  }
  if ((order & IS_START) != 0u) { return; }
  var stops = fault != 0u;
  if (is_trained) {
    n = page[COUNT];
    let weight = bitcast<f32>(page[WEIGHT]);
    page[RECORDS + 2u * n] = page[LOSS];
    page[RECORDS + 2u * n + 1u] = page[WEIGHT];
    page[COUNT] = n + 1u;
    let total = weight + select(bitcast<f32>(page[TOTAL]), 0.0f, (order & IS_FIRST) != 0u);
    page[FORMER_TOTAL] = page[TOTAL];
    page[TOTAL] = bitcast<u32>(total);
    page[FACTOR] = bitcast<u32>(select(weight, 1.0f / select(total, 1.0f, total == 0.0f), (order & IS_DUE) != 0u));
    if ((order & STOPS) != 0u && (page[LOSS] & 0x7fffffffu) >= 0x7f800000u) { stops = true; fault = 0u; }
  }
  if (stops) {
    page[TOTAL] = page[FORMER_TOTAL];
    page[STOPPED] = 1u;
    page[FAULT] = fault;
    page[IS_UPDATE] = select(1u, 0u, is_trained);
  }`);

/** A fit, as far as it decides what a batch does. */
export interface FitRules {
  readonly accumulate: number;
  /** True if a loss that is not finite ends the fit, or undoes the batch. */
  readonly stops: boolean;
  /** True if numbers that are not finite undo the batch, wherever they are. */
  readonly looks: boolean;
  /** True if a batch is undone alone. */
  readonly saves: boolean;
  /** True if the gradients of batches are weighted by the divisors of their losses. */
  readonly weighs: boolean;
}

type Source = readonly [buffer: GPUBuffer, offset: number];

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
  /** The page, and no copy. */
  #own: OwnBuffers | null = null;
  #judge: Program | null = null;
  #scale: Program | null = null;
  #looks: Program[] = [];
  /** By segment. Each has a copy. */
  readonly #saves = new Map<number, Program>();
  /** Of the fit under way. */
  rules: FitRules = { accumulate: 1, stops: false, looks: false, saves: false, weighs: false };

  constructor(readonly runner: GpuRunner) {}

  /** Have all that the rules need, and count the numbers that are not finite on purpose. @throws DeviceError */
  async open(): Promise<void> {
    const { segments, kernels } = this.runner;
    const { looks, weighs } = this.rules;
    await segments.reserve(0);
    this.#own ??= {
      constants: await segments.make(PAGE_BYTES, "guard"),
      large: await segments.make(0, "guard"),
      numbers: await segments.make(BLOCK_BYTES, "guard", USAGE.UNIFORM),
      windows: [[]],
      groups: null,
    };
    this.#judge ??= await this.#program(JUDGE, this.#own);
    if (weighs) {
      this.#scale ??= await this.#program(SCALE, this.#over(GRADIENTS, null));
    }
    if (looks) {
      for (const segment of LASTING.filter((one) => (kernels.sizes[one] as number) > 0 && !this.#saves.has(one))) {
        const own = this.#over(segment, await segments.make((segments.buffers[segment] as GPUBuffer).size, "guard"));
        this.#looks.push(await this.#program(lookText(segment), own));
        this.#saves.set(segment, await this.#program(saveText(segment), own));
      }
      this.#order(IS_START);
    }
  }

  /** Buffers with windows that cover a segment, and its copy if there is one. */
  #over(segment: number, copy: GPUBuffer | null): OwnBuffers {
    const { gpu: { device }, segments } = this.runner;
    const { size } = segments.buffers[segment] as GPUBuffer;
    const most = Math.floor(device.limits[BINDING] / BLOCK_BYTES) * BLOCK_BYTES;
    const windows = Array.from({ length: Math.ceil(size / most) }, (_, k) =>
      (copy === null ? [segment] : [segment, LARGE_CONSTANTS]).map((one): Window => [one, one, k * most, Math.min(most, size - k * most), ""]));
    const own = this.#own as OwnBuffers;
    return { ...own, large: copy ?? own.large, windows, groups: null };
  }

  /** A shader on each window. */
  async #program(text: string, own: OwnBuffers): Promise<Program> {
    const pipeline = await this.runner.gpu.settled(this.runner.pipelines.get(text, "the guard"));
    const words = own.windows.flatMap(([window], k) => [0, Math.min(Math.ceil((window?.[3] ?? 4) / 4 / LANES), MOST_GROUPS), 1, 1, 0, k]);
    return { dispatches: { words: Uint32Array.from(words), cuts: new Set() }, pipelines: own.windows.map(() => pipeline), own };
  }

  /** Begin a record. */
  begin(): void {
    this.runner.commands.between().clearBuffer(this.#page, 0, 4 * AT.ORDER);
    this.goOn();
  }

  save(): void {
    this.#saves.forEach((program) => this.runner.encode(program));
  }

  putBack(): void {
    const { segments, commands } = this.runner;
    this.#saves.forEach(({ own: { large } }, segment) => {
      commands.between().copyBufferToBuffer(large, 0, segments.buffers[segment] as GPUBuffer, 0, large.size);
    });
    segments.wroteThere();
    this.goOn();
  }

  /** Judge a train step, and weight the gradients. @param loss - or its place, as `weight`, the loss's divisor */
  trained(isFirst: boolean, isDue: boolean, loss: Source | number = 0, weight: Source | number = 0): void {
    const { stops, weighs } = this.rules;
    this.#order(IS_TRAINED | (stops ? STOPS : 0) | (isFirst ? IS_FIRST : 0) | (isDue ? IS_DUE : 0), loss, weight);
    if (weighs && (isFirst || isDue)) {
      this.runner.encode(this.#scale as Program);
    }
  }

  updated(): void {
    if (this.rules.looks) {
      this.#order(0);
    }
  }

  #order(order: number, loss: Source | number = 0, weight: Source | number = 0): void {
    const { commands, segments } = this.runner;
    const bits = [loss, weight].map((value) => (typeof value === "number" ? value : 0));
    const words = Uint32Array.of(order, ...new Uint32Array(Float32Array.from(bits).buffer));
    commands.write(this.#page, 4 * AT.ORDER, new Uint8Array(words.buffer));
    for (const [source, word] of [[loss, AT.LOSS], [weight, AT.WEIGHT]] as const) {
      if (typeof source !== "number") {
        commands.between().copyBufferToBuffer(...source, this.#page, 4 * word, 4);
      }
    }
    this.#looks.forEach((program) => this.runner.encode(program));
    this.runner.encode(this.#judge as Program);
    commands.between().copyBufferToBuffer(this.#page, 0, segments.status, 0, STATUS_BYTES);
  }

  /** Have later dispatches run again. */
  goOn(): void {
    this.runner.commands.between().clearBuffer(this.runner.segments.status);
  }

  async read(): Promise<Page> {
    const [bytes] = (await this.runner.segments.readAll([[this.#page, 0, PAGE_BYTES]])) as [Uint8Array];
    const words = new Uint32Array(bytes.buffer, bytes.byteOffset);
    const n = words[AT.COUNT] as number;
    const pairs = new Float32Array(bytes.buffer, bytes.byteOffset + 4 * AT.RECORDS, 2 * n);
    return {
      isStopped: words[AT.STOPPED] !== 0,
      fault: words[AT.FAULT] as number,
      isUpdate: words[AT.IS_UPDATE] !== 0,
      losses: pairs.filter((_, k) => k % 2 === 0),
      counts: pairs.filter((_, k) => k % 2 === 1),
    };
  }

  forget(): void {
    this.#saves.forEach(({ own }) => this.runner.segments.drop(own.large));
    this.#saves.clear();
    this.#looks = [];
  }

  get #page(): GPUBuffer {
    return (this.#own as OwnBuffers).constants;
  }
}
