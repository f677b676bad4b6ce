"""Code generation: elementwise expressions become the functions of a WebAssembly module.

`signature.py` says what a generated function computes, `dtypes.py` with which instructions, `expressions.py` compiles
an expression for one element or for four, `loops.py` puts that into loops over rows and strips, and `assembler.py`
writes the module.
"""

from trainweb.backend.wasm.codegen.loops import emit_module
from trainweb.backend.wasm.codegen.signature import Signature

__all__ = ["Signature", "emit_module"]
