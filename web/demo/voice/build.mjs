// Builds the page: node web/demo/voice/build.mjs OUTPUT_FOLDER
//
// The model in model/ comes from scripts/record_voice.py.

import { copyFileSync, cpSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { buildPage } from "../build-page.mjs";

await buildPage(import.meta.url);
const here = (name) => fileURLToPath(new URL(name, import.meta.url));
cpSync(here("model"), `${process.argv[2]}/model`, { recursive: true });
copyFileSync(here("example.txt"), `${process.argv[2]}/example.txt`);
