"""Passes of this back end: the choices that depend on the kernels and on the processor's caches."""
