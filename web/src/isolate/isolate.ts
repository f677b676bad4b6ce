/**
 * Cross-origin isolation where a server's headers cannot be set: a service worker adds them to the responses that it
 * passes on.
 *
 *     <script src="isolate.js"></script>
 *
 * The same file is the page's script and the service worker. The script registers the worker and loads the page anew
 * once. The file must lie in the folder of the page or above, for a service worker only controls pages below itself.
 */

import type { WithTrustedTypes } from "../wire/trusted-types.js";

/** Members that only service workers have, and that TypeScript declares apart from the rest of a page's interface. */
interface ServiceWorkerScope extends EventTarget {
  readonly clients: { claim(): Promise<void> };
  skipWaiting(): Promise<void>;
}

interface LifetimeEvent extends Event {
  waitUntil(promise: Promise<void>): void;
}

interface RequestEvent extends Event {
  readonly request: Request;
  respondWith(response: Promise<Response>): void;
}

/** Key in the session's storage that marks a page loaded anew. */
const MARK = "trainweb-isolate";

const HEADERS = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cross-Origin-Resource-Policy": "cross-origin",
} as const;

function serve(scope: ServiceWorkerScope): void {
  scope.addEventListener("install", (event) => (event as LifetimeEvent).waitUntil(scope.skipWaiting()));
  scope.addEventListener("activate", (event) => (event as LifetimeEvent).waitUntil(scope.clients.claim()));
  scope.addEventListener("fetch", (event) => {
    const { request, respondWith } = event as RequestEvent;
    // Developer tools make such requests, and fetch refuses them.
    if (request.cache !== "only-if-cached" || request.mode === "same-origin") {
      respondWith.call(event, fetch(request).then((response) => passOn(request, response)));
    }
  });
}

/**
 * A Response that is made here has the URL of its request: a module behind a redirect would resolve imports beside that
 * URL. So the browser is redirected, too, and asks anew. Only GET requests are repeated, and never at the same URL,
 * which would not end.
 */
function passOn(request: Request, response: Response): Response {
  if (!response.redirected || request.method !== "GET" || withoutHash(response.url) === withoutHash(request.url)) {
    return withHeaders(response);
  }
  void response.body?.cancel();
  return Response.redirect(response.url);
}

function withoutHash(url: string): string {
  return url.split("#", 1)[0] as string;
}

function withHeaders(response: Response): Response {
  // Of other origins that allow nothing: they cannot be changed, nor may the page load them.
  if (response.type === "opaque" || response.type === "opaqueredirect" || response.type === "error") {
    return response;
  }
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(HEADERS)) {
    headers.set(name, value);
  }
  const { status, statusText } = response;
  // These statuses have no body, and the constructor takes none.
  const body = [101, 204, 205, 304].includes(status) ? null : response.body;
  return new Response(body, { status, statusText, headers });
}

async function isolate(script: string): Promise<void> {
  if (crossOriginIsolated) {
    sessionStorage.removeItem(MARK);
    return;
  }
  if (navigator.serviceWorker === undefined) {
    console.warn("trainweb: no threads, for service workers need https or localhost.");
    return;
  }
  await navigator.serviceWorker.register(trusted(script));
  await navigator.serviceWorker.ready;
  if (sessionStorage.getItem(MARK) !== null) {
    console.warn("trainweb: no threads, for the page is not isolated though a service worker adds the headers.");
    return;
  }
  sessionStorage.setItem(MARK, "");
  location.reload();
}

function trusted(url: string): string {
  const { trustedTypes } = globalThis as WithTrustedTypes;
  const policy = trustedTypes?.createPolicy(MARK, { createScriptURL: (address) => address });
  return policy === undefined ? url : policy.createScriptURL(url);
}

if (typeof document === "undefined") {
  serve(globalThis as unknown as ServiceWorkerScope);
} else {
  const { currentScript } = document;
  if (currentScript instanceof HTMLScriptElement) {
    isolate(currentScript.src).catch((error: unknown) => console.warn(`trainweb: no threads, ${String(error)}`));
  }
}
