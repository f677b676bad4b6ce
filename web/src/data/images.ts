/** Images as tensors: decoded by the browser, resized and changed on an OffscreenCanvas. */

import { Tensor } from "onnxruntime-common";

import { FeedError } from "../wire/errors.js";
import { describe } from "./given.js";
import { checkOptions } from "./nearest.js";
import { RandomStream } from "./random.js";

/** A file, a URL, or what a canvas can draw: an image, a video (its frame), a canvas, a bitmap; or pixels. */
export type ImageSource = Blob | string | URL | CanvasImageSource | ImageData;

/** Random changes, each up to so much either way. */
export interface Augmentation {
  /** Of the changes, 0 to 2^53 - 1; give each image and epoch another. */
  readonly seed: number;
  /** Mirror every other image. Default false. */
  readonly flip?: boolean;
  /** Degrees. Default 0. */
  readonly rotate?: number;
  /** Share of the sides that is cut off, at any place. Default 0. */
  readonly crop?: number;
  /** Share of the full brightness that is added. Default 0. */
  readonly brightness?: number;
  /** Share by which distances from the mean grey grow or shrink. Default 0. */
  readonly contrast?: number;
}

/** How an image becomes a tensor. */
export interface ImageOptions {
  /** Of the tensor, in pixels. */
  readonly width: number;
  /** Of the tensor, in pixels. */
  readonly height: number;
  /** 3: red, green, blue; 1: grey (Rec. 601). Default 3. */
  readonly channels?: 1 | 3;
  /** Of each channel, subtracted from values of 0 to 1; a number for all. Default 0. */
  readonly mean?: number | readonly number[];
  /** Divides what is left. Default 1. */
  readonly std?: number | readonly number[];
  /** "CHW" (the default) or "HWC". */
  readonly layout?: "CHW" | "HWC";
  /** "stretch" (the default), or "cover": keep the proportions and cut off what is beyond. */
  readonly resize?: "stretch" | "cover";
  /** Random changes, for training; none by default. */
  readonly augment?: Augmentation;
}

const IMAGE_OPTIONS = {
  width: true, height: true, channels: true, mean: true, std: true, layout: true, resize: true, augment: true,
} as const;
const AUGMENTATIONS = { seed: true, flip: true, rotate: true, crop: true, brightness: true, contrast: true } as const;

const GREY = [0.299, 0.587, 0.114] as const;
const BYTE = 255;
const HALF = 0.5;

/**
 * An image as a float32 tensor without the axis of the batch: a value of a row.
 *
 * @throws FeedError when it cannot be fetched or decoded, has no pixels, or an option is wrong
 */
export async function readImage(source: ImageSource, options: ImageOptions): Promise<Tensor> {
  const { width, height, channels = 3, layout = "CHW", augment } = checkOptions("readImage", options, IMAGE_OPTIONS);
  checkValues(options);
  if (augment !== undefined) {
    checkOptions("augment", augment, AUGMENTATIONS);
  }
  const random = augment === undefined ? null : new RandomStream(augment.seed, 0);
  const { image, size, close } = await open(source);
  try {
    const pixels = draw(image, size, options, random);
    const light = augment === undefined || random === null ? null : lightOf(augment, random);
    const data = convert(pixels, options, light);
    return new Tensor("float32", data, layout === "CHW" ? [channels, height, width] : [height, width, channels]);
  } finally {
    close();
  }
}

interface Size {
  readonly width: number;
  readonly height: number;
}

interface Opened {
  readonly image: CanvasImageSource;
  readonly size: Size;
  close(): void;
}

async function open(source: ImageSource): Promise<Opened> {
  if (typeof source === "string" || source instanceof URL) {
    const response = await fetch(source);
    if (!response.ok) {
      throw new FeedError(`the image ${String(source)} was answered with HTTP status ${response.status}.`);
    }
    return open(await response.blob());
  }
  if (source instanceof Blob || source instanceof ImageData) {
    const bitmap = await createImageBitmap(source).catch((error: unknown) => {
      const type = source instanceof Blob ? source.type || "a file without a type" : "pixels";
      throw new FeedError(`the image (${type}) cannot be decoded: ${String(error)}.`);
    });
    // A bitmap's sizes are no properties of its own, which a spread would take.
    const { width, height } = bitmap;
    return { image: bitmap, size: { width, height }, close: () => bitmap.close() };
  }
  const size = sizeOf(source);
  if (size === null || size.width === 0 || size.height === 0) {
    throw new FeedError(`an image must be a File, Blob, URL or something to draw, with pixels; got ${describe(source)}.`);
  }
  return { image: source, size, close: () => {} };
}

