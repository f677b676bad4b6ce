"""Cases of trainweb.ops.frame.composite."""

from tests.ops.cases import CASES, Cases

from trainweb.ops.frame import composite

CASES[composite.CompositeGradient] = Cases(tested_through="LSTM")
