/** In the frame of run.html: execute a module and pass its output on. */

import { onUncaught, printConsole } from "./print.js";

async function execute(code: string, print: (line: string) => void): Promise<void> {
  printConsole(print);
  const failed = new Promise<never>((_, reject) => onUncaught(reject));
  const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  await Promise.race([import(address), failed]);
}

Object.assign(window, { execute });
