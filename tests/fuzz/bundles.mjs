/**
 * Mutated bundles, opened and run as in a page's worker. Each must stay in its own memory, must not trap, and may end
 * only in errors of ours. scripts/fuzz_bundles.py bundles this file with esbuild and runs it by node.
 *
 *     node bundles.js KERNELS FOLDER SEED FIRST COUNT SECONDS NOW
 *
 * The worker's code may write and read blocks that it allocated and nothing else; of all memory behind the first one, a
 * run of a plan may change only these. Every block lies between walls: what ran is run again with other walls, and
 * other results mean that it read there. Generated code stays as it is, for it is code; all else may change.
 */

import { createHash } from "node:crypto";
import { openSync, readdirSync, readFileSync, writeSync } from "node:fs";
import { join } from "node:path";

import { Engine } from "../../web/src/engine/engine.ts";
import { ARENA, GRADIENTS, HEADER_WORDS, MOMENTUM0, MOMENTUM1, PARAMETERS, SEGMENT_WORDS, STATE } from "../../web/src/engine/layout.ts";
import { PythonFiles } from "../../web/src/python/python-files.ts";
import { EngineError, TrainwebError } from "../../web/src/wire/errors.ts";
import { parseBundle, splitBundle } from "../../web/src/worker/bundle/bundle.ts";
import { WorkerFit } from "../../web/src/worker/fit/loop.ts";
import { LazyModels } from "../../web/src/worker/python-models.ts";
import { SessionCore } from "../../web/src/worker/session-core.ts";
import { stepKind } from "../../web/src/worker/step-kind.ts";
import { WasmHost } from "../../web/src/worker/wasm/wasm-host.ts";
import { feedsOf, mutate, randomOf } from "./bundle-mutations.mjs";

const [KERNELS, FOLDER, SEED, FIRST, COUNT, SECONDS, NOW] = process.argv.slice(2);
const PREFIX_BYTES = 64;
const WALL_BYTES = 4096;
const WALLS = [0x00, 0x7f];
const WALL_OF = Object.fromEntries(WALLS.map((byte) => [byte, Buffer.alloc(WALL_BYTES, byte)]));
const FRESH = 0x5a;
const HEADER_BYTES = 64;
/** No bundle here needs more; a larger block is as if memory were full. */
const LARGEST_BLOCK = 2 ** 24;
const MOST_FEEDS = 2 ** 16;

/** Calls by which a session in the kernels takes and frees blocks: the walls follow it. */
const FOLLOWED = {
  tw_session_reserve(walls, session, [segment, nbytes], act) {
    const { engine } = walls;
    const { segments } = walls.of(session);
    const before = walls.wall();
    // Too much is refused by the real one, in its words.
    const status = act(segment, nbytes <= LARGEST_BLOCK ? nbytes : 2 ** 32 - 1);
    const base = engine.call("tw_session_base", session, segment);
    const size = engine.call("tw_session_bytes", session, segment);
    const isSame = segments.get(segment)?.base === base && segments.get(segment).size === size;
    if (isSame || base === 0) {
      walls.free(before);
      return status;
    }
    if (segments.has(segment)) {
      walls.drop(segments.get(segment).base);
    }
    segments.set(segment, { base, size });
    if (segment === ARENA) {
      engine.u8.fill(FRESH, base, base + size);
    }
    walls.blocks.set(base, { nbytes: size, walls: [before, walls.wall()] });
    return status;
  },
  tw_session_trained(walls, session, given, act) {
    const status = act(...given);
    if (status === 0) {
      walls.of(session).tables.push(given[0]);
    }
    return status;
  },
  tw_session_load(walls, session, given, act) {
    const status = act(...given);
    if (status === 0) {
      const { apart, plans, segments } = walls.of(session);
      plans.set(given[0], given[1]);
      const [base, nbytes] = new Uint32Array(walls.engine.u8.buffer, given[0] + 4 * (HEADER_WORDS + SEGMENT_WORDS * ARENA), 2);
      if (base !== (segments.get(ARENA)?.base ?? 0)) {
        apart.set(given[0], base);
        walls.blocks.set(base, { nbytes, walls: [] });
      }
    }
    return status;
  },
  tw_session_unload(walls, session, given, act) {
    const status = act(...given);
    const { apart, plans } = walls.of(session);
    const constants = plans.get(given[0]);
    plans.delete(given[0]);
    walls.drop(given[0]);
    walls.drop(apart.get(given[0]));
    apart.delete(given[0]);
    if (constants && ![...plans.values()].includes(constants)) {
      walls.drop(constants);
    }
    return status;
  },
  tw_session_close(walls, session, given, act) {
    const { apart, segments, plans, tables } = walls.of(session);
    const status = act(...given);
    const held = [...segments.values()].map(({ base }) => base);
    new Set([...held, ...apart.values(), ...tables, ...plans.keys(), ...plans.values()]).forEach((ptr) => walls.drop(ptr));
    walls.sessions.delete(session);
    return status;
  },
};

