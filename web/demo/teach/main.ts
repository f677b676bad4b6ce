/** The page: camera and files in, a taught network out. */

import { type ImageSource, type LoadProgress } from "trainweb";

import { besideOther, chosenDevice, download, showLoading } from "../page.js";
import { drawingOf, type Lesson, Teacher } from "./teacher.js";

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
  preview: element("preview", "video"),
  camera: element("camera", "button"),
  next: element("next", "p"),
  classes: element("classes", "ol"),
  add: element("add", "button"),
  train: element("train", "button"),
  trainHint: element("train-hint", "p"),
  seenHint: element("seen-hint", "p"),
  export: element("export", "button"),
  bars: element("bars", "ul"),
  tried: element("try", "input"),
  alert: element("alert", "p"),
  status: element("status", "p"),
  progress: element("progress", "progress"),
  result: element("result", "p"),
  exported: element("exported", "p"),
};

/** Elements of the page that belong to a class. */
interface ClassView {
  readonly item: HTMLElement;
  readonly thumbnails: HTMLElement;
  readonly remove: HTMLButtonElement;
  readonly seen: HTMLElement;
  readonly name: HTMLInputElement;
  readonly count: HTMLElement;
  readonly record: HTMLButtonElement;
  readonly files: HTMLInputElement;
  readonly bar: HTMLProgressElement;
  readonly percent: HTMLElement;
  readonly label: HTMLElement;
}

const views: ClassView[] = [];
let teacher: Teacher | null = null;
/** Names of the classes that the network was trained for. */
let taught: readonly string[] = [];
let isBusy = false;
/** The file whose prediction the preview shows; "" if it shows the camera's. */
let triedName = "";
/** Time from which the camera may be used again. */
let looksFrom = 0;

function showError(error: unknown): void {
  ui.alert.textContent = error instanceof Error ? error.message : String(error);
  ui.alert.hidden = false;
}

/** Perform a button's action, one at a time. */
async function perform(action: () => Promise<void>): Promise<void> {
  const focused = document.activeElement;
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
    // A control loses the focus while it is disabled.
    if (document.activeElement === document.body && focused instanceof HTMLElement) {
      focused.focus();
    }
  }
}

function onClick(button: HTMLButtonElement, action: () => Promise<void>): void {
  button.addEventListener("click", () => void perform(action));
}

/** Disable a control for a reason, which its tooltip says; null enables it. */
function disable(control: HTMLButtonElement | HTMLInputElement, reason: string | null): void {
  control.disabled = reason !== null;
  (control.closest("label") ?? control).title = reason ?? "";
}

/** Why there is nothing to train on yet, or null. */
function missingPictures(counts: readonly number[]): string | null {
  const empty = views.filter((_, label) => counts[label] === 0).map(({ name }) => name.value);
  return views.length - empty.length >= FIRST_CLASSES ? null : `No pictures yet: ${empty.join(", ")}.`;
}

/** The step that comes next, in words. */
function nextStep(missing: string | null, isFilming: boolean): string {
  if (teacher === null) {
    return "The network is loading.";
  }
  if (missing !== null) {
    return isFilming ? "Hold something up, and click Record. Then record another class."
      : "Use the camera, or add pictures of each class from files.";
  }
  return taught.length === views.length ? "Look at the preview, or try a picture." : "Click Train.";
}

function update(): void {
  const counts = views.map((_, label) => teacher?.of(label).length ?? 0);
  const isFilming = ui.video.srcObject !== null;
  const [missing, busy] = [missingPictures(counts), isBusy ? "Wait for the end of the last step." : null];
  const loading = teacher === null ? "The network is loading." : null;
  const untrained = taught.length > 0 ? null : "Train first.";
  views.forEach(({ count, record, remove, thumbnails, files }, label) => {
    count.textContent = counts[label] === 1 ? "1 picture" : `${counts[label]} pictures`;
    disable(record, loading ?? busy ?? (isFilming ? null : "Use the camera first."));
    disable(remove, loading ?? busy ?? (views.length > FIRST_CLASSES ? null : "Two classes are the least."));
    disable(files, loading ?? busy);
    record.classList.toggle("primary", isFilming && missing !== null && counts[label] === 0);
    thumbnails.querySelectorAll("button").forEach((button) => { button.disabled = isBusy; });
  });
  disable(ui.train, loading ?? busy ?? missing);
  [ui.export, ui.tried].forEach((control) => disable(control, busy ?? untrained));
  disable(ui.add, busy);
  ui.camera.classList.toggle("primary", missing !== null);
  ui.train.classList.toggle("primary", missing === null && taught.length !== views.length);
  ui.trainHint.textContent = loading === null ? missing ?? "" : "";
  ui.seenHint.textContent = untrained ?? (triedName === "" ? "" : `This is ${triedName}.`);
  ui.next.textContent = nextStep(missing, isFilming);
}

