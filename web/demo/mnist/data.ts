/** The digits: one binary file (see make-data.mjs), split into training and held-out test images. */

const MAGIC = 0x54534e4d;
const HEADER_BYTES = 20;

/** Images with their labels; a pixel is one byte, 0 background, 255 ink. */
export class DigitSet {
  readonly count: number;

  constructor(
    readonly side: number,
    readonly images: Uint8Array,
    readonly labels: Uint8Array,
  ) {
    this.count = labels.length;
  }

  /** Pixels of one image, row by row. */
  image(index: number): Uint8Array {
    const size = this.side * this.side;
    return this.images.subarray(index * size, (index + 1) * size);
  }

  label(index: number): number {
    return this.labels[index] ?? 0;
  }

  /** The images at `indices` as a (N, 1, side, side) array in [0, 1], with labels (N). */
  batch(indices: Uint32Array): Batch {
    return this.movedBatch(indices, 0, () => 0);
  }

  /**
   * The same, with each image moved by up to `reach` pixels along both axes. A network that has seen digits in many
   * places reads new ones better.
   */
  movedBatch(indices: Uint32Array, reach: number, random: () => number): Batch {
    const size = this.side * this.side;
    const pixels = new Float32Array(indices.length * size);
    const labels = new BigInt64Array(indices.length);
    const step = (): number => Math.floor(random() * (2 * reach + 1)) - reach;
    indices.forEach((index, row) => {
      const target = pixels.subarray(row * size, (row + 1) * size);
      writeMoved(target, this.image(index), this.side, step(), step());
      labels[row] = BigInt(this.label(index));
    });
    return { pixels, labels };
  }
}

export interface Batch {
  readonly pixels: Float32Array;
  readonly labels: BigInt64Array;
}

/** Write an image in [0, 1], moved. Pixels that leave the frame are lost, and pixels that enter are background. */
function writeMoved(
  target: Float32Array,
  image: Uint8Array,
  side: number,
  right: number,
  down: number,
): void {
  const [firstX, lastX] = [Math.max(0, right), Math.min(side, side + right)];
  const [firstY, lastY] = [Math.max(0, down), Math.min(side, side + down)];
  const offset = down * side + right;
  for (let y = firstY; y < lastY; y++) {
    for (let at = y * side + firstX; at < y * side + lastX; at++) {
      target[at] = (image[at - offset] ?? 0) / 255;
    }
  }
}

/** Bytes 0..255 to numbers in [0, 1]. */
export function toUnit(image: Uint8Array): Float32Array {
  return Float32Array.from(image, (value) => value / 255);
}

export interface Digits {
  readonly train: DigitSet;
  readonly test: DigitSet;
}

/** Download and check the file. */
export async function loadDigits(url: string): Promise<Digits> {
  const response = await fetch(url);
  if (!response.ok) {
    throw new Error(`${url} could not be downloaded: ${response.status} ${response.statusText}`);
  }
  return parseDigits(new Uint8Array(await response.arrayBuffer()));
}

function parseDigits(file: Uint8Array<ArrayBuffer>): Digits {
  const view = new DataView(file.buffer);
  const word = (i: number): number => view.getUint32(4 * i, true);
  if (file.length < HEADER_BYTES || word(0) !== MAGIC || word(3) !== word(4)) {
    throw new Error("mnist.bin is not a file of digits");
  }
  const [count, training, side] = [word(1), word(2), word(3)];
  const size = side * side;
  const expected = HEADER_BYTES + count * (1 + size);
  if (file.length !== expected || training > count) {
    throw new Error(`mnist.bin has ${file.length} bytes; ${count} images need ${expected}`);
  }
  const labels = file.subarray(HEADER_BYTES, HEADER_BYTES + count);
  const images = file.subarray(HEADER_BYTES + count);
  return {
    train: new DigitSet(side, images.subarray(0, training * size), labels.subarray(0, training)),
    test: new DigitSet(side, images.subarray(training * size), labels.subarray(training)),
  };
}
