/** The memory of a session of the kernels (`wasm_kernels/session/`): its segments, and the plans that are loaded. */

import type { Engine } from "../../engine/engine.js";
import {
  ARENA, CONSTANTS, LARGE_CONSTANTS, LOAD_NO_FEEDS, LOAD_STEP, PARAMETERS, PREPARED, SEGMENT_NAMES, type SessionCalls,
} from "../../engine/layout.js";
import { EngineError } from "../../wire/errors.js";
import { refuseIf } from "../../wire/messages.js";
import { sameBytes } from "../../wire/pieces.js";
import type { BundlePlan, TensorPlace } from "../bundle/bundle.js";
import { fillLarge, sameLarge } from "../bundle/large.js";
import { KERNEL_MEMORY, SEEN } from "../../wire/constants.js";
import type { HostOptions, HostStart, LoadedPlan, ParameterRun, ReadFile } from "../host.js";

/** A plan in kernel memory. */
export interface PlacedPlan extends LoadedPlan {
  readonly ptr: number;
  /** Addresses of its constants and large constants; 0: it has none. */
  readonly constants: number;
  readonly large: number;
  /** Table slot of its generated functions; 0: it has none. */
  readonly codeBase: number;
}

export class PlanMemory {
  protected readonly engine: Engine;
  protected readonly options: HostOptions;
  /** The address of the session. */
  protected readonly session: number;
  /** The least this session's arena and prepared values get, so that plans that are known need not move them. */
  readonly #reserved: readonly number[];
  readonly #loaded = new Map<string, PlacedPlan>();
  /** Bytes of the segments that outlast a run. */
  readonly #bytes: readonly number[];
  readonly #trained: readonly ParameterRun[];
  readonly #held = new Set<number>();

