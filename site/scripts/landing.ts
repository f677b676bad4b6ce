/** The first screen's network: it learns to tell two kinds of points apart, from a bundle, without Python. */

import type { TrainingSession } from "trainweb";
import type { TrainwebCurves } from "trainweb/vis";

/** Rows of the bundle's plans. */
const BATCH = 64;
const TRAINING = 8 * BATCH;
const TEST = 4 * BATCH;
const EPOCHS = 40;
const LEARNING_RATE = 0.02;
const RADIUS = 0.7;
/** Cells of the map in each direction: their number is a multiple of a batch. */
const CELLS = 24;
/** Between two epochs, so that the eye can follow. */
const PAUSE_MS = 60;
/** The two classes, as red, green and blue. */
const COLOURS = [[207, 74, 31], [47, 91, 234]] as const;

interface Points {
  /** x and y of each, from -1 to 1. */
  readonly places: Float32Array;
  readonly labels: BigInt64Array;
}

function element<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

function makePoints(count: number): Points {
  const places = Float32Array.from({ length: 2 * count }, () => 2 * Math.random() - 1);
  const isInside = (k: number): boolean => Math.hypot(places[2 * k] as number, places[2 * k + 1] as number) < RADIUS;
  return { places, labels: BigInt64Array.from({ length: count }, (_, k) => BigInt(isInside(k))) };
}

/** The probability of class 1 in the middle of each cell. */
async function believe({ Tensor }: typeof import("trainweb"), session: TrainingSession): Promise<number[]> {
  const middles = Array.from({ length: CELLS * CELLS }, (_, k) => [k % CELLS, Math.floor(k / CELLS)]
    .map((cell) => (2 * (cell + 0.5)) / CELLS - 1)).flat();
  const shares: number[] = [];
  for (let first = 0; first < CELLS * CELLS; first += BATCH) {
    const points = new Tensor("float32", middles.slice(2 * first, 2 * (first + BATCH)), [BATCH, 2]);
    const labels = new Tensor("int64", new BigInt64Array(BATCH), [BATCH]);
    const { logits } = await session.runEvalStep({ points, labels }, ["logits"]);
    const scores = logits?.data as Float32Array;
    for (let row = 0; row < BATCH; row++) {
      shares.push(1 / (1 + Math.exp((scores[2 * row] as number) - (scores[2 * row + 1] as number))));
    }
  }
  return shares;
}

function draw(shares: readonly number[], { places, labels }: Points): void {
  const canvas = element<HTMLCanvasElement>("hero-map");
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const { width } = canvas;
  const cell = width / CELLS;
  const css = (class_: 0 | 1, strength: number): string => `rgb(${COLOURS[class_].join(" ")} / ${strength})`;
  context.clearRect(0, 0, width, width);
  shares.forEach((share, k) => {
    context.fillStyle = css(share > 0.5 ? 1 : 0, 0.5 * Math.abs(2 * share - 1));
    context.fillRect((k % CELLS) * cell, Math.floor(k / CELLS) * cell, Math.ceil(cell), Math.ceil(cell));
  });
  labels.forEach((label, k) => {
    const [x, y] = [places[2 * k] as number, places[2 * k + 1] as number];
    context.fillStyle = css(Number(label) as 0 | 1, 1);
    context.beginPath();
    context.arc(((x + 1) * width) / 2, ((y + 1) * width) / 2, 4, 0, 2 * Math.PI);
    context.fill();
  });
}

async function learn(training: Points): Promise<string> {
  const [trainweb] = await Promise.all([import("trainweb"), import("trainweb/vis")]);
  const { Tensor, TrainingSession } = trainweb;
  const curves = element<TrainwebCurves>("hero-curves");
  const dataOf = ({ places, labels }: Points) =>
    ({ points: new Tensor("float32", places.slice(), [labels.length, 2]), labels: labels.slice() });
  const test = makePoints(TEST);
  const bundle = new URL("first.bundle", import.meta.url).href;
  const session = await TrainingSession.create({ bundle });
  await session.setLearningRate(LEARNING_RATE);
  curves.clear();
  let text = "";
  for (let epoch = 1; epoch <= EPOCHS; epoch++) {
    const { epochs: [event] } = await session.fit(dataOf(training), { epochs: 1, batchSize: BATCH, seed: epoch });
    const validation = await session.evaluate(dataOf(test), { batchSize: BATCH, metrics: ["accuracy"] });
    if (event !== undefined) {
      curves.add({ ...event, epoch, validation });
      curves.classList.add("drawn");
    }
    draw(await believe(trainweb, session), training);
    text = `Epoch ${epoch} of ${EPOCHS}: ${(100 * Number(validation["accuracy"])).toFixed(1)} % of new points are right.`;
    element("hero-status").textContent = text;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
  await session.release();
  return text;
}

async function start(training: Points): Promise<void> {
  const button = element<HTMLButtonElement>("hero-start");
  button.disabled = true;
  try {
    element("hero-status").textContent = "Loading 0.3 MB …";
    const text = await learn(training);
    element("hero-status").textContent = `Done. ${text}`;
  } catch (error) {
    element("hero-status").textContent = String(error);
  }
  button.textContent = "Train again";
  button.disabled = false;
}

// The points are there before the package.
const first = makePoints(TRAINING);
draw([], first);
element("hero-start").addEventListener("click", () => {
  const training = makePoints(TRAINING);
  draw([], training);
  void start(training);
});
// It starts by itself, except for readers who want no motion.
if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
  void start(first);
}
