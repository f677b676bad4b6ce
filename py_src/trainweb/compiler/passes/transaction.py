"""A failed step changes nothing: checks come first, and where that is impossible, state is written last."""

from __future__ import annotations

from trainweb.compiler.context import Context
from trainweb.ir import calls
from trainweb.ir.instructions import Buf, Storage
from trainweb.ir.layout import ARENA, CONSTANTS
from trainweb.ir.program import Program


def write_state_last(program: Program, _: Context) -> None:
    """Let a step that may fail midway update copies of the state, and store them at the end."""
    if not _may_fail_midway(program):
        return
    copies: dict[Storage, Storage] = {}
    last: dict[Storage, Buf] = {}

    def moved(b: Buf) -> Buf:
        return b.among(copies)

    def whole(storage: Storage) -> Buf:
        return Buf(storage, "uint8", (storage.nbytes,), name=last[storage].name)

    for i in program:
        for b in i.writes:
            s = b.storage
            if s.segment not in (ARENA, CONSTANTS) and s not in copies:
                copies[s], last[s] = Storage(ARENA, s.nbytes), b
                builder = program.build(f"{b.name} kept until the step has succeeded")
                builder.copy(moved(whole(s)), whole(s))
                program.insert_before(i, *builder.instructions)
        if any(b.storage in copies for b in (*i.reads, *i.writes)):
            program.replace(i, i.moved(moved, i.node))
    for s, b in last.items():
        builder = program.build(f"{b.name} stored at the end of the step")
        builder.copy(whole(s), moved(whole(s)))
        program.append(*builder.instructions)


def _may_fail_midway(program: Program) -> bool:
    """Return whether a kernel reads indices that no check of its node covers: computed ones, or tuples of them."""
    covered = {(i.node, i.indices.storage) for i in program if isinstance(i, calls.CheckIndices)}
    return any(
        b.size and b.value is None and (i.node, b.storage) not in covered
        for i in program
        if not isinstance(i, calls.CheckIndices)
        for b in i.checked
    )


def check_first(program: Program, _: Context) -> None:
    """Move checks to the front, each once."""
    checks: dict[tuple[object, ...], calls.CheckIndices] = {}
    for i in program:
        if isinstance(i, calls.CheckIndices):
            where = (i.indices.storage, i.indices.shift, i.n, i.index_size)
            checks.setdefault((*where, i.lo, i.hi, i.has_ignore, i.ignore, i.label), i)
            program.remove(i)
    program.insert_first(*checks.values())
