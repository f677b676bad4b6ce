/** The run as events of a fit for `<trainweb-curves>`: half epochs are fits of their own, and a run may come from a file. */

import type { EpochEvent, ProgressEvent } from "trainweb";
import type { TrainwebCurves } from "trainweb/vis";

import type { TestRecord } from "./history.js";
import type { Trainer } from "./trainer.js";

/** Points of a curve that comes from a file, at most. */
const POINTS = 300;

export class Curves {
  readonly #element: TrainwebCurves;
  #shown = 0;
  #tests = 0;

  constructor(element: TrainwebCurves) {
    this.#element = element;
  }

  /** Add the steps since the last update; redraw all of them for another run. */
  update(trainer: Trainer): void {
    const { train, test } = trainer.history;
    if (train.length < this.#shown || test.length < this.#tests) {
      this.#element.clear();
      [this.#shown, this.#tests] = [0, 0];
    }
    const means = meansOf(trainer);
    const stride = Math.max(1, Math.ceil((train.length - this.#shown) / POINTS));
    const events: [number, EpochEvent | ProgressEvent][] = [];
    for (let at = this.#shown + stride; at <= train.length; at += stride) {
      events.push([at, progressOf(trainer, at, means[at - 1] as number)]);
    }
    for (const record of test.slice(this.#tests).filter(({ step }) => step > 0)) {
      events.push([record.step, epochOf(trainer, record, means[record.step - 1] ?? record.loss)]);
    }
    events.sort(([a], [b]) => a - b).forEach(([, event]) => this.#element.add(event));
    [this.#shown, this.#tests] = [train.length, test.length];
  }
}

/** Mean losses since the start of the epoch of each step, as the events of a fit have them. */
function meansOf({ history, stepsPerEpoch }: Trainer): number[] {
  let sum = 0;
  return history.train.map(({ loss }, k) => {
    const step = k % stepsPerEpoch;
    sum = step === 0 ? loss : sum + loss;
    return sum / (step + 1);
  });
}

/** Epochs, and steps within the last of them, from 1 on. */
function placeOf(stepsPerEpoch: number, step: number): { epoch: number; step: number } {
  const epoch = Math.ceil(step / stepsPerEpoch);
  return { epoch, step: step - (epoch - 1) * stepsPerEpoch };
}

function progressOf({ stepsPerEpoch }: Trainer, step: number, loss: number): ProgressEvent {
  return { type: "progress", ...placeOf(stepsPerEpoch, step), steps: stepsPerEpoch, loss };
}

function epochOf(trainer: Trainer, { step, loss, accuracy }: TestRecord, training: number): EpochEvent {
  const { stepsPerEpoch, settings, trainSeconds } = trainer;
  const epoch = step / stepsPerEpoch;
  const times = { learningRate: settings.learningRate, seconds: trainSeconds / epoch };
  const steps = placeOf(stepsPerEpoch, step).step;
  return { type: "epoch", epoch, steps, loss: training, ...times, validation: { loss, accuracy }, training: null, terms: {} };
}
