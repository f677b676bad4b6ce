// Builds the demo page: node web/demo/mnist/build.mjs OUTPUT_FOLDER
//
// The model comes from scripts/make_demo_model.py, the images from make-data.mjs.

import { buildPage } from "../build-page.mjs";

await buildPage(import.meta.url);
