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
    const losses = trainer.history.smoothed();
    const stride = Math.ceil((train.length - this.#shown) / POINTS);
    for (let at = this.#shown + stride; stride > 0 && at <= train.length; at += stride) {
      this.#element.add(progressOf(trainer, at, losses[at - 1] as number));
    }
    for (const record of test.slice(this.#tests).filter(({ step }) => step > 0)) {
      this.#element.add(epochOf(trainer, record, losses[record.step - 1] ?? record.loss));
    }
    [this.#shown, this.#tests] = [train.length, test.length];
  }
}

function progressOf({ stepsPerEpoch }: Trainer, step: number, loss: number): ProgressEvent {
  const epoch = Math.floor(step / stepsPerEpoch);
  return { type: "progress", epoch: epoch + 1, step: step % stepsPerEpoch, steps: stepsPerEpoch, loss };
}

function epochOf(trainer: Trainer, { step, loss, accuracy }: TestRecord, training: number): EpochEvent {
  const { stepsPerEpoch, settings, trainSeconds } = trainer;
  const epoch = step / stepsPerEpoch;
  const times = { learningRate: settings.learningRate, seconds: trainSeconds / epoch };
  return { type: "epoch", epoch, steps: stepsPerEpoch, loss: training, ...times, validation: { loss, accuracy } };
}
