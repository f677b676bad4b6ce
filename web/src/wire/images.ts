/** Messages between the page and a worker that reads images. */

/** Options of the conversion of an image, after the checks. */
export interface ResolvedImageOptions {
  readonly width: number;
  readonly height: number;
  readonly channels: 1 | 3;
  /** Of each channel, subtracted from values of 0 to 1. */
  readonly mean: readonly number[];
  /** Divisors of each channel. */
  readonly std: readonly number[];
  readonly layout: "CHW" | "HWC";
  readonly resize: "stretch" | "cover";
  readonly augment: Changes | null;
}

/** Random changes, each up to so much either way. */
export interface Changes {
  readonly seed: number;
  readonly flip: boolean;
  readonly rotate: number;
  readonly crop: number;
  readonly brightness: number;
  readonly contrast: number;
  readonly saturation: number;
}

/** An image as it is sent to the worker: a URL, a file, pixels or a bitmap, which is closed when it is read. */
export type PortableImage = Blob | ImageData | ImageBitmap;
