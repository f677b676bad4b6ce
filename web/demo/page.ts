/** Parts that the pages of the demos share. */

import type { LoadProgress, SessionDevice } from "trainweb";

/** Memory of a page and of Python in it, beside its session's, for a small network. */
export const PAGE_BYTES = 180e6;

/** Bounds of the runs that `fastest` measures. */
const MEASURED_MS = 1000;
const MEASURED_RUNS = 20;

/** The element of the page with this id. */
export function element<T extends Element = HTMLElement>(id: string): T {
  const found = document.querySelector<T>(`#${id}`);
  if (found === null) {
    throw new Error(`the page has no element ${id}`);
  }
  return found;
}

/** Let the browser save a file. */
export function download(file: Blob | Uint8Array, name: string): void {
  const blob = file instanceof Blob ? file : new Blob([file as Uint8Array<ArrayBuffer>]);
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  // The download has started by then; revoking at once would cancel it in some browsers.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** The device of the page's sessions: a switch shows it. Sessions keep theirs, so the page starts anew with another one. */
export function chosenDevice(select: HTMLSelectElement): SessionDevice["kind"] {
  const query = new URLSearchParams(location.search);
  const device = query.get("device") === "webgpu" ? "webgpu" : "wasm";
  select.value = device;
  select.disabled = !("gpu" in navigator);
  select.addEventListener("change", () => {
    query.set("device", select.value);
    location.search = query.toString();
  });
  return device;
}

/** The processor of a session's steps, in words. */
export function processorOf({ adapter }: SessionDevice): string {
  return adapter === null ? "CPU" : `GPU (${adapter.description || adapter.vendor})`;
}

/** A time on a session's processor, in words, and the last one on the other that this page can take. */
export function besideOther(device: SessionDevice, time: string): string {
  const { pathname } = location;
  const times = JSON.parse(sessionStorage.getItem(pathname) ?? "{}") as Record<string, string>;
  times[device.kind] = `${time} on the ${processorOf(device)}`;
  sessionStorage.setItem(pathname, JSON.stringify(times));
  const { [device.kind]: own, ...others } = times;
  return [own, ...Object.values(others)].join("; before, ");
}

/** Bytes in words. */
export function megabytes(bytes: number): string {
  return `${bytes < 1e7 ? (bytes / 1e6).toFixed(1) : Math.round(bytes / 1e6)} MB`;
}

/** What is loaded, in words. */
const STAGES: Readonly<Record<string, string>> = { python: "Python", kernels: "the kernels", model: "the model" };

/** Tell how far loading is; the bar moves without an end while there is no number. */
export function showLoading(status: HTMLElement, bar: HTMLProgressElement, progress: LoadProgress): void {
  const { stage, percent } = progress;
  if (stage === "compile") {
    status.textContent = "Compiling …";
    bar.removeAttribute("value");
  } else {
    status.textContent = `Loading ${STAGES[stage] ?? stage}: ${Math.round(percent)} %`;
    bar.value = percent / 100;
  }
}

/** Append pieces of text as they come, until the signal is aborted. */
export async function appendTo(pane: HTMLElement, pieces: AsyncIterable<string>, signal: AbortSignal): Promise<void> {
  try {
    for await (const piece of pieces) {
      pane.append(piece);
    }
  } catch (error) {
    if (!signal.aborted) {
      throw error;
    }
  }
}

/** Seconds of the fastest of some runs: the browser has not optimized the code of the first ones yet. */
export async function fastest(run: () => Promise<unknown>): Promise<number> {
  const started = performance.now();
  const times: number[] = [];
  while (times.length < 2 || (performance.now() - started < MEASURED_MS && times.length < MEASURED_RUNS)) {
    const before = performance.now();
    await run();
    times.push((performance.now() - before) / 1000);
  }
  return Math.min(...times);
}

/** Take files that are dropped on a card; `isTaken` says if it takes any now. */
export function onDrop(card: HTMLElement, isTaken: () => boolean, take: (data: DataTransfer) => void): void {
  card.addEventListener("dragover", (event) => {
    event.preventDefault();
    card.classList.add("over");
  });
  card.addEventListener("dragleave", () => card.classList.remove("over"));
  card.addEventListener("drop", (event) => {
    event.preventDefault();
    card.classList.remove("over");
    if (event.dataTransfer !== null && isTaken()) {
      take(event.dataTransfer);
    }
  });
}
