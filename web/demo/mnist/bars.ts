/** Ten bars: how probable the network finds each digit. */

import { argmax, CLASSES } from "./evaluation.js";

/** Build the bars once; returns a function that shows probabilities, or none (undefined). */
export function probabilityBars(list: HTMLElement): (values: Float32Array | undefined) => void {
  const rows = Array.from({ length: CLASSES }, (_, digit) => {
    const row = document.createElement("li");
    const label = document.createElement("span");
    const track = document.createElement("span");
    const bar = document.createElement("i");
    const value = document.createElement("output");
    label.textContent = String(digit);
    label.className = "digit";
    track.className = "track";
    track.append(bar);
    row.append(label, track, value);
    return { row, bar, value };
  });
  list.replaceChildren(...rows.map(({ row }) => row));
  return (values) => {
    const best = values ? argmax(values) : -1;
    rows.forEach(({ row, bar, value }, digit) => {
      const percent = 100 * (values?.[digit] ?? 0);
      row.classList.toggle("best", digit === best);
      bar.style.width = `${percent.toFixed(1)}%`;
      value.textContent = values ? `${percent.toFixed(percent < 9.95 ? 1 : 0)} %` : "";
    });
  };
}
