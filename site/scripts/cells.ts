/**
 * Code cells: each `<div class="example">` of a page becomes an editor with a button that runs its contents. A whole
 * page is shown above its source at once.
 */

import { html } from "@codemirror/lang-html";
import { javascript } from "@codemirror/lang-javascript";
import { python } from "@codemirror/lang-python";
import { syntaxHighlighting } from "@codemirror/language";
import { classHighlighter } from "@lezer/highlight";
import { basicSetup, EditorView } from "codemirror";

import { type Run, runJavaScript, runPage, runPython } from "./run.js";

const LANGUAGES = {
  js: { extension: javascript(), run: runJavaScript },
  python: { extension: python(), run: runPython },
  html: { extension: html(), run: runPage },
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

/** An editor with its buttons, the page of the code and its output. */
class Cell {
  readonly #stage = element("div", { className: "cell-stage" });
  readonly #code: string;
  readonly #language: Language;
  readonly #editor: EditorView;
  readonly #button = element("button", { type: "button", className: "md-button md-button--primary", textContent: "Run" });
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
        ...(matchMedia("(max-width: 44.9em)").matches ? [EditorView.lineWrapping] : []),
        LANGUAGES[language].extension,
        syntaxHighlighting(classHighlighter),
        EditorView.contentAttributes.of({ "aria-label": `Code, ${language}` }),
      ],
    });
    this.#output.setAttribute("role", "log");
    this.#output.ariaLabel = "Output";
    this.#button.addEventListener("click", () => this.#toggle());
    this.#reset.addEventListener("click", () => this.#restore());
    const bar = element("div", { className: "cell-bar" }, this.#button, this.#reset);
    place.replaceChildren(this.#stage, text, bar, this.#output);
    if (language === "html") {
      void this.#start();
    }
  }

  #toggle(): void {
    const running = this.#run;
    running?.stop();
    // A page has no end: Run starts it again.
    if (running === null || this.#language === "html") {
      void this.#start();
    }
  }

  async #start(): Promise<void> {
    this.#output.replaceChildren();
    this.#output.hidden = this.#language === "html";
    this.#output.dataset["state"] = "running";
    this.#button.textContent = this.#language === "html" ? "Run" : "Stop";
    const code = this.#editor.state.doc.toString();
    const run = LANGUAGES[this.#language].run(code, (line) => this.#print(line), this.#stage);
    this.#run = run;
    let state = "done";
    try {
      await run.done;
    } catch (error) {
      this.#output.append(element("span", { className: "cell-error", textContent: `${String(error)}\n` }));
      state = "failed";
    }
    if (this.#run === run) {
      this.#output.dataset["state"] = state;
      this.#run = null;
      this.#button.textContent = "Run";
    }
  }

  #print(line: string): void {
    this.#output.hidden = false;
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

// A picture that is replaced by its page on a click: readers load nothing of the page before.
for (const button of document.querySelectorAll<HTMLButtonElement>("button[data-open]")) {
  button.addEventListener("click", () => {
    const { open: address = "", title = "" } = button.dataset;
    button.replaceWith(element("iframe", { src: address, title, className: "live" }));
  });
}

/** What scrolls by itself can be scrolled by the keyboard; the theme wraps tables when the page is there. */
function focusScrollers(): void {
  for (const wide of document.querySelectorAll<HTMLElement>(".md-typeset__scrollwrap, .md-typeset pre > code, .cm-scroller")) {
    wide.tabIndex = 0;
  }
}

focusScrollers();
new MutationObserver(focusScrollers).observe(document.body, { childList: true, subtree: true });
