"""Graph to Plan: inference, fusion, memory planning, lowering, encoding."""

from trainweb.backend.plan import Plan, TensorPlace
from trainweb.compiler.compile import Binding, compile_model

__all__ = ["Binding", "Plan", "TensorPlace", "compile_model"]
