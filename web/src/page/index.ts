/**
 * trainweb: train ONNX models inside a web page.
 *
 *     import { TrainingSession, Tensor } from "trainweb";
 *
 * The interface is that of onnxruntime-web/training 1.17 - 1.19, continued. Nothing of a browser is
 * touched before a session is created, so that the module loads anywhere.
 *
 * @module trainweb
 */

import * as trainweb from "./exports.js";

export * from "./exports.js";

/** As pages of onnxruntime-web import it: `import ort from "trainweb"`. */
export default trainweb;
