/** Photographs of digits: separates ink from paper, so that the pad can scale and centre it as MNIST does. */

/** Side of a photograph after scaling, before ink is looked for. */
const SIDE = 224;
/** Paper is not lit evenly: how bright it is, is measured in so many fields along each side. */
const FIELDS = 4;
/** Of the brightest pixels of a field, which one is paper. */
const PAPER = 0.9;
/** Darkness at which a stroke fades into the paper, as a share of the threshold between them. */
const EDGE = 0.7;
/** The least contrast of ink, as a share of the paper's brightness. */
const LEAST_CONTRAST = 0.15;
/** Spots smaller than this share of the largest piece of ink are dirt. */
const LEAST_PIECE = 0.05;
const LEVELS = 256;

/**
 * Find the ink of a photograph.
 *
 * @returns an image whose opacity is ink
 * @throws Error when the file is not an image, or nothing on it looks like ink
 */
export async function inkOf(file: Blob): Promise<ImageData> {
  let bitmap: ImageBitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error("This file is not an image that the browser can read.");
  }
  const context = new OffscreenCanvas(SIDE, SIDE).getContext("2d");
  if (!context) {
    throw new Error("this browser gives no 2D canvas");
  }
  const scale = SIDE / Math.min(bitmap.width, bitmap.height);
  const [width, height] = [bitmap.width * scale, bitmap.height * scale];
  context.imageSmoothingQuality = "high";
  // A square from its middle; white below transparent pixels.
  context.fillStyle = "#fff";
  context.fillRect(0, 0, SIDE, SIDE);
  context.drawImage(bitmap, (SIDE - width) / 2, (SIDE - height) / 2, width, height);
  bitmap.close();
  const image = context.getImageData(0, 0, SIDE, SIDE);
  const ink = darkness(brightness(image));
  const least = EDGE * threshold(ink);
  const full = quantile(ink.filter((value) => value >= least), PAPER);
  if (!(full >= LEAST_CONTRAST)) {
    throw new Error("There is no digit on this image: use a dark digit on light paper, or the reverse.");
  }
  const kept = withoutDirt(ink.map((value) => (value >= least ? value : 0)));
  kept.forEach((value, i) => {
    image.data.set([0, 0, 0, Math.min(255, Math.round((255 * value) / full))], 4 * i);
  });
  return image;
}

/** Brightness from 0 to 1; of a light digit on dark ground, the negative. */
function brightness({ data }: ImageData): Float32Array {
  const light = Float32Array.from({ length: SIDE * SIDE }, (_, i) => {
    const [red = 0, green = 0, blue = 0] = data.subarray(4 * i, 4 * i + 3);
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255;
  });
  const border = light.filter((_, i) => i < SIDE || i >= SIDE * (SIDE - 1) || i % SIDE === 0 || i % SIDE === SIDE - 1);
  return quantile(border, 0.5) < 0.5 ? light.map((value) => 1 - value) : light;
}

/** The darkness of each pixel relative to the paper around it, as a share of the paper's brightness. */
function darkness(light: Float32Array): Float32Array {
  const side = SIDE / FIELDS;
  const paper = Array.from({ length: FIELDS * FIELDS }, (_, field) => {
    const [left, top] = [(field % FIELDS) * side, Math.floor(field / FIELDS) * side];
    return quantile(
      Float32Array.from({ length: side * side }, (_, k) => light[(top + Math.floor(k / side)) * SIDE + left + (k % side)] ?? 0),
      PAPER,
    );
  });
  const at = (x: number, y: number): number => paper[y * FIELDS + x] ?? 1;
  return light.map((value, i) => {
    // Between the middles of the fields around it.
    const [u, v] = [i % SIDE, Math.floor(i / SIDE)].map((place) => Math.max(0, Math.min(FIELDS - 1, (place + 0.5) / side - 0.5))) as [number, number];
    const [x, y] = [Math.min(Math.floor(u), FIELDS - 2), Math.min(Math.floor(v), FIELDS - 2)];
    const [right, down] = [u - x, v - y];
    const above = at(x, y) * (1 - right) + at(x + 1, y) * right;
    const below = at(x, y + 1) * (1 - right) + at(x + 1, y + 1) * right;
    const around = above * (1 - down) + below * down;
    return around > 0 ? Math.max(0, 1 - value / around) : 0;
  });
}

/** The value that parts the pixels best into two groups: N. Otsu, A threshold selection method from gray-level histograms, 1979. */
function threshold(ink: Float32Array): number {
  const counts = new Float64Array(LEVELS);
  ink.forEach((value) => {
    const level = Math.min(LEVELS - 1, Math.floor(value * LEVELS));
    counts[level] = (counts[level] ?? 0) + 1;
  });
  const sum = counts.reduce((all, count, level) => all + count * level, 0);
  let [below, sumBelow, best, found] = [0, 0, -1, 0];
  counts.forEach((count, level) => {
    below += count;
    sumBelow += count * level;
    const above = ink.length - below;
    if (below > 0 && above > 0) {
      const apart = sumBelow / below - (sum - sumBelow) / above;
      const between = below * above * apart * apart;
      if (between > best) {
        [best, found] = [between, level];
      }
    }
  });
  return (found + 1) / LEVELS;
}

/** Only pieces of ink that are not much smaller than the largest. */
function withoutDirt(ink: Float32Array): Float32Array {
  const pieceOf = new Int32Array(ink.length);
  const sizes = [0];
  ink.forEach((value, start) => {
    if (value === 0 || pieceOf[start] !== 0) {
      return;
    }
    const waiting = [start];
    pieceOf[start] = sizes.length;
    let size = 0;
    for (let i = waiting.pop(); i !== undefined; i = waiting.pop()) {
      size++;
      for (const next of neighbours(i)) {
        if (ink[next] !== 0 && pieceOf[next] === 0) {
          pieceOf[next] = sizes.length;
          waiting.push(next);
        }
      }
    }
    sizes.push(size);
  });
  const least = LEAST_PIECE * Math.max(...sizes);
  return ink.map((value, i) => ((sizes[pieceOf[i] ?? 0] ?? 0) >= least ? value : 0));
}

function neighbours(i: number): number[] {
  const x = i % SIDE;
  const across = [...(x > 0 ? [i - 1] : []), ...(x < SIDE - 1 ? [i + 1] : [])];
  return [...across, i - SIDE, i + SIDE].filter((next) => next >= 0 && next < SIDE * SIDE);
}

function quantile(values: Float32Array, share: number): number {
  const sorted = Float32Array.from(values).sort();
  return sorted[Math.floor(share * (sorted.length - 1))] ?? 0;
}
