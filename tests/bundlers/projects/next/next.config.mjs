const isolation = [
  { key: "Cross-Origin-Opener-Policy", value: "same-origin" },
  { key: "Cross-Origin-Embedder-Policy", value: "require-corp" },
];

export default {
  headers: async () => (process.env.ISOLATED ? [{ source: "/:path*", headers: isolation }] : []),
};
