"""A failed step changes nothing: checks come first, and where that is impossible, state is written last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainweb.ir.layout import ARENA, CONSTANTS
from trainweb.ir.program import Buf, ElementwiseCall, Instruction, KernelCall, Storage

if TYPE_CHECKING:
    from trainweb.ir.builder import Builder

CHECK = "check_indices"
INFALLIBLE = ("one_hot", "max_pool_f32", "max_pool_gradient_f32")
"""Kernels that take indices as they come, or only those that were made in the step by another kernel."""


def hoist_checks(instructions: list[Instruction]) -> list[Instruction]:
    """Checks come first, each once."""
    checks: dict[tuple[object, ...], KernelCall] = {}
    rest: list[Instruction] = []
    for i in instructions:
        if isinstance(i, KernelCall) and i.KERNEL == CHECK:
            where = i.args["indices"]
            numbers = tuple(v for name, v in i.args.items() if name != "indices")
            checks.setdefault((where.storage, where.shift, *numbers), i)
        else:
            rest.append(i)
    return [*checks.values(), *rest]


def may_fail_midway(instructions: list[Instruction]) -> bool:
    """Whether a kernel reads indices that no check of its node covers: computed ones, or tuples of them."""
    covered = {
        (i.node, i.args["indices"].storage) for i in instructions if isinstance(i, KernelCall) and i.KERNEL == CHECK
    }
    for i in instructions:
        if not isinstance(i, KernelCall) or i.KERNEL == CHECK or i.KERNEL in INFALLIBLE:
            continue
        indices, labels = i.args.get("indices"), i.args.get("labels")
        read = indices if indices is not None and indices.value is None else labels
        if read is not None and read.size and (i.node, read.storage) not in covered:
            return True
    return False


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
            i.map_operands(moved)
        result.append(i)
    builder.instructions = result
    for storage, b in last.items():
        whole = Buf(storage, "uint8", (storage.nbytes,), name=b.name)
        builder.node = f"{b.name} stored at the end of the step"
        builder.copy(whole, moved(whole))
    return result
