"""Cases of trainweb.ops.branch."""

from tests.ops.cases import CASES, Cases

from trainweb.ops import branch

CASES[branch.Branch] = Cases(tested_through="If")
