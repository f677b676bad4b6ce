import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

const headers = process.env.ISOLATED
  ? { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" }
  : {};

export default defineConfig({ base: "/sub/app/", plugins: [svelte()], server: { headers } });
