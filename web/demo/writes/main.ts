/** The page: a text in, a network that writes more of it out. */

import type { EpochEvent, FitRun } from "trainweb";
import type { TrainwebCurves } from "trainweb/vis";
import "trainweb/vis";

import { appendTo, besideOther, chosenDevice, download, element, megabytes, onDrop, showLoading } from "../page.js";
import { STEPS, Writer } from "./writer.js";

/** Characters of a sample while it learns, and of one that is asked for. */
const GLIMPSE = 200;
const SAMPLE = 500;

const ui = {
  alert: element<HTMLElement>("alert"),
  status: element<HTMLElement>("status"),
  progress: element<HTMLProgressElement>("progress"),
  needs: element<HTMLElement>("needs"),
  train: element<HTMLButtonElement>("train"),
  save: element<HTMLButtonElement>("save"),
  resume: element<HTMLInputElement>("resume"),
  export: element<HTMLButtonElement>("export"),
  curves: element<TrainwebCurves>("curves"),
  beginning: element<HTMLInputElement>("beginning"),
  temperature: element<HTMLInputElement>("temperature"),
  temperatureValue: element<HTMLOutputElement>("temperature-value"),
  sample: element<HTMLElement>("sample"),
  write: element<HTMLButtonElement>("write"),
  round: element<HTMLElement>("round"),
  text: element<HTMLTextAreaElement>("text"),
  file: element<HTMLInputElement>("file"),
  count: element<HTMLElement>("count"),
};

let writer: Writer | null = null;
/** The training that runs; null while it does not. */
let fit: FitRun | null = null;
let isBusy = true;
let isTrained = false;
let rounds = 0;
let writing = new AbortController();

function showError(error: unknown): void {
  ui.alert.textContent = error instanceof Error ? error.message : String(error);
  ui.alert.hidden = false;
}

function update(): void {
  const isFree = writer !== null && !isBusy && fit === null;
  ui.train.textContent = fit === null ? (isTrained ? "Go on" : "Start training") : "Pause";
  ui.train.disabled = writer === null || (isBusy && fit === null);
  [ui.write, ui.export].forEach((button) => { button.disabled = !isFree; });
  ui.save.disabled = !isFree || !isTrained;
  ui.resume.disabled = !isFree;
  ui.text.readOnly = fit !== null;
  ui.file.disabled = fit !== null;
}

/** Perform an action of the user, one at a time. */
async function perform(action: (writer: Writer) => Promise<void>): Promise<void> {
  if (writer === null) {
    return;
  }
  ui.alert.hidden = true;
  isBusy = true;
  update();
  try {
    await action(writer);
  } catch (error) {
    showError(error);
  } finally {
    isBusy = false;
    update();
  }
}

/** Show what the network writes, as it comes. */
async function write(author: Writer, length: number): Promise<void> {
  writing = new AbortController();
  const { signal } = writing;
  const beginning = ui.beginning.value || "\n";
  ui.sample.textContent = beginning;
  const temperature = Number(ui.temperature.value);
  await appendTo(ui.sample, author.write(beginning, { length, temperature, seed: rounds, signal }), signal);
}

function onRound(author: Writer): (event: EpochEvent) => Promise<void> {
  return async ({ validation }) => {
    // A round that is stopped has no validation.
    if (validation === null) {
      return;
    }
    rounds += 1;
    const loss = Number(validation["loss"]).toFixed(2);
    ui.round.textContent = `After ${rounds * STEPS} steps. Loss of lines that it has not read: ${loss}.`;
    await write(author, GLIMPSE);
  };
}

async function train(author: Writer): Promise<void> {
  const count = author.read(ui.text.value);
  ui.count.textContent = `${count.toLocaleString("en")} characters`;
  ui.status.textContent = "Training …";
  const running = author.learn(onRound(author));
  fit = running;
  update();
  ui.curves.watch(running);
  try {
    for await (const event of running) {
      if (event.type === "progress") {
        ui.progress.value = event.step / STEPS;
        ui.status.textContent = `Training: loss ${event.loss.toFixed(2)}`;
      }
    }
    isTrained = true;
    ui.status.textContent = "Paused.";
  } finally {
    fit = null;
  }
}

async function measure(author: Writer): Promise<void> {
  const { bytes, seconds, device } = await author.needs();
  const time = besideOther(device, `${Math.max(1, Math.round(seconds))} s`);
  ui.needs.textContent = `The page takes some ${megabytes(bytes)} of memory. ${STEPS} steps take about ${time}. ` +
    "Words appear after some 1,000 steps.";
}

async function readFile(file: File | undefined): Promise<void> {
  if (file !== undefined) {
    ui.text.value = await file.text();
  }
}

function showTemperature(): void {
  ui.temperatureValue.textContent = Number(ui.temperature.value).toFixed(1);
}

function listen(): void {
  ui.train.addEventListener("click", () => {
    if (fit === null) {
      void perform(train);
    } else {
      writing.abort();
      fit.stop();
    }
  });
  ui.write.addEventListener("click", () => void perform((author) => write(author, SAMPLE)));
  ui.save.addEventListener("click", () => void perform(async (author) => download(await author.save(), "writer.checkpoint")));
  ui.export.addEventListener("click", () => void perform(async (author) => download(await author.export(), "writer.onnx")));
  ui.resume.addEventListener("change", () => void perform(async (author) => {
    const file = ui.resume.files?.[0];
    ui.resume.value = "";
    if (file !== undefined) {
      await author.resume(file).catch((error: unknown) => {
        throw new Error(`${file.name} cannot be resumed: ${error instanceof Error ? error.message : String(error)}`);
      });
      isTrained = true;
      rounds = 0;
      ui.round.textContent = "";
      ui.status.textContent = `${file.name} goes on where it was saved.`;
    }
  }));
  ui.temperature.addEventListener("input", showTemperature);
  ui.file.addEventListener("change", () => void readFile(ui.file.files?.[0]));
  const card = ui.text.closest("section") as HTMLElement;
  onDrop(card, () => fit === null, (data) => void readFile(data.files[0]));
}

async function main(): Promise<void> {
  const device = chosenDevice(element<HTMLSelectElement>("device"));
  listen();
  showTemperature();
  try {
    const text = await fetch("sonnets.txt");
    ui.text.value = await text.text();
    const loaded = await Writer.load("writer.onnx", { device, onProgress: (progress) => showLoading(ui.status, ui.progress, progress) });
    loaded.read(ui.text.value);
    await measure(loaded);
    writer = loaded;
    ui.progress.value = 0;
    ui.status.textContent = "Ready.";
    isBusy = false;
  } catch (error) {
    ui.status.textContent = "The page could not start.";
    showError(error);
  }
  update();
}

void main();
