/** Curves of a fit: the loss during training, and each epoch's validation results. */

import uPlot from "uplot";
import plotStyles from "uplot/dist/uPlot.min.css";

import type { EpochEvent, FitEvent, History, ProgressEvent } from "../page/fit-events.js";
import css from "./curves.css";
import { make, Panel, written } from "./panel.js";

const LOGARITHMIC = 3;
const LOSS = "loss";
/** Strokes of several metrics in one plot, as a canvas and as CSS name them; the colour is the same. */
const STROKES = [
  { dash: [], style: "solid" },
  { dash: [8, 4], style: "dashed" },
  { dash: [2, 3], style: "dotted" },
] as const;
const FONT = "12px system-ui, sans-serif";
const AXIS_WIDTH = 52;
const AXIS_HEIGHT = 30;

interface Curve {
  readonly name: string;
  readonly colour: "training" | "validation";
  readonly stroke: (typeof STROKES)[number];
  /** Places in epochs, and values. */
  readonly points: readonly (readonly [number, number])[];
  readonly isMarked: boolean;
}

interface Plot {
  readonly box: HTMLElement;
  readonly chart: uPlot;
}

/**
 * `<trainweb-curves>`: curves of a fit, live.
 *
 * Attributes: `log` draws the loss on a logarithmic scale; `metrics="accuracy f1"` names the metrics of the validation
 * data to draw (default: all metrics with one number).
 */
export class TrainwebCurves extends Panel {
  /** Attributes that it follows. */
  static readonly observedAttributes = ["log", "metrics"];

  readonly #figure = make("figure");
  #progress: [number, number][] = [];
  #epochs: EpochEvent[] = [];
  #plots: Plot[] = [];
  #sizes: ResizeObserver | null = null;

  constructor() {
    super(plotStyles + css);
    this.root.append(this.#figure);
  }

  /** Remove all curves. */
  clear(): void {
    this.#progress = [];
    this.#epochs = [];
    this.update();
  }

  /** Show a finished fit in place of the present curves. */
  show(history: Pick<History, "epochs">): void {
    this.#progress = [];
    this.#epochs = [...history.epochs];
    this.update();
  }

  override add(event: FitEvent): void {
    if (event.type === "epoch") {
      this.#epochs.push(event);
      this.#progress.push([event.epoch, event.loss]);
    } else {
      this.#addProgress(event);
    }
    this.update();
  }

  /** Called by the browser: it is in a page. */
  override connectedCallback(): void {
    super.connectedCallback();
    this.#sizes = new ResizeObserver(() => this.#resize());
    this.#sizes.observe(this);
  }

  /** Called by the browser: it is in no page any more. */
  override disconnectedCallback(): void {
    super.disconnectedCallback();
    this.#sizes?.disconnect();
  }

  /** A stream's first epoch has no known length: it is drawn when it is over. */
  #addProgress({ epoch, step, steps, loss }: ProgressEvent): void {
    const length = steps ?? this.#epochs.at(-1)?.steps;
    if (length !== undefined && step < length) {
      this.#progress.push([epoch - 1 + step / length, loss]);
    }
  }

