/**
 * Web components that show a training as it runs.
 *
 *     import "trainweb/vis";
 *
 *     <trainweb-curves></trainweb-curves>
 *
 *     const history = await document.querySelector("trainweb-curves").watch(session.fit(data, options));
 *
 * Colours are custom properties: --trainweb-ink, -muted, -line, -training, -validation, -right, -wrong; the defaults
 * follow `color-scheme`.
 *
 * @module trainweb/vis
 */

import { TrainwebConfusion } from "./confusion.js";
import { TrainwebCurves } from "./curves.js";
import { TrainwebHistogram } from "./histogram.js";
import { TrainwebImages } from "./images.js";
import { TrainwebRates } from "./rates.js";

export { TrainwebConfusion, TrainwebCurves, TrainwebHistogram, TrainwebImages, TrainwebRates };
export { histogramOf, type Histogram } from "./histogram.js";
export type { ImageItem } from "./images.js";
export type { FitPanel, Panel } from "./panel.js";

declare global {
  interface HTMLElementTagNameMap {
    "trainweb-confusion": TrainwebConfusion;
    "trainweb-curves": TrainwebCurves;
    "trainweb-histogram": TrainwebHistogram;
    "trainweb-images": TrainwebImages;
    "trainweb-rates": TrainwebRates;
  }
}

const ELEMENTS = {
  "trainweb-confusion": TrainwebConfusion,
  "trainweb-curves": TrainwebCurves,
  "trainweb-histogram": TrainwebHistogram,
  "trainweb-images": TrainwebImages,
  "trainweb-rates": TrainwebRates,
};

// Servers that render pages import this, too.
if (typeof customElements !== "undefined") {
  for (const [name, element] of Object.entries(ELEMENTS)) {
    if (customElements.get(name) === undefined) {
      customElements.define(name, element);
    }
  }
}
