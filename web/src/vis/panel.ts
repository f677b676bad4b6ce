/** The base of all elements: a shadow root with styles, colours of the theme, and events of a fit. */

import type uPlot from "uplot";

import type { FitEvent } from "../page/fit/events.js";
import styles from "./panel.css";

/** Node has no elements; there the module can be imported, as servers that render pages do, but no element made. */
const Base = (globalThis as { HTMLElement?: typeof HTMLElement }).HTMLElement ?? (class {} as unknown as typeof HTMLElement);

export type ColourName = "ink" | "muted" | "line" | "training" | "validation" | "right" | "wrong";

/** The number by which uPlot knows logarithmic scales. */
export const LOGARITHMIC = 3;
export const AXIS_HEIGHT = 26;
const AXIS_WIDTH = 46;
const FONT = "12px system-ui, sans-serif";
const LABEL_SIZE = 20;

/** An element that draws. */
export abstract class Panel extends Base {
  /** @internal */
  protected readonly figure = make("figure");
  readonly #charts: uPlot[] = [];
  readonly #root: ShadowRoot;
  #darkness: MediaQueryList | null = null;
  #sizes: ResizeObserver | null = null;
  readonly #redraw = (): void => {
    this.#charts.splice(0).forEach((chart) => chart.destroy());
    this.render();
  };
  #frame: number | null = null;

  /** @internal */
  protected constructor(css: string) {
    super();
    this.#root = this.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(styles + css);
    this.#root.adoptedStyleSheets = [sheet];
    this.#root.append(this.figure);
  }

  /** Called by the browser: it is in a page. */
  connectedCallback(): void {
    this.#darkness = matchMedia("(prefers-color-scheme: dark)");
    this.#darkness.addEventListener("change", this.#redraw);
    this.#redraw();
    this.#sizes = new ResizeObserver(() => this.#resize());
    this.#sizes.observe(this);
  }

  /** Called by the browser when the element leaves the page. */
  disconnectedCallback(): void {
    this.#darkness?.removeEventListener("change", this.#redraw);
    this.#sizes?.disconnect();
  }

  /** Called by the browser: an attribute has another value. */
  attributeChangedCallback(): void {
    this.update();
  }

  /** @internal Draw the changes with the next frame. */
  protected update(): void {
    if (this.isConnected) {
      this.#frame ??= requestAnimationFrame(() => {
        this.#frame = null;
        this.#redraw();
      });
    }
  }

  /** @internal Draw all of it; an element without it is drawn once. */
  protected render(): void {}

  /** @internal Keep a chart up to date with the size of its box, until the next drawing. */
  protected keep(chart: uPlot): void {
    this.#charts.push(chart);
  }

  /** Fit the charts into their boxes, whose size in the page may have changed. */
  #resize(): void {
    for (const chart of this.#charts) {
      const { clientWidth: width, clientHeight: height } = chart.root.parentElement as HTMLElement;
      if (width !== chart.width) {
        chart.setSize({ width, height });
      }
    }
  }

  /** @internal A colour as a canvas takes it, of the theme of the moment. */
  protected colour(name: ColourName): string {
    const probe = document.createElement("span");
    probe.style.color = `var(--own-${name})`;
    this.#root.append(probe);
    const { color } = getComputedStyle(probe);
    probe.remove();
    return color;
  }
}

/** An element that can be given the events of a fit. */
export abstract class FitPanel extends Panel {
  /** A callback of `fit` that shows its events here: `session.fit(data, { callbacks: [panel.listener] })`. */
  readonly listener = (event: FitEvent): void => this.add(event);
  #watched: AsyncIterable<FitEvent> | null = null;

  /** Show an event of a fit. */
  abstract add(event: FitEvent): void;

  /** Remove the curves of another fit; elements that show only the latest values keep them. */
  clear(): void {}

  /**
   * Show the events of a fit as they come, in place of those of the fit before.
   *
   * @param fit - the result of `session.fit`, or another async iterable of such events
   * @returns the same fit, to be awaited: a failure is thrown there, not here
   * @throws TypeError for anything else
   */
  watch<T extends AsyncIterable<FitEvent>>(fit: T): T {
    if (typeof (fit as Partial<T> | null)?.[Symbol.asyncIterator] !== "function") {
      throw new TypeError("'fit' must be what session.fit returned, or another async iterable of its events.");
    }
    this.clear();
    this.#watched = fit;
    this.#follow(fit).catch(() => {});
    return fit;
  }

  async #follow(fit: AsyncIterable<FitEvent>): Promise<void> {
    for await (const event of fit) {
      // To leave the loop would stop the fit before.
      if (this.#watched === fit) {
        this.add(event);
      }
    }
  }
}

/** Settings that all axes share. */
export function axisOf(colour: (name: ColourName) => string): uPlot.Axis & { grid: uPlot.Axis.Grid } {
  return {
    stroke: colour("muted"),
    font: FONT,
    grid: { stroke: colour("line"), width: 1 },
    ticks: { show: false },
    labelSize: LABEL_SIZE,
    labelFont: FONT,
    size: AXIS_WIDTH,
  };
}

/** An HTML element with properties and children. */
export function make<K extends keyof HTMLElementTagNameMap>(
  name: K,
  properties: Partial<HTMLElementTagNameMap[K]> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

/** A number as people read it: four digits that count. */
export function written(value: number): string {
  return Number.isFinite(value) ? String(Number(value.toPrecision(4))) : String(value);
}

/** The lowest and the highest value; infinite where there is none. */
export function extent(values: Float32Array | Float64Array): [number, number] {
  let [lowest, highest] = [Infinity, -Infinity];
  for (const value of values) {
    lowest = Math.min(lowest, value);
    highest = Math.max(highest, value);
  }
  return [lowest, highest];
}
