"""The passes in their order, and why it is this one.

A pass rewrites a `Program`. `PASSES` is the only list of them: compilation, tests, benchmarks and documentation
(`describe`) walk it. Each pass says next to which others it must stand on which side; a wrong order is an error when
this module is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trainweb.backend.wasm.passes.methods import select_methods
from trainweb.compiler.context import Context
from trainweb.compiler.passes.accumulate import accumulate_in_place, accumulate_sums
from trainweb.compiler.passes.attention import fuse_attention
from trainweb.compiler.passes.cheap import recompute_cheap
from trainweb.compiler.passes.eliminate import drop_unread_results
from trainweb.compiler.passes.epilogue import absorb_factors, fuse_epilogues
from trainweb.compiler.passes.fuse import fuse_elementwise, fuse_reductions, repeat_cheap
from trainweb.compiler.passes.hoist import hoist, restore_hoisted
from trainweb.compiler.passes.lowrank import merge_low_rank
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
FROZEN = Condition("where most parameters are frozen", lambda context: context.saves_little)
CACHING = Condition("in sessions", lambda context: context.cache is not None)


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
        """Name of the function."""
        return self.run.__name__


PASSES: tuple[Pass, ...] = (
    Pass(
        select_methods,
        before={
            "hoist": "weights that Winograd's method transforms are cached",
            "fuse_epilogues": "another kernel may take another epilogue",
            "rematerialise": "methods differ in the room that their scratch takes",
        },
    ),
    Pass(
        write_state_last,
        before={"check_first": "it makes equal checks one, of one node: those of other nodes would count as unchecked"},
    ),
    Pass(
        check_first,
        before={"restore_hoisted": "checks belong to the step, which comes after the hoisted groups"},
    ),
    Pass(
        drop_unread_results,
        before={"rematerialise": "a result that nothing reads would take room in the budget"},
    ),
    Pass(
        absorb_factors,
        before={
            "fuse_attention": "attention takes the scale of its scores from the products",
            "fuse_elementwise": "a factor within a chain is none that a product could take",
        },
    ),
    Pass(
        absorb_copies,
        before={
            "hoist": "a copy of a parameter would be cached, though a product can read the parameter itself",
            "fuse_attention": "attention is found where products read q, k and v in place: behind copies it is not",
        },
    ),
    Pass(
        accumulate_in_place,
        before={"fuse_elementwise": "the sum into a gradient buffer must stand alone: within a chain it is not found"},
    ),
    Pass(
        mask_maxima,
        before={"fuse_elementwise": "the gradient of relu must stand alone: within a chain it is not found"},
    ),
    Pass(
        hoist,
        before={
            "fuse_attention": "what is fused with the work of the step cannot leave it",
            "fuse_epilogues": "what is fused with the work of the step cannot leave it",
            "fuse_elementwise": "what is fused with the work of the step cannot leave it",
        },
        needs=("restore_hoisted",),
        when=CACHING,
    ),
    Pass(
        fuse_attention,
        before={
            "fuse_epilogues": "attention is made of plain products, without a bias",
            "fuse_elementwise": "what scales and masks the scores must stand alone",
        },
    ),
    Pass(
        accumulate_sums,
        after={"fuse_attention": "attention is made of plain products, which store their results"},
        before={
            "fuse_epilogues": "a bias of the sum, or relu, is one of the product that comes last",
            "fuse_elementwise": "a sum within a chain is not found",
        },
    ),
    Pass(
        merge_low_rank,
        after={"accumulate_sums": "a product through a low rank is found where it is added to another"},
        before={"fuse_epilogues": "relu behind the product that is left is that of the sum"},
    ),
    Pass(
        fuse_epilogues,
        before={"fuse_elementwise": "a bias or relu within a chain is none that a product could take"},
    ),
    Pass(
        recompute_cheap,
        after={
            "fuse_attention": "attention keeps statistics, and not the scores that would be made again",
            "fuse_epilogues": "the result of a product that has its bias is kept, and what is made of it is not",
        },
        before={"fuse_elementwise": "what is made again becomes part of the chains that read it"},
        when=FROZEN,
    ),
    Pass(
        fuse_elementwise,
        before={
            "repeat_cheap": "only what no chain has taken over is left to be computed twice",
            "fuse_reductions": "a chain that reduces its result is not merged any more",
        },
    ),
    Pass(
        repeat_cheap,
        before={"fuse_reductions": "a chain that reduces its result is not merged any more"},
    ),
    Pass(fuse_reductions),
    Pass(
        rematerialise,
        after={
            "fuse_attention": "the scores of attention never take room",
            "fuse_reductions": "what needs room, and what it costs to make again, is known of final instructions",
        },
        when=BUDGETED,
    ),
    Pass(
        restore_hoisted,
        after={
            "fuse_elementwise": "the instruction in front of a group says how many it leaves out",
            "fuse_reductions": "results in the cache must not be fused with the step that reads them",
            "rematerialise": "what is cached takes no room in the workspace",
        },
        when=CACHING,
    ),
)


def check_order(passes: Sequence[Pass]) -> None:
    """Raise ValueError where the passes do not stand in the order that they declare."""
    places = {each.name: k for k, each in enumerate(passes)}
    if len(places) < len(passes):
        raise ValueError("Two passes have one name.")
    for each in passes:
        if unknown := {*each.after, *each.before, *each.needs} - places.keys():
            raise ValueError(f"{each.name} names passes that there are not: {', '.join(sorted(unknown))}.")
        for other, why in each.after.items():
            if places[other] > places[each.name]:
                raise ValueError(f"{each.name} must come after {other}: {why}.")
        for other, why in each.before.items():
            if places[other] < places[each.name]:
                raise ValueError(f"{each.name} must come before {other}: {why}.")


check_order(PASSES)


def describe() -> str:
    """The pipeline as Markdown, for docs/architecture.md."""
    lines = []
    for number, each in enumerate(PASSES, 1):
        what = (each.run.__doc__ or "").strip().splitlines()[0]
        when = f" Runs {each.when.text}." if each.when.text else ""
        file = each.run.__module__.rpartition(".")[2]
        lines.append(f"{number}. `{each.name}` (`{file}.py`): {what}{when}")
        for word, others in (("After", each.after), ("Before", each.before)):
            by_reason: dict[str, list[str]] = {}
            for other, why in others.items():
                by_reason.setdefault(why, []).append(f"`{other}`")
            lines += [f"   - {word} {', '.join(names)}: {why}." for why, names in by_reason.items()]
    return "\n".join(lines)


Observer = Callable[[str, Program], None]
"""Sees the program by the name of the pass that was run; "" before the first."""


def run_passes(program: Program, context: Context, observe: Observer | None = None) -> None:
    """Rewrite `program` by every pass whose condition holds."""
    if observe:
        observe("", program)
    for each in PASSES:
        if each.when.holds(context):
            each.run(program, context)
            if observe:
                observe(each.name, program)


if __name__ == "__main__":
    print(describe())
