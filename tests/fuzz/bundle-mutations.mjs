/** The changes of tests/fuzz/bundles.mjs to a bundle: anything of its header, single fields of structures, words, data.
 * */

import { createHash } from "node:crypto";

import { SEGMENT_NAMES } from "../../web/src/engine/layout.ts";

const NUMBERS = [
  0, 1, 2, 3, 4, 7, 8, 16, 60, 63, 64, 65, 256, 4096, 65536, 2 ** 20, 2 ** 24, 2 ** 30, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 64,
  2 ** 32 - 1, 2 ** 32, 2 ** 53, -1, -64, 0.5, 1e300,
];
const STEPS = [-64, -4, -1, 1, 4, 64];
const THINGS = [null, true, false, "", "x", "train", "eval", "optimizer", "float32", "int64", "__proto__", [], {}, [[]], [0, 64]];
const DTYPES = [
  "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
];
const ITEM_BYTES = [4, 8, 2, 2, 1, 1, 2, 2, 4, 4, 8, 8, 1];

/** A number below n; equal for equal texts. */
export function randomOf(text) {
  let state = createHash("sha256").update(text).digest().readUInt32LE();
  return (n) => {
    state = (state + 0x6d2b79f5) >>> 0; // mulberry32
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) % n;
  };
}

const pick = (random, list) => list[random(list.length)];

// ---- anything

/** All places of a header, as an object and a key each. */
function placesOf(value, found = []) {
  if (typeof value === "object" && value !== null) {
    for (const key of Object.keys(value)) {
      found.push([value, key]);
      placesOf(value[key], found);
    }
  }
  return found;
}

function changeHeader(header, random) {
  const places = placesOf(header);
  const [object, key] = pick(random, places);
  const value = object[key];
  const [other, otherKey] = pick(random, places);
  const draw = random(10);
  if (draw < 4 && typeof value === "number") {
    object[key] = value + pick(random, STEPS);
  } else if (draw < 5) {
    object[key] = pick(random, NUMBERS);
  } else if (draw < 6) {
    object[key] = pick(random, THINGS);
  } else if (draw < 8) {
    object[key] = structuredClone(other[otherKey]);
  } else if (Array.isArray(object)) {
    draw < 9 ? object.splice(Number(key), 1) : object.push(structuredClone(value));
  } else {
    delete object[key];
  }
}

// ---- single fields of what has a structure: what remains fits, so that the change comes as far as it can

const sizeOf = (dims) => dims.reduce((product, dim) => product * dim, 1);
const bytesOf = ({ dtype, dims }) => ITEM_BYTES[DTYPES.indexOf(dtype)] * sizeOf(dims);
const isTensor = ({ dtype, dims }) => DTYPES.includes(dtype) && Array.isArray(dims) && dims.every(Number.isInteger);

/** Another number near one, or one that is at a border of what it counts. */
function nearby(value, random, borders) {
  return random(2) === 0 ? value + pick(random, STEPS) : pick(random, [...borders, ...NUMBERS]);
}

/** A feed or result in a plan: elsewhere, of another size or type, with bytes that agree. */
function changePlace(header, random) {
  const plan = pick(random, header.plans);
  const place = pick(random, [...plan.inputs, ...plan.outputs, ...plan.inputs]);
  if (place === undefined) {
    return;
  }
  const sizes = header.segments.map(({ bytes }) => bytes);
  [sizes[0], sizes[1], sizes[SEGMENT_NAMES.length - 1]] = [plan.arenaBytes, plan.constants?.[1], plan.preparedBytes];
  const other = pick(random, [...plan.inputs, ...plan.outputs]);
  const changes = {
    segment: () => (place.segment = random(SEGMENT_NAMES.length + 2) - 1),
    offset: () => (place.offset = nearby(place.offset, random, [0, sizes[place.segment] - place.nbytes])),
    both: () => {
      place.segment = random(SEGMENT_NAMES.length);
      place.offset = pick(random, [0, 1, 4, sizes[place.segment] - place.nbytes, sizes[place.segment]]);
    },
    nbytes: () => (place.nbytes = nearby(place.nbytes, random, [sizes[place.segment]])),
    name: () => (place.name = pick(random, [other.name, "", "x", "__proto__"])),
    swap: () => ([place.offset, other.offset] = [other.offset, place.offset]),
    type: () => retype(place, random),
    feed: () => {
      // With what the plan says that it is fed.
      retype(place, random);
      const feed = plan.signature.find(({ name }) => name === place.name);
      Object.assign(feed ?? {}, { dtype: place.dtype, dims: [...place.dims] });
    },
  };
  pick(random, Object.values(changes))();
}

