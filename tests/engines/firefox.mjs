/** Firefox by WebDriver BiDi: opens a page and prints `window.outcome` as soon as it is there. It has WebGPU, on Linux only so. */

import puppeteer from "puppeteer-core";

const [executablePath, url, timeout] = process.argv.slice(2);

const extraPrefsFirefox = { "dom.webgpu.enabled": true, "gfx.webgpu.ignore-blocklist": true };
const browser = await puppeteer.launch({ browser: "firefox", executablePath, headless: true, extraPrefsFirefox });
try {
  const page = await browser.newPage();
  const lines = [];
  page.on("console", (message) => lines.push(message.text()));
  await page.goto(url);
  const deadline = Date.now() + Number(timeout);
  let outcome = null;
  while (outcome === null && Date.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, 200));
    outcome = await page.evaluate(() => window.outcome ?? null);
  }
  console.log(JSON.stringify({ version: await browser.version(), outcome, lines }));
} finally {
  await browser.close();
}
