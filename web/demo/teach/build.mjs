// Builds the page: node web/demo/teach/build.mjs OUTPUT_FOLDER
//
// The model comes from scripts/make_teach_model.py.

import { buildPage } from "../build-page.mjs";

await buildPage(import.meta.url);