function retype(place, random) {
  if (!isTensor(place)) {
    return;
  }
  const changes = [
    () => (place.dtype = pick(random, DTYPES)),
    () => place.dims.push(pick(random, [0, 1, 2, 64])),
    () => place.dims.pop(),
    () => (place.dims[random(place.dims.length + 1)] = nearby(pick(random, [0, ...place.dims]), random, [1])),
  ];
  pick(random, changes)();
  place.nbytes = bytesOf(place);
}

/** What a plan says that it is fed, needs and keeps. */
function changePlan(header, random) {
  const plan = pick(random, header.plans);
  const other = pick(random, header.plans);
  const blob = pick(random, ["words", "constants"]);
  const changes = [
    () => (plan.arenaBytes = nearby(plan.arenaBytes, random, [0])),
    () => (plan.preparedBytes = nearby(plan.preparedBytes, random, [0])),
    () => (plan.overwrite = !plan.overwrite),
    () => (plan.kind = pick(random, ["train", "eval", "optimizer", "scheduler", "inference"])),
    () => (plan[blob] = structuredClone(other[blob])),
    () => (plan.code = structuredClone(other.code)),
    () => (plan[blob][random(2)] = nearby(pick(random, plan[blob]), random, other[blob])),
    () => plan.kept.push([pick(random, ["seen", "seen w", "w"]), nearby(0, random, [plan.preparedBytes]), pick(random, [0, 4, 64])]),
    () => plan.kept.forEach((kept) => (kept[1 + random(2)] = nearby(kept[1], random, [plan.preparedBytes]))),
    () => plan.nodes.splice(random(plan.nodes.length + 1), pick(random, [1, 8, 1000])),
    () => plan.nodes.push("x"),
    () => plan.large.push([random(2) * 64, 0, 0, 4]),
    () => plan.signature.forEach((feed) => (feed.value = pick(random, [null, "", "00", "zz"]))),
    () => (plan.recomputation[pick(random, Object.keys(plan.recomputation))] = pick(random, NUMBERS)),
  ];
  pick(random, changes)();
}

/** Parameters, with the offsets and sizes that follow, and the segments. */
function changeSession(header, random) {
  const slot = pick(random, header.parameters);
  const changes = [
    () => (slot.offset = nearby(slot.offset, random, [0, header.size])),
    () => (slot.trainableOffset = pick(random, [-1, 0, header.trainableSize, slot.trainableOffset + pick(random, STEPS)])),
    () => (slot.dims[random(slot.dims.length)] = nearby(slot.dims[0], random, [0])),
    () => slot.dims.reverse(),
    () => slot.dims.push(pick(random, [0, 1])),
    () => (slot.name = pick(random, header.parameters).name),
    () => header.parameters.splice(random(header.parameters.length), 1),
    () => {
      const segment = pick(random, header.segments);
      segment.bytes = nearby(segment.bytes, random, [0, 4 * header.size, 12 * header.trainableSize]);
    },
    () => (pick(random, header.segments).data = structuredClone(pick(random, header.segments).data)),
    () => header.segments.push({ bytes: 0, data: null }),
    () => header.properties.push(pick(random, [["x", "int", "1e9"], ["x", "int", "9".repeat(40)], ["", "float", "-"], ["x", "str", ""]])),
    () => (header.nominal = !header.nominal),
    () => (header.hasEval = !header.hasEval),
    () => (header.hasOptimizer = !header.hasOptimizer),
    () => (header.models = { trainModel: [0, 64], checkpoint: [[0, 64], [64, 64]] }),
    () => {
      const model = pick(random, Object.values(header.models));
      pick(random, model)[random(2)] = pick(random, NUMBERS);
      model.push(...structuredClone(model));
    },
  ];
  const relayout = random(2) === 0;
  pick(random, changes)();
  if (relayout) {
    layOut(header);
  }
}

