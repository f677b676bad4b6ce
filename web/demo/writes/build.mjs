// Builds the page: node web/demo/writes/build.mjs OUTPUT_FOLDER
//
// The model comes from scripts/make_writer_model.py, the text from make-text.mjs.

import { buildPage } from "../build-page.mjs";

await buildPage(import.meta.url);
