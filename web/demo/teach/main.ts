/** The page: camera and files in, a taught network out. */

import { type ImageSource, type LoadProgress } from "trainweb";

import { MOST_CLASSES, Teacher } from "./teacher.js";

/** Frames that a press on "Record" takes, and milliseconds between them. */
const FRAMES = 15;
const FRAME_MS = 100;
/** Interval between two readings of the camera's picture. */
const LOOK_MS = 150;
/** Time that the page shows the result for a file before it uses the camera again. */
const TRIED_MS = 8000;
const FIRST_CLASSES = 2;

function element<Tag extends keyof HTMLElementTagNameMap>(id: string, tag: Tag): HTMLElementTagNameMap[Tag] {
  const found = document.getElementById(id);
  if (found?.localName !== tag) {
    throw new Error(`the page has no <${tag}> ${id}`);
  }
  return found as HTMLElementTagNameMap[Tag];
}

const ui = {
  video: element("video", "video"),
  camera: element("camera", "button"),
  classes: element("classes", "ol"),
  add: element("add", "button"),
  train: element("train", "button"),
  export: element("export", "button"),
  bars: element("bars", "ul"),
  tried: element("try", "input"),
  alert: element("alert", "p"),
  status: element("status", "p"),
  progress: element("progress", "progress"),
  result: element("result", "p"),
};

/** Elements of the page that belong to a class. */
interface ClassView {
  readonly name: HTMLInputElement;
  readonly count: HTMLElement;
  readonly record: HTMLButtonElement;
  readonly bar: HTMLProgressElement;
  readonly percent: HTMLElement;
  readonly label: HTMLElement;
}

const views: ClassView[] = [];
let teacher: Teacher | null = null;
let isTrained = false;
let isBusy = false;
/** Time from which the camera may be used again. */
let looksFrom = 0;

function showError(error: unknown): void {
  ui.alert.textContent = error instanceof Error ? error.message : String(error);
  ui.alert.hidden = false;
}

/** Perform a button's action, one at a time. */
async function perform(action: () => Promise<void>): Promise<void> {
  ui.alert.hidden = true;
  isBusy = true;
  update();
  try {
    await action();
  } catch (error) {
    showError(error);
  } finally {
    isBusy = false;
    update();
  }
}

function onClick(button: HTMLButtonElement, action: () => Promise<void>): void {
  button.addEventListener("click", () => void perform(action));
}

function update(): void {
  const counts = teacher?.counts ?? [];
  const isFilming = ui.video.srcObject !== null;
  views.forEach(({ count, record }, label) => {
    count.textContent = `${counts[label] ?? 0} pictures`;
    record.disabled = isBusy || teacher === null || !isFilming;
  });
  ui.train.disabled = isBusy || counts.filter((count) => count > 0).length < 2;
  ui.export.disabled = isBusy || !isTrained;
  ui.tried.disabled = isBusy || !isTrained;
  ui.add.disabled = isBusy || views.length >= MOST_CLASSES;
}

function addClass(): void {
  const label = views.length;
  const made = element("class", "template").content.cloneNode(true) as DocumentFragment;
  const find = <T extends Element>(selector: string): T => made.querySelector<T>(selector) as T;
  const bar = Object.assign(document.createElement("progress"), { max: 1, value: 0 });
  const [title, percent] = [document.createElement("span"), document.createElement("span")];
  const view = { name: find<HTMLInputElement>("input[type=text]"), count: find<HTMLElement>(".count"),
    record: find<HTMLButtonElement>(".record"), bar, percent, label: title };
  view.name.value = `Class ${label + 1}`;
  const rename = (): void => {
    const name = view.name.value || `Class ${label + 1}`;
    title.textContent = name;
    bar.setAttribute("aria-label", name);
    view.record.setAttribute("aria-label", `Record ${name}`);
  };
  view.name.addEventListener("input", rename);
  rename();
  onClick(view.record, () => record(label));
  const files = find<HTMLInputElement>("input[type=file]");
  files.addEventListener("change", () => void perform(() => addAll([...(files.files ?? [])], label)));
  views.push(view);
  ui.classes.append(made);
  const item = document.createElement("li");
  item.append(title, percent, bar);
  ui.bars.append(item);
  update();
}

