/**
 * Images as numbers: decoded by the browser, resized and changed on a canvas. Runs in a worker, and, where that has no
 * canvas, in the page. `trainweb/data/images.py` is the same in Python, with the same random numbers.
 */

import { FeedError, UnsupportedError } from "../wire/errors.js";
import { messageOf } from "../wire/fetch-file.js";
import type { Changes, PortableImage, ResolvedImageOptions } from "../wire/images.js";
import { RandomStream } from "./random.js";

/** Changes that were drawn. */
interface DrawnChanges {
  readonly isFlipped: boolean;
  readonly degrees: number;
  /** Share of the sides that is cut off, and the shares of that on the left and at the top. */
  readonly cut: number;
  readonly left: number;
  readonly top: number;
  readonly added: number;
  readonly contrast: number;
  readonly saturation: number;
}

const UNCHANGED: DrawnChanges = {
  isFlipped: false, degrees: 0, cut: 0, left: 0, top: 0, added: 0, contrast: 1, saturation: 1,
};
const GREY = [0.299, 0.587, 0.114] as const;
const LEVELS = 256;
const HALF = 0.5;

/** Numbers of an image, in the order of the layout. */
export async function imageValues(image: PortableImage, options: ResolvedImageOptions): Promise<Float32Array<ArrayBuffer>> {
  const { augment } = options;
  const changes = augment === null ? UNCHANGED : changesOf(augment);
  const bitmap = await open(image);
  try {
    return convert(draw(bitmap, options, changes), options, changes);
  } finally {
    bitmap.close();
  }
}

async function open(image: PortableImage): Promise<ImageBitmap> {
  if (image instanceof ImageBitmap) {
    return image;
  }
  return createImageBitmap(image).catch((error: unknown) => {
    const type = image instanceof Blob ? image.type || "a file without a type" : "pixels";
    throw new FeedError(`the image (${type}) cannot be decoded: ${messageOf(error)}`);
  });
}

type Context = CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D;

/** Make a canvas to draw on. It has no alpha, so transparent pixels are black. */
function newContext(width: number, height: number): Context {
  const settings = { alpha: false, willReadFrequently: true } as const;
  let context: Context | null = null;
  if (typeof OffscreenCanvas !== "undefined") {
    context = new OffscreenCanvas(width, height).getContext("2d", settings);
  } else if (typeof document !== "undefined") {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width, height];
    context = canvas.getContext("2d", settings) as Context | null;
  }
  if (context === null) {
    throw new UnsupportedError("images need a canvas, which is not here: read them in a browser's page.");
  }
  return context;
}

function draw(image: ImageBitmap, options: ResolvedImageOptions, changes: DrawnChanges): Uint8ClampedArray {
  const { width, height, resize } = options;
  const context = newContext(width, height);
  context.imageSmoothingQuality = "high";
  const cover = Math.min(image.width / width, image.height / height);
  const part = resize === "cover" ? { width: width * cover, height: height * cover } : { width: image.width, height: image.height };
  const { isFlipped, degrees, cut, left, top } = changes;
  const x = (image.width - part.width) / 2 + left * cut * part.width;
  const y = (image.height - part.height) / 2 + top * cut * part.height;
  context.translate(width / 2, height / 2);
  context.rotate((degrees * Math.PI) / 180);
  context.scale(isFlipped ? -1 : 1, 1);
  context.translate(-width / 2, -height / 2);
  context.drawImage(image, x, y, part.width * (1 - cut), part.height * (1 - cut), 0, 0, width, height);
  return context.getImageData(0, 0, width, height).data;
}

/** Draw the changes for a seed: the same numbers for any settings of the augmentation. */
function changesOf({ seed, flip, rotate, crop, brightness, contrast, saturation }: Changes): DrawnChanges {
  const random = new RandomStream(seed, 0);
  const uniform = (): number => random.below(2 ** 32) / 2 ** 32;
  const signed = (): number => 2 * uniform() - 1;
  return {
    isFlipped: uniform() < HALF && flip,
    degrees: signed() * rotate,
    cut: uniform() * crop,
    left: uniform(),
    top: uniform(),
    added: signed() * brightness,
    contrast: 1 + signed() * contrast,
    saturation: 1 + signed() * saturation,
  };
}

function convert(pixels: Uint8ClampedArray, options: ResolvedImageOptions, changes: DrawnChanges): Float32Array<ArrayBuffer> {
  const { width, height, channels, mean, std, layout } = options;
  const count = width * height;
  const data = new Float32Array(count * channels);
  const [step, stride] = layout === "CHW" ? [1, count] : [channels, 1];
  const levels = levelsOf(changes);
  const { saturation } = changes;
  for (let k = 0; k < count; k++) {
    const red = levels[pixels[4 * k] as number] as number;
    const green = levels[pixels[4 * k + 1] as number] as number;
    const blue = levels[pixels[4 * k + 2] as number] as number;
    const grey = red * GREY[0] + green * GREY[1] + blue * GREY[2];
    for (let c = 0; c < channels; c++) {
      const plain = channels === 1 ? grey : c === 0 ? red : c === 1 ? green : blue;
      const value = saturation === 1 ? plain : clamped(grey + (plain - grey) * saturation);
      data[k * step + c * stride] = (value - (mean[c] as number)) / (std[c] as number);
    }
  }
  return data;
}

/** The value of each level of a pixel after the changes of brightness and contrast. */
function levelsOf({ added, contrast }: DrawnChanges): Float64Array {
  return Float64Array.from({ length: LEVELS }, (_, byte) => {
    const plain = byte / (LEVELS - 1);
    return added === 0 && contrast === 1 ? plain : clamped(HALF + (plain - HALF) * contrast + added);
  });
}

function clamped(value: number): number {
  return Math.min(1, Math.max(0, value));
}