function addClass(): void {
  const number = views.length + 1;
  const made = element("class", "template").content.cloneNode(true) as DocumentFragment;
  const find = <T extends Element>(selector: string): T => made.querySelector<T>(selector) as T;
  const bar = Object.assign(document.createElement("progress"), { max: 1, value: 0 });
  const [title, percent] = [document.createElement("span"), document.createElement("span")];
  const view = { name: find<HTMLInputElement>("input[type=text]"), count: find<HTMLElement>(".count"),
    record: find<HTMLButtonElement>(".record"), bar, percent, label: title, item: find<HTMLElement>("li"),
    thumbnails: find<HTMLElement>(".thumbnails"), remove: find<HTMLButtonElement>(".remove"), seen: document.createElement("li"),
    files: find<HTMLInputElement>("input[type=file]") };
  view.name.value = `Class ${number}`;
  const rename = (): void => {
    const name = view.name.value || `Class ${number}`;
    title.textContent = name;
    bar.setAttribute("aria-label", name);
    view.record.setAttribute("aria-label", `Record ${name}`);
    view.remove.setAttribute("aria-label", `Delete class ${name}`);
    view.files.setAttribute("aria-label", `Add files … to ${name}`);
  };
  view.name.addEventListener("input", rename);
  rename();
  onClick(view.record, () => record(view));
  view.remove.addEventListener("click", () => removeClass(view));
  view.files.addEventListener("change", () => void perform(() => addAll([...(view.files.files ?? [])], view)));
  views.push(view);
  ui.classes.append(made);
  view.seen.append(title, percent, bar);
  ui.bars.append(view.seen);
  update();
}

/** Take the class and its pictures away. The network has other classes then, and must be trained again. */
function removeClass(view: ClassView): void {
  const label = views.indexOf(view);
  teacher?.removeClass(label);
  views.splice(label, 1);
  view.item.remove();
  view.seen.remove();
  ui.add.focus();
  taught = [];
  views.forEach(({ bar, percent }) => {
    bar.value = 0;
    percent.textContent = "";
  });
  ui.status.textContent = "The classes have changed: train again.";
  ui.result.textContent = ui.exported.textContent = triedName = "";
  update();
}

/** Show a picture of a class; a click deletes it. */
function showThumbnail(lesson: Lesson, { thumbnails }: ClassView): void {
  const button = Object.assign(document.createElement("button"), { type: "button", title: "Delete this picture" });
  button.setAttribute("aria-label", "Delete this picture");
  button.append(drawingOf(lesson));
  const item = document.createElement("li");
  item.append(button);
  button.addEventListener("click", () => {
    teacher?.remove(lesson);
    const next = item.nextElementSibling ?? item.previousElementSibling;
    item.remove();
    (next?.querySelector("button") ?? ui.add).focus();
    update();
  });
  thumbnails.append(item);
}

async function add(source: ImageSource, view: ClassView): Promise<void> {
  const lesson = await teacher?.add(source, views.indexOf(view));
  if (lesson !== undefined) {
    showThumbnail(lesson, view);
  }
  update();
}

async function startCamera(): Promise<void> {
  if (!navigator.mediaDevices) {
    throw new Error("This browser gives pages a camera only over https or on localhost. Files work without one.");
  }
  const stream = await navigator.mediaDevices.getUserMedia({ video: { width: 480, height: 480 } }).catch((error: unknown) => {
    throw new Error(`There is no camera for this page (${String(error)}). Files work without one.`);
  });
  for (const video of [ui.video, ui.preview]) {
    video.srcObject = stream;
    video.hidden = false;
    await video.play();
  }
  ui.camera.hidden = true;
}

async function record(view: ClassView): Promise<void> {
  for (let frame = 0; frame < FRAMES; frame++) {
    await add(ui.video, view);
    await new Promise((resolve) => setTimeout(resolve, FRAME_MS));
  }
}

async function addAll(files: readonly File[], view: ClassView): Promise<void> {
  for (const file of files) {
    await add(file, view);
  }
}

async function train(): Promise<void> {
  ui.result.textContent = ui.exported.textContent = triedName = "";
  const outcome = await teacher?.train(views.length, (share, loss) => {
    ui.progress.value = share;
    ui.status.textContent = `Training: loss ${loss.toFixed(3)}`;
  });
  if (outcome === undefined) {
    return;
  }
  const { steps, seconds, tested, right, device } = outcome;
  ui.status.textContent = `Trained ${steps} steps in ${besideOther(device, `${seconds.toFixed(1)} s`)}.`;
  ui.result.textContent = tested === 0 ? "" : `It recognises ${right} of ${tested} pictures that it has not seen.`;
  taught = views.map(({ name }) => name.value);
}

async function save(): Promise<void> {
  const file = await teacher?.export();
  if (file !== undefined) {
    download(file, "classes.onnx");
    const names = taught.map((name, label) => `${label} ${name}`).join(", ");
    ui.exported.textContent = `The model takes float32 [batch, 3, 96, 96], (pixel - 127) / 128, and gives logits: ${names}.`;
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
    triedName = file.name;
  } finally {
    looksFrom = performance.now() + TRIED_MS;
  }
}

/** Look through the camera for ever. */
async function watch(): Promise<void> {
  const isWanted = (): boolean => performance.now() >= looksFrom;
  for (;;) {
    if (taught.length > 0 && !isBusy && ui.video.srcObject !== null && isWanted()) {
      ui.seenHint.textContent = triedName = "";
      await look(ui.video, isWanted).catch(showError);
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
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
    const onProgress = (progress: LoadProgress): void => showLoading(ui.status, ui.progress, progress);
    teacher = await Teacher.load("teach.onnx", { device: chosenDevice(element("device", "select")), onProgress });
    ui.progress.value = 0;
    ui.status.textContent = "Ready.";
  } catch (error) {
    ui.status.textContent = "The page could not start.";
    showError(error);
  }
  update();
  void watch();
}

void main();
