"""Windows: the parts of segments that a dispatch binds, where a segment is larger than every device binds at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from trainweb.ir import layout as c
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction

BINDING_BYTES = 1 << 27
"""Bytes that every device binds at once."""
ALIGNMENT = 256
"""Alignment of windows that every device takes."""
OF_SESSION = range(c.PARAMETERS, c.STATE)


class Window(NamedTuple):
    """A part of a segment, its binding, and the name of the largest tensor in it."""

    binding: int
    segment: int
    offset: int
    nbytes: int
    name: str


def parts_of(b: Buf, step: int = 1) -> list[Buf]:
    """Parts of a run of float32 that every device binds: multiples of so many elements, and the rest."""
    most = max(1, (BINDING_BYTES - ALIGNMENT) // 4 // step) * step
    return [b.view((min(most, b.size - start),), start) for start in range(0, b.size, most)]


def calls_in_parts(i: Instruction) -> Sequence[Instruction]:
    """An elementwise call on runs of the session as calls on their parts, or another call."""
    if not isinstance(i, ElementwiseCall) or len(i.shape) != 1 or i.outs[0].storage.segment not in OF_SESSION:
        return [i]
    each = [parts_of(b) if b.shape == i.shape else repeat(b) for b in (*i.ins, *i.outs)]
    n = len(i.ins)
    return [replace(i, shape=part[n].shape, ins=[*part[:n]], outs=[*part[n:]]) for part in zip(*each, strict=False)]


def _window_of(b: Buf) -> Window:
    """The range of bytes around a tensor that a kernel may use: its storage, unless that is a segment."""
    s, at, nbytes = b.storage, b.storage.offset or 0, b.storage.nbytes
    if s.segment in OF_SESSION and nbytes > BINDING_BYTES:
        at, nbytes = at + b.shift, b.nbytes
    start, name = at // ALIGNMENT * ALIGNMENT, b.name or c.SEGMENT_NAMES[s.segment]
    return Window(s.segment, s.segment, start, at - start + nbytes, name)


def windows_of(operands: Sequence[Buf], sizes: Mapping[int, int], most: int = 0) -> tuple[Window, ...]:
    """The windows of a dispatch in segments of more than `BINDING_BYTES`: as few as can be, without overlaps.

    The first window of a segment has its binding, and others have bindings of segments that the dispatch does not use.
    Windows are larger than `BINDING_BYTES` where a tensor is, or where there are too few bindings.
    """
    used, most, windows = {b.storage.segment for b in operands}, most or BINDING_BYTES, list[Window]()
    free = [s for s in range(len(c.SEGMENT_NAMES)) if s not in {*used, c.STATE}]
    for new in sorted({_window_of(b) for b in operands if sizes[b.storage.segment] > BINDING_BYTES}):
        last = windows[-1] if windows and windows[-1].segment == new.segment else None
        if last is None:
            windows.append(new)
        elif new.offset < last.offset + last.nbytes or new.offset + new.nbytes - last.offset <= most:
            nbytes = max(last.nbytes, new.offset + new.nbytes - last.offset)
            windows[-1] = last._replace(nbytes=nbytes, name=max(last, new, key=attrgetter("nbytes")).name)
        elif free:
            windows.append(new._replace(binding=free.pop()))
        else:
            return windows_of(operands, sizes, 2 * most)
    return tuple(windows)