/** Walls around each block, the same fresh bytes in every one, and an eye on who writes where. */
class Walls {
  constructor(engine) {
    this.engine = engine;
    this.alloc = engine.alloc.bind(engine);
    this.free = engine.free.bind(engine);
    this.blocks = new Map();
    this.sessions = new Map();
    this.watch();
    this.fill = WALLS[0];
    engine.alloc = (nbytes, isZero = false) => {
      // Too much is refused by the real one, in its words.
      const tooMuch = !(nbytes <= LARGEST_BLOCK);
      const before = tooMuch ? 0 : this.wall();
      const ptr = this.alloc(tooMuch ? 2 ** 32 : nbytes);
      engine.u8.fill(isZero ? 0 : FRESH, ptr, ptr + nbytes);
      this.blocks.set(ptr, { nbytes, walls: [before, this.wall()] });
      return ptr;
    };
    engine.free = (ptr) => {
      this.free(ptr);
      this.drop(ptr);
    };
    this.broken = false;
  }

  /** Have accesses of the host and runs of plans looked at. */
  watch() {
    const { engine } = this;
    const { write, view, call, run } = { write: engine.write, view: engine.view, call: engine.call, run: engine.run };
    engine.write = (ptr, data) => {
      this.broken ||= !this.owns(ptr, data.byteLength);
      write.call(engine, ptr, data);
    };
    engine.view = (ptr, nbytes) => {
      this.broken ||= !this.owns(ptr, nbytes);
      return view.call(engine, ptr, nbytes);
    };
    engine.call = (name, session, ...given) => {
      const follow = FOLLOWED[name];
      const act = (...args) => call.call(engine, name, session, ...args);
      return follow ? follow(this, session, given, act) : act(...given);
    };
    engine.run = (plan) => {
      const before = this.snapshot();
      const status = run.call(engine, plan);
      const after = engine.u8;
      let at = this.lowest;
      for (const [ptr, { nbytes }] of [...this.blocks].sort(([a], [b]) => a - b)) {
        // Before a plan the kernels note that it is verified.
        const end = ptr === plan ? ptr - HEADER_BYTES : ptr;
        this.broken ||= Buffer.compare(before.subarray(at, end), after.subarray(at, end)) !== 0;
        at = ptr + nbytes;
      }
      this.broken ||= Buffer.compare(before.subarray(at), after.subarray(at)) !== 0;
      return status;
    };
  }

  /** Blocks that a session holds. */
  of(session) {
    if (!this.sessions.has(session)) {
      this.sessions.set(session, { apart: new Map(), segments: new Map(), plans: new Map(), tables: [] });
    }
    return this.sessions.get(session);
  }

  /** A block is gone: its walls must stand, and go, too. */
  drop(ptr) {
    const { walls } = this.blocks.get(ptr) ?? { walls: [] };
    this.blocks.delete(ptr);
    this.broken ||= !this.stand(walls);
    walls.forEach((wall) => this.free(wall));
  }

  /** The kernels' memory as it is; valid until the next one, for new pages take longer than all else. */
  snapshot() {
    const { u8 } = this.engine;
    this.copy = this.copy?.length === u8.length ? this.copy : Buffer.alloc(u8.length);
    this.copy.set(u8);
    return this.copy;
  }

  owns(ptr, nbytes) {
    return nbytes === 0 || [...this.blocks].some(([start, block]) => ptr >= start && ptr + nbytes <= start + block.nbytes);
  }

  wall() {
    const ptr = this.alloc(WALL_BYTES);
    this.engine.u8.fill(this.fill, ptr, ptr + WALL_BYTES);
    this.lowest = Math.min(this.lowest ?? ptr, ptr);
    return ptr;
  }

