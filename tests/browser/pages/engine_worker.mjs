// Scenarios for the kernel engine, with plans and generated code made by hand.

import { Engine } from "/dist/engine.js";

const HEADER_WORDS = 20;
const MAGIC = 0x4c505754;

const KERNELS = new URL("/dist/", location.href);

function create(options) {
  return Engine.create({ wasm: KERNELS, ...options });
}

/** A plan of segments [[base, nbytes, writable]], one buffer each, and instructions [[opcode, ...args]]. */
function makePlan(engine, segments, instructions, { slot = 0, functions = 0 } = {}) {
  const { fingerprint } = JSON.parse(engine.description());
  const code = instructions.flatMap(([opcode, ...args]) => [opcode | (args.length << 16), ...args]);
  const buffers = segments.flatMap(([, nbytes], index) => [index, 0, nbytes]);
  const body = [...segments.flat(), ...buffers, ...code, ...code.map(() => 0)];
  const header = new Array(HEADER_WORDS).fill(0);
  header.splice(0, 3, MAGIC, 1, HEADER_WORDS + body.length);
  header.splice(3, 6, fingerprint, 0, segments.length, segments.length, code.length, instructions.length);
  header[10] = functions;
  const words = Uint32Array.from([...header, ...body]);
  const ptr = engine.alloc(words.byteLength);
  engine.write(ptr, words);
  place(engine, ptr, segments, slot);
  return ptr;
}

function place(engine, plan, segments, slot) {
  const table = Uint32Array.from(segments.flatMap(([base, nbytes]) => [base, nbytes]));
  engine.write(engine.call("tw_place_table", segments.length), table);
  const status = engine.call("tw_place", plan, segments.length, slot);
  if (status !== 0) throw new Error(`tw_place: ${status}`);
}

function opcodeOf(engine, name) {
  return JSON.parse(engine.description()).kernels.find((kernel) => kernel.name === name).opcode;
}

function allocFloats(engine, values) {
  const data = Float32Array.from(values);
  const ptr = engine.alloc(data.byteLength);
  engine.write(ptr, data);
  return ptr;
}

function readFloats(engine, ptr, n) {
  return [...new Float32Array(engine.read(ptr, 4 * n).buffer)];
}

/** A plan that runs generated function 0 over x[n] into y[n] in chunks of `grain`. */
function generatedPlan(engine, code, n, grain) {
  const slot = engine.loadCode(Uint8Array.from(code));
  const x = allocFloats(engine, Array.from({ length: n }, (_, i) => i % 1000));
  const y = engine.alloc(4 * n);
  const plan = makePlan(
    engine,
    [[x, 4 * n, 0], [y, 4 * n, 1]],
    [[0, 0, n, grain, 2, 0, 0, 4 * n, 0, 1, 4 * n, 1]],
    { slot, functions: 1 },
  );
  return { plan, x, y, slot };
}

function checksum(values) {
  return values.reduce((sum, value) => sum + value, 0);
}

function refusal(action) {
  try {
    action();
    return null;
  } catch (error) {
    return { name: error.name, message: error.message, fatal: error.fatal ?? false };
  }
}