  /** @internal */
  protected override render(): void {
    this.#plots.forEach(({ chart }) => chart.destroy());
    const groups = [this.#lossCurves(), this.#metricCurves()].filter((curves) => curves.length > 0);
    const boxes = groups.map(() => make("div", { className: "plot" }));
    const plots = make("div", { className: "plots" });
    groups.forEach((curves, k) => plots.append(make("div", {}, boxes[k] as HTMLElement, this.#legend(curves))));
    this.#figure.replaceChildren(plots, make("figcaption", { textContent: this.#summary() }));
    this.#plots = groups.map((curves, k) => {
      const box = boxes[k] as HTMLElement;
      const isLogarithmic = k === 0 && this.hasAttribute("log");
      return { box, chart: new uPlot(this.#options(curves, box, isLogarithmic), columnsOf(curves), box) };
    });
  }

  #lossCurves(): Curve[] {
    const training = this.#progress.length > 0 ? this.#progress : this.#epochs.map(({ epoch, loss }) => [epoch, loss] as const);
    const curves: Curve[] = [{ name: LOSS, colour: "training", stroke: STROKES[0], points: training, isMarked: false }];
    const validation = pointsOf(this.#epochs, LOSS);
    if (validation.length > 0) {
      curves.push({ name: "validation loss", colour: "validation", stroke: STROKES[0], points: validation, isMarked: true });
    }
    return curves;
  }

  #metricCurves(): Curve[] {
    return this.#metricNames().map((name, k) => ({
      name,
      colour: "validation",
      stroke: STROKES[k % STROKES.length] ?? STROKES[0],
      points: pointsOf(this.#epochs, name),
      isMarked: true,
    }));
  }

  #metricNames(): string[] {
    const found = Object.entries(this.#epochs.at(-1)?.validation ?? {})
      .filter(([name, value]) => name !== LOSS && typeof value === "number")
      .map(([name]) => name);
    const wanted = this.getAttribute("metrics")?.split(/[\s,]+/).filter(Boolean);
    return wanted === undefined ? found : wanted.filter((name) => found.includes(name));
  }

  #options(curves: readonly Curve[], box: HTMLElement, isLogarithmic: boolean): uPlot.Options {
    const end = Math.max(1, Math.ceil(this.#progress.at(-1)?.[0] ?? this.#epochs.length));
    const axis = {
      stroke: this.colour("muted"),
      font: FONT,
      grid: { stroke: this.colour("line"), width: 1 },
      ticks: { show: false },
    };
    return {
      width: box.clientWidth,
      height: box.clientHeight,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: [0, end] }, y: isLogarithmic ? { distr: LOGARITHMIC } : {} },
      series: [{}, ...curves.map((curve) => this.#series(curve))],
      axes: [
        { ...axis, size: AXIS_HEIGHT, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] },
        { ...axis, size: AXIS_WIDTH, values: (_plot, ticks) => ticks.map((tick) => (tick === null ? "" : written(tick))) },
      ],
      padding: [8, 8, 0, 0],
    };
  }

  #series({ colour, stroke: { dash }, isMarked }: Curve): uPlot.Series {
    const stroke = this.colour(colour);
    const points = isMarked ? { show: true, size: 6, fill: stroke } : { show: false };
    return { stroke, width: 2, spanGaps: true, points, ...(dash.length > 0 ? { dash: [...dash] } : {}) };
  }

  #legend(curves: readonly Curve[]): HTMLElement {
    const items = curves.map(({ name, colour, stroke, points }) => {
      const line = make("i");
      line.style.borderTop = `3px ${stroke.style} var(--own-${colour})`;
      const last = points.at(-1)?.[1];
      return make("li", {}, line, last === undefined ? name : `${name} ${written(last)}`);
    });
    return make("ul", { className: "legend" }, ...items);
  }

  #summary(): string {
    const last = this.#epochs.at(-1);
    if (last === undefined) {
      return this.#progress.length > 0 ? "epoch 1" : "no epoch yet";
    }
    return `${written(last.epoch)} ${last.epoch === 1 ? "epoch" : "epochs"}, the last in ${written(last.seconds)} s`;
  }

  #resize(): void {
    for (const { box, chart } of this.#plots) {
      if (box.clientWidth !== chart.width) {
        chart.setSize({ width: box.clientWidth, height: box.clientHeight });
      }
    }
  }
}

function pointsOf(epochs: readonly EpochEvent[], name: string): [number, number][] {
  return epochs.flatMap(({ epoch, validation }) => {
    const value = validation?.[name];
    return typeof value === "number" ? [[epoch, value] as [number, number]] : [];
  });
}

/** Columns over the places of all curves. */
function columnsOf(curves: readonly Curve[]): uPlot.AlignedData {
  return uPlot.join(
    curves.map(({ points }) => [points.map(([at]) => at), points.map(([, value]) => value)] as uPlot.AlignedData),
  );
}
