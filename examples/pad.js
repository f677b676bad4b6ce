/** A place to draw a digit, read as the digits of data/digits.csv are: 8 x 8 numbers from 0 to 1. */

const SIDE = 8;
const PEN = 0.1;

/** Scale the ink to 8 x 8, its proportions kept; null where nothing is drawn. */
function read(canvas) {
  const { width } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, width);
  const inked = [...Array(width * width).keys()].filter((i) => data[4 * i + 3] > 100);
  if (inked.length === 0) return null;
  const [xs, ys] = [inked.map((i) => i % width), inked.map((i) => Math.floor(i / width))];
  const range = (values) => values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [width, 0]);
  const [[left, right], [top, bottom]] = [range(xs), range(ys)];
  const cell = (Math.max(right - left, bottom - top) + 1) / SIDE;
  const shift = (SIDE - (right - left + 1) / cell) / 2;
  const pixels = new Float32Array(SIDE * SIDE);
  inked.forEach((_, k) => {
    const column = Math.min(SIDE - 1, Math.floor((xs[k] - left) / cell + shift));
    const row = Math.min(SIDE - 1, Math.floor((ys[k] - top) / cell));
    pixels[SIDE * row + column] += 1 / cell ** 2;
  });
  return pixels.map((value) => Math.min(1, value));
}

/** Let a canvas be drawn on; calls back with the pixels after each stroke, and with null when it was cleared. */
export function drawable(canvas, clear, changed) {
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const move = ({ offsetX, offsetY, buttons }) => {
    if (buttons === 0) return;
    const scale = canvas.width / canvas.clientWidth;
    context.lineTo(offsetX * scale, offsetY * scale);
    context.stroke();
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    Object.assign(context, { lineWidth: PEN * canvas.width, lineCap: "round", lineJoin: "round" });
    context.strokeStyle = getComputedStyle(canvas).color;
    context.beginPath();
    move(event);
  });
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("pointerup", () => changed(read(canvas)));
  clear.addEventListener("click", () => {
    context.clearRect(0, 0, canvas.width, canvas.height);
    changed(null);
  });
}