  stand(walls) {
    return walls.every((wall) => Buffer.compare(this.engine.u8.subarray(wall, wall + WALL_BYTES), WALL_OF[this.fill]) === 0);
  }

  /** Whether anybody wrote into a wall since the last time. */
  fell() {
    const broken = this.broken || ![...this.blocks.values()].every(({ walls }) => this.stand(walls));
    this.broken = false;
    return broken;
  }
}

function start() {
  const engine = Engine.createSync(readFileSync(KERNELS), "fuzzed");
  const kernels = JSON.parse(engine.description());
  return { engine, kernels, walls: new Walls(engine) };
}

/** The file, with the hash that its bytes have; now and then the file itself is changed after that. */
function fileOf({ header, blobs }, prefix, random) {
  const text = Buffer.from(JSON.stringify(header) ?? "null");
  const length = Math.ceil(text.length / 64) * 64;
  const file = Buffer.concat([prefix, text, Buffer.alloc(length - text.length, " "), blobs]);
  file.writeUInt32LE(length, 12);
  createHash("sha256").update(file.subarray(PREFIX_BYTES)).digest().copy(file, 16);
  const draw = random(40);
  if (draw === 0) {
    file[random(file.length)] ^= 1 << random(8);
  }
  return new Uint8Array(draw === 1 ? file.subarray(0, random(file.length)) : file);
}

/** What a step is fed that the bundle has a plan for, if that is no more than a test needs; else what it had a plan for. */
function feedsFor({ plans }, kind, given) {
  const signature = plans.find((plan) => plan.kind === kind)?.signature;
  const nbytes = signature?.reduce((sum, { dims }) => sum + 8 * dims.reduce((a, b) => a * b, 1), 0);
  return nbytes <= MOST_FEEDS ? feedsOf(signature) : given;
}

const textOf = (result) => JSON.stringify(result, (_, value) => (ArrayBuffer.isView(value) ? [...value] : value));

/** Fits three batches, of which two make a step, on a port whose page has no more; the losses. */
async function fitted(core, bundle, given) {
  const feeds = feedsFor(bundle, "train", given);
  const batches = [1, 2, 3].map(() => ({ batch: { feeds, rows: 1, first: 0 }, rates: null }));
  const losses = [];
  const port = {
    close() {},
    postMessage(told) {
      losses.push(...(told.losses ?? []));
      if (told.ask !== undefined) {
        const answer = told.ask === "batch" ? (batches.shift() ?? null) : null;
        queueMicrotask(() => this.onmessage({ data: { id: told.id, answer } }));
      }
    },
  };
  const none = { clip: null, seed: null, train: null, validation: null, evaluation: null, early: null, checkpoint: null };
  const fit = await WorkerFit.open(core, {
    ...{ ...none, epochs: 1, loss: bundle.outputs.train[0], accumulate: 2, ema: false, proximal: 0.5, batchSize: 1 },
    ...{ remainder: "keep", hasSchedule: false, hasValidation: false, evaluatesTraining: false, onNaN: "restore" },
    ...{ order: null, tells: false, stepsPerEpoch: null },
  }, port);
  await fit.start();
  await fit.run(async (action) => action());
  return losses;
}

/** Runs steps of the session and reads all its results; what they leave, or the class of the error that they end with.
*/
async function steps({ engine, kernels }, bundle, given) {
  const options = { arenaLimit: LARGEST_BLOCK, memoryBudget: Infinity, maxPlans: 2, onRefused: () => {} };
  const models = new LazyModels(() => Promise.reject(new EngineError("there is no Python here")), null, null);
  const open = (start, limits) => new WasmHost(engine, kernels, start, limits);
  const core = new SessionCore(open, kernels.fingerprint, bundle, options, models, () => {});
  try {
    const results = [];
    for (const kind of ["train", "optimizer", "train", "eval"]) {
      const feeds = kind === "optimizer" ? [] : feedsFor(bundle, kind, given);
      const fetches = (bundle.outputs[kind] ?? []).map((name) => ({ name }));
      const run = core.step(stepKind(kind), feeds, fetches);
      if (run instanceof Promise) {
        run.catch(() => {});
        throw new EngineError(`a step of kind ${kind} waits for Python`);
      }
      results.push(textOf(run.results));
    }
    results.push(textOf(await fitted(core, bundle, given)));
    const { text, nodes } = await core.profile("eval", feedsFor(bundle, "eval", given), 1);
    results.push(textOf([text, nodes, core.info, core.memory(), await core.getContiguousParameters(true)]));
    for (const name of core.parameterNames(true)) {
      results.push(textOf([await core.getParameter(name), await core.getGradient(name)]));
    }
    for (const segment of [PARAMETERS, GRADIENTS, MOMENTUM0, MOMENTUM1, STATE]) {
      results.push(Buffer.from(core.host.range(segment, 0, bundle.segments[segment].bytes)).toString("base64"));
    }
    return results.join("\n");
  } finally {
    core.release();
  }
}

