"""Checkpoints of a fit with one thing changed each, made by the description of the file format alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

FEW_VALUES: tuple[Any, ...] = (None, True, "1", {}, -1, 0.5, 2**31)
VALUES: tuple[Any, ...] = (*FEW_VALUES, 0, "nan", [], [[1]], 2**63, 1e308)
"""What each field is changed to."""
JSON_TEXTS = ("parameters", "properties", "history", "position")
LITERALS = ("", "{", "NaN", "[" * 100_000, "null", '"text"', "1" * 5000)
"""What each text of JSON is changed to."""
WORDS: tuple[tuple[str, int, str, tuple[float, ...]], ...] = (
    ("lazyReset", 0, "I", (2, 2**32 - 1)),
    ("learningRate", 4, "f", (float("nan"), float("inf"), -1.0)),
    ("step", 8, "q", (-1, -(2**63), 2**53)),
    ("initialLr", 16, "f", (float("nan"), float("-inf"), -0.5)),
    ("scheduler", 20, "I", (2,)),
    ("warmup", 24, "q", (-1, 2**40)),
    ("total", 32, "q", (-1,)),
)
"""Fields of the state by their bytes (`layout state` of kernels.def), and values that no session has."""


@dataclass(frozen=True)
class Hostile:
    """One changed checkpoint.

    Attributes
    ----------
    name : str
        The change.
    data : bytes
        The file.
    is_valid : bool
        Whether a fit may as well have written it.
    of_session : bool
        Whether `CheckpointStore.load` looks at it, too.
    """

    name: str
    data: bytes
    is_valid: bool = False
    of_session: bool = False


@dataclass
class Parts:
    """A file in its parts: metadata with JSON parsed, and dtype, shape and bytes of each tensor."""

    metadata: dict[str, Any]
    tensors: dict[str, tuple[str, list[int], bytes]]

    @classmethod
    def of(cls, data: bytes) -> Parts:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        metadata = header.pop("__metadata__")
        body = data[8 + length :]
        tensors = {n: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for n, e in header.items()}
        return cls({n: json.loads(t) if n in JSON_TEXTS else t for n, t in metadata.items()}, tensors)

    def file(self, **texts: str) -> bytes:
        """The file, with these texts in the place of what the metadata has."""
        told = {n: json.dumps(v) if n in JSON_TEXTS else v for n, v in self.metadata.items()} | texts
        header: dict[str, Any] = {"__metadata__": told}
        at = 0
        for name, (dtype, shape, data) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in self.tensors.values())

    def changed(self, change: Callable[[Parts], object]) -> bytes:
        other = deepcopy(self)
        change(other)
        return other.file()


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each place in a value of JSON."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from paths(one, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def drop(value: Any, path: tuple[Any, ...]) -> None:
    for key in path[:-1]:
        value = value[key]
    del value[path[-1]]


def may_be(text: str, path: tuple[Any, ...], new: Any) -> bool:
    """True if a fit may have left this value; early stopping goes by the loss."""
    is_number = type(new) in (int, float)
    if text == "position":
        return (path == ("lossSum",) and is_number) or (path == ("optimizerSteps",) and new == 0 and is_number)
    if text == "properties":
        # Any name, and what reads as a value of the type; the last property is a text.
        return len(path) == 2 and path[1] != 1 and (new == "1" or (new == "nan" and (path[1] == 0 or path[0] == 2)))
    if text != "history" or path[0] != "epochs" or len(path) < 3:
        return False
    field, *inner = path[2:]
    if field == "validation":
        # Without values of validation data, early stopping goes by the loss of the training.
        allowed = is_number or new in ("nan", [], [[1]])
        in_matrix = new == [] if len(inner) == 2 else (is_number and new in (0, 2**31))
        return (
            new is None
            if not inner
            else in_matrix
            if len(inner) > 1
            else allowed and (inner != ["loss"] or not isinstance(new, list))
        )
    return (
        is_number and new >= 0
        if field in ("learningRate", "seconds")
        else field == "loss" and (is_number or new == "nan")
    )


def hostile(data: bytes, values: Sequence[Any] = VALUES) -> Iterator[Hostile]:
    """Changes of a checkpoint that a fit wrote within an epoch, with early stopping by the loss."""
    good = Parts.of(data)
    for text in JSON_TEXTS:
        of_session = text in ("parameters", "properties")
        for k, literal in enumerate(LITERALS):
            yield Hostile(f"{text} literal {k}", good.file(**{text: literal}), of_session=of_session)
        yield Hostile(f"no {text}", good.changed(lambda p, t=text: p.metadata.pop(t)), of_session=of_session)  # type: ignore[misc]
        for path in paths(good.metadata[text]):
            if not path:
                continue
            yield from of_place(good, text, path, values, of_session=of_session)
    yield from of_properties(good)
    yield from of_tensors(good)
    yield from of_state(good)


def of_place(
    good: Parts, text: str, path: tuple[Any, ...], values: Sequence[Any], *, of_session: bool
) -> Iterator[Hostile]:
    """A field of JSON that has every other value, or is not there."""
    old = good.metadata[text]
    for key in path:
        old = old[key]
    for new in values:
        if (new, type(new)) == (old, type(old)) or (text == "parameters" and new is True and old == 1):
            continue
        name = f"{text}{list(path)} = {new!r}"
        changed = good.changed(lambda p, n=new: put(p.metadata[text], path, n))  # type: ignore[misc]
        yield Hostile(name, changed, may_be(text, path, new), of_session)
    changed = good.changed(lambda p: drop(p.metadata[text], path))
    # A property or a metric less may have been so, and files of older versions have no terms.
    is_less = (text == "properties" and len(path) == 1) or ("validation" in path[:-1] and path[-1] != "loss")
    is_less = is_less or path[-1] == "terms"
    is_unset = path[0] == "options" and len(path) == 2 and old is None
    yield Hostile(f"{text}{list(path)} gone", changed, is_less or is_unset, of_session)


def of_properties(good: Parts) -> Iterator[Hostile]:
    for value in (
        ["a", "int", "1.5"],
        ["a", "int", "0x10"],
        ["a", "int", "1_0"],
        ["a", "int", "\u0661"],
        ["a", "int", "9223372036854775808"],
        ["a", "int", "1" * 5000],
        ["a", "float", "abc"],
        ["a", "float", ""],
        ["a", "bool", "true"],
        ["a", "__proto__", "true"],
        ["a", "str"],
        ["a", "str", "x", "y"],
        ["a", "str", "\ud800"],
        good.metadata["properties"][0],
    ):
        yield Hostile(
            f"property {value!r:.40}",
            good.changed(lambda p, v=value: p.metadata["properties"].append(v)),
            of_session=True,
        )  # type: ignore[misc]


def of_tensors(good: Parts) -> Iterator[Hostile]:
    for name, (dtype, shape, data) in good.tensors.items():
        of_session = name not in ("losses", "best")
        optional = name in ("gradients", "best")
        yield Hostile(f"no {name}", good.changed(lambda p, n=name: p.tensors.pop(n)), optional, of_session)  # type: ignore[misc]
        size = {"F32": 4, "U8": 1}[dtype]
        other = {"F32": "I32", "U8": "I8"}[dtype]
        for what, tensor in (
            ("shorter", (dtype, [len(data) // size - 1], data[:-size])),
            ("longer", (dtype, [len(data) // size + 1], data + data[:size])),
            ("empty", (dtype, [0], b"")),
            ("other type", (other, shape, data)),
            ("bytes", ("U8", [len(data) - 1], data[:-1])),
        ):
            changed = good.changed(lambda p, n=name, t=tensor: p.tensors.__setitem__(n, t))  # type: ignore[misc]
            yield Hostile(f"{name} {what}", changed, of_session=of_session)
    for name in ("losses", "best"):
        dtype, shape, data = good.tensors[name]
        for dims in ([1, *shape], [*shape, 1]):
            changed = good.changed(lambda p, n=name, t=(dtype, dims, data): p.tensors.__setitem__(n, t))  # type: ignore[misc]
            yield Hostile(f"{name} of dims {dims}", changed)


def of_state(good: Parts) -> Iterator[Hostile]:
    dtype, shape, data = good.tensors["state"]
    for field, at, code, numbers in WORDS:
        for number in numbers:
            new = bytearray(data)
            struct.pack_into("<" + code, new, at, number)
            changed = good.changed(lambda p, b=bytes(new): p.tensors.__setitem__("state", (dtype, shape, b)))  # type: ignore[misc]
            yield Hostile(f"{field} = {number}", changed, of_session=True)
