/** The drawing pad: strokes of a finger, pen or mouse, seen as MNIST would have scanned them. */

import { colour, onThemeChange } from "./theme.js";

const SIDE = 28;
/** MNIST scales a digit into a box of 20 pixels and centres its mass in the 28 x 28 image. */
const BOX = 20;
/** Width of the pen as a share of the pad; about what MNIST's pens were. */
const PEN = 0.075;
/** Resolution at which strokes are rasterised before they are scaled down. */
const RASTER = 224;

type Point = readonly [x: number, y: number];

export class Pad {
  readonly #canvas: HTMLCanvasElement;
  readonly #changed: () => void;
  /** Points in units of the pad's side. */
  #strokes: Point[][] = [];
  #picture: Uint8Array | undefined;
  #drawing: number | undefined;

  constructor(canvas: HTMLCanvasElement, changed: () => void) {
    this.#canvas = canvas;
    this.#changed = changed;
    canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    canvas.addEventListener("pointermove", (event) => this.#extend(event));
    for (const end of ["pointerup", "pointercancel"] as const) {
      canvas.addEventListener(end, (event) => this.#end(event));
    }
    onThemeChange(() => this.#render());
    new ResizeObserver(() => this.#render()).observe(canvas);
  }

  get empty(): boolean {
    return this.#strokes.length === 0 && this.#picture === undefined;
  }

  clear(): void {
    this.#strokes = [];
    this.#picture = undefined;
    this.#render();
    this.#changed();
  }

  /** Show a ready image instead of strokes. */
  show(image: Uint8Array): void {
    this.#strokes = [];
    this.#picture = Uint8Array.from(image);
    this.#render();
    this.#changed();
  }

  /** Show a photograph's ink, which is its opacity, scaled and centred as strokes are. */
  showInk(ink: ImageData): void {
    const context = new OffscreenCanvas(ink.width, ink.height).getContext("2d");
    context?.putImageData(ink, 0, 0);
    const raster = surface(RASTER);
    if (context) {
      raster.drawImage(context.canvas, 0, 0, RASTER, RASTER);
    }
    this.show(normalise(raster));
  }

  /** The input of the network: 28 x 28 bytes. */
  image(): Uint8Array {
    if (this.#picture) {
      return this.#picture;
    }
    const raster = surface(RASTER);
    stroke(raster, this.#strokes, RASTER, "#000");
    return normalise(raster);
  }

  #point(event: PointerEvent): Point {
    const box = this.#canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  #begin(event: PointerEvent): void {
    if (event.button !== 0 || this.#drawing !== undefined) {
      return;
    }
    event.preventDefault();
    this.#canvas.setPointerCapture(event.pointerId);
    this.#drawing = event.pointerId;
    this.#picture = undefined;
    this.#strokes.push([this.#point(event)]);
    this.#render();
    this.#changed();
  }

  #extend(event: PointerEvent): void {
    if (event.pointerId !== this.#drawing) {
      return;
    }
    const events = event.getCoalescedEvents?.() ?? [];
    for (const part of events.length > 0 ? events : [event]) {
      this.#strokes.at(-1)?.push(this.#point(part));
    }
    this.#render();
    this.#changed();
  }

  #end(event: PointerEvent): void {
    if (event.pointerId === this.#drawing) {
      this.#drawing = undefined;
    }
  }

  #render(): void {
    const side = Math.round(this.#canvas.clientWidth * devicePixelRatio);
    if (side === 0) {
      return;
    }
    this.#canvas.width = side;
    this.#canvas.height = side;
    const context = this.#canvas.getContext("2d");
    if (!context) {
      return;
    }
    if (this.#picture) {
      drawPicture(context, this.#picture, side);
    } else {
      stroke(context, this.#strokes, side, colour("ink"));
    }
  }
}

function surface(side: number): OffscreenCanvasRenderingContext2D {
  const context = new OffscreenCanvas(side, side).getContext("2d", { willReadFrequently: true });
  if (!context) {
    throw new Error("this browser gives no 2D canvas");
  }
  return context;
}

type Context = CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D;

function stroke(context: Context, strokes: readonly Point[][], side: number, ink: string): void {
  context.strokeStyle = ink;
  context.lineWidth = PEN * side;
  context.lineCap = "round";
  context.lineJoin = "round";
  for (const points of strokes) {
    const [first, ...rest] = points;
    if (!first) {
      continue;
    }
    context.beginPath();
    context.moveTo(first[0] * side, first[1] * side);
    // A tap is a dot: a line to its own start has round ends.
    for (const [x, y] of rest.length > 0 ? rest : [first]) {
      context.lineTo(x * side, y * side);
    }
    context.stroke();
  }
}

function drawPicture(context: CanvasRenderingContext2D, picture: Uint8Array, side: number): void {
  const small = surface(SIDE);
  small.fillStyle = colour("ink");
  small.fillRect(0, 0, SIDE, SIDE);
  const data = small.getImageData(0, 0, SIDE, SIDE);
  picture.forEach((value, i) => {
    data.data[4 * i + 3] = value;
  });
  small.putImageData(data, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small.canvas, 0, 0, side, side);
}

interface Extent {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

function alphaOf(context: OffscreenCanvasRenderingContext2D, side: number): Uint8Array {
  const { data } = context.getImageData(0, 0, side, side);
  return Uint8Array.from({ length: side * side }, (_, i) => data[4 * i + 3] ?? 0);
}

function inkExtent(alpha: Uint8Array, side: number): Extent | undefined {
  let [left, top, right, bottom] = [side, side, -1, -1];
  alpha.forEach((value, i) => {
    if (value > 0) {
      const [x, y] = [i % side, Math.floor(i / side)];
      [left, right] = [Math.min(left, x), Math.max(right, x)];
      [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
    }
  });
  return right < 0 ? undefined : { left, top, width: right - left + 1, height: bottom - top + 1 };
}

/** Scale the ink into MNIST's box and put its centre of mass in the middle. */
function normalise(raster: OffscreenCanvasRenderingContext2D): Uint8Array {
  const extent = inkExtent(alphaOf(raster, RASTER), RASTER);
  if (!extent) {
    return new Uint8Array(SIDE * SIDE);
  }
  const scale = BOX / Math.max(extent.width, extent.height);
  const [width, height] = [extent.width * scale, extent.height * scale];
  const place = (dx: number, dy: number): Uint8Array => {
    const target = surface(SIDE);
    target.imageSmoothingQuality = "high";
    const { left, top } = extent;
    const [x, y] = [(SIDE - width) / 2 + dx, (SIDE - height) / 2 + dy];
    target.drawImage(raster.canvas, left, top, extent.width, extent.height, x, y, width, height);
    return alphaOf(target, SIDE);
  };
  const [x, y] = centreOfMass(place(0, 0));
  const centre = (SIDE - 1) / 2;
  return place(Math.round(centre - x), Math.round(centre - y));
}

function centreOfMass(image: Uint8Array): Point {
  let [mass, x, y] = [0, 0, 0];
  image.forEach((value, i) => {
    mass += value;
    x += value * (i % SIDE);
    y += value * Math.floor(i / SIDE);
  });
  return [x / mass, y / mass];
}
