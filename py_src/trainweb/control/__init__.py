"""Control flow and sequences: they are written out as plain nodes before differentiation and before compilation."""

from trainweb.control.expand import expand_control_flow
from trainweb.control.operators import CONTROL_OPERATORS, has_control_flow

__all__ = ["CONTROL_OPERATORS", "expand_control_flow", "has_control_flow"]
