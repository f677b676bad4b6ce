/** Curves of a fit: the loss during training, and each epoch's validation results. */

import uPlot from "uplot";
import plotStyles from "uplot/dist/uPlot.min.css";

import type { EpochEvent, FitEvent, History, ProgressEvent } from "../page/fit/events.js";
import css from "./curves.css";
import { axisOf, AXIS_HEIGHT, FitPanel, LOGARITHMIC, make, written } from "./panel.js";

const LOSS = "loss";
/** The training loss is drawn as the mean of so many steps, or of an epoch where it has fewer. */
const SMOOTHED_STEPS = 20;
/** First digits of the values that a logarithmic axis names. */
const NAMED_DIGITS = [1, 2, 5];

interface Curve {
  readonly name: string;
  readonly colour: "training" | "validation";
  /** Places in epochs, and values. */
  readonly points: readonly (readonly [number, number])[];
  readonly isMarked: boolean;
}

/** The mean loss of the last steps, out of means since the start of an epoch, which events have. */
class RecentMean {
  #chunks: { steps: number; sum: number }[] = [];
  #epoch = 0;
  #step = 0;
  #sum = 0;

  /** `mean` is the mean of the first `step` steps of the epoch. */
  add(epoch: number, step: number, mean: number, window: number): number {
    if (epoch !== this.#epoch || step < this.#step) {
      [this.#epoch, this.#step, this.#sum] = [epoch, 0, 0];
    }
    if (step > this.#step) {
      this.#chunks.push({ steps: step - this.#step, sum: mean * step - this.#sum });
    }
    [this.#step, this.#sum] = [step, mean * step];
    let [steps, sum, first] = [0, 0, this.#chunks.length];
    while (steps < window && first > 0) {
      const chunk = this.#chunks[--first] as { steps: number; sum: number };
      [steps, sum] = [steps + chunk.steps, sum + chunk.sum];
    }
    this.#chunks = this.#chunks.slice(first);
    return sum / steps;
  }
}

/**
 * `<trainweb-curves>`: curves of a fit, live.
 *
 * Attributes: `log` draws the loss on a logarithmic scale; `metrics="accuracy f1"` names the metrics to draw
 * (default: all metrics with one number); `validation="test"` names the validation data in the legend.
 */
export class TrainwebCurves extends FitPanel {
  /** Attributes that it follows. */
  static readonly observedAttributes = ["log", "metrics", "validation"];

  #progress: [number, number][] = [];
  /** Of a stream's first epoch, which has no known length before it is over. */
  #unplaced: ProgressEvent[] = [];
  #recent = new RecentMean();
  #epochs: EpochEvent[] = [];

  constructor() {
    super(plotStyles + css);
  }

  /** Remove all curves. */
  override clear(): void {
    this.#progress = [];
    this.#unplaced = [];
    this.#recent = new RecentMean();
    this.#epochs = [];
    this.update();
  }

  /** Show a finished fit instead of the current curves. */
  show(history: Pick<History, "epochs">): void {
    this.#progress = [];
    this.#epochs = [...history.epochs];
    this.update();
  }

  override add(event: FitEvent): void {
    if (event.type === "epoch") {
      this.#unplaced.splice(0).forEach((progress) => this.#place(progress, event.steps));
      this.#epochs.push(event);
      this.#progress.push([event.epoch, this.#recentLoss(Math.ceil(event.epoch), event.steps, event.loss, event.steps)]);
    } else {
      this.#addProgress(event);
    }
    this.update();
  }

  #addProgress(event: ProgressEvent): void {
    const length = event.steps ?? this.#epochs.at(-1)?.steps;
    if (length === undefined) {
      this.#unplaced.push(event);
    } else {
      this.#place(event, length);
    }
  }

  #place({ epoch, step, loss }: ProgressEvent, length: number): void {
    if (step < length) {
      this.#progress.push([epoch - 1 + step / length, this.#recentLoss(epoch, step, loss, length)]);
    }
  }

  #recentLoss(epoch: number, step: number, mean: number, length: number): number {
    return this.#recent.add(epoch, step, mean, Math.min(SMOOTHED_STEPS, length));
  }

