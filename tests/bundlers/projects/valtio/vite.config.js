import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const headers = process.env.ISOLATED
  ? { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" }
  : {};

export default defineConfig({ base: "/sub/app/", plugins: [react()], server: { headers } });
