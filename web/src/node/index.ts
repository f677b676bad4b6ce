/** The package as Node, Deno and Bun import it. */

import { setPlatform } from "../wire/platform.js";
import { NODE } from "./platform.js";

export * from "../page/index.js";
export { default } from "../page/index.js";

setPlatform(NODE);
