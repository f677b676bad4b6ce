/** The button, the bar and the line of text that the examples have in common. */

import { env } from "../dist/npm/index.js";

export const $ = (selector) => document.querySelector(selector);

/** Show a share of the work, from 0 to 1, and what is done. */
export function show(text, share) {
  $("#log").textContent = text;
  $("#bar").value = share;
}

/**
 * Train when the button is pressed, as often as it is pressed.
 *
 * @param {() => Promise<string>} train - loads, trains, and returns the line to show in the end
 */
export function onTrain(train) {
  const button = $("#train");
  button.addEventListener("click", async () => {
    button.disabled = true;
    $("#log").classList.remove("failed");
    document.querySelectorAll("trainweb-curves").forEach((curves) => curves.clear());
    show("Loading …", 0);
    $("#bar").removeAttribute("value");
    try {
      const text = await train();
      show(`done: ${text}`, 1);
      button.textContent = "Train again";
    } catch (error) {
      show(`${error.name}: ${error.message}`, 0);
      $("#log").classList.add("failed");
    } finally {
      button.disabled = false;
    }
  });
}

/** A callback of `fit` that moves the bar. */
export function progressOf(epochs) {
  return ({ type, epoch, step, steps }) => {
    const done = type === "epoch" ? epoch : epoch - 1 + (steps === null ? 0 : step / steps); // a stream has no known length
    show(`Training, epoch ${Math.min(epochs, Math.floor(done) + 1)} of ${epochs} …`, done / epochs);
  };
}

env.onProgress = ({ stage, percent }) => {
  show(stage === "compile" ? "Compiling the training step …" : `Loading ${stage}, ${percent} %`, percent / 100);
  if (stage === "compile") $("#bar").removeAttribute("value"); // it has no known length
};
