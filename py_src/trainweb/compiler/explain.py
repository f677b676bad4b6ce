"""The changes of every pass, as unified diffs of one line per instruction."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from difflib import unified_diff

from trainweb.ir.expr import text_of
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, Storage
from trainweb.ir.program import Program

DUMP = "TRAINWEB_DUMP"
"""Environment variable; "passes" prints every compilation to standard error."""
CONTEXT_LINES = 1
UNNAMED = ("temp", "constant", "")
"""Names of buffers that name nothing: they are numbered."""


class Explanation:
    """Observes a compilation: tells `emit` what was lowered, how each pass changed it, and why it changed no more."""

    def __init__(self, emit: Callable[[str], object]) -> None:
        self._emit = emit
        self._names: dict[Storage, str] = {}
        self._taken: set[str] = set()
        self._before: list[str] = []
        self._refusals = 0

    def __call__(self, name: str, program: Program) -> None:
        lines = [self._line(i) for i in program.instructions]
        for level, group in sorted(program.hoisted.items()):
            lines += [f"hoisted {level}: {self._line(i)}" for i in group.instructions]
        if not name:
            self._emit("\n".join([f"lowered: {len(lines)} instructions", *lines]))
        elif lines == self._before:
            self._emit(f"\n{name}: no change")
        else:
            difference = list(unified_diff(self._before, lines, lineterm="", n=CONTEXT_LINES))[2:]
            self._emit("\n".join([f"\n{name}: {len(self._before)} -> {len(lines)} instructions", *difference]))
        self._before = lines
        for refusal in program.refusals[self._refusals :]:
            self._emit(str(refusal))
        self._refusals = len(program.refusals)

    def _line(self, i: Instruction) -> str:
        if isinstance(i, ElementwiseCall):
            work = text_of(i.roots, [self._buf(b) for b in i.ins])
            if r := i.reduction:
                work += f" reduced over {r.n or 'its rows'}, inner={r.inner} (op {r.op})"
            return f"{', '.join(map(self._buf, i.outs))} = {work}  ; {i.node}"
        shown = [f"{name}={self._buf(v) if isinstance(v, Buf) else v}" for name, v in i.arguments()]
        return f"{i.KERNEL}({', '.join(shown)})  ; {i.node}"

    def _buf(self, b: Buf) -> str:
        s = b.storage
        name = self._names.get(s)
        if name is None:
            name = base = b.name if b.name not in UNNAMED else f"%{len(self._names)}"
            count = 1
            while name in self._taken:
                count += 1
                name = f"{base}#{count}"
            self._names[s] = name
            self._taken.add(name)
        return f"{name}{f'+{b.shift}' if b.shift else ''}:{b.dtype}[{'x'.join(map(str, b.shape))}]"


def requested_dump(title: str) -> Explanation | None:
    """Return the printer of a compilation, if the environment asks for it. Raise ValueError for an unknown value."""
    value = os.environ.get(DUMP, "")
    if value not in ("", "passes"):
        raise ValueError(f"The environment variable {DUMP} can only be passes; it is {value!r}.")
    if not value:
        return None
    print(f"--- {title}", file=sys.stderr)
    return Explanation(lambda part: print(part, file=sys.stderr))
