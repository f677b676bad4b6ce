/** Colours of the page, read from its CSS variables, for drawings on canvases. */

export type ColourName = "ink";

/** The value of a CSS variable in the theme of the moment. */
export function colour(name: ColourName): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Call `redraw` whenever the system switches between light and dark. */
export function onThemeChange(redraw: () => void): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

/** Paint a digit on a canvas of the digit's size, ink in the text colour, background left clear. */
export function paintDigit(canvas: HTMLCanvasElement, image: Uint8Array, side: number): void {
  canvas.width = side;
  canvas.height = side;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) {
    return;
  }
  context.fillStyle = colour("ink");
  context.fillRect(0, 0, side, side);
  const picture = context.getImageData(0, 0, side, side);
  image.forEach((value, i) => {
    picture.data[4 * i + 3] = value;
  });
  context.putImageData(picture, 0, 0);
}
