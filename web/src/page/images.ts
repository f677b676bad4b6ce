/** Images as tensors and data. A separate worker resizes and changes every image that a canvas can draw. */

import { Tensor } from "onnxruntime-common";

import { checkSeed, Dataset, drawnDataset, rowAt, type Columns } from "../data/dataset.js";
import { describe, isAddress, mustBe, refuseSettingIf } from "../data/checks.js";
import { imageValues } from "../data/images.js";
import { CLASSES } from "../data/folder.js";
import { checkOptions } from "../data/nearest.js";
import { permutation, RandomStream, seedWith, type Draw } from "../data/random.js";
import type { Row } from "../data/rows.js";
import { isObject } from "../wire/kinds.js";
import { refuseIf } from "../wire/messages.js";
import { FeedError, throwIf } from "../wire/errors.js";
import type { Changes, PortableImage, ResolvedImageOptions } from "../wire/images.js";
import { absolute } from "./assets.js";
import { settingsOf } from "./check-settings.js";
import { callOf, withWorker } from "./client.js";
import { download, whole, IMAGE } from "./download.js";
import { resolveOptions } from "./options.js";
import { AUGMENTATION, IMAGE_OPTIONS, type Augmentation, type ImageFields } from "./settings/images.js";

/**
 * A file, a URL, or anything that a canvas can draw: an image, a video (its frame), a canvas, a bitmap; pixels; or the
 * stream of a camera (its frame). The source stays as it is.
 */
export type ImageSource = Blob | string | URL | CanvasImageSource | ImageData | MediaStream;

/** Options of the conversion of an image to a tensor. */
export interface ImageOptions extends ImageFields {
  /** Of each channel, subtracted from values of 0 to 1; a number for all. Default 0. */
  readonly mean?: number | readonly number[];
  /** Divisor after `mean` is subtracted. Default 1. */
  readonly std?: number | readonly number[];
  /** Random changes, for training; none by default. */
  readonly augment?: Augmentation;
}

const OTHERS = { mean: true, std: true, augment: true } as const;

/** @throws ModelError for an impossible option; TypeError for an unknown one */
function resolveImageOptions(options: ImageOptions): ResolvedImageOptions {
  refuseSettingIf(!isObject(options), "options", options, "an object with width and height");
  const { mean = 0, std = 1, augment, ...fields } = options;
  type Plain = Omit<ResolvedImageOptions, keyof typeof OTHERS>;
  const plain = settingsOf<Plain>("image", fields, IMAGE_OPTIONS, Object.keys(OTHERS));
  const isNumber = (x: unknown): boolean => typeof x === "number" && Number.isFinite(x);
  const fits = (x: unknown): boolean => isNumber(x) || (Array.isArray(x) && x.length === plain.channels && x.every(isNumber));
  refuseSettingIf(!fits(mean), "mean", mean, "a number, or one for each channel");
  refuseSettingIf(!fits(std) || [std].flat().includes(0), "std", std, "a number other than 0, or one for each channel");
  refuseSettingIf(augment !== undefined && !isObject(augment), "augment", augment, "an object with a seed");
  const each = (x: number | readonly number[]): number[] => (typeof x === "number" ? new Array<number>(plain.channels).fill(x) : [...x]);
  const changes = augment === undefined ? null : settingsOf<Changes>("augment", augment, AUGMENTATION);
  return { ...plain, mean: each(mean), std: each(std), augment: changes };
}

/**
 * An image as a float32 tensor without the axis of the batch: a value of a row. It is decoded, resized and changed in a
 * worker; in the page where there is no `OffscreenCanvas`.
 *
 * @throws FeedError when it cannot be fetched or decoded, stalls (`env.timeouts.stall`) or has no pixels; LimitError
 *   when a file that is fetched is too large; ModelError when an option is wrong; UnsupportedError outside of browsers
 */
export async function readImage(source: ImageSource, options: ImageOptions): Promise<Tensor> {
  return readResolved(source, resolveImageOptions(options));
}

/** Options of `readImages`. */
export interface ImagesOptions extends ImageOptions {
  /** The input of the model that takes the images. */
  readonly input: string;
  /** Its other inputs: tensors whose first axis counts the images, or typed arrays with a value for each. */
  readonly columns?: Columns;
  /** Seed of the order, 0 to 2^53 - 1. Default 0. */
  readonly seed?: number;
}

/** Number of images to read ahead. */
const AHEAD = 4;

/**
 * Make a dataset of images, each read when a batch needs it. Each epoch has them in another order, unless `shuffle` of
 * the fit is false. It also augments each with a new seed. The seed follows from `augment.seed`, the seed of the fit, the epoch and the place of the image. Evaluations and
 * predictions have the images in order, without augmentation.
 *
 * @throws FeedError when there are no images, or other numbers of values in `columns`. FeedError in an iteration for an
 *   image that cannot be read, which it names. ModelError when an option is wrong
 */
