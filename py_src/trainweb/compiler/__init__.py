"""Graph to Plan: inference, fusion, memory planning, lowering, encoding."""

from trainweb.compiler.compile import Binding, compile_model
from trainweb.compiler.plan import Plan, Slot

__all__ = ["Binding", "Plan", "Slot", "compile_model"]
