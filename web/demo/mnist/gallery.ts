/** The test images that the network gets wrong, the most confident errors first. */

import type { DigitSet } from "./data.js";
import { onThemeChange, paintDigit } from "./theme.js";
import type { Mistake } from "./evaluation.js";

const SHOWN = 24;

export class Gallery {
  readonly #list: HTMLElement;
  readonly #digits: DigitSet;
  readonly #pick: (image: Uint8Array) => void;
  #mistakes: readonly Mistake[] = [];

  /** `pick` is called with the image that a person chooses. */
  constructor(list: HTMLElement, digits: DigitSet, pick: (image: Uint8Array) => void) {
    this.#list = list;
    this.#digits = digits;
    this.#pick = pick;
    onThemeChange(() => this.#render());
  }

  show(mistakes: readonly Mistake[]): void {
    this.#mistakes = mistakes;
    this.#render();
  }

  #render(): void {
    const focused = [...this.#list.querySelectorAll("button")].findIndex(
      (button) => button === document.activeElement,
    );
    this.#list.replaceChildren(...this.#mistakes.slice(0, SHOWN).map((one) => this.#item(one)));
    this.#list.querySelectorAll("button")[focused]?.focus();
  }

  #item({ index, label, predicted, confidence }: Mistake): HTMLElement {
    const image = this.#digits.image(index);
    const item = document.createElement("li");
    const button = document.createElement("button");
    const canvas = document.createElement("canvas");
    paintDigit(canvas, image, this.#digits.side);
    const caption = document.createElement("span");
    const wrong = document.createElement("b");
    wrong.textContent = String(predicted);
    caption.append(`${label} \u2192 `, wrong);
    const percent = Math.round(100 * confidence);
    const words = `a ${label}, read as ${predicted} with ${percent} % confidence`;
    button.type = "button";
    button.className = "sample";
    button.title = `${words}: put it on the pad`;
    // The visible text comes first: users of speech control say it.
    button.setAttribute("aria-label", `${label} \u2192 ${predicted}, ${button.title}`);
    button.append(canvas, caption);
    button.addEventListener("click", () => this.#pick(image));
    item.append(button);
    return item;
  }
}
