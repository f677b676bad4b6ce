import { defineConfig } from "vite";

const headers = process.env.ISOLATED
  ? { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" }
  : {};

export default defineConfig({
  base: "/sub/app/",
  server: { headers },
  build: { outDir: "../dist" },
});
