/** The headers of Parcel's development server. */
module.exports = (app) => {
  app.use((_, response, next) => {
    if (process.env.ISOLATED) {
      response.setHeader("Cross-Origin-Opener-Policy", "same-origin");
      response.setHeader("Cross-Origin-Embedder-Policy", "require-corp");
    }
    next();
  });
};
