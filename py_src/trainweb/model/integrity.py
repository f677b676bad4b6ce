"""Hashes that files must have, as the attribute `integrity` of HTML gives them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from ..errors import ModelError

BYTES = {"sha256": 32, "sha384": 48, "sha512": 64}
"""From the weakest on: of several hashes, only the strongest kind counts, as in HTML."""

EXPRESSION = re.compile(r"(sha256|sha384|sha512)-([A-Za-z0-9+/_-]+={0,2})(?:\?.*)?")


def parse_integrity(text: Any, name: str = "integrity") -> list[tuple[str, bytes]]:
    """Algorithms and digests of the hashes in a text. Raise TypeError for other texts, which protect nothing."""
    if not isinstance(text, str) or not text.split():
        raise TypeError(f"'{name}' must be a hash such as 'sha256-...' in Base64, got {text!r:.80}.")
    return [_hash(part, name) for part in text.split()]


def _hash(part: str, name: str) -> tuple[str, bytes]:
    match = EXPRESSION.fullmatch(part)
    try:
        digest = base64.b64decode(match[2].replace("-", "+").replace("_", "/") + "===") if match else b""
    except binascii.Error:
        digest = b""
    if match is None or len(digest) != BYTES[match[1]]:
        raise TypeError(f"'{name}' has {part!r:.120}, which is not a hash such as 'sha256-...' in Base64.")
    return match[1], digest


def check_integrity(
    data: bytes | bytearray | memoryview, text: str | None, what: str, error: type[Exception] = ModelError
) -> None:
    """Raise `error` unless the bytes of `what` have one of the hashes; None: they may have any."""
    if text is None:
        return
    hashes = parse_integrity(text)
    strongest = max((algorithm for algorithm, _ in hashes), key=lambda algorithm: BYTES[algorithm])
    wanted = [digest for algorithm, digest in hashes if algorithm == strongest]
    digest = hashlib.new(strongest, data).digest()
    if digest not in wanted:
        texts = " or ".join(f"{strongest}-{base64.b64encode(digest).decode()}" for digest in wanted)
        text = base64.b64encode(digest).decode()
        raise error(f"{what}: its hash is {strongest}-{text}, and integrity wants {texts}.")


def check_names(integrity: Any, names: tuple[str, ...]) -> dict[str, str]:
    """Check hashes by names of files. Raise TypeError for what is no mapping, another file, or no hash."""
    if integrity is None:
        return {}
    if not isinstance(integrity, Mapping):
        raise TypeError(f"'integrity' must be a dict of {', '.join(names)} to hashes, got {type(integrity).__name__}.")
    for name, text in integrity.items():
        if name not in names:
            raise TypeError(f"'integrity' has a hash of {name!r:.80}; the files are {', '.join(names)}.")
        parse_integrity(text, f"integrity.{name}")
    return dict(integrity)
