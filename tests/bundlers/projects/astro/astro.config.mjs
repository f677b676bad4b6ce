const headers = process.env.ISOLATED
  ? { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" }
  : {};

export default { server: { headers } };
