"""Templates: what makes kernels of a call. Each is registered for calls of ir/calls.py by `template`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from trainweb.backend.webgpu.shader import TEMPLATES, Kernel, NoKernelError
from trainweb.ir.instructions import Instruction, KernelCall

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")  # registers its templates


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
