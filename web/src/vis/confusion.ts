/** A confusion matrix as a table: rows are true classes, columns are predicted classes. */

import type { FitEvent } from "../page/fit/events.js";
import css from "./confusion.css";
import { FitPanel, make } from "./panel.js";

/** Strength of the colour of a cell with a single row of data. */
const FAINTEST = 0.25;
/** Strength of a cell with all rows of its class: text is read on it in light and dark mode. */
const STRONGEST = 0.6;
const METRIC = "confusionMatrix";

/**
 * `<trainweb-confusion labels="cat,dog">`: a confusion matrix, of the metric `"confusionMatrix"` of a fit.
 *
 * Attribute: `labels`, names of the classes, separated by commas (default: their numbers).
 */
export class TrainwebConfusion extends FitPanel {
  /** Attributes that it follows. */
  static readonly observedAttributes = ["labels"];

  #values: readonly (readonly number[])[] = [];

  constructor() {
    super(css);
  }

  /** Counts: `values[true class][predicted class]`. */
  get values(): readonly (readonly number[])[] {
    return this.#values;
  }

  /** @throws TypeError for anything but a square matrix of numbers */
  set values(values: readonly (readonly number[])[]) {
    const isRow = (row: unknown): boolean =>
      Array.isArray(row) && row.length === values.length && row.every((count) => typeof count === "number");
    if (!Array.isArray(values) || !values.every(isRow)) {
      throw new TypeError("'values' must be a square matrix: an array of as many arrays of numbers as each has.");
    }
    this.#values = values;
    this.update();
  }

  override add(event: FitEvent): void {
    const values = event.type === "epoch" ? event.validation?.[METRIC] : undefined;
    if (Array.isArray(values)) {
      this.values = values as readonly (readonly number[])[];
    }
  }

  /** @internal */
  protected override render(): void {
    if (this.#values.length === 0) {
      this.figure.replaceChildren(make("p", { className: "empty", textContent: "The matrix appears here after the first epoch." }));
      return;
    }
    const names = this.getAttribute("labels")?.split(",").map((label) => label.trim());
    const labels = this.#values.map((_, k) => names?.[k] ?? String(k));
    const corner = make("td", { textContent: "true \\ predicted" });
    const head = make("tr", {}, corner, ...labels.map((label) => make("th", { scope: "col", textContent: label })));
    const rows = this.#values.map((counts, k) => rowOf(counts, k, labels));
    const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
    const total = this.#values.flat().reduce((sum, count) => sum + count, 0);
    const right = this.#values.reduce((sum, counts, k) => sum + (counts[k] ?? 0), 0);
    const caption = make("figcaption", { textContent: `${right} of ${total} right` });
    this.figure.replaceChildren(make("div", { className: "scroll", tabIndex: 0 }, table), caption);
  }
}

function rowOf(counts: readonly number[], truth: number, labels: readonly string[]): HTMLTableRowElement {
  const total = counts.reduce((sum, count) => sum + count, 0);
  const cells = counts.map((count, predicted) => {
    // A root makes single mistakes visible beside classes with a hundred right answers.
    const strength = count > 0 ? FAINTEST + (STRONGEST - FAINTEST) * Math.sqrt(count / total) : 0;
    const cell = make("td", {
      className: truth === predicted ? "right" : "wrong",
      textContent: count > 0 ? String(count) : "",
      title: `${count} of ${total}: ${labels[truth]}, predicted as ${labels[predicted]}`,
    });
    cell.style.setProperty("--strength", `${Math.round(100 * strength)}%`);
    return cell;
  });
  return make("tr", {}, make("th", { scope: "row", textContent: labels[truth] ?? "" }), ...cells);
}