const scenarios = {
  async describe(options) {
    const engine = await create(options);
    const { kernels } = JSON.parse(engine.description());
    return { build: engine.build, threads: engine.threads, kernels: kernels.length };
  },

  /** Blocks of odd sizes keep their contents while the memory grows under them. */
  async memory(options) {
    const engine = await create(options);
    const before = engine.bytesInUse;
    const blocks = [];
    for (let k = 0; k < 40; k++) {
      const data = new Uint8Array(100_003 + 37 * k).fill(k + 1);
      const ptr = engine.alloc(data.length);
      engine.write(ptr, data);
      blocks.push({ ptr, data });
    }
    const grown = engine.memoryBytes;
    const aligned = blocks.every(({ ptr }) => ptr % 64 === 0);
    const kept = blocks.every(({ ptr, data }) =>
      engine.read(ptr, data.length).every((value, i) => value === data[i]));
    for (const { ptr } of blocks) engine.free(ptr);
    return { aligned, kept, grown, leaked: engine.bytesInUse - before };
  },

  async refusals(options) {
    const engine = await create(options);
    const end = engine.memoryBytes;
    return {
      tooMuch: refusal(() => engine.alloc(2 ** 32 - 100_000)),
      negative: refusal(() => engine.alloc(-1)),
      freeTwice: refusal(() => {
        const ptr = engine.alloc(10);
        engine.free(ptr);
        engine.free(ptr);
      }),
      writeBeyond: refusal(() => engine.write(end - 4, new Uint8Array(8))),
      readBeyond: refusal(() => engine.read(end - 4, 8)),
      badCode: refusal(() => engine.loadCode(new Uint8Array([0, 97, 115, 109, 1, 0, 0]))),
      works: refusal(() => engine.free(engine.alloc(100))),
    };
  },

  async copyPlan(options) {
    const engine = await create(options);
    const values = [1, 2, 3, 4.5];
    const x = allocFloats(engine, values);
    const y = engine.alloc(16);
    const plan = makePlan(engine, [[x, 16, 0], [y, 16, 1]], [[opcodeOf(engine, "copy"), 0, 1, 16]]);
    return { status: engine.run(plan), y: readFloats(engine, y, 4) };
  },

  async badPlan(options) {
    const engine = await create(options);
    const y = engine.alloc(16);
    const readOnly = makePlan(engine, [[y, 16, 0], [y, 16, 0]], [[opcodeOf(engine, "copy"), 0, 1, 16]]);
    const opcode = makePlan(engine, [[y, 16, 1]], [[4095, 0]]);
    const { status } = JSON.parse(engine.description());
    const name = (code) => Object.keys(status).find((key) => status[key] === code);
    return [readOnly, opcode, 12].map((plan) => name(engine.run(plan)));
  },

  async generated({ code, n = 1_000_003, grain = 1024, rounds = 3, ...options }) {
    const engine = await create(options);
    const { plan, y } = generatedPlan(engine, code, n, grain);
    const sums = [];
    for (let round = 0; round < rounds; round++) {
      engine.write(y, new Uint8Array(4 * n));
      const status = engine.run(plan);
      sums.push([status, checksum(readFloats(engine, y, n))]);
    }
    return { sums, threads: engine.threads };
  },

  /** Code that arrives between runs gets its own slots; the same code again is found. */
  async moreCode({ code, other, ...options }) {
    const engine = await create(options);
    const n = 100_000;
    const first = generatedPlan(engine, code, n, 128);
    const statuses = [engine.run(first.plan)];
    const second = generatedPlan(engine, other, n, 128);
    statuses.push(engine.run(second.plan), engine.run(first.plan));
    const again = generatedPlan(engine, code, n, 128);
    statuses.push(engine.run(again.plan));
    return {
      statuses,
      sums: [first, second, again].map(({ y }) => checksum(readFloats(engine, y, n))),
      found: again.slot === first.slot,
      distinct: second.slot !== first.slot,
    };
  },

  async profile({ code, ...options }) {
    const engine = await create(options);
    const { plan } = generatedPlan(engine, code, 1_000_000, 4096);
    const profile = engine.alloc(8);
    engine.write(profile, new Float64Array(1));
    engine.profile(plan, profile);
    engine.run(plan);
    return new Float64Array(engine.read(profile, 8).buffer)[0];
  },

  /** A generated function that traps in some chunk: a typed error, and the engine says it is lost. */
  async trap({ code, n = 100_000, ...options }) {
    const engine = await create(options);
    const { plan } = generatedPlan(engine, code, n, 128);
    const trapped = refusal(() => engine.run(plan));
    return { trapped, after: refusal(() => engine.alloc(1)), lost: engine.lost };
  },

  async missingKernels() {
    try {
      await Engine.create({ wasm: new URL("/nowhere/", location.href) });
      return null;
    } catch (error) {
      return { name: error.name, message: error.message };
    }
  },

  /** A plan may be placed again, with other bases. */
  async rebase({ code, ...options }) {
    const engine = await create(options);
    const n = 1000;
    const { plan, x, slot } = generatedPlan(engine, code, n, 128);
    const first = engine.run(plan);
    const y2 = engine.alloc(4 * n);
    place(engine, plan, [[x, 4 * n], [y2, 4 * n]], slot);
    return { statuses: [first, engine.run(plan)], sum: checksum(readFloats(engine, y2, n)) };
  },
};

addEventListener("message", async ({ data: { name, options } }) => {
  try {
    postMessage({ value: await scenarios[name](options) });
  } catch (error) {
    postMessage({ error: `${error.name}: ${error.message}\n${error.stack}` });
  }
});