/** Pixels of what a canvas can draw: an image and a video have a natural size besides that on the page. */
function sizeOf(source: unknown): Size | null {
  if (typeof source !== "object" || source === null) {
    return null;
  }
  const given = source as Partial<Record<string, unknown>>;
  for (const prefix of ["natural", "video", "display", ""]) {
    const [width, height] = [given[prefix ? `${prefix}Width` : "width"], given[prefix ? `${prefix}Height` : "height"]];
    if (typeof width === "number" && typeof height === "number") {
      return { width, height };
    }
  }
  return null;
}

function draw(image: CanvasImageSource, size: Size, options: ImageOptions, random: RandomStream | null): Uint8ClampedArray {
  const { width, height, resize = "stretch", augment } = options;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (context === null) {
    throw new FeedError("this browser has no 2d context for an OffscreenCanvas.");
  }
  context.imageSmoothingQuality = "high";
  const cover = Math.min(size.width / width, size.height / height);
  const part = resize === "cover" ? { width: width * cover, height: height * cover } : { ...size };
  const at = { x: (size.width - part.width) / 2, y: (size.height - part.height) / 2 };
  if (random !== null && augment !== undefined) {
    const { flip = false, rotate = 0, crop = 0 } = augment;
    const isFlipped = uniform(random) < HALF && flip;
    const angle = (signed(random) * rotate * Math.PI) / 180;
    const cut = uniform(random) * crop;
    at.x += uniform(random) * cut * part.width;
    at.y += uniform(random) * cut * part.height;
    part.width *= 1 - cut;
    part.height *= 1 - cut;
    context.translate(width / 2, height / 2);
    context.rotate(angle);
    context.scale(isFlipped ? -1 : 1, 1);
    context.translate(-width / 2, -height / 2);
  }
  context.drawImage(image, at.x, at.y, part.width, part.height, 0, 0, width, height);
  return context.getImageData(0, 0, width, height).data;
}

interface Light {
  readonly added: number;
  readonly factor: number;
}

function lightOf({ brightness = 0, contrast = 0 }: Augmentation, random: RandomStream): Light {
  return { added: signed(random) * brightness, factor: 1 + signed(random) * contrast };
}

function convert(pixels: Uint8ClampedArray, options: ImageOptions, light: Light | null): Float32Array {
  const { width, height, channels = 3, mean = 0, std = 1, layout = "CHW" } = options;
  const count = width * height;
  const data = new Float32Array(count * channels);
  const [step, stride] = layout === "CHW" ? [1, count] : [channels, 1];
  const value = (at: number): number => {
    const plain = (pixels[at] as number) / BYTE;
    return light === null ? plain : Math.min(1, Math.max(0, HALF + (plain - HALF) * light.factor + light.added));
  };
  for (let k = 0; k < count; k++) {
    const colours = [value(4 * k), value(4 * k + 1), value(4 * k + 2)] as const;
    for (let c = 0; c < channels; c++) {
      const grey = (): number => colours.reduce((sum, x, i) => sum + x * (GREY[i] as number), 0);
      const plain = channels === 1 ? grey() : (colours[c] as number);
      data[k * step + c * stride] = (plain - of(mean, c)) / of(std, c);
    }
  }
  return data;
}

function of(values: number | readonly number[], channel: number): number {
  return typeof values === "number" ? values : (values[channel] as number);
}

/** From 0 to below 1. */
function uniform(random: RandomStream): number {
  return random.below(2 ** 32) / 2 ** 32;
}

/** From -1 to below 1. */
function signed(random: RandomStream): number {
  return 2 * uniform(random) - 1;
}

function checkValues(options: ImageOptions): void {
  const { width, height, channels = 3, mean = 0, std = 1, layout = "CHW", resize = "stretch" } = options;
  const isCount = (x: unknown): boolean => Number.isSafeInteger(x) && (x as number) > 0;
  const fits = (x: unknown): boolean =>
    typeof x === "number" || (Array.isArray(x) && x.length === channels && x.every((one) => typeof one === "number"));
  const faults: readonly (readonly [boolean, string, unknown, string])[] = [
    [isCount(width), "width", width, "an integer >= 1"],
    [isCount(height), "height", height, "an integer >= 1"],
    [channels === 1 || channels === 3, "channels", channels, "1 or 3"],
    [fits(mean), "mean", mean, "a number, or one for each channel"],
    [fits(std), "std", std, "a number, or one for each channel"],
    [["CHW", "HWC"].includes(layout), "layout", layout, "CHW or HWC"],
    [["stretch", "cover"].includes(resize), "resize", resize, "stretch or cover"],
  ];
  for (const [isRight, name, given, expected] of faults) {
    if (!isRight) {
      throw new FeedError(`'${name}' is ${String(given)}; it must be ${expected}.`);
    }
  }
}
