"""Code generation: elementwise expressions become the functions of a WebAssembly module.

`function_spec.py` describes the computation of a generated function, and `dtypes.py` its instructions. `expressions.py`
compiles an expression for one element or for four. `loops.py` puts that into loops over rows and strips, and
`assembler.py` writes the module.
"""

from trainweb.backend.wasm.codegen.function_spec import FunctionSpec
from trainweb.backend.wasm.codegen.loops import emit_module

__all__ = ["FunctionSpec", "emit_module"]
