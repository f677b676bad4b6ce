/** Code cells: each `<div class="example">` of a page becomes an editor with a button that runs what stands in it. */

import { javascript } from "@codemirror/lang-javascript";
import { python } from "@codemirror/lang-python";
import { syntaxHighlighting } from "@codemirror/language";
import { classHighlighter } from "@lezer/highlight";
import { basicSetup, EditorView } from "codemirror";

import { type Run, runJavaScript, runPython } from "./run.js";

const LANGUAGES = {
  js: { extension: javascript(), run: runJavaScript },
  python: { extension: python(), run: runPython },
} as const;

type Language = keyof typeof LANGUAGES;

function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  properties: Partial<HTMLElementTagNameMap[K]>,
  ...children: Node[]
): HTMLElementTagNameMap[K] {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** An editor with its buttons and what the code printed. */
class Cell {
  readonly #code: string;
  readonly #language: Language;
  readonly #editor: EditorView;
  readonly #start = element("button", { type: "button", className: "md-button md-button--primary", textContent: "Run" });
  readonly #reset = element("button", { type: "button", className: "md-button", textContent: "Reset" });
  readonly #output = element("pre", { className: "cell-output", hidden: true, tabIndex: 0 });
  #run: Run | null = null;

  constructor(place: HTMLElement, language: Language, code: string) {
    this.#code = code;
    this.#language = language;
    const text = element("div", { className: "cell-editor" });
    this.#editor = new EditorView({
      parent: text,
      doc: code,
      extensions: [
        basicSetup,
        LANGUAGES[language].extension,
        syntaxHighlighting(classHighlighter),
        EditorView.contentAttributes.of({ "aria-label": `Code, ${language}` }),
      ],
    });
    this.#output.setAttribute("role", "log");
    this.#output.ariaLabel = "Output";
    this.#start.addEventListener("click", () => void this.#toggle());
    this.#reset.addEventListener("click", () => this.#restore());
    const bar = element("div", { className: "cell-bar" }, this.#start, this.#reset);
    place.replaceChildren(text, bar, this.#output);
  }

  async #toggle(): Promise<void> {
    if (this.#run) {
      this.#run.stop();
      return;
    }
    this.#output.replaceChildren();
    this.#output.hidden = false;
    this.#start.textContent = "Stop";
    this.#output.dataset["state"] = "running";
    this.#run = LANGUAGES[this.#language].run(this.#editor.state.doc.toString(), (line) => this.#print(line));
    try {
      await this.#run.done;
      this.#output.dataset["state"] = "done";
    } catch (error) {
      this.#output.append(element("span", { className: "cell-error", textContent: `${String(error)}\n` }));
      this.#output.dataset["state"] = "failed";
    } finally {
      this.#run = null;
      this.#start.textContent = "Run";
    }
  }

  #print(line: string): void {
    this.#output.append(`${line}\n`);
    this.#output.scrollTop = this.#output.scrollHeight;
  }

  #restore(): void {
    this.#editor.dispatch({ changes: { from: 0, to: this.#editor.state.doc.length, insert: this.#code } });
  }
}

for (const place of document.querySelectorAll<HTMLElement>(".example")) {
  const code = place.querySelector("code")?.textContent ?? "";
  const language = (Object.keys(LANGUAGES) as Language[]).find((name) => place.querySelector(`.language-${name}`));
  if (language) {
    new Cell(place, language, code.trimEnd());
  }
}

// A picture that becomes the page it shows: nothing of that is loaded for those who only read.
for (const button of document.querySelectorAll<HTMLButtonElement>("button[data-open]")) {
  button.addEventListener("click", () => {
    const { open: address = "", title = "" } = button.dataset;
    button.replaceWith(element("iframe", { src: address, title, className: "live" }));
  });
}
