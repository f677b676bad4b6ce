/** What happened so far, step by step: the data of the curves. */

/** Weight of the past in the smoothed curves. */
const SMOOTHING = 0.9;

export interface TrainRecord {
  readonly step: number;
  readonly loss: number;
  /** Share of the batch that was classified correctly, before the update. */
  readonly accuracy: number;
  /** What the step took. */
  readonly seconds: number;
}

export interface TestRecord {
  readonly step: number;
  readonly loss: number;
  readonly accuracy: number;
}

export class History {
  readonly train: TrainRecord[] = [];
  readonly test: TestRecord[] = [];

  get lastTest(): TestRecord | undefined {
    return this.test.at(-1);
  }

  /** The smoothed training loss of the moment. */
  get loss(): number | undefined {
    return this.smoothed().loss.at(-1);
  }

  /** Exponential moving averages of loss and accuracy over the training steps, bias-corrected. */
  smoothed(): { loss: number[]; accuracy: number[] } {
    const result: { loss: number[]; accuracy: number[] } = { loss: [], accuracy: [] };
    let [loss, accuracy, weight] = [0, 0, 0];
    for (const record of this.train) {
      loss = SMOOTHING * loss + (1 - SMOOTHING) * record.loss;
      accuracy = SMOOTHING * accuracy + (1 - SMOOTHING) * record.accuracy;
      weight = SMOOTHING * weight + (1 - SMOOTHING);
      result.loss.push(loss / weight);
      result.accuracy.push(accuracy / weight);
    }
    return result;
  }

  /** Compact text for a checkpoint property, so that the curves come back with the weights. */
  toText(): string {
    const train = this.train.map(({ step, loss, accuracy, seconds }) => [
      step,
      ...[loss, accuracy, seconds].map(round),
    ]);
    const test = this.test.map(({ step, loss, accuracy }) => [step, round(loss), round(accuracy)]);
    return JSON.stringify({ train, test });
  }

  /** The inverse of `toText`; text that is no history gives an empty one. */
  static fromText(text: string): History {
    const history = new History();
    try {
      const parsed = JSON.parse(text) as { train: number[][]; test: number[][] };
      for (const [step = 0, loss = 0, accuracy = 0, seconds = 0] of parsed.train) {
        history.train.push({ step, loss, accuracy, seconds });
      }
      for (const [step = 0, loss = 0, accuracy = 0] of parsed.test) {
        history.test.push({ step, loss, accuracy });
      }
      return history;
    } catch {
      return new History();
    }
  }
}

function round(value: number): number {
  return Number(value.toPrecision(5));
}
