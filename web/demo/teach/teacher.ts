/** The network that is taught: pictures of classes in, probabilities out. */

import { readImage, Tensor, TrainingSession, type ImageSource, type LoadProgress } from "trainweb";

/** What scripts/make_teach_model.py makes. */
const SIDE = 96;
export const MOST_CLASSES = 5;
const OUTPUT = "logits";
/** The form of the pictures that its weights were trained on. */
const PIXELS = { width: SIDE, height: SIDE, resize: "cover", mean: 127 / 255, std: 128 / 255 } as const;
const PICTURE_SIZE = 3 * SIDE * SIDE;

const BATCH = 16;
const STEPS = 50;
const LEARNING_RATE = 0.005;
/** One in so many pictures of a class is held back, for the accuracy on unseen pictures. */
const HELD_BACK = 5;

interface Lesson {
  readonly picture: Float32Array;
  readonly label: number;
}

/** The result of training. */
export interface Outcome {
  readonly steps: number;
  readonly seconds: number;
  /** Of pictures that were kept back; null: there were none. */
  readonly accuracy: number | null;
}

export class Teacher {
  readonly #session: TrainingSession;
  readonly #lessons: Lesson[] = [];
  readonly #tests: Lesson[] = [];
  readonly #counts = new Array<number>(MOST_CLASSES).fill(0);

  private constructor(session: TrainingSession) {
    this.#session = session;
  }

  static async load(model: string, onProgress: (progress: LoadProgress) => void): Promise<Teacher> {
    const session = await TrainingSession.createFromModel(
      model,
      {
        loss: "CrossEntropyLoss",
        optimizer: { type: "AdamW", weightDecay: 0 },
        requiresGrad: ["head.weight", "head.bias"],
        additionalOutputNames: [OUTPUT],
      },
      { onProgress },
    );
    await session.setLearningRate(LEARNING_RATE);
    const teacher = new Teacher(session);
    // Prepared while the user takes the first pictures.
    void session.prepare({ image: [BATCH, 3, SIDE, SIDE], labels: [BATCH] }).catch(() => {});
    return teacher;
  }

  /** Pictures of each class so far. */
  get counts(): readonly number[] {
    return this.#counts;
  }

  async add(source: ImageSource, label: number): Promise<void> {
    const picture = await pictureOf(source);
    const count = ((this.#counts[label] as number) += 1);
    (count % HELD_BACK === 0 ? this.#tests : this.#lessons).push({ picture, label });
  }

  /** Train the last layer from the start, on as many pictures of one class as of another. */
  async train(onStep: (share: number, loss: number) => void): Promise<Outcome> {
    const session = this.#session;
    const started = performance.now();
    const loss = session.trainingOutputNames[0] as string;
    const fresh = new Float32Array(await session.getParametersSize());
    await session.loadParametersBuffer(fresh);
    const used = [...this.#counts.keys()].filter((label) => this.#lessons.some((lesson) => lesson.label === label));
    for (let step = 1; step <= STEPS; step++) {
      const batch = Array.from({ length: BATCH }, (_, k) => this.#anyOf(used[k % used.length] as number));
      const results = await session.runTrainStep(feedsOf(batch), [loss]);
      await session.runOptimizerStep();
      await session.lazyResetGrad();
      onStep(step / STEPS, Number(results[loss]?.data[0]));
    }
    const seconds = (performance.now() - started) / 1000;
    return { steps: STEPS, seconds, accuracy: await this.#accuracy() };
  }

  #anyOf(label: number): Lesson {
    const all = this.#lessons.filter((lesson) => lesson.label === label);
    return all[Math.floor(Math.random() * all.length)] as Lesson;
  }

  async #accuracy(): Promise<number | null> {
    let right = 0;
    for (const { picture, label } of this.#tests) {
      const found = await this.#probabilities(picture);
      right += Number(found.indexOf(Math.max(...found)) === label);
    }
    return this.#tests.length === 0 ? null : right / this.#tests.length;
  }

  /** Probabilities of the classes that have pictures; 0 of others. */
  async predict(source: ImageSource): Promise<readonly number[]> {
    return this.#probabilities(await pictureOf(source));
  }

  async #probabilities(picture: Float32Array): Promise<readonly number[]> {
    const results = await this.#session.runEvalStep(feedsOf([{ picture, label: 0 }]), [OUTPUT]);
    const logits = [...(results[OUTPUT]?.data as Float32Array)];
    const exponentials = logits.map((logit, k) => (this.#counts[k] === 0 ? 0 : Math.exp(logit - Math.max(...logits))));
    const sum = exponentials.reduce((a, b) => a + b, 0);
    return exponentials.map((value) => value / sum);
  }

  /** The whole network as an ONNX file. */
  export(): Promise<Blob> {
    return this.#session.exportModelForInferencing([OUTPUT], { as: "blob" });
  }
}

async function pictureOf(source: ImageSource): Promise<Float32Array> {
  return (await readImage(source, PIXELS)).data as Float32Array;
}

function feedsOf(lessons: readonly Lesson[]): Record<string, Tensor> {
  const pictures = new Float32Array(lessons.length * PICTURE_SIZE);
  lessons.forEach(({ picture }, k) => pictures.set(picture, k * PICTURE_SIZE));
  const labels = BigInt64Array.from(lessons, ({ label }) => BigInt(label));
  return {
    image: new Tensor("float32", pictures, [lessons.length, 3, SIDE, SIDE]),
    labels: new Tensor("int64", labels, [lessons.length]),
  };
}
