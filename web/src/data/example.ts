/** Models that come with the package. */

import FIRST_MODEL from "../../../docs/first.onnx";
import { brief } from "./nearest.js";

const EXAMPLES = { "first.onnx": FIRST_MODEL } as const;

/**
 * An example model of the package, as the bytes of an ONNX file. No request is made for it.
 *
 * @param name - `"first.onnx"`: two layers with random weights, `points` (batch, 2) -> `logits` (batch, 2). Trained, it
 *   separates the points inside a circle from those outside.
 * @throws TypeError when the package has no example of that name: it lists the existing ones
 */
export function example(name: keyof typeof EXAMPLES): Uint8Array<ArrayBuffer> {
  if (!Object.hasOwn(EXAMPLES, name)) {
    throw new TypeError(`There is no example named '${brief(name)}'. The package has: ${Object.keys(EXAMPLES).join(", ")}.`);
  }
  return Uint8Array.from(atob(EXAMPLES[name]), (letter) => letter.charCodeAt(0));
}
