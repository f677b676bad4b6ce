"""A failed step changes nothing: checks come first, and where that is impossible, state is written last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainweb.compiler.lower import ARENA, CONSTANTS, Buf, ElementwiseCall, Instruction, KernelCall, Storage

if TYPE_CHECKING:
    from trainweb.compiler.lower import Builder

CHECKED_ARGUMENTS = ("indices", "labels")
"""Arguments by which a kernel can fail at run time; a check of a feed among them can be made beforehand."""


def hoist_checks(instructions: list[Instruction]) -> list[Instruction]:
    """Checks of feeds come first, each once."""
    checks: dict[tuple[object, ...], KernelCall] = {}
    rest: list[Instruction] = []
    for i in instructions:
        if not (isinstance(i, KernelCall) and i.kernel == "check_indices") or not _is_given(i.args["indices"]):
            rest.append(i)
            continue
        where = i.args["indices"]
        numbers = tuple(v for name, v in i.args.items() if name != "indices")
        checks.setdefault((where.storage, where.shift, *numbers), i)
    return [*checks.values(), *rest]


def _is_given(b: Buf) -> bool:
    return b.storage.is_feed or b.storage.segment == CONSTANTS


def may_fail_midway(instructions: list[Instruction]) -> bool:
    """Whether a kernel reads indices that were computed in the step."""
    return any(
        isinstance(i, KernelCall) and (b := i.args.get(name)) is not None and not _is_given(b)
        and not _is_own_index(i)
        for i in instructions
        for name in (CHECKED_ARGUMENTS if isinstance(i, KernelCall) else ())
    )  # fmt: skip


def _is_own_index(call: KernelCall) -> bool:
    # Positions that a pooling kernel made itself are in range.
    return call.kernel.startswith("max_pool")


def write_state_last(instructions: list[Instruction], builder: Builder) -> list[Instruction]:
    """Let every instruction work on copies of the state, which are stored at the end."""
    copies: dict[Storage, Storage] = {}
    result: list[Instruction] = []
    last: dict[Storage, Buf] = {}

    def moved(b: Buf) -> Buf:
        target = copies.get(b.storage)
        return b if target is None else Buf(target, b.dtype, b.shape, b.value, b.shift, b.name)

    for i in instructions:
        for b in i.writes:
            if b.storage.segment not in (ARENA, CONSTANTS) and b.storage not in copies:
                copies[b.storage] = Storage(ARENA, b.storage.nbytes)
                last[b.storage] = b
                whole = Buf(b.storage, "uint8", (b.storage.nbytes,), name=b.name)
                builder.node = f"{b.name} kept until the step has succeeded"
                builder.instructions = result
                builder.copy(moved(whole), whole)
        if isinstance(i, ElementwiseCall):
            i.ins, i.outs = [moved(b) for b in i.ins], [moved(b) for b in i.outs]
        else:
            i.args = {k: moved(v) if isinstance(v, Buf) else v for k, v in i.args.items()}
            i.reads, i.writes = [moved(b) for b in i.reads], [moved(b) for b in i.writes]
        result.append(i)
    builder.instructions = result
    for storage, b in last.items():
        whole = Buf(storage, "uint8", (storage.nbytes,), name=b.name)
        builder.node = f"{b.name} stored at the end of the step"
        builder.copy(whole, moved(whole))
    return result
