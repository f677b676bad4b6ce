"""Templates: what makes kernels of a call. Each is registered for calls of ir/calls.py by `template`."""

from __future__ import annotations

from trainweb.backend.webgpu.shader import TEMPLATES, Kernel, NoKernelError
from trainweb.backend.webgpu.templates import (
    attention,
    channel_norms,
    clipping,
    convolution,
    copies,
    elementwise,
    head_loss,
    indexing,
    losses,
    norms,
    packed,
    pools,
    products,
    random,
    recurrence,
    sums,
)
from trainweb.ir.instructions import Instruction, KernelCall

MODULES = (
    attention, channel_norms, clipping, convolution, copies, elementwise, head_loss, indexing, losses, norms, packed,
    pools, products, random, recurrence, sums,
)  # fmt: skip
"""Their import registers the templates."""


def kernels_of(i: Instruction) -> list[Kernel]:
    """The dispatches of an instruction.

    Raises
    ------
    NoKernelError
        No template takes it.
    """
    make = TEMPLATES.get(type(i))
    if make is None:
        assert isinstance(i, KernelCall)
        raise NoKernelError(f"the kernel {i.KERNEL}")
    return make(i)
