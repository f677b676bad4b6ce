"""`python -m trainweb.flower`: the bridge between a SuperLink and pages."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import signal
import sys
import threading
from importlib.metadata import version

from trainweb.flower import superlink
from trainweb.flower.bridge import Bridge, Limits

DEFAULTS = Limits()
NEEDED = ("flwr", "websockets")
FLWR = "1.41"
"""The version whose inner modules are used."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m trainweb.flower", description="Lets web pages train as clients of a Flower SuperLink."
    )
    add = result.add_argument
    add("--superlink", required=True, metavar="HOST:PORT", help="the SuperLink")
    trust = result.add_mutually_exclusive_group()
    trust.add_argument("--insecure", action="store_true", help="speak HTTP to the SuperLink; by default it is HTTPS")
    trust.add_argument("--root-certificates", metavar="FILE", help="certificates to trust; by default the system's")
    add("--host", default="127.0.0.1", help="address for pages; default %(default)s, only this machine")
    add("--port", type=int, default=8765, help="default %(default)s; 0 takes a free port")
    add("--origin", action="append", metavar="URL", help="a site whose pages may connect; repeatable; default: all")
    add("--max-pages", type=int, default=DEFAULTS.pages, help="connections at a time; default %(default)s")
    add("--max-message-mb", type=int, default=DEFAULTS.message_bytes >> 20, help="default %(default)s MiB")
    add("--answer-seconds", type=float, default=DEFAULTS.answer_seconds, help="time for a task; default %(default)s")
    add("--poll-seconds", type=float, default=DEFAULTS.poll_seconds, help="time between two polls; default %(default)s")
    return result


def main() -> int:
    """Serve until interrupted."""
    options = parser().parse_args()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{' and '.join(missing)} missing: pip install 'trainweb[flower]'", file=sys.stderr)
        return 1
    if not (found := version("flwr")).startswith(f"{FLWR}."):
        print(f"flwr {found}: the bridge was made for {FLWR}: pip install 'trainweb[flower]'", file=sys.stderr)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("websockets").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    limits = Limits(options.max_message_mb << 20, options.max_pages, options.answer_seconds, options.poll_seconds)

    def connect() -> superlink.Connection:
        certificates = options.root_certificates
        return superlink.connect(options.superlink, insecure=options.insecure, root_certificates=certificates)

    bridge = Bridge(connect, limits)
    with bridge.serve(options.host, options.port, options.origin) as server:
        host, port, *_ = server.socket.getsockname()
        print(f"pages connect to ws://{host}:{port}, tasks come from {options.superlink}", flush=True)

        def stop(*_: object) -> None:
            # Not in the thread that serves: it is interrupted here.
            threading.Thread(target=bridge.close).start()
            threading.Thread(target=server.shutdown).start()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
