import { answer } from "./pyodide_host.mjs";

self.addEventListener("message", async ({ data }) => self.postMessage(await answer(data)));
