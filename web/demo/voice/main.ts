/** The page: a model and a text in, an adapter that continues texts in the same voice out. */

import type { EpochEvent, FitRun } from "trainweb";
import type { TrainwebCurves } from "trainweb/vis";
import "trainweb/vis";

import { appendTo, download, element, fastest, megabytes, onDrop, PAGE_BYTES, showLoading } from "../page.js";
import { filesOf, modelOf, ourModel, type ModelFiles } from "./files.js";
import { Voice, type Needs, type WriteOptions } from "./voice.js";

/** Memory of the page, and of the session beside weights, for each neuron of the width of all layers. */
const PAGE_BYTES_OF_WIDTH = 7e3;
const SESSION_BYTES_OF_WIDTH = 13e3;
/** Seconds until the model writes: for a small one, and for each neuron of that width, where `work` takes WORK_S. */
const START_S = 3;
const START_S_OF_WIDTH = 1e-3;
const WORK_S = 5e-3;
/** Bytes of trainweb, which the browser keeps. */
const RUNTIME_BYTES = 11e6;
const ADAPTER = "adapter_model.safetensors";
const SETTINGS = "adapter_config.json";

const ui = {
  alert: element<HTMLElement>("alert"),
  takes: element<HTMLElement>("takes"),
  load: element<HTMLButtonElement>("load"),
  folder: element<HTMLInputElement>("folder"),
  files: element<HTMLInputElement>("files"),
  status: element<HTMLElement>("status"),
  progress: element<HTMLProgressElement>("progress"),
  trainingStatus: element<HTMLElement>("training-status"),
  trainingProgress: element<HTMLProgressElement>("training-progress"),
  text: element<HTMLTextAreaElement>("text"),
  file: element<HTMLInputElement>("file"),
  count: element<HTMLElement>("count"),
  step: element<HTMLElement>("step"),
  loss: element<HTMLElement>("loss"),
  time: element<HTMLElement>("time"),
  memory: element<HTMLElement>("memory"),
  passes: element<HTMLInputElement>("passes"),
  train: element<HTMLButtonElement>("train"),
  needs: element<HTMLElement>("needs"),
  curves: element<TrainwebCurves>("curves"),
  save: element<HTMLButtonElement>("save"),
  saveConfig: element<HTMLButtonElement>("save-config"),
  resume: element<HTMLInputElement>("resume"),
  prompt: element<HTMLInputElement>("prompt"),
  temperature: element<HTMLInputElement>("temperature"),
  temperatureValue: element<HTMLOutputElement>("temperature-value"),
  before: element<HTMLElement>("before"),
  after: element<HTMLElement>("after"),
  afterTitle: element<HTMLElement>("after-title"),
  write: element<HTMLButtonElement>("write"),
};

/** What the button loads; null stands for the small model. */
let chosen: ModelFiles | null = null;
let voice: Voice | null = null;
/** The training that runs; null while it does not. */
let fit: FitRun | null = null;
let isBusy = false;
/** The adapter is not as it started. */
let hasLearned = false;
/** What training takes; null before it was measured. */
let needs: Needs | null = null;
/** Memory of the page with Python. */
let pageBytes = PAGE_BYTES;
/** Ends the writing; null while there is none. */
let writing: AbortController | null = null;
/** Beginning and temperature of the text of the model before it learned. */
let written = "";

function update(): void {
  const isFree = !isBusy && fit === null;
  ui.load.classList.toggle("primary", voice === null || chosen !== null);
  ui.load.textContent = `Load ${chosen?.name ?? "the small model"}`;
  [ui.load, ui.folder, ui.files, ui.file, ui.passes].forEach((one) => { one.disabled = !isFree; });
  ui.text.readOnly = !isFree;
  ui.train.textContent = fit === null ? (hasLearned ? "Go on" : "Teach it") : "Stop";
  ui.train.disabled = voice === null || (isBusy && fit === null);
  ui.write.textContent = writing === null ? "Write" : "Stop";
  ui.write.disabled = voice === null || (!isFree && writing === null);
  ui.resume.disabled = voice === null || !isFree;
  [ui.save, ui.saveConfig].forEach((one) => { one.disabled = !hasLearned || !isFree; });
}

/** Perform an action of the user, one at a time. */
async function perform(action: () => Promise<void>): Promise<void> {
  if (isBusy) {
    return;
  }
  ui.alert.hidden = true;
  isBusy = true;
  update();
  try {
    await action();
  } catch (error) {
    ui.alert.textContent = error instanceof Error ? error.message : String(error);
    ui.alert.hidden = false;
  } finally {
    isBusy = false;
    update();
  }
}

function loaded(): Voice {
  if (voice === null) {
    throw new Error("There is no model yet. Load one first.");
  }
  return voice;
}

