/** The package as Node, Deno and Bun import it. */

import { Dataset, InferenceSession, TrainingSession } from "../page/index.js";
import { setDisk } from "../storage/disk.js";
import { setPlatform } from "../wire/platform.js";
import { DISK } from "./disk.js";
import { NODE } from "./platform.js";

export * from "../page/index.js";
export { default } from "../page/index.js";

setPlatform(NODE);
setDisk(DISK);

// The text that console.log prints.
for (const { prototype } of [Dataset, InferenceSession, TrainingSession]) {
  Object.defineProperty(prototype, Symbol.for("nodejs.util.inspect.custom"), { value: prototype.toString });
}