export function readImages(images: Iterable<ImageSource>, options: ImagesOptions): Dataset<Row<Tensor>> {
  const known = { ...IMAGE_OPTIONS, ...OTHERS, input: true, columns: true, seed: true };
  const { input, columns = {}, seed = 0, ...others } = checkOptions("readImages", options, known);
  const image = resolveImageOptions(others);
  checkSeed(seed);
  refuseSettingIf(typeof input !== "string", "input", input, "a name");
  mustBe(typeof images !== "string", "images", "a list of images", images);
  const sources = [...images];
  const partOf = (part: Dataset, places: Uint32Array, isHeldOut: boolean): Dataset<Row<Tensor>> => {
    const known = part.columns as ReadonlyMap<string, Tensor>;
    const rows = async function* (draw: Draw | null): AsyncGenerator<Row> {
      const order = draw?.shuffles && !isHeldOut ? permutation(places.length, seedWith(draw, seed), draw.epoch) : Uint32Array.from(places.keys());
      const read = (row: number): Promise<Tensor> => {
        const place = places[row] as number;
        return readPlace(sources, place, imageOf(image, place, isHeldOut ? null : draw));
      };
      const pending: Promise<Tensor>[] = [];
      for (const [k, row] of order.entries()) {
        for (const next of order.subarray(k + pending.length, k + AHEAD)) {
          const tensor = read(next);
          // It is awaited when its turn comes.
          tensor.catch(() => {});
          pending.push(tensor);
        }
        yield { ...rowAt(known, row), [input]: await (pending.shift() as Promise<Tensor>) };
      }
    };
    const pick = (rows: Uint32Array, isOut: boolean): Dataset<Row<Tensor>> =>
      partOf(part.rows(rows), rows.map((row) => places[row] as number), isHeldOut || isOut);
    return drawnDataset(rows, { isDrawn: !isHeldOut, parts: { known, pick }, preprocessing: steps });
  };
  const steps = Object.entries(columns).flatMap(([input, labels]) => {
    const classes = CLASSES.get(labels as object);
    return classes === undefined ? [] : [{ type: "categories", input, categories: [[...classes]] } as const];
  });
  // They are checked beside the images, which are a column of no classes until they are read.
  const all = new Dataset({ ...columns, [input]: new Float32Array(sources.length).fill(0.5) });
  return partOf(all, Uint32Array.from(sources.keys()), false);
}

/** Options of an image that is drawn: its changes have a seed of their own. */
function imageOf(image: ResolvedImageOptions, place: number, draw: Draw | null): ResolvedImageOptions {
  const { augment } = image;
  if (augment === null || draw === null) {
    return { ...image, augment: null };
  }
  return { ...image, augment: { ...augment, seed: new RandomStream(seedWith(draw, augment.seed), draw.epoch).at(place) } };
}

async function readPlace(sources: readonly ImageSource[], place: number, image: ResolvedImageOptions): Promise<Tensor> {
  const source = sources[place] as ImageSource;
  try {
    return await readResolved(source, image);
  } catch (error) {
    if (error instanceof FeedError) {
      throw new FeedError(`image ${place}${source instanceof File ? ` (${source.name})` : ""}: ${error.message}`);
    }
    throw error;
  }
}

async function readResolved(source: ImageSource, options: ResolvedImageOptions): Promise<Tensor> {
  refuseIf(typeof createImageBitmap === "undefined", "UNREAD_PICTURES");
  const { width, height, channels, layout } = options;
  const image = await portable(source);
  const data = typeof OffscreenCanvas === "undefined" ? await imageValues(image, options) : await readInWorker(image, options);
  return new Tensor("float32", data, layout === "CHW" ? [channels, height, width] : [height, width, channels]);
}

/**
 * Read an image in a separate worker, because a session's worker is busy with steps. It ends after a while without
 * images, as other workers do without sessions.
 */
async function readInWorker(image: PortableImage, options: ResolvedImageOptions): Promise<Float32Array<ArrayBuffer>> {
  const { settings, progress } = resolveOptions({ threads: 1 });
  return withWorker({ settings: { ...settings, hasKernels: false }, progress }, async (client) => {
    await client.ready;
    // A bitmap is the page's copy, or none at all: it goes over.
    const { data } = await client.request(callOf("readImage", [image, options], image instanceof ImageBitmap ? [image] : []));
    return data;
  });
}

/** Convert an image to a form that a worker can receive. */
async function portable(source: ImageSource): Promise<PortableImage> {
  if (isAddress(source)) {
    return fetchImage(absolute(source));
  }
  if (source instanceof Blob || (typeof ImageData !== "undefined" && source instanceof ImageData)) {
    return source;
  }
  try {
    if (typeof MediaStream !== "undefined" && source instanceof MediaStream) {
      return await createImageBitmap(await videoOf(source));
    }
    if (typeof HTMLImageElement !== "undefined" && source instanceof HTMLImageElement) {
      await source.decode();
    }
    return await createImageBitmap(source as Exclude<typeof source, MediaStream>);
  } catch (error) {
    const expected = "a File, Blob, URL, camera or something to draw, with pixels";
    throw new FeedError(`an image must be ${expected}; got ${describe(source)}: ${String(error)}.`);
  }
}

async function fetchImage(url: string): Promise<Blob> {
  const { settings, progress, limits } = resolveOptions({ threads: 1 });
  const limit = { name: "the default of limits.fileBytes", nbytes: limits.fileBytes };
  const file = await whole(await download(IMAGE, url, { stallMs: settings.stallMs, progress, signal: undefined, limit, cache: false }));
  return file instanceof Blob ? file : new Blob([file]);
}

/** Videos that show the streams of cameras, nowhere. */
const videos = new WeakMap<MediaStream, Promise<HTMLVideoElement>>();

function videoOf(stream: MediaStream): Promise<HTMLVideoElement> {
  throwIf(!stream.active, FeedError, "the camera has been switched off");
  const video = videos.get(stream) ?? showStream(stream);
  videos.set(stream, video);
  return video;
}

async function showStream(stream: MediaStream): Promise<HTMLVideoElement> {
  const video = Object.assign(document.createElement("video"), { muted: true, playsInline: true, srcObject: stream });
  await video.play();
  return video;
}