  /** @throws EngineError when the kernels' memory has no room */
  constructor(engine: Engine, { segments, elsewhere = [], reserved, trained }: HostStart, options: HostOptions) {
    this.engine = engine;
    this.options = options;
    const within = reserved.filter(({ arenaBytes }) => arenaBytes <= options.arenaLimit);
    this.#reserved = SEGMENT_NAMES.map((_, segment) => Math.max(0, ...within.map((plan) => needOf(plan, segment))));
    this.#bytes = segments.map(({ bytes }) => bytes);
    this.#trained = trained;
    this.session = engine.openSession();
    try {
      SEGMENT_NAMES.map((_, segment) => segment).filter((one) => !elsewhere.includes(one)).forEach((one) => this.hold(one));
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** Call a function of the session; what it returns. */
  protected call<Name extends keyof SessionCalls>(name: Name, ...args: SessionCalls[Name]): number {
    return this.engine.call(name, this.session, ...args);
  }

  /** @throws EngineError when the function of the session fails */
  protected demand<Name extends keyof SessionCalls>(name: Name, ...args: SessionCalls[Name]): void {
    this.engine.demand(name, this.session, ...args);
  }

  get generation(): number {
    return this.call("tw_session_generation");
  }

  /** Addresses of the segments; 0: there is none. */
  get bases(): readonly number[] {
    return SEGMENT_NAMES.map((_, segment) => this.call("tw_session_base", segment));
  }

  get sizes(): readonly number[] {
    return this.kernelBytes.map((nbytes, segment) => Math.max(nbytes, this.#bytes[segment] ?? 0));
  }

  get kernelBytes(): readonly number[] {
    return SEGMENT_NAMES.map((_, segment) => this.call("tw_session_bytes", segment));
  }

  get plans(): readonly BundlePlan[] {
    return this.loaded.map(({ plan }) => plan);
  }

  get planBytes(): number {
    const blocks = new Map(
      this.loaded.flatMap(({ plan, ptr, constants, large }) => [
        [ptr, plan.words.length],
        [constants, plan.constants.length],
        [large, plan.largeBytes],
      ]),
    );
    return [...blocks.values()].reduce((sum, nbytes) => sum + nbytes, 0);
  }

  protected get loaded(): readonly PlacedPlan[] {
    return [...this.#loaded.values()];
  }

  view(segment: number): Uint8Array {
    return this.engine.view(this.call("tw_session_base", segment), this.call("tw_session_bytes", segment));
  }

  /** Bytes of a segment in place. Valid until the next allocation. @throws EngineError when they do not lie in it */
  range(segment: number, offset: number, nbytes: number): Uint8Array {
    const size = this.call("tw_session_bytes", segment);
    if (!(offset >= 0 && nbytes >= 0 && offset + nbytes <= size)) {
      throw new EngineError(`bytes [${offset}, ${offset + nbytes}) lie outside segment ${segment} of ${size} bytes.`);
    }
    return this.engine.view(this.call("tw_session_base", segment) + offset, nbytes);
  }

  find(key: string): PlacedPlan | undefined {
    return this.#loaded.get(key);
  }

  evict(): void {
    for (;;) {
      const ptr = this.call("tw_session_excess", this.options.maxPlans);
      const gone = [...this.#loaded].find(([, loaded]) => loaded.ptr === ptr);
      if (gone === undefined) {
        return;
      }
      this.#unload(...gone);
    }
  }

  load(key: string, plan: BundlePlan, read: ReadFile): PlacedPlan {
    const { arenaLimit } = this.options;
    refuseIf(plan.arenaBytes > arenaLimit, "ARENA_LIMIT", { nbytes: plan.arenaBytes, limit: arenaLimit });
    for (const segment of [ARENA, PREPARED]) {
      const needed = needOf(plan, segment);
      if (needed > this.call("tw_session_bytes", segment)) {
        this.#reserve(segment, Math.max(needed, this.#reserved[segment] as number));
      }
    }
    const engine = this.engine;
    const codeBase = plan.code.length === 0 ? 0 : engine.loadCode(plan.code);
    let [constants, large, ptr] = [0, 0, 0];
    try {
      constants = this.#constantsOf(plan);
      large = this.#largeOf(plan, read);
      ptr = engine.alloc(plan.words.length);
      engine.write(ptr, plan.words);
      // The results that the head of a body leaves in the arena go to the GPU.
      const kind = plan.signature.length > 0 || plan.body !== null ? LOAD_STEP : LOAD_NO_FEEDS;
      this.demand("tw_session_load", ptr, constants, large, codeBase, kind);
    } catch (error) {
      this.#drop({ plan, ptr, constants, large, codeBase });
      throw error;
    }
    const loaded = { plan, ptr, constants, large, codeBase };
    for (const [name, offset, nbytes] of plan.kept) {
      // The former owner of the place may have left words there.
      if (name.startsWith(SEEN)) {
        this.range(PREPARED, offset, nbytes).fill(0);
      }
    }
    this.#loaded.set(key, loaded);
    return loaded;
  }

  /** Address of a feed or result of a plan. */
  addressOf({ constants, large }: PlacedPlan, { segment, offset }: TensorPlace): number {
    const block = { [CONSTANTS]: constants, [LARGE_CONSTANTS]: large }[segment];
    return (block ?? this.call("tw_session_base", segment)) + offset;
  }

  protected close(): void {
    this.#loaded.forEach((loaded, key) => this.#unload(key, loaded));
    this.call("tw_session_close");
  }

  hold(segment: number): void {
    const nbytes = this.#bytes[segment] ?? 0;
    if (this.#held.has(segment)) {
      return;
    }
    if (nbytes > 0) {
      this.#reserve(segment, nbytes);
    }
    if (segment === PARAMETERS) {
      const places = Uint32Array.from(this.#trained.flatMap(({ start, end }) => [start, end - start]));
      this.#filled(places.byteLength, (table) => {
        this.engine.write(table, places);
        this.demand("tw_session_trained", table);
      });
    }
    this.#held.add(segment);
  }

  #reserve(segment: number, nbytes: number): void {
    if (nbytes >= KERNEL_MEMORY) {
      throw this.engine.noMemory(nbytes);
    }
    this.demand("tw_session_reserve", segment, nbytes);
  }

  /** Address of a plan's constants; equal ones are there once. */
  #constantsOf({ constants }: BundlePlan): number {
    const twin = this.loaded.find((one) => sameBytes(one.plan.constants, constants));
    const place = (): number => this.#filled(constants.length, (ptr) => this.engine.write(ptr, constants));
    return twin?.constants ?? (constants.length === 0 ? 0 : place());
  }

  /** Address of a plan's large constants; equal ones are there once. */
  #largeOf({ large, largeBytes }: BundlePlan, read: ReadFile): number {
    const twin = this.loaded.find((one) => sameLarge(one.plan.large, large));
    const fill = (ptr: number): void => {
      large.forEach((one) => fillLarge(this.engine.view(ptr + one.offset, one.nbytes), one, read));
    };
    return twin?.large ?? (largeBytes === 0 ? 0 : this.#filled(largeBytes, fill));
  }

  /** A new block with contents. */
  #filled(nbytes: number, fill: (ptr: number) => void): number {
    const ptr = this.engine.alloc(nbytes);
    try {
      fill(ptr);
      return ptr;
    } catch (error) {
      this.engine.free(ptr);
      throw error;
    }
  }

  #unload(key: string, { ptr, codeBase }: PlacedPlan): void {
    this.#loaded.delete(key);
    this.call("tw_session_unload", ptr);
    if (codeBase !== 0) {
      this.engine.unloadCode(codeBase);
    }
  }

  /** Free what a plan has that the session did not take over. */
  #drop({ ptr, constants, large, codeBase }: PlacedPlan): void {
    this.engine.free(ptr);
    const shared = new Set(this.loaded.flatMap((one) => [one.constants, one.large]));
    [constants, large].filter((block) => !shared.has(block)).forEach((block) => this.engine.free(block));
    if (codeBase !== 0) {
      this.engine.unloadCode(codeBase);
    }
  }
}

function needOf(plan: BundlePlan, segment: number): number {
  return segment === ARENA ? plan.arenaBytes : segment === PREPARED ? plan.preparedBytes : 0;
}
