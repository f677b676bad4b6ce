"""Cases of trainweb.ops.repeat."""

from tests.ops.cases import CASES, Cases

from trainweb.ops import repeat

CASES[repeat._Repeat] = Cases(tested_through="Scan")
