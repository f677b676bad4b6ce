/** The history of a run, step by step: the data of the curves. */

/** Weight of the past in the smoothed curve. */
const SMOOTHING = 0.9;

export interface TrainRecord {
  readonly step: number;
  readonly loss: number;
  /** Duration of the step. */
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
    return this.smoothed().at(-1);
  }

  /** Exponential moving averages of the loss over the training steps, bias-corrected. */
  smoothed(): number[] {
    let [loss, weight] = [0, 0];
    return this.train.map((record) => {
      loss = SMOOTHING * loss + (1 - SMOOTHING) * record.loss;
      weight = SMOOTHING * weight + (1 - SMOOTHING);
      return loss / weight;
    });
  }

  /** Compact text for a checkpoint property, so that the curves come back with the weights. */
  toText(): string {
    const steps = this.train.map(({ step, loss, seconds }) => [step, round(loss), round(seconds)]);
    const test = this.test.map(({ step, loss, accuracy }) => [step, round(loss), round(accuracy)]);
    return JSON.stringify({ steps, test });
  }

  /** The inverse of `toText`; any other text gives an empty history. */
  static fromText(text: string): History {
    const history = new History();
    try {
      const parsed = JSON.parse(text) as { steps: number[][]; test: number[][] };
      for (const [step = 0, loss = 0, seconds = 0] of parsed.steps) {
        history.train.push({ step, loss, seconds });
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
