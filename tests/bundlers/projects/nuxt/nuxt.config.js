const headers = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
};

export default defineNuxtConfig({
  compatibilityDate: "2026-01-01",
  routeRules: process.env.ISOLATED ? { "/**": { headers } } : {},
});
