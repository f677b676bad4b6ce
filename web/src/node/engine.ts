/** `trainweb/engine` as Node, Deno and Bun import it. */

import { setPlatform } from "../wire/platform.js";
import { NODE } from "./platform.js";

export * from "../engine/engine.js";

setPlatform(NODE);
