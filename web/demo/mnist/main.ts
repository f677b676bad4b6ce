/** The page: connects the training run with its user's view and actions. */

import { env, type LoadProgress, type SessionDevice } from "trainweb";
import type { TrainwebConfusion, TrainwebCurves } from "trainweb/vis";
import "trainweb/vis";

import { besideOther, chosenDevice, download, element, processorOf } from "../page.js";
import { probabilityBars } from "./bars.js";
import { Curves } from "./curves.js";
import { type Digits, loadDigits } from "./data.js";
import { argmax, type Evaluation } from "./evaluation.js";
import { Gallery } from "./gallery.js";
import { Pad } from "./pad.js";
import { inkOf } from "./picture.js";
import { onThemeChange, paintDigit } from "./theme.js";
import { type Settings, Trainer, type TrainerState } from "./trainer.js";

const MAX_THREADS = 4;
const MORE_EPOCHS = 3;
/** Below it the accuracy has no colour of success; guessing reaches 10 %. */
const GOOD_ACCURACY = 0.8;
/** The drawing is read again so often while the network changes, in milliseconds. */
const REPREDICT_MS = 150;
/** A prediction below this probability is called unsure. */
const SURE = 0.6;

/** Progress of the page, for a script that drives it (scripts/demo.py). */
export interface Progress {
  readonly state: TrainerState;
  readonly error: string | null;
  readonly step: number;
  readonly totalSteps: number;
  readonly epoch: number;
  readonly epochs: number;
  readonly loss: number | null;
  readonly testAccuracy: number | null;
  readonly testLoss: number | null;
  readonly stepsPerSecond: number;
  readonly trainSeconds: number;
}

declare global {
  interface Window {
    demo: { readonly progress: Progress; readonly trainer: Trainer | undefined };
  }
}

const ui = {
  start: element<HTMLButtonElement>("start"),
  reset: element<HTMLButtonElement>("reset"),
  save: element<HTMLButtonElement>("save"),
  resume: element<HTMLButtonElement>("resume"),
  resumeFile: element<HTMLInputElement>("resume-file"),
  export: element<HTMLButtonElement>("export"),
  rate: element<HTMLInputElement>("rate"),
  batch: element<HTMLSelectElement>("batch"),
  epochs: element<HTMLInputElement>("epochs"),
  progress: element<HTMLProgressElement>("progress"),
  clear: element<HTMLButtonElement>("clear"),
  sample: element<HTMLButtonElement>("sample"),
  photo: element<HTMLButtonElement>("photo"),
  photoFile: element<HTMLInputElement>("photo-file"),
  alert: element("alert"),
  status: element("status"),
  verdict: element("verdict"),
};

/** Settings from the address, e.g. ?epochs=3&batch=32&rate=0.003&steps=60&seed=1&threads=2&device=webgpu. */
const query = new URLSearchParams(location.search);

function positive(name: string, otherwise: number): number {
  const value = Number(query.get(name) ?? Number.NaN);
  return value > 0 ? value : otherwise;
}

const settings: Settings = {
  epochs: positive("epochs", 6),
  batchSize: positive("batch", 64),
  learningRate: positive("rate", 0.003),
  seed: positive("seed", 1),
  maxSteps: positive("steps", Number.POSITIVE_INFINITY),
  device: chosenDevice(element<HTMLSelectElement>("device")),
};

function showError(error: unknown): void {
  const [name, message] = error instanceof Error ? [error.name, error.message] : ["", String(error)];
  ui.alert.textContent = name && name !== "Error" ? `${name}: ${message}` : message;
  ui.alert.hidden = false;
  ui.alert.scrollIntoView({ block: "nearest" });
}

/** Run a button's action; the page shows its failure. */
function onClick(button: HTMLElement, action: () => unknown): void {
  button.addEventListener("click", () => {
    ui.alert.hidden = true;
    Promise.resolve()
      .then(action)
      .catch(showError);
  });
}

