"""A bridge between Flower and web pages, which train as Flower's clients: browsers speak no gRPC, and not its messages.

    python -m trainweb.flower --superlink 127.0.0.1:8000 --insecure --port 8765

needs `pip install "trainweb[flower]"`. It runs beside the SuperLink; each page that connects to it is a node there.
docs/federated.md has the whole story.
"""

__all__: list[str] = []
__dir__ = __all__.copy
