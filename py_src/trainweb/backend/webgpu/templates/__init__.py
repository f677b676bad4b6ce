"""Templates: what makes kernels of a call. Each is registered for calls of ir/calls.py by `template`."""

from importlib import import_module
from pkgutil import iter_modules

from trainweb.backend.webgpu.shader import TEMPLATES

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")  # registers its templates

__all__ = ["TEMPLATES"]
