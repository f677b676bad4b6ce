/** The confusion matrix as a table: rows are what was written, columns what was read. */

import { CLASSES } from "./trainer.js";

/** Strength of the colour of a cell with a single image. */
const FAINTEST = 0.25;
/** Strength of a cell with all images of its row: text is read on it in both modes. */
const STRONGEST = 0.6;

/** Build the table once; returns a function that fills it. */
export function confusionTable(
  table: HTMLTableElement,
): (confusion: readonly (readonly number[])[]) => void {
  const head = table.createTHead().insertRow();
  const corner = headerCell("", "col");
  const words = document.createElement("span");
  words.className = "hidden";
  words.textContent = "written, in rows; read, in columns";
  corner.append(words);
  head.append(corner, ...digitHeaders("col"));
  const body = table.createTBody();
  const cells = Array.from({ length: CLASSES }, (_, label) => {
    const row = body.insertRow();
    row.append(headerCell(String(label), "row"));
    return Array.from({ length: CLASSES }, () => row.insertCell());
  });
  return (confusion) => {
    confusion.forEach((counts, label) => {
      const total = counts.reduce((sum, count) => sum + count, 0);
      counts.forEach((count, predicted) => {
        const cell = cells[label]?.[predicted];
        if (cell) {
          fill(cell, count, total, label, predicted);
        }
      });
    });
  };
}

function fill(
  cell: HTMLTableCellElement,
  count: number,
  total: number,
  label: number,
  predicted: number,
): void {
  const right = label === predicted;
  // A root makes single mistakes visible beside rows of a hundred right answers.
  const strength = count > 0 ? FAINTEST + (STRONGEST - FAINTEST) * Math.sqrt(count / total) : 0;
  cell.textContent = count > 0 ? String(count) : "";
  cell.className = right ? "right" : "wrong";
  cell.style.setProperty("--strength", `${Math.round(100 * strength)}%`);
  cell.title = `${count} of ${total} images of a ${label} read as ${predicted}`;
}

function digitHeaders(scope: string): HTMLTableCellElement[] {
  return Array.from({ length: CLASSES }, (_, digit) => headerCell(String(digit), scope));
}

function headerCell(text: string, scope: string): HTMLTableCellElement {
  const cell = document.createElement("th");
  cell.scope = scope;
  cell.textContent = text;
  return cell;
}
