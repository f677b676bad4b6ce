/** The network that is taught: pictures of classes in, probabilities out. */

import { readImage, Tensor, TrainingSession, type ImageSource, type SessionDevice, type SessionOptions } from "trainweb";

/** What scripts/make_teach_model.py makes. */
const SIDE = 96;
const FIRST_CLASSES = 2;
const OUTPUT = "logits";
/** The form of the pictures that its weights were trained on. */
const PIXELS = { width: SIDE, height: SIDE, resize: "cover", mean: 127 / 255, std: 128 / 255 } as const;
const BYTE = 255;
const PICTURE_SIZE = 3 * SIDE * SIDE;

const BATCH = 16;
const STEPS = 50;
const LEARNING_RATE = 0.005;
/** One in so many pictures of a class is held back, for the accuracy on unseen pictures. */
const HELD_BACK = 5;

/** A picture of a class. */
export interface Lesson {
  /** float32 [3, 96, 96], as the model takes it. */
  readonly picture: Float32Array;
  /** Its class; deleting a class before it moves it up. */
  label: number;
}

/** The result of training. */
export interface Outcome {
  readonly steps: number;
  readonly seconds: number;
  readonly device: SessionDevice;
  /** Pictures that were kept back. */
  readonly tested: number;
  /** Those of them that it gets right. */
  readonly right: number;
}

/** The network with a new last layer, which alone is trained. */
function createSession(model: string, classes: number, options: SessionOptions): Promise<TrainingSession> {
  const config = {
    loss: "CrossEntropyLoss",
    optimizer: { type: "AdamW", weightDecay: 0 },
    learningRate: LEARNING_RATE,
    head: { classes },
    frozenParams: "all but head",
  } as const;
  return TrainingSession.createFromModel(model, config, options);
}

export class Teacher {
  readonly #model: string;
  #session: TrainingSession;
  /** Classes of the session's last layer, and the numbers that it starts with. */
  #classes = FIRST_CLASSES;
  #start: Float32Array;
  #lessons: Lesson[] = [];

  private constructor(model: string, session: TrainingSession, start: Float32Array) {
    [this.#model, this.#session, this.#start] = [model, session, start];
  }

  static async load(model: string, options: Pick<SessionOptions, "device" | "onProgress">): Promise<Teacher> {
    const session = await createSession(model, FIRST_CLASSES, options);
    const teacher = new Teacher(model, session, await parametersOf(session));
    // Prepared while the user takes the first pictures.
    void session.prepare({ image: [BATCH, 3, SIDE, SIDE], labels: [BATCH] }).catch(() => {});
    return teacher;
  }

  /** The pictures of a class. */
  of(label: number): readonly Lesson[] {
    return this.#lessons.filter((lesson) => lesson.label === label);
  }

  async add(source: ImageSource, label: number): Promise<Lesson> {
    const lesson = { picture: await pictureOf(source), label };
    this.#lessons.push(lesson);
    return lesson;
  }

  remove(lesson: Lesson): void {
    this.#lessons = this.#lessons.filter((other) => other !== lesson);
  }

  /** Forget a class; those behind it move up. */
  removeClass(label: number): void {
    this.#lessons = this.#lessons.filter((lesson) => lesson.label !== label);
    for (const lesson of this.#lessons) {
      lesson.label -= Number(lesson.label > label);
    }
  }

  /** The last layer as it starts, for this number of classes. */
  async #startAgain(classes: number): Promise<void> {
    if (classes !== this.#classes) {
      const session = await createSession(this.#model, classes, { device: this.#session.device.kind });
      await this.#session.release();
      [this.#session, this.#classes, this.#start] = [session, classes, await parametersOf(session)];
    }
    await this.#session.loadParametersBuffer(this.#start.slice());
  }

  /** Train the last layer from the start, on as many pictures of one class as of another. */
  async train(classes: number, onStep: (share: number, loss: number) => void): Promise<Outcome> {
    await this.#startAgain(classes);
    const session = this.#session;
    const started = performance.now();
    const loss = session.trainingOutputNames[0] as string;
    const parts = Array.from({ length: classes }, (_, label) => this.of(label)).filter((part) => part.length > 0);
    const isTest = (_: Lesson, k: number): boolean => k % HELD_BACK === HELD_BACK - 1;
    const taught = parts.map((part) => part.filter((lesson, k) => !isTest(lesson, k)));
    const tests = parts.flatMap((part) => part.filter(isTest));
    for (let step = 1; step <= STEPS; step++) {
      const batch = Array.from({ length: BATCH }, (_, k) => anyOf(taught[k % taught.length] as Lesson[]));
      const results = await session.runTrainStep(feedsOf(batch), [loss]);
      await session.runOptimizerStep();
      await session.lazyResetGrad();
      onStep(step / STEPS, Number(results[loss]?.data[0]));
    }
    const seconds = (performance.now() - started) / 1000;
    return { steps: STEPS, seconds, device: session.device, tested: tests.length, right: await this.#countRight(tests) };
  }

  async #countRight(lessons: readonly Lesson[]): Promise<number> {
    let right = 0;
    for (const { picture, label } of lessons) {
      const found = await this.#probabilities(picture);
      right += Number(found.indexOf(Math.max(...found)) === label);
    }
    return right;
  }

  /** Probabilities of the classes that have pictures; 0 of others. */
  async predict(source: ImageSource): Promise<readonly number[]> {
    return this.#probabilities(await pictureOf(source));
  }

  async #probabilities(picture: Float32Array): Promise<readonly number[]> {
    const image = new Tensor("float32", picture, [1, 3, SIDE, SIDE]);
    const results = await this.#session.predict({ image });
    const logits = [...(results[OUTPUT]?.data as Float32Array)];
    const exponentials = logits.map((logit, k) => (this.of(k).length === 0 ? 0 : Math.exp(logit - Math.max(...logits))));
    const sum = exponentials.reduce((a, b) => a + b, 0);
    return exponentials.map((value) => value / sum);
  }

  /** The whole network as an ONNX file. */
  export(): Promise<Blob> {
    return this.#session.exportModelForInferencing([OUTPUT], { as: "blob" });
  }
}

async function parametersOf(session: TrainingSession): Promise<Float32Array> {
  return (await session.getContiguousParameters(true)).data as Float32Array;
}

function anyOf(lessons: readonly Lesson[]): Lesson {
  return lessons[Math.floor(Math.random() * lessons.length)] as Lesson;
}

/** A canvas with a lesson's picture. */
export function drawingOf({ picture }: Lesson): HTMLCanvasElement {
  const canvas = Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE });
  const image = new ImageData(SIDE, SIDE);
  const plane = SIDE * SIDE;
  for (let i = 0; i < plane; i++) {
    const [red, green, blue] = [0, 1, 2].map((c) => ((picture[c * plane + i] as number) * PIXELS.std + PIXELS.mean) * BYTE);
    image.data.set([red as number, green as number, blue as number, BYTE], 4 * i);
  }
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
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