  /** @internal */
  protected override render(): void {
    const groups = [this.#lossCurves(), ...this.#metricCurves()].filter((curves) => curves.length > 0);
    if (groups.length === 0) {
      this.figure.replaceChildren(make("p", { className: "plot empty", textContent: "The curves appear here with the first steps." }));
      return;
    }
    const boxes = groups.map(() => make("div", { className: "plot" }));
    const plots = make("div", { className: "plots" });
    groups.forEach((curves, k) => plots.append(make("div", {}, boxes[k] as HTMLElement, this.#legend(curves))));
    this.figure.replaceChildren(plots, make("figcaption", { textContent: this.#summary() }));
    groups.forEach((curves, k) => {
      const box = boxes[k] as HTMLElement;
      const isLogarithmic = k === 0 && this.hasAttribute("log");
      this.keep(new uPlot(this.#options(curves, box, isLogarithmic), columnsOf(curves), box));
    });
  }

  #lossCurves(): Curve[] {
    const training = this.#progress.length > 0 ? this.#progress : this.#epochs.map(({ epoch, loss }) => [epoch, loss] as const);
    const curves: Curve[] = [
      { name: "training loss", colour: "training", points: training, isMarked: false },
      this.#epochCurve("validation", LOSS),
    ];
    return curves.filter(({ points }) => points.length > 0);
  }

  /** A plot for each metric: their scales differ. It has training data where `trainMetrics` asked for them. */
  #metricCurves(): Curve[][] {
    return this.#metricNames().map((name) =>
      (["training", "validation"] as const).map((data) => this.#epochCurve(data, name)).filter(({ points }) => points.length > 0),
    );
  }

  /** Values of the ends of epochs. */
  #epochCurve(data: "training" | "validation", name: string): Curve {
    const word = data === "validation" ? (this.getAttribute("validation") ?? data) : data;
    return { name: `${word} ${name}`, colour: data, points: pointsOf(this.#epochs, data, name), isMarked: true };
  }

  #metricNames(): string[] {
    const last = this.#epochs.at(-1);
    const available = Object.entries({ ...last?.terms, ...last?.training, ...last?.validation })
      .filter(([name, value]) => name !== LOSS && typeof value === "number")
      .map(([name]) => name);
    const wanted = this.getAttribute("metrics")?.split(/[\s,]+/).filter(Boolean);
    return wanted === undefined ? available : wanted.filter((name) => available.includes(name));
  }

  #options(curves: readonly Curve[], box: HTMLElement, isLogarithmic: boolean): uPlot.Options {
    const end = Math.max(1, Math.ceil(this.#progress.at(-1)?.[0] ?? this.#epochs.length));
    const axis = axisOf((name) => this.colour(name));
    const [{ name }] = curves as [Curve];
    return {
      width: box.clientWidth,
      height: box.clientHeight,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: [0, end] }, y: isLogarithmic ? { distr: LOGARITHMIC } : {} },
      series: [{}, ...curves.map((curve) => this.#series(curve))],
      axes: [
        { ...axis, size: AXIS_HEIGHT, label: "epoch", incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] },
        {
          ...axis,
          label: curves.length > 1 ? name.replace(/^training /, "") : name,
          values: (_plot, ticks) => ticks.map((tick) => (tick === null ? "" : written(tick))),
          ...(isLogarithmic ? { filter: namedOnly, grid: { ...axis.grid, filter: namedOnly } } : {}),
        },
      ],
      padding: [8, 8, 0, 0],
    };
  }

  #series({ colour, isMarked }: Curve): uPlot.Series {
    const stroke = this.colour(colour);
    const points = isMarked ? { show: true, size: 6, fill: stroke } : { show: false };
    return { stroke, width: 2, spanGaps: true, points };
  }

  #legend(curves: readonly Curve[]): HTMLElement {
    const items = curves.map(({ name, colour, points }) => {
      const line = make("i");
      line.style.borderTop = `3px solid var(--own-${colour})`;
      const last = points.at(-1)?.[1];
      return make("li", {}, line, last === undefined ? name : `${name} ${written(last)}`);
    });
    return make("ul", { className: "legend" }, ...items);
  }

  #summary(): string {
    const last = this.#epochs.at(-1);
    if (last === undefined) {
      return "epoch 1";
    }
    const epochs = `${written(last.epoch)} ${last.epoch === 1 ? "epoch" : "epochs"}`;
    return `${epochs}, the last in ${duration(last.seconds)}; the training loss is the mean of the last steps`;
  }
}

function duration(seconds: number): string {
  return seconds < 1 ? `${written(Number((1000 * seconds).toPrecision(2)))} ms` : `${seconds.toFixed(1)} s`;
}

/** The values that a logarithmic axis names and draws a line at. */
function namedOnly(_plot: uPlot, values: readonly number[]): (number | null)[] {
  return values.map((value) => (NAMED_DIGITS.includes(Number(value.toExponential()[0])) ? value : null));
}

function pointsOf(epochs: readonly EpochEvent[], data: "training" | "validation", name: string): [number, number][] {
  return epochs.flatMap((event) => {
    const value = event[data]?.[name] ?? (data === "training" ? event.terms?.[name] : undefined);
    return typeof value === "number" ? [[event.epoch, value] as [number, number]] : [];
  });
}

/** Columns over the places of all curves. */
function columnsOf(curves: readonly Curve[]): uPlot.AlignedData {
  return uPlot.join(
    curves.map(({ points }) => [points.map(([at]) => at), points.map(([, value]) => value)] as uPlot.AlignedData),
  );
}