/** Parameters one after the other, and segments of their sizes, where these are numbers. */
function layOut(header) {
  let [size, trainable] = [0, 0];
  for (const slot of header.parameters) {
    slot.offset = size;
    size += sizeOf(slot.dims);
    if (slot.trainableOffset !== -1) {
      slot.trainableOffset = trainable;
      trainable += sizeOf(slot.dims);
    }
  }
  [header.size, header.trainableSize] = [size, trainable];
  for (const [segment, bytes] of [[2, 4 * size], [3, 4 * trainable]]) {
    header.segments[segment].bytes = bytes;
    if (header.segments[segment].data !== null) {
      header.segments[segment].data[1] = bytes;
    }
  }
}

/** What the session says that it takes and gives. */
function changeInterface(header, random) {
  const kind = pick(random, ["train", "eval"]);
  const input = pick(random, header.inputs[kind]);
  const changes = [
    () => (input.dtype = pick(random, DTYPES)),
    () => (input.dims = null),
    () => (input.dims[random(input.dims.length)] = pick(random, ["batch", "__proto__", null, 0, 1, 2 ** 31])),
    () => input.dims.push("n"),
    () => (input.decides = pick(random, [1, 64, 4096, 2 ** 32 - 1])),
    () => (input.name = pick(random, ["", "x", "__proto__"])),
    () => header.inputs[kind].reverse(),
    () => header.inputs[kind].pop(),
    () => (header.outputs[kind] = pick(random, [[], ["x"], [...header.outputs[kind], "x"], ["__proto__"]])),
  ];
  pick(random, changes)();
}

function changeField(header, random) {
  const before = structuredClone(header);
  try {
    pick(random, [changePlace, changePlace, changePlan, changeSession, changeInterface])(header, random);
  } catch (error) {
    // An earlier change took what this one needs.
    if (!(error instanceof TypeError)) throw error;
    Object.assign(header, before);
  }
}

// ---- bytes

/** Ranges of the blobs that may change: all but generated code. */
function dataOf(header) {
  const words = header.plans.map((plan) => plan.words);
  const others = [...header.plans.map((plan) => plan.constants), ...header.segments.map(({ data }) => data)];
  return { words, others: others.filter((range) => range !== null && range[1] > 0) };
}

function changeWords(blobs, [offset, nbytes], random) {
  const words = new DataView(blobs.buffer, blobs.byteOffset + offset, nbytes);
  const at = 4 * random(nbytes >> 2);
  const old = words.getUint32(at, true);
  const values = [
    pick(random, NUMBERS), old ^ (1 << random(32)), old + pick(random, STEPS),
    words.getUint32(4 * random(nbytes >> 2), true), random(2 ** 32),
  ];
  words.setUint32(at, pick(random, values), true);
}

function changeData(blobs, [offset, nbytes], random) {
  blobs[offset + random(nbytes)] ^= 1 << random(8);
}

/** A copy of a bundle, with one to five changes. */
export function mutate({ header, blobs }, random) {
  const { words, others } = dataOf(header);
  const changed = { header: structuredClone(header), blobs: blobs.slice() };
  for (let left = [1, 1, 1, 2, 2, 3, 5][random(7)]; left > 0; left--) {
    const draw = random(20);
    if (draw < 4) {
      changeHeader(changed.header, random);
    } else if (draw < 11) {
      changeField(changed.header, random);
    } else if (draw < 18) {
      changeWords(changed.blobs, pick(random, words), random);
    } else {
      changeData(changed.blobs, pick(random, others), random);
    }
  }
  return changed;
}

// ---- feeds

/** A batch of what a plan is fed: numbers that all types have. */
export function feedsOf(signature) {
  return signature.map(({ name, dtype, dims }) => {
    const n = sizeOf(dims);
    const data = {
      int64: () => BigInt64Array.from({ length: n }, (_, k) => BigInt(k % 3)),
      float32: () => Float32Array.from({ length: n }, (_, k) => Math.sin(k)),
    }[dtype]?.() ?? new Uint8Array(bytesOf({ dtype, dims })).fill(1);
    return { name, dtype, dims, data: new Uint8Array(data.buffer) };
  });
}
