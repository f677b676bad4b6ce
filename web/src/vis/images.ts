/** A grid of images with their labels and predictions. */

import type { Tensor } from "onnxruntime-common";

import css from "./images.css";
import { extent, make, Panel } from "./panel.js";

const BYTE = 255;
const GREY = 1;
const COLOURS = 3;

/** An image of the grid. */
export interface ImageItem {
  /** Pixels; a tensor is [H, W], [1, H, W] or [3, H, W], its lowest value black and its highest white. */
  readonly image: Tensor | ImageData | ImageBitmap | HTMLCanvasElement | HTMLImageElement;
  /** The true class, or its name. */
  readonly label?: string;
  /** The class that was predicted, or its name. */
  readonly predicted?: string;
}

/** `<trainweb-images>`: a grid of images with marks on the misclassified ones. */
export class TrainwebImages extends Panel {
  #items: readonly ImageItem[] = [];

  constructor() {
    super(css);
    this.figure.replaceChildren(make("p", { className: "empty", textContent: "The images appear here." }));
  }

  /** The shown images. */
  get items(): readonly ImageItem[] {
    return this.#items;
  }

  /** @throws TypeError when an image cannot be drawn */
  set items(items: readonly ImageItem[]) {
    if (!Array.isArray(items)) {
      throw new TypeError("'items' must be an array of { image, label, predicted }.");
    }
    // Drawn once here, so that errors of items are thrown here.
    const drawn = items.map(itemOf);
    this.#items = items;
    const none = make("p", { className: "empty", textContent: "There are no such images." });
    this.figure.replaceChildren(drawn.length > 0 ? make("ul", {}, ...drawn) : none);
  }
}

function itemOf({ image, label, predicted }: ImageItem): HTMLLIElement {
  const isWrong = label !== undefined && predicted !== undefined && label !== predicted;
  const words = [label, predicted].filter((word) => word !== undefined);
  const canvas = draw(image);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", isWrong ? `${label}, predicted as ${predicted}` : (words[0] ?? "image"));
  const caption = make("figcaption");
  if (isWrong) {
    caption.append(`${label} → `, make("b", { textContent: predicted }));
  } else {
    caption.append(words[0] ?? "");
  }
  return make("li", { className: isWrong ? "wrong" : "" }, make("figure", {}, canvas, caption));
}

function draw(image: ImageItem["image"]): HTMLCanvasElement {
  if (typeof image !== "object" || image === null) {
    throw new TypeError(`an image must be a tensor or something to draw, got ${String(image)}.`);
  }
  const source = image instanceof ImageData || !("dims" in image) ? image : pixelsOf(image);
  const canvas = make("canvas", { width: source.width, height: source.height });
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  if (source instanceof ImageData) {
    context.putImageData(source, 0, 0);
  } else {
    context.drawImage(source, 0, 0);
  }
  return canvas;
}

function pixelsOf({ dims, data }: Tensor): ImageData {
  const [height, width] = dims.slice(-2);
  const channels = dims.length === 2 ? GREY : dims[0];
  if (height === undefined || width === undefined || dims.length > 3 || (channels !== GREY && channels !== COLOURS)) {
    throw new TypeError(`an image must be of shape [H, W], [1, H, W] or [3, H, W], got [${dims.join(", ")}].`);
  }
  const values = Float32Array.from(data as ArrayLike<number | bigint>, Number);
  const [lowest, highest] = extent(values);
  const scale = highest > lowest ? BYTE / (highest - lowest) : 0;
  const plane = height * width;
  const pixels = new ImageData(width, height);
  for (let i = 0; i < plane; i++) {
    for (let c = 0; c < COLOURS; c++) {
      const value = values[(channels === GREY ? 0 : c) * plane + i] as number;
      pixels.data[4 * i + c] = (value - lowest) * scale;
    }
    pixels.data[4 * i + COLOURS] = BYTE;
  }
  return pixels;
}