/** Say what loading takes, before it is done. */
async function choose(files: readonly File[]): Promise<void> {
  if (files.length === 0) {
    return;
  }
  chosen = await modelOf(files);
  const { name, size, width } = chosen;
  const memory = size + PAGE_BYTES + (PAGE_BYTES_OF_WIDTH + SESSION_BYTES_OF_WIDTH) * (width ?? 0);
  const slowness = (await fastest(async () => work())) / WORK_S;
  const time = slowness * (START_S + START_S_OF_WIDTH * (width ?? 0));
  ui.takes.textContent = `${name} is read from your disk: ${megabytes(size)}. trainweb itself takes ` +
    `${megabytes(RUNTIME_BYTES)} to download, once. The page needs some ${megabytes(memory)} of memory` +
    (width === null ? " or more." : `, and some ${duration(time)} until the model writes.`);
}

async function load(): Promise<void> {
  const files = chosen ?? (await ourModel());
  await voice?.release();
  voice = null;
  needs = null;
  hasLearned = false;
  written = "";
  pageBytes = PAGE_BYTES + PAGE_BYTES_OF_WIDTH * (files.width ?? 0);
  [ui.before, ui.after].forEach((pane) => { pane.textContent = ""; });
  ui.afterTitle.textContent = "After";
  ui.status.textContent = `Loading ${files.name} …`;
  try {
    voice = await Voice.load(files, (progress) => showLoading(ui.status, ui.progress, progress));
    ui.status.textContent = `Ready: ${files.name}.`;
  } catch (error) {
    ui.status.textContent = `${files.name} could not be loaded.`;
    throw error;
  } finally {
    ui.progress.value = 0;
  }
  await measure();
  await write();
}

async function measure(): Promise<void> {
  const pupil = loaded();
  ui.count.textContent = `${pupil.read(ui.text.value).toLocaleString("en")} tokens`;
  ui.trainingStatus.textContent = "Measuring a step …";
  ui.trainingProgress.removeAttribute("value");
  try {
    needs = await pupil.needs();
    ui.trainingStatus.textContent = "Ready.";
  } finally {
    ui.trainingProgress.value = 0;
  }
  tellNeeds();
}

/** Say what training takes, before it is done. */
function tellNeeds(): void {
  if (needs === null) {
    return;
  }
  const { bytes, secondsPerStep, stepsPerPass } = needs;
  const steps = stepsPerPass * passesOf();
  ui.memory.textContent = megabytes(pageBytes + bytes);
  // It ends earlier where the unseen lines get no better.
  ui.needs.textContent = `Training takes at most ${duration(secondsPerStep * steps)} for ${steps} steps on this machine. ` +
    `The page takes some ${megabytes(pageBytes + bytes)} of memory.`;
}

function passesOf(): number {
  return Math.max(1, Math.round(ui.passes.valueAsNumber) || 1);
}

/** Branches and writes that no processor predicts, as when Python starts. */
function work(): Int32Array {
  const table = new Int32Array(2 ** 16);
  let state = 1;
  for (let k = 0; k < 2 ** 20; k++) {
    state = (Math.imul(state, 1664525) + 1013904223) | 0;
    const at = state >>> 16;
    table[at] = state < 0 ? (table[at] as number) + k : (table[at] as number) ^ state;
  }
  return table;
}

