/** Losses by learning rate, as `findLearningRate` found them. */

import uPlot from "uplot";
import plotStyles from "uplot/dist/uPlot.min.css";

import type { LearningRates } from "../page/fit/find-rate.js";
import css from "./curves.css";
import { axisOf, AXIS_HEIGHT, LOGARITHMIC, make, Panel, written } from "./panel.js";

const NEARLY = 1e-6;
const DASHES = [6, 4];
const MARK_WIDTH = 2;

/** `<trainweb-rates>`: the losses of `findLearningRate` by learning rate, with a line at the suggestion. */
export class TrainwebRates extends Panel {
  #found: Pick<LearningRates, "rates" | "losses" | "suggestion"> | null = null;

  constructor() {
    super(plotStyles + css);
  }

  /**
   * Show the result of `session.findLearningRate`.
   *
   * @param result - `rates`, their `losses`, and the `suggestion`
   * @throws TypeError for anything else
   */
  show(result: Pick<LearningRates, "rates" | "losses" | "suggestion">): void {
    const { rates, losses } = (result ?? {}) as Partial<LearningRates>;
    if (!Array.isArray(rates) || !Array.isArray(losses) || rates.length !== losses.length) {
      throw new TypeError("'found' must be what session.findLearningRate gave: { rates, losses, suggestion }.");
    }
    this.#found = result;
    this.update();
  }

  /** @internal */
  protected override render(): void {
    if (this.#found === null || this.#found.rates.length === 0) {
      this.figure.replaceChildren(make("p", { className: "plot empty", textContent: "The losses by learning rate appear here." }));
      return;
    }
    const { rates, losses, suggestion } = this.#found;
    const box = make("div", { className: "plot" });
    const words = suggestion === null ? "no suggestion: the loss falls at no rate" : `suggested learning rate ${shortly(suggestion)}`;
    this.figure.replaceChildren(box, make("figcaption", { textContent: words }));
    this.keep(new uPlot(this.#options(box, suggestion), [[...rates], [...losses]], box));
  }

  #options(box: HTMLElement, suggestion: number | null): uPlot.Options {
    const axis = axisOf((name) => this.colour(name));
    const values = (_plot: uPlot, ticks: readonly (number | null)[]): string[] =>
      ticks.map((tick) => (tick === null ? "" : shortly(tick)));
    const mark = this.colour("validation");
    return {
      width: box.clientWidth,
      height: box.clientHeight,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, distr: LOGARITHMIC } },
      series: [{}, { stroke: this.colour("training"), width: 2, points: { show: false } }],
      axes: [
        { ...axis, size: AXIS_HEIGHT, label: "learning rate", values, filter: onlyPowers, grid: { ...axis.grid, filter: onlyPowers } },
        { ...axis, label: "loss", values: (_plot, ticks) => ticks.map(written) },
      ],
      padding: [8, 8, 0, 0],
      hooks: suggestion === null ? {} : { draw: [(plot) => drawMark(plot, suggestion, mark)] },
    };
  }
}

function drawMark({ ctx, bbox, valToPos }: uPlot, rate: number, colour: string): void {
  const x = Math.round(valToPos(rate, "x", true));
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.lineWidth = MARK_WIDTH;
  ctx.setLineDash(DASHES);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

/** The powers of ten. */
function onlyPowers(_plot: uPlot, rates: readonly number[]): (number | null)[] {
  return rates.map((rate) => {
    const power = Math.log10(rate);
    return Math.abs(power - Math.round(power)) < NEARLY ? rate : null;
  });
}

/** Two digits of a rate. */
function shortly(rate: number): string {
  const digits = Number(rate.toPrecision(2));
  return digits < 1e-3 ? digits.toExponential() : String(digits);
}