/** Reads the models, as Python would. */
function readModels({ models }) {
  const files = new PythonFiles();
  for (const model of Object.values(models ?? {}).filter((one) => one !== null)) {
    const { index, nbytes } = files.add(model);
    files.read(index, 0, Math.min(nbytes, LARGEST_BLOCK));
  }
}

/** One bundle, once; what came of it. */
async function once(machine, file, feeds, fill) {
  const { engine, walls } = machine;
  walls.fill = fill;
  let outcome = { kind: "RAN", text: "" };
  try {
    const bundle = parseBundle(file, machine.kernels.fingerprint);
    readModels(bundle);
    outcome.text = await steps(machine, bundle, feeds);
  } catch (error) {
    const isOurs = error instanceof TrainwebError;
    const kind = isOurs ? (error.name === "ModelError" ? "REFUSED" : "FAILED") : "RAW";
    outcome = { kind, text: isOurs ? `${error.name}: ${error.message}` : String(error.stack ?? error) };
  }
  if (engine.lost !== null) {
    return { kind: "LOST", text: engine.lost };
  }
  if (walls.fell()) {
    return { kind: "OUTSIDE", text: "touched memory that is not its own" };
  }
  if (engine.bytesInUse !== 0) {
    return { kind: "LEFT", text: `${engine.bytesInUse} bytes of the kernels are in use` };
  }
  return outcome;
}

async function trial(machine, given, random) {
  let raw;
  try {
    raw = await splitBundle(fileOf(mutate(given, random), given.prefix, random));
  } catch (error) {
    return error instanceof TrainwebError ? { kind: "REFUSED", text: "" } : { kind: "RAW", text: String(error.stack) };
  }
  const first = await once(machine, raw, given.feeds, WALLS[0]);
  if (first.kind !== "RAN") {
    return first;
  }
  const second = await once(machine, raw, given.feeds, WALLS[1]);
  return second.text === first.text ? first : { kind: "OUTSIDE", text: `other results between other walls: ${second.kind}` };
}

async function read(name) {
  const file = new Uint8Array(readFileSync(join(FOLDER, name)));
  const { header, blobs } = await splitBundle(file);
  const signature = header.plans.find(({ kind }) => kind === "train").signature;
  return { name, header, blobs, prefix: Buffer.from(file.subarray(0, PREFIX_BYTES)), feeds: feedsOf(signature) };
}

const bundles = await Promise.all(readdirSync(FOLDER).filter((name) => name.endsWith(".bundle")).sort().map(read));
const counts = {};
const now = openSync(NOW, "r+");
const end = performance.now() + 1000 * Number(SECONDS);
let machine = start();
for (const given of bundles) {
  const unchanged = await once(machine, given, given.feeds, WALLS[0]);
  if (unchanged.kind !== "RAN") throw new Error(`${given.name} itself: ${unchanged.kind} ${unchanged.text}`);
}
for (let k = Number(FIRST); k < Number(FIRST) + Number(COUNT) && performance.now() < end; k++) {
  const given = bundles[k % bundles.length];
  writeSync(now, `${k}`.padEnd(20), 0);
  const { kind, text } = await trial(machine, given, randomOf(`${SEED}/${k}`));
  counts[kind] = (counts[kind] ?? 0) + 1;
  if (!["RAN", "REFUSED", "FAILED"].includes(kind)) {
    console.log(`${kind}: --case ${k} (${given.name}): ${text}`);
    machine = start();
  }
}
console.log(`counts ${JSON.stringify(counts)}`);
