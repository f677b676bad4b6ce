/** In the frame of a whole page, before its own scripts: pass on its output and its height. */

import { onUncaught, printConsole } from "./print.js";

const frame = window.frameElement as HTMLIFrameElement;

function print(line: string): void {
  frame.dispatchEvent(new CustomEvent("line", { detail: line }));
}

printConsole(print);
onUncaught((error) => print(String(error)));
new ResizeObserver(() => {
  frame.style.height = `${Math.ceil(document.documentElement.getBoundingClientRect().height)}px`;
}).observe(document.documentElement);
