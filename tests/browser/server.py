"""A local HTTP server for browser tests: folders under prefixes, headers on demand, a byte log."""

import functools
import hashlib
import html
import io
import json
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]

MIME_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".whl": "application/zip",
    ".zip": "application/zip",
}
DEFAULT_MIME = "application/octet-stream"
HANG_S = 60

ISOLATION_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}

MOUNTS: dict[str, tuple[Path, ...]] = {
    "/dist/": (ROOT / "dist" / "npm",),
    "/pyodide/": (ROOT / ".build" / "pyodide",),
    "/wheels/": (ROOT / "dist", ROOT / ".build" / "wheels"),
    "/golden/": (ROOT / "tests" / "golden",),
    "/tests/": (ROOT / "tests" / "browser" / "pages",),
    "/node_modules/": (ROOT / "node_modules",),
}


@dataclass(frozen=True)
class Reply:
    """An answer that a test serves under a path of its choice."""

    body: bytes
    content_type: str = DEFAULT_MIME
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    sent: int | None = None
    """Bytes of the body that go out; the others never do."""
    hangs: bool = False
    """Whether the connection stays open then, instead of breaking off."""
    endless: bool = False
    """Whether the body is sent again and again, without a length, until whoever asked goes away."""


@dataclass(frozen=True)
class Request:
    """One line of the log: the request, the answer, and the number of body bytes."""

    path: str
    status: int
    n_bytes: int


def mime_type(path: str) -> str:
    """The Content-Type of a path, by its ending."""
    return MIME_TYPES.get(Path(path).suffix, DEFAULT_MIME)


def zip_folders(folders: Mapping[str, Path], suffixes: Sequence[str] | None = None) -> bytes:
    """A zip of whole folders, each under its own name; only files with `suffixes`, if given."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, folder in folders.items():
            for file in sorted(folder.rglob("*")):
                if not file.is_file() or "__pycache__" in file.parts:
                    continue
                if suffixes is None or file.suffix in suffixes:
                    archive.write(file, f"{name}/{file.relative_to(folder)}")
    return buffer.getvalue()


def _index_entry(wheel: Path, url: str) -> dict[str, object]:
    data = wheel.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    return {"filename": wheel.name, "url": url, "hashes": {"sha256": sha256}, "size": len(data)}


class Site:
    """A running server on a port of 127.0.0.1.

    Parameters
    ----------
    isolated
        Send COOP and COEP, so that pages are cross-origin isolated (shared memory, threads).
    csp
        Value of a Content-Security-Policy header for every reply.
    mounts
        Folders served under each prefix; the first that has the file wins.
    port
        Port to listen on; 0 takes any that is free.
    """

    def __init__(
        self,
        *,
        isolated: bool = False,
        csp: str | None = None,
        mounts: Mapping[str, Iterable[Path]] = MOUNTS,
        port: int = 0,
    ) -> None:
        self.headers: dict[str, str] = dict(ISOLATION_HEADERS) if isolated else {}
        if csp is not None:
            self.headers["Content-Security-Policy"] = csp
        self.mounts = {prefix: tuple(folders) for prefix, folders in mounts.items()}
        self.log: list[Request] = []
        self.given_up: list[str] = []
        """Paths of replies that hang or do not end, and whose reader went away."""
        self._replies: dict[str, Callable[[], Reply]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), functools.partial(_Handler, self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def origin(self) -> str:
        """Scheme, host and port, with no slash at the end."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def url(self, path: str) -> str:
        """The full address of a path that starts with a slash."""
        return self.origin + path

    def add(
        self,
        path: str,
        body: bytes | str,
        content_type: str | None = None,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        delay_s: float = 0.0,
    ) -> str:
        """Serve `body` under `path` and return its URL; it goes before any file there."""
        data = body.encode() if isinstance(body, str) else body
        reply = Reply(data, content_type or mime_type(path), status, dict(headers or {}), delay_s)
        return self.add_dynamic(path, lambda: reply)

    def add_dynamic(self, path: str, make: Callable[[], Reply]) -> str:
        """Serve what `make` returns, called anew for each request."""
        with self._lock:
            self._replies[path] = make
        return self.url(path)

    def remove(self, path: str) -> None:
        """Take back a path that `add` put up."""
        with self._lock:
            self._replies.pop(path, None)

    def clear_log(self) -> None:
        """Forget all requests so far."""
        with self._lock:
            self.log.clear()

    def bytes_served(self, prefix: str = "/") -> int:
        """Body bytes sent for paths under `prefix` since the log was last cleared."""
        with self._lock:
            return sum(entry.n_bytes for entry in self.log if entry.path.startswith(prefix))

    def requests(self, prefix: str = "/") -> list[str]:
        """Paths asked for under `prefix`, in order."""
        with self._lock:
            return [entry.path for entry in self.log if entry.path.startswith(prefix)]

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _record(self, request: Request) -> None:
        with self._lock:
            self.log.append(request)

    def _find(self, path: str) -> Reply:
        with self._lock:
            make = self._replies.get(path)
        if make is not None:
            return make()
        if path.startswith("/simple/"):
            return self._package_index(path.removeprefix("/simple/").strip("/"))
        for prefix, folders in self.mounts.items():
            if path.startswith(prefix):
                for folder in folders:
                    file = (folder / path[len(prefix) :]).resolve()
                    if file.is_relative_to(folder.resolve()) and file.is_file():
                        return Reply(file.read_bytes(), mime_type(file.name))
        return Reply(html.escape(f"no such file: {path}").encode(), "text/plain", 404)

    def _package_index(self, project: str) -> Reply:
        """One project of a PEP 691 package index made of the wheels that are served."""
        files = [
            _index_entry(wheel, self.url(prefix + wheel.name))
            for prefix in ("/wheels/", "/pyodide/")
            for folder in self.mounts.get(prefix, ())
            for wheel in sorted(folder.glob("*.whl"))
            if wheel.name.split("-")[0].replace("_", "-").lower() == project
        ]
        if not files:
            return Reply(b"no such project", "text/plain", 404)
        index = {
            "meta": {"api-version": "1.1"},
            "name": project,
            "versions": sorted({str(entry["filename"]).split("-")[1] for entry in files}),
            "files": files,
        }
        return Reply(json.dumps(index).encode(), "application/vnd.pypi.simple.v1+json")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, site: Site, *arguments: object) -> None:
        self.site = site
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        reply = self.site._find(path)
        if reply.delay_s:
            time.sleep(reply.delay_s)
        self.site._record(Request(path, reply.status, len(reply.body) if with_body else 0))
        headers = {
            "Content-Type": reply.content_type,
            "Content-Length": str(len(reply.body)),
            "Cache-Control": "no-store",
            "Access-Control-Allow-Origin": "*",
            "Cross-Origin-Resource-Policy": "cross-origin",
            **self.site.headers,
            **reply.headers,
        }
        if reply.endless:
            del headers["Content-Length"]
            self.close_connection = True
        try:
            self.send_response(reply.status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(reply.body[: reply.sent])
            while reply.endless:
                self.wfile.write(reply.body)
            if reply.sent is not None:
                self.close_connection = True
                self.wfile.flush()
                if reply.hangs:
                    self.connection.settimeout(HANG_S)
                    if self.rfile.read(1) == b"":  # until the page gives up
                        self.site.given_up.append(path)
        except TimeoutError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the page went away in the middle; nobody waits
            self.site.given_up.append(path)

    def log_message(self, *_: object) -> None:
        """Keep the test output clean; `Site.log` has it all."""
