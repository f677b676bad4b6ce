/** Pages get their headers here; Vite's setting is for what it serves itself. */
export async function handle({ event, resolve }) {
  const response = await resolve(event);
  if (process.env.ISOLATED) {
    response.headers.set("Cross-Origin-Opener-Policy", "same-origin");
    response.headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  }
  return response;
}