async function startCamera(): Promise<void> {
  if (!navigator.mediaDevices) {
    throw new Error("This browser gives pages a camera only over https or on localhost. Files work without one.");
  }
  const stream = await navigator.mediaDevices.getUserMedia({ video: { width: 480, height: 480 } }).catch((error: unknown) => {
    throw new Error(`There is no camera for this page (${String(error)}). Files work without one.`);
  });
  ui.video.srcObject = stream;
  await ui.video.play();
  ui.camera.hidden = true;
}

async function record(label: number): Promise<void> {
  for (let frame = 0; frame < FRAMES; frame++) {
    await teacher?.add(ui.video, label);
    update();
    await new Promise((resolve) => setTimeout(resolve, FRAME_MS));
  }
}

async function addAll(files: readonly File[], label: number): Promise<void> {
  for (const file of files) {
    await teacher?.add(file, label);
    update();
  }
}

async function train(): Promise<void> {
  ui.result.textContent = "";
  const outcome = await teacher?.train((share, loss) => {
    ui.progress.value = share;
    ui.status.textContent = `Training: loss ${loss.toFixed(3)}`;
  });
  if (outcome === undefined) {
    return;
  }
  const { steps, seconds, accuracy } = outcome;
  const tested = accuracy === null ? "" : ` Of the pictures kept back, ${Math.round(100 * accuracy)} % are told right.`;
  ui.status.textContent = `Trained in ${seconds.toFixed(1)} s, ${steps} steps.`;
  ui.result.textContent = tested.trim();
  isTrained = true;
}

async function save(): Promise<void> {
  const file = await teacher?.export();
  if (file !== undefined) {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: "classes.onnx" });
    link.click();
    URL.revokeObjectURL(link.href);
    const names = views.map(({ name }, label) => `${label} ${name.value}`).join(", ");
    ui.result.textContent = `The model takes float32 [batch, 3, 96, 96], (pixel - 127) / 128, and gives logits: ${names}.`;
  }
}

/** Show the network's prediction for a picture, unless something else must be shown meanwhile. */
async function look(source: ImageSource, isWanted: () => boolean): Promise<void> {
  const probabilities = (await teacher?.predict(source)) ?? [];
  if (!isWanted()) {
    return;
  }
  views.forEach(({ bar, percent }, label) => {
    const share = probabilities[label] ?? 0;
    bar.value = share;
    percent.textContent = `${Math.round(100 * share)} %`;
  });
}

async function tryFile(file: File): Promise<void> {
  // The same file may be chosen again.
  ui.tried.value = "";
  looksFrom = Infinity;
  try {
    await look(file, () => true);
    ui.status.textContent = `This is ${file.name}.`;
  } finally {
    looksFrom = performance.now() + TRIED_MS;
  }
}

/** Look through the camera for ever. */
async function watch(): Promise<void> {
  const isWanted = (): boolean => performance.now() >= looksFrom;
  for (;;) {
    if (isTrained && !isBusy && ui.video.srcObject !== null && isWanted()) {
      await look(ui.video, isWanted).catch(showError);
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}

function showLoading({ stage, loaded, total, percent }: LoadProgress): void {
  ui.status.textContent = stage === "compile" ? "Compiling …"
    : `Loading ${stage}: ${(loaded / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB, ${percent} %`;
}

async function main(): Promise<void> {
  for (let label = 0; label < FIRST_CLASSES; label++) {
    addClass();
  }
  onClick(ui.camera, startCamera);
  ui.add.addEventListener("click", addClass);
  onClick(ui.train, train);
  onClick(ui.export, save);
  ui.tried.addEventListener("change", () => {
    const file = ui.tried.files?.[0];
    if (file !== undefined) {
      void perform(() => tryFile(file));
    }
  });
  try {
    teacher = await Teacher.load("teach.onnx", showLoading);
    ui.status.textContent = "Ready: take pictures of two classes or more.";
  } catch (error) {
    ui.status.textContent = "The page could not start.";
    showError(error);
  }
  update();
  void watch();
}

void main();