function configureBackend(): void {
  const cores = navigator.hardwareConcurrency || 1;
  const threads = self.crossOriginIsolated ? positive("threads", Math.min(MAX_THREADS, cores)) : 1;
  env.wasm.numThreads = threads;
  const facts = [
    "WebAssembly SIMD",
    threads === 1 ? "1 thread" : `${threads} threads`,
    self.crossOriginIsolated ? "cross-origin isolated" : "not isolated, so no threads",
  ];
  element("backend").replaceChildren(...facts.map(chipOf));
}

function chipOf(fact: string): HTMLElement {
  const chip = document.createElement("li");
  chip.textContent = fact;
  return chip;
}

function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

function clock(seconds: number): string {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/** Show numbers, curves and buttons as the run stands. */
function dashboard(trainer: Trainer, curves: Curves): { state(): void; numbers(): void } {
  const texts = {
    accuracy: element("accuracy"),
    epoch: element("epoch"),
    loss: element("loss"),
    speed: element("speed"),
    time: element("time"),
  };
  const numbers = (): void => {
    const { lastTest } = trainer.history;
    const { epochs } = trainer.settings;
    texts.accuracy.textContent = lastTest ? percent(lastTest.accuracy) : "–";
    texts.accuracy.classList.toggle("low", lastTest !== undefined && lastTest.accuracy < GOOD_ACCURACY);
    texts.epoch.textContent = `${Math.min(trainer.epoch, epochs).toFixed(1)} / ${epochs}`;
    texts.loss.textContent = trainer.history.loss?.toFixed(3) ?? "–";
    texts.speed.textContent = trainer.stepsPerSecond > 0 ? trainer.stepsPerSecond.toFixed(1) : "–";
    texts.time.textContent = clock(trainer.trainSeconds);
    ui.progress.max = trainer.totalSteps;
    ui.progress.value = trainer.step;
    curves.update(trainer);
  };
  const state = (): void => {
    numbers();
    showState(trainer);
  };
  return { state, numbers };
}

function showState(trainer: Trainer): void {
  const { state } = trainer;
  const fresh = state === "ready" && trainer.step === 0;
  const idle = state === "ready" || state === "paused" || state === "finished";
  const labels: Partial<Record<TrainerState, string>> = {
    running: "Pause",
    paused: "Continue",
    finished: `Train ${MORE_EPOCHS} epochs more`,
  };
  ui.start.textContent = labels[state] ?? "Start training";
  ui.start.disabled = !idle && state !== "running";
  ui.batch.disabled = !fresh;
  ui.reset.disabled = state === "loading" || fresh || state === "failed";
  for (const button of [ui.save, ui.resume, ui.export]) {
    button.disabled = !idle && state !== "running";
  }
  ui.status.ariaLive = "polite";
  ui.status.textContent = describeState(trainer);
  ui.rate.value = String(Math.log10(trainer.settings.learningRate));
  ui.epochs.value = String(trainer.settings.epochs);
  ui.batch.value = String(trainer.settings.batchSize);
  showRate(trainer.settings.learningRate);
  if (state === "failed" && trainer.error) {
    ui.progress.value = 0;
    showError(trainer.error);
  }
}

function showLoading({ stage, loaded, total, percent: share }: LoadProgress): void {
  // Not read aloud with each percent.
  ui.status.ariaLive = "off";
  ui.progress.max = 100;
  ui.progress.value = share;
  const megabytes = (bytes: number): string => (bytes / 1e6).toFixed(1);
  ui.status.textContent =
    stage === "compile"
      ? "Deriving the training graph \u2026"
      : `Loading Python and the kernels: ${megabytes(loaded)} of ${megabytes(total)} MB, ${share} %`;
}

function describeState(trainer: Trainer): string {
  const { lastTest } = trainer.history;
  const reached = lastTest ? percent(lastTest.accuracy) : "";
  const speed = (): string => besideOther(trainer.device as SessionDevice, `${trainer.stepsPerSecond.toFixed(1)} steps/s`);
  switch (trainer.state) {
    case "loading":
      return "Starting Python and deriving the training graph …";
    case "ready":
      return "Ready. The weights are random, so it guesses.";
    case "running":
      return "Training. Draw a digit and see it change its mind.";
    case "paused":
      return `Paused after step ${trainer.step}: ${speed()}.`;
    case "finished":
      return `Done: ${reached} of the test images are read correctly, ${speed()}.`;
    case "failed":
      return "It stopped with an error; reload the page to start again.";
  }
}

function showRate(rate: number): void {
  element("rate-value").textContent = String(Number(rate.toPrecision(2)));
}

/** Make the pad and its bars; returns a function to call when the network has changed. */
function drawing(trainer: Trainer, digits: Digits): { pad: Pad; refresh(): void } {
  const bars = probabilityBars(element("bars"));
  const hint = element("pad-hint");
  const seen = element<HTMLCanvasElement>("seen");
  let busy = false;
  let again = false;
  let last = 0;
  let truth: number | undefined;

  const predict = async (): Promise<void> => {
    if (busy || trainer.state === "loading" || trainer.state === "failed") {
      again = busy;
      return;
    }
    busy = true;
    do {
      again = false;
      last = performance.now();
      const probabilities = pad.empty ? undefined : await trainer.predict(pad.image());
      const shown = pad.empty ? undefined : probabilities;
      bars(shown);
      ui.verdict.textContent = verdict(shown, truth);
    } while (again);
    busy = false;
  };
  const paintSeen = (): void => paintDigit(seen, pad.image(), digits.test.side);
  const changed = (): void => {
    hint.hidden = !pad.empty;
    paintSeen();
    predict().catch(showError);
  };
  onThemeChange(paintSeen);
  const pad = new Pad(element("pad"), () => {
    truth = undefined;
    changed();
  });
  onClick(ui.clear, () => pad.clear());
  onClick(ui.sample, () => {
    const index = Math.floor(Math.random() * digits.test.count);
    pad.show(digits.test.image(index));
    truth = digits.test.label(index);
    changed();
  });
  connectPhotographs(pad);
  const refresh = (): void => {
    if (!pad.empty && performance.now() - last > REPREDICT_MS) {
      predict().catch(showError);
    }
  };
  return { pad, refresh };
}

/** Images of one's own: from a file, a phone's camera, or dropped on the pad. */
function connectPhotographs(pad: Pad): void {
  const show = async (file: File | undefined): Promise<void> => {
    if (file !== undefined) {
      element("alert").hidden = true;
      pad.showInk(await inkOf(file));
    }
  };
  onClick(ui.photo, () => ui.photoFile.click());
  ui.photoFile.addEventListener("change", () => {
    show(ui.photoFile.files?.[0]).catch(showError);
    // The same file may be chosen again.
    ui.photoFile.value = "";
  });
  const canvas = element("pad");
  canvas.addEventListener("dragover", (event) => event.preventDefault());
  canvas.addEventListener("drop", (event) => {
    event.preventDefault();
    show(event.dataTransfer?.files[0]).catch(showError);
  });
}

function verdict(probabilities: Float32Array | undefined, truth: number | undefined): string {
  if (!probabilities) {
    return "The prediction follows your pen, and changes as the network learns.";
  }
  const digit = argmax(probabilities);
  const probability = probabilities[digit] ?? 0;
  const known = truth === undefined ? "" : ` The label says ${truth}.`;
  return probability < SURE
    ? `Not sure: perhaps a ${digit}.${known}`
    : `It reads a ${digit}, ${certainty(probability)} sure.${known}`;
}

function certainty(probability: number): string {
  return probability > 0.999 ? "over 99.9 %" : percent(probability);
}

function connectControls(trainer: Trainer): void {
  onClick(ui.start, async () => {
    if (trainer.state === "running") {
      await trainer.pause();
      return;
    }
    if (trainer.state === "finished") {
      trainer.settings.maxSteps = Number.POSITIVE_INFINITY;
      trainer.setEpochs(Math.ceil(trainer.epoch) + MORE_EPOCHS);
    }
    trainer.start();
  });
  onClick(ui.reset, () => trainer.reset());
  onClick(ui.save, async () => {
    download(await trainer.saveCheckpoint(), `digits-step-${trainer.step}.ckpt`);
  });
  onClick(ui.export, async () => {
    download(await trainer.exportModel(), "digits.onnx");
  });
  onClick(ui.resume, () => ui.resumeFile.click());
  ui.resumeFile.addEventListener("change", () => {
    const file = ui.resumeFile.files?.[0];
    ui.resumeFile.value = "";
    ui.alert.hidden = true;
    if (file) {
      file
        .arrayBuffer()
        .then((bytes) => trainer.resume(new Uint8Array(bytes)))
        .catch(showError);
    }
  });
  ui.rate.addEventListener("input", () => showRate(10 ** Number(ui.rate.value)));
  ui.rate.addEventListener("change", () => {
    trainer.setLearningRate(Number((10 ** Number(ui.rate.value)).toPrecision(2)));
  });
  ui.batch.addEventListener("change", () => {
    trainer.setBatchSize(Number(ui.batch.value));
  });
  ui.epochs.addEventListener("change", () => {
    if (ui.epochs.checkValidity() && ui.epochs.valueAsNumber > 0) {
      trainer.setEpochs(ui.epochs.valueAsNumber);
    }
  });
}

function progressOf(trainer: Trainer | undefined, failure: unknown): Progress {
  const error = trainer?.error ?? failure;
  return {
    state: failure ? "failed" : (trainer?.state ?? "loading"),
    error: error === undefined ? null : String(error),
    step: trainer?.step ?? 0,
    totalSteps: trainer?.totalSteps ?? 0,
    epoch: trainer?.epoch ?? 0,
    epochs: settings.epochs,
    loss: trainer?.history.loss ?? null,
    testAccuracy: trainer?.history.lastTest?.accuracy ?? null,
    testLoss: trainer?.history.lastTest?.loss ?? null,
    stepsPerSecond: trainer?.stepsPerSecond ?? 0,
    trainSeconds: trainer?.trainSeconds ?? 0,
  };
}

function showCounts({ train, test }: Digits): void {
  const counts = { "train-count": train.count, "test-count": test.count, counts: train.count + test.count };
  for (const [id, count] of Object.entries(counts)) {
    element(id).textContent = count.toLocaleString("en");
  }
}

async function main(): Promise<void> {
  let trainer: Trainer | undefined;
  let failure: unknown;
  window.demo = {
    get progress() {
      return progressOf(trainer, failure);
    },
    get trainer() {
      return trainer;
    },
  };
  try {
    configureBackend();
    const digits = await loadDigits("mnist.bin");
    showCounts(digits);
    trainer = startPage(digits);
    await trainer.load("digits.onnx");
    if (trainer.device?.kind === "webgpu") {
      element("backend").append(chipOf(processorOf(trainer.device)));
    }
    ui.sample.disabled = trainer.state === "failed";
  } catch (error) {
    failure = error;
    ui.status.textContent = "The page could not start.";
    showError(error);
  }
}

function startPage(digits: Digits): Trainer {
  const confusion = element<TrainwebConfusion>("confusion");
  const trainer: Trainer = new Trainer(digits, settings, {
    loading: showLoading,
    stateChanged: () => {
      board.state();
      pen.refresh();
    },
    stepped: () => {
      board.numbers();
      pen.refresh();
    },
    evaluated: (evaluation) => {
      board.numbers();
      confusion.values = evaluation.confusion;
      showMistakes(gallery, evaluation, digits.test.count);
    },
  });
  const board = dashboard(trainer, new Curves(element<TrainwebCurves>("curves")));
  const pen = drawing(trainer, digits);
  const gallery = new Gallery(element("gallery"), digits.test, (image) => {
    pen.pad.show(image);
    element("draw-title").scrollIntoView({ block: "nearest", behavior: "smooth" });
  });
  connectControls(trainer);
  showState(trainer);
  return trainer;
}

function showMistakes(gallery: Gallery, { mistakes }: Evaluation, total: number): void {
  element("mistakes-count").textContent =
    `${mistakes.length} of ${total} test images are misread; the most confident errors first.`;
  gallery.show(mistakes);
}

void main();