function duration(seconds: number): string {
  return seconds < 100 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`;
}

async function train(): Promise<void> {
  await measure();
  const pupil = loaded();
  const passes = passesOf();
  const passWriting = new AbortController();
  let best = Infinity;
  const running = pupil.learn(passes, async (event) => {
    const loss = lossOf(event);
    ui.afterTitle.textContent = `After pass ${event.epoch}${loss < best ? ", the best so far" : ""}`;
    best = Math.min(best, loss);
    await show(ui.after, { ...wish(), adapter: true, isShort: true, signal: passWriting.signal });
  });
  fit = running;
  update();
  ui.curves.watch(running);
  const started = performance.now();
  const secondsSince = (start: number): number => (performance.now() - start) / 1000;
  /** Of a step: in the first pass without its first steps, which compile; then of whole passes with what they write. */
  let secondsPerStep = needs?.secondsPerStep ?? 0;
  let first: { readonly step: number; readonly time: number } | null = null;
  try {
    for await (const event of running) {
      hasLearned = true;
      if (event.type === "epoch") {
        secondsPerStep = secondsSince(started) / (event.epoch * (needs?.stepsPerPass ?? 1));
      }
      if (event.type === "progress" && event.steps !== null) {
        const last = (event.epoch - 1) * event.steps + event.step;
        const total = passes * event.steps;
        const seconds = secondsSince(started);
        first ??= { step: last, time: performance.now() };
        if (event.epoch === 1 && last > first.step) {
          secondsPerStep = secondsSince(first.time) / (last - first.step);
        }
        ui.trainingProgress.value = last / total;
        ui.step.textContent = `${last} of ${total}`;
        ui.loss.textContent = event.loss.toFixed(2);
        ui.time.textContent = duration(seconds);
        ui.trainingStatus.textContent = `Training: at most ${duration(secondsPerStep * (total - last))} to go.`;
      }
    }
    const { ended, losses, bestEpoch } = await running;
    ui.step.textContent = losses.length.toLocaleString("en");
    const kept = ended === "stopped" ? null : bestEpoch;
    ui.trainingStatus.textContent = (ended === "stopped" ? "Stopped." : "It has learned.") +
      (kept === null ? "" : ` Pass ${kept} was the best, and stays.`);
    ui.afterTitle.textContent = kept === null ? "After" : `After pass ${kept}, the best`;
  } finally {
    passWriting.abort();
    fit = null;
    ui.trainingProgress.value = 0;
    update();
  }
  needs = { ...(await pupil.needs()), secondsPerStep };
  tellNeeds();
  await write();
}

/** The loss of unseen lines; without any, of the text. */
function lossOf({ loss, validation }: EpochEvent): number {
  return Number(validation?.["loss"] ?? loss);
}

/** The wish of the user: beginning and temperature. */
function wish(): { prompt: string; temperature: number; seed: number } {
  return { prompt: ui.prompt.value || "\n", temperature: Number(ui.temperature.value), seed: 1 };
}

/** Show what the model writes, as it comes. */
async function show(pane: HTMLElement, options: WriteOptions): Promise<void> {
  pane.textContent = options.prompt;
  await appendTo(pane, loaded().write(options), options.signal);
}

/** Show what the model writes before and after it learned. */
async function write(): Promise<void> {
  const asked = wish();
  writing = new AbortController();
  update();
  const { signal } = writing;
  try {
    if (written !== JSON.stringify(asked)) {
      // The adapter adds nothing before it has learned. Without it there would be steps to compile.
      await show(ui.before, { ...asked, adapter: !hasLearned, signal });
      written = signal.aborted ? "" : JSON.stringify(asked);
    }
    if (hasLearned && !signal.aborted) {
      await show(ui.after, { ...asked, adapter: true, signal });
    }
  } finally {
    writing = null;
  }
}

async function save(name: string): Promise<void> {
  const { weights, config } = await loaded().adapter();
  download(name === SETTINGS ? new Blob([config]) : weights, name);
}

/** Go on with an adapter of before, from both of its files. */
async function resume(): Promise<void> {
  const files = [...(ui.resume.files ?? [])];
  ui.resume.value = "";
  const weights = files.find(({ name }) => name.endsWith(".safetensors"));
  const config = files.find(({ name }) => name.endsWith(".json"));
  if (weights === undefined || config === undefined) {
    throw new Error(`An adapter has two files, ${ADAPTER} and ${SETTINGS}: choose both.`);
  }
  await loaded().loadAdapter({ weights: new Uint8Array(await weights.arrayBuffer()), config: await config.text() });
  hasLearned = true;
  await write();
}

async function readText(file: File | undefined): Promise<void> {
  if (file !== undefined) {
    ui.text.value = await file.text();
    ui.count.textContent = "";
  }
}

function showTemperature(): void {
  ui.temperatureValue.textContent = Number(ui.temperature.value).toFixed(1);
}

function listen(): void {
  ui.load.addEventListener("click", () => void perform(load));
  for (const input of [ui.folder, ui.files]) {
    input.addEventListener("change", () => {
      const files = [...(input.files ?? [])];
      input.value = "";
      void perform(() => choose(files));
    });
  }
  ui.train.addEventListener("click", () => (fit === null ? void perform(train) : fit.stop()));
  ui.passes.addEventListener("input", tellNeeds);
  ui.write.addEventListener("click", () => (writing === null ? void perform(write) : writing.abort()));
  ui.save.addEventListener("click", () => void perform(() => save(ADAPTER)));
  ui.saveConfig.addEventListener("click", () => void perform(() => save(SETTINGS)));
  ui.resume.addEventListener("change", () => void perform(resume));
  ui.temperature.addEventListener("input", showTemperature);
  ui.file.addEventListener("change", () => void perform(() => readText(ui.file.files?.[0])));
  const isFree = (): boolean => !isBusy && fit === null;
  const card = (inner: Element): HTMLElement => inner.closest("section") as HTMLElement;
  onDrop(card(ui.text), isFree, (data) => void perform(() => readText(data.files[0])));
  onDrop(card(ui.load), isFree, (data) => {
    const files = filesOf(data);
    void perform(async () => choose(await files));
  });
}

async function main(): Promise<void> {
  listen();
  showTemperature();
  ui.takes.textContent = `The small model takes 0.7 MB to download, and trainweb ${megabytes(RUNTIME_BYTES)}, once. ` +
    `The page needs some ${megabytes(PAGE_BYTES + 25e6)} of memory.`;
  await perform(async () => {
    const example = await fetch("example.txt");
    ui.text.value = await example.text();
  });
}

void main();
