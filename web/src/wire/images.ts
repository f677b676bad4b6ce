/** Messages between the page and a worker that reads images. */

/** Random changes, each up to so much either way. */
export interface Augmentation {
  /** Of the changes, 0 to 2^53 - 1; give each image and epoch another. */
  readonly seed: number;
  /** Mirror every other image. Default false. */
  readonly flip?: boolean;
  /** Degrees, at least 0. Default 0. */
  readonly rotate?: number;
  /** Share of the sides that is cut off, at any place; 0 to below 1. Default 0. */
  readonly crop?: number;
  /** Share of the full brightness that is added, at least 0. Default 0. */
  readonly brightness?: number;
  /** Share by which distances from the mean grey grow or shrink, at least 0. Default 0. */
  readonly contrast?: number;
  /** Share by which distances of colours from their grey grow or shrink, at least 0. Default 0. */
  readonly saturation?: number;
}

/** Options of the conversion of an image to a tensor. */
export interface ImageOptions {
  /** Of the tensor, in pixels; at most 16,384. */
  readonly width: number;
  /** Of the tensor, in pixels; at most 16,384. */
  readonly height: number;
  /** 3: red, green, blue; 1: grey (Rec. 601). Default 3. */
  readonly channels?: 1 | 3;
  /** Of each channel, subtracted from values of 0 to 1; a number for all. Default 0. */
  readonly mean?: number | readonly number[];
  /** Divisor after `mean` is subtracted. Default 1. */
  readonly std?: number | readonly number[];
  /** "CHW" (the default) or "HWC". */
  readonly layout?: "CHW" | "HWC";
  /** "stretch" (the default), or "cover": keep the proportions and cut off the rest. */
  readonly resize?: "stretch" | "cover";
  /** Random changes, for training; none by default. */
  readonly augment?: Augmentation;
}

/** Options after the checks. */
export interface ResolvedImageOptions extends Required<Omit<ImageOptions, "mean" | "std" | "augment">> {
  readonly mean: readonly number[];
  readonly std: readonly number[];
  readonly augment: Augmentation | null;
}

/** An image as it is sent to the worker: a URL, a file, pixels or a bitmap, which is closed when it is read. */
export type GivenImage = Blob | ImageData | ImageBitmap;
