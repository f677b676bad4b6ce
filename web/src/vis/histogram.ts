/** Histograms of values: a weight, a gradient, or any others. */

import type { FitEvent } from "../page/fit/events.js";
import type { TrainingSession } from "../page/session.js";
import css from "./histogram.css";
import { extent, FitPanel, make, written } from "./panel.js";

const BINS = 40;
const MOST_BINS = 1000;
const SVG = "http://www.w3.org/2000/svg";

/** Counts of values in bins of equal width. */
export interface Histogram {
  /** One a bin, from the lowest value to the highest. */
  readonly counts: readonly number[];
  /** NaN where no value is finite. */
  readonly lowest: number;
  /** The largest value. */
  readonly highest: number;
  /** Of all values. */
  readonly mean: number;
  /** Of all values. */
  readonly standardDeviation: number;
  /** Number of NaN and infinite values, which are in no bin. */
  readonly notFinite: number;
}

/**
 * Counts of finite values in bins of equal width between the lowest and the highest.
 *
 * @param values - any numbers
 * @param bins - how many, 1 to 1000; default 40
 * @throws RangeError when there cannot be so many bins
 */
export function histogramOf(values: ArrayLike<number>, bins: number = BINS): Histogram {
  if (!Number.isInteger(bins) || bins < 1 || bins > MOST_BINS) {
    throw new RangeError(`'bins' must be an integer from 1 to ${MOST_BINS}, got ${bins}.`);
  }
  const finite = Float64Array.from(values).filter(Number.isFinite);
  const [lowest, highest] = extent(finite);
  const mean = finite.reduce((sum, value) => sum + value, 0) / finite.length;
  let squares = 0;
  const counts = new Array<number>(bins).fill(0);
  // All the same: one bin in the middle of nothing.
  const scale = highest > lowest ? bins / (highest - lowest) : 0;
  for (const value of finite) {
    const bin = Math.min(bins - 1, Math.floor((value - lowest) * scale));
    counts[bin] = (counts[bin] as number) + 1;
    squares += (value - mean) ** 2;
  }
  const isEmpty = finite.length === 0;
  return {
    counts,
    lowest: isEmpty ? NaN : lowest,
    highest: isEmpty ? NaN : highest,
    mean,
    standardDeviation: Math.sqrt(squares / finite.length),
    notFinite: values.length - finite.length,
  };
}

/**
 * `<trainweb-histogram>`: the distribution of values.
 *
 * Attributes: `bins` (default 40), `label` (a name for the values).
 */
export class TrainwebHistogram extends FitPanel {
  /** Attributes that it follows. */
  static readonly observedAttributes = ["bins", "label"];

  #values: ArrayLike<number> = [];
  #source: (() => Promise<void>) | null = null;

  constructor() {
    super(css);
  }

  /** The shown values. */
  get values(): ArrayLike<number> {
    return this.#values;
  }

  /** Any numbers: an array or a typed array. */
  set values(values: ArrayLike<number>) {
    this.#values = values;
    this.update();
  }

  /**
   * Show a parameter, now and after each epoch of a fit that is watched.
   *
   * @param session - the session that has the parameter
   * @param name - the parameter's name
   * @param what - "weights" (the default), or "gradients" accumulated since the last reset.
   * @throws CheckpointError: there is no such parameter, or it is frozen and has no gradient
   */
  async show(session: TrainingSession, name: string, what: "weights" | "gradients" = "weights"): Promise<void> {
    if (what !== "weights" && what !== "gradients") {
      throw new TypeError(`'what' must be "weights" or "gradients", got ${String(what)}.`);
    }
    const source = async (): Promise<void> => {
      const { data } = await (what === "weights" ? session.getParameter(name) : session.getGradient(name));
      if (this.#source === source) {
        this.values = data as Float32Array;
      }
    };
    this.#source = source;
    if (!this.hasAttribute("label")) {
      this.setAttribute("label", what === "weights" ? name : `gradient of ${name}`);
    }
    await source();
  }

  override add(event: FitEvent): void {
    if (event.type === "epoch") {
      // A session that was released meanwhile has no values to show.
      this.#source?.().catch(() => {
        this.#source = null;
      });
    }
  }

  /** @internal */
  protected override render(): void {
    const label = this.getAttribute("label") ?? "values";
    const histogram = histogramOf(this.#values, Number(this.getAttribute("bins") ?? BINS));
    const text =
      `${label}: ${this.#values.length} values, mean ${written(histogram.mean)}, ` +
      `standard deviation ${written(histogram.standardDeviation)}` +
      (histogram.notFinite > 0 ? `, ${histogram.notFinite} NaN or infinite` : "");
    const ends = make("div", { className: "ends" }, make("span", { textContent: written(histogram.lowest) }));
    ends.append(make("span", { textContent: written(histogram.highest) }));
    this.figure.replaceChildren(drawing(histogram.counts, text), ends, make("figcaption", { textContent: text }));
  }
}

function drawing(counts: readonly number[], label: string): SVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${counts.length} 1`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `histogram of ${label}`);
  const most = Math.max(1, ...counts);
  counts.forEach((count, k) => {
    const bar = document.createElementNS(SVG, "rect");
    const height = count / most;
    for (const [name, value] of Object.entries({ x: k + 0.05, y: 1 - height, width: 0.9, height })) {
      bar.setAttribute(name, String(value));
    }
    svg.append(bar);
  });
  return svg;
}
