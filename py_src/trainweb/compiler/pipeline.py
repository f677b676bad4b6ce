"""The passes in their order, and why it is this one.

A pass rewrites a `Program`. `PASSES` is the only list of them: compilation, tests, benchmarks and documentation
(`describe`) walk it. Each pass says next to which others it must stand on which side; a wrong order is an error when
this module is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainweb.compiler.context import Context
from trainweb.compiler.passes.accumulate import accumulate_in_place
from trainweb.compiler.passes.attention import fuse_attention
from trainweb.compiler.passes.eliminate import drop_unread_results
from trainweb.compiler.passes.epilogue import absorb_factors, fuse_epilogues
from trainweb.compiler.passes.fuse import fuse_elementwise, fuse_reductions, repeat_cheap
from trainweb.compiler.passes.hoist import hoist, restore_hoisted
from trainweb.compiler.passes.pooling import mask_maxima
from trainweb.compiler.passes.recompute import rematerialise
from trainweb.compiler.passes.strided import absorb_copies
from trainweb.compiler.passes.transaction import check_first, write_state_last
from trainweb.ir.program import Program


@dataclass(frozen=True, slots=True)
class Condition:
    """When a pass runs."""

    text: str
    holds: Callable[[Context], bool]


ALWAYS = Condition("", lambda context: True)
BUDGETED = Condition("with a memory budget", lambda context: context.memory_budget is not None)
CACHING = Condition(
    "in sessions without a memory budget", lambda context: context.cache is not None and context.memory_budget is None
)


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewriting of programs.

    Attributes
    ----------
    after, before
        Why it must come after or before other passes, by their names.
    needs
        Passes without which the program is not complete once this one has run.
    when
        In which compilations it runs.
    """

    run: Callable[[Program, Context], None]
    after: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    when: Condition = ALWAYS

    @property
    def name(self) -> str:
        """That of its function."""
        return self.run.__name__


PASSES: tuple[Pass, ...] = (
    Pass(write_state_last),
    Pass(check_first),
    Pass(drop_unread_results),
    Pass(absorb_factors),
    Pass(absorb_copies),
    Pass(accumulate_in_place),
    Pass(mask_maxima),
    Pass(hoist, needs=("restore_hoisted",), when=CACHING),
    Pass(fuse_attention),
    Pass(fuse_epilogues),
    Pass(fuse_elementwise),
    Pass(repeat_cheap),
    Pass(fuse_reductions),
    Pass(rematerialise, when=BUDGETED),
    Pass(restore_hoisted, when=CACHING),
)

Observer = Callable[[str, Program], None]


def run_passes(program: Program, context: Context, observe: Observer | None = None) -> None:
    """Rewrite `program` by every pass whose condition holds; `observe` sees it before the first and after each."""
    if observe:
        observe("", program)
    for each in PASSES:
        if each.when.holds(context):
            each.run(program, context)
            if observe:
                observe(each.name, program)
