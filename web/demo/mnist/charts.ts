/** The two curves: loss on a logarithmic scale, accuracy on one that is stretched towards 100 %. */

import uPlot from "uplot";

import type { History } from "./history.js";
import { colour, onThemeChange } from "./theme.js";

const HEIGHT = 220;
const LOGARITHMIC = 3;
/** Makes 100 % a finite place on the stretched scale, a third of a decade above 99.5 %. */
const HEADROOM = 0.0025;
const LOSS_TICKS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10] as const;
const MAX_LOSS_TICKS = 8;
const ACCURACY_TICKS = [0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 1];

/** Accuracy to height: equal distances are equal ratios of the error rate. */
function stretch(accuracy: number): number {
  return -Math.log10(1 - accuracy + HEADROOM);
}

export class Charts {
  readonly #lossBox: HTMLElement;
  readonly #accuracyBox: HTMLElement;
  #loss: uPlot | undefined;
  #accuracy: uPlot | undefined;
  #history: History;
  #total = 1;
  #pending = false;

  constructor(lossBox: HTMLElement, accuracyBox: HTMLElement, history: History) {
    this.#lossBox = lossBox;
    this.#accuracyBox = accuracyBox;
    this.#history = history;
    this.#build();
    onThemeChange(() => this.#build());
    new ResizeObserver(() => this.#resize()).observe(lossBox);
  }

  /** Show this history; the drawing happens with the next frame. */
  update(history: History, totalSteps: number): void {
    this.#history = history;
    this.#total = Math.max(1, totalSteps);
    if (!this.#pending) {
      this.#pending = true;
      requestAnimationFrame(() => {
        this.#pending = false;
        this.#draw();
      });
    }
  }

  #build(): void {
    this.#loss?.destroy();
    this.#accuracy?.destroy();
    this.#loss = new uPlot(this.#lossOptions(), [[], [], [], []], this.#lossBox);
    this.#accuracy = new uPlot(this.#accuracyOptions(), [[], [], []], this.#accuracyBox);
    this.#draw();
  }

  #resize(): void {
    for (const [plot, box] of [
      [this.#loss, this.#lossBox],
      [this.#accuracy, this.#accuracyBox],
    ] as const) {
      plot?.setSize({ width: box.clientWidth, height: HEIGHT });
    }
  }

  #draw(): void {
    const { train, test } = this.#history;
    const smooth = this.#history.smoothed();
    const steps = train.map(({ step }) => step);
    const testSteps = test.map(({ step }) => step);
    const join = (trainColumns: number[][], testColumn: number[]): uPlot.AlignedData =>
      uPlot.join([
        [steps, ...trainColumns],
        [testSteps, testColumn],
      ] as uPlot.AlignedData[]);
    const raw = train.map(({ loss }) => loss);
    this.#loss?.setData(join([raw, smooth.loss], test.map(({ loss }) => loss)));
    const testAccuracy = test.map(({ accuracy }) => stretch(accuracy));
    this.#accuracy?.setData(join([smooth.accuracy.map(stretch)], testAccuracy));
  }

  #common(box: HTMLElement): Omit<uPlot.Options, "series"> {
    return {
      width: box.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: () => [0, this.#total] } },
      padding: [10, 12, 0, 0],
    };
  }

  #axis(extra: uPlot.Axis): uPlot.Axis {
    return {
      stroke: colour("muted"),
      font: "12px system-ui, sans-serif",
      grid: { stroke: colour("line"), width: 1 },
      ticks: { show: false },
      ...extra,
    };
  }

  #testSeries(): uPlot.Series {
    const stroke = colour("test");
    return { stroke, width: 2, spanGaps: true, points: { show: true, size: 6, fill: stroke } };
  }

  #lossOptions(): uPlot.Options {
    const common = this.#common(this.#lossBox);
    return {
      ...common,
      scales: { ...common.scales, y: { distr: LOGARITHMIC, range: lossRange } },
      series: [
        {},
        // The raw losses jump about; the scale follows the smooth ones.
        { stroke: fade(colour("loss")), width: 1, auto: false, points: { show: false } },
        { stroke: colour("loss"), width: 2, spanGaps: true, points: { show: false } },
        this.#testSeries(),
      ],
      axes: [
        this.#axis({ size: 32 }),
        this.#axis({
          size: 48,
          splits: (_plot, _axis, low, high) => lossTicks(low, high),
          filter: (_plot, splits) => splits,
          values: (_plot, splits) => splits.map(String),
        }),
      ],
    };
  }

  #accuracyOptions(): uPlot.Options {
    const common = this.#common(this.#accuracyBox);
    return {
      ...common,
      scales: { ...common.scales, y: { range: () => [stretch(0), stretch(1)] } },
      series: [
        {},
        { stroke: colour("train"), width: 2, spanGaps: true, points: { show: false } },
        this.#testSeries(),
      ],
      axes: [
        this.#axis({ size: 32 }),
        this.#axis({
          size: 48,
          splits: () => ACCURACY_TICKS.map(stretch),
          values: () => ACCURACY_TICKS.map((tick) => `${Math.round(100 * tick)} %`),
        }),
      ],
    };
  }
}

/** The ticks around the data, so that the curve fills the height. */
function lossRange(_plot: uPlot, low: number | null, high: number | null): [number, number] {
  const below = LOSS_TICKS.filter((tick) => tick <= (low ?? 0.1)).at(-1);
  const above = LOSS_TICKS.find((tick) => tick >= (high ?? 2));
  return [below ?? LOSS_TICKS[0], above ?? 10];
}

/** Decades with their 2s and 5s; bare decades where that would crowd the axis. */
function lossTicks(low: number, high: number): number[] {
  const ticks = LOSS_TICKS.filter((tick) => tick >= low && tick <= high);
  const decades = ticks.filter((tick) => String(tick).includes("1"));
  return ticks.length > MAX_LOSS_TICKS ? decades : ticks;
}

function fade(hex: string): string {
  return `${hex}40`;
}
