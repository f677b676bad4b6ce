/** Text of tokens that come one after the other; `trainweb/generation/generate.py` does the same. */

import type { TextTokenizer } from "../data/text.js";
import { INCOMPLETE } from "../wire/constants.js";

/** Turns text into tokens and back, as tokenizers of `@huggingface/transformers` do. */
export interface Tokenizer extends Pick<TextTokenizer, "encode"> {
  /** The text of token ids. */
  decode(tokens: number[]): string;
}

/** The text of a growing list of tokens, in pieces that never change afterwards. */
export class GrowingText {
  readonly #tokenizer: Tokenizer;
  readonly #stops: readonly string[];
  readonly #tokens: number[] = [];
  #given = 0;

  /** @param stops - texts that end it */
  constructor(tokenizer: Tokenizer, stops: readonly string[]) {
    this.#tokenizer = tokenizer;
    this.#stops = stops;
  }

  /**
   * Add a token.
   *
   * @param isStop - it is a stop token, whose own text is left out
   * @param isLast - no token follows: nothing is held back
   * @returns the text that it completes, and whether a stop text ends the text there
   */
  add(token: number, isStop: boolean, isLast: boolean): { readonly text: string; readonly stopped: boolean } {
    if (!isStop) {
      this.#tokens.push(token);
    }
    const text = this.#tokens.length > 0 ? this.#tokenizer.decode([...this.#tokens]) : "";
    const ends = this.#stops.map((stop) => text.indexOf(stop)).filter((at) => at >= 0);
    if (ends.length > 0) {
      return { text: this.#piece(text.slice(0, Math.min(...ends))), stopped: true };
    }
    const end = isLast || isStop ? text.length : text.length - this.#held(text);
    return { text: this.#piece(text.slice(0, end)), stopped: false };
  }

  #piece(text: string): string {
    const piece = text.slice(this.#given);
    this.#given += piece.length;
    return piece;
  }

  /** Characters at the end that later tokens may change, or that may begin a stop text. */
  #held(text: string): number {
    let end = text.length;
    while (end > 0 && text[end - 1] === INCOMPLETE) {
      end--;
    }
    if (end < text.length) {
      return text.length - end;
    }
    const beginnings = this.#stops.flatMap((stop) => Array.from({ length: stop.length - 1 }, (_, k) => stop.slice(0, k + 1)));
    return Math.max(0, ...beginnings.filter((beginning) => text.endsWith(beginning)).map(({ length }) => length));
  }
}
