"""The order of the passes, and its reasons.

A pass rewrites a `Program`. `PASSES` is the only list of them: compilation, tests, benchmarks and documentation
(`describe`) walk it. Each pass declares which others it must precede or follow. A wrong order is an error when this
module is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trainweb.backend.chosen import DEFAULT_TARGET
from trainweb.compiler.context import Context
from trainweb.compiler.passes.accumulate import accumulate_in_place, accumulate_sums
from trainweb.compiler.passes.attention import fuse_attention
from trainweb.compiler.passes.cheap import recompute_cheap
from trainweb.compiler.passes.eliminate import drop_unread_results
from trainweb.compiler.passes.epilogue import absorb_factors, fuse_epilogues
from trainweb.compiler.passes.fuse import fuse_elementwise, repeat_cheap
from trainweb.compiler.passes.head import fuse_head_loss
from trainweb.compiler.passes.hoist import hoist, restore_hoisted
from trainweb.compiler.passes.lowrank import merge_low_rank
from trainweb.compiler.passes.packed import read_packed
from trainweb.compiler.passes.padding import leave_out_padding
from trainweb.compiler.passes.pooling import mask_maxima
from trainweb.compiler.passes.recompute import rematerialise
from trainweb.compiler.passes.rotary import fuse_rotary
from trainweb.compiler.passes.strided import absorb_copies
from trainweb.compiler.passes.transaction import check_first, write_state_last
from trainweb.ir import calls
from trainweb.ir.instructions import KernelCall
from trainweb.ir.program import Program


@dataclass(frozen=True, slots=True)
class Condition:
    """When a pass runs."""

    text: str
    holds: Callable[[Context], bool]


ALWAYS = Condition("", lambda context: True)
BUDGETED = Condition("with a memory budget", lambda context: context.memory_budget is not None)
FROZEN = Condition("if most parameters are frozen", lambda context: context.saves_little)
CACHING = Condition("in sessions", lambda context: context.cache is not None)


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewriting of programs."""

    run: Callable[[Program, Context], None]
    after: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, str] = field(default_factory=dict)
    """Why it must come after or before other passes, by their names."""
    needs: tuple[str, ...] = ()
    """Passes without which the program is not complete once this one has run."""
    makes: tuple[type[KernelCall], ...] = ()
    """Calls that it makes, and that lowering does not. It is left out for a target that lacks one of them."""
    when: Condition = ALWAYS
    """In which compilations it runs."""

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.run.__name__

    def is_for(self, context: Context) -> bool:
        """Return whether a compilation has the pass."""
        target = context.target
        has_it = self.name not in OWN or self.name in target.passes
        return has_it and all(map(target.has, self.makes)) and self.when.holds(context)


OWN = DEFAULT_TARGET.passes
"""The passes that not all targets have: those of the kernels."""

PASSES: tuple[Pass, ...] = (
    Pass(
        OWN["select_methods"],
        before={
            "hoist": "weights that Winograd's method transforms are cached",
            "fuse_epilogues": "another kernel may take another epilogue",
            "rematerialise": "methods differ in the room that their scratch takes",
        },
    ),
    Pass(
        write_state_last,
        before={"check_first": "it merges equal checks, and the checks of other nodes would then count as missing"},
    ),
    Pass(
        check_first,
        before={"restore_hoisted": "checks belong to the step, which comes after the hoisted groups"},
    ),
    Pass(
        drop_unread_results,
        before={"rematerialise": "an unread result would take room in the budget"},
    ),
    Pass(
        absorb_factors,
        before={
            "fuse_attention": "attention takes the scale of its scores from the products",
            "fuse_elementwise": "a product cannot absorb a factor within a chain",
        },
    ),
    Pass(
        absorb_copies,
        before={
            "hoist": "a copy of a parameter would be cached, though a product can read the parameter itself",
            "fuse_attention": "attention is recognised only if products read q, k and v in place",
        },
    ),
    Pass(
        read_packed,
        makes=(calls.GatherDequantized, calls.GemmQuantized),
        after={"absorb_copies": "a transposed weight is recognised where the product reads it in place"},
        before={"hoist": "a dequantized weight would be cached, though a product can read the weight itself"},
    ),
    Pass(
        accumulate_in_place,
        before={"fuse_elementwise": "the sum into a gradient buffer is not recognised within a chain"},
    ),
    Pass(
        mask_maxima,
        before={"fuse_elementwise": "the gradient of relu is not recognised within a chain"},
    ),
    Pass(
        fuse_rotary,
        makes=(calls.Rotary,),
        after={"absorb_copies": "copies that products do without are no longer there"},
        before={"fuse_elementwise": "products of a half are not recognised within a chain"},
    ),
    Pass(
        hoist,
        before={
            "fuse_attention": "an instruction fused with the work of the step cannot leave it",
            "fuse_epilogues": "an instruction fused with the work of the step cannot leave it",
            "fuse_elementwise": "an instruction fused with the work of the step cannot leave it",
        },
        needs=("restore_hoisted",),
        makes=(calls.SkipIfCurrent, calls.NoteCurrent),
        when=CACHING,
    ),
    Pass(
        fuse_attention,
        makes=(calls.Attention, calls.AttentionGradient),
        before={
            "fuse_epilogues": "attention is recognised from plain products, without a bias",
            "fuse_elementwise": "the scale and the mask of the scores must stand alone",
        },
    ),
    Pass(
        accumulate_sums,
        after={"fuse_attention": "attention is recognised from plain products, which store their results"},
        before={
            "fuse_epilogues": "a bias of the sum, or relu, belongs to the last product",
            "fuse_elementwise": "a sum is not recognised within a chain",
        },
    ),
    Pass(
        merge_low_rank,
        after={"accumulate_sums": "a low-rank product is recognised where another product adds it"},
        before={"fuse_epilogues": "relu after the remaining product then applies to the sum"},
    ),
    Pass(
        fuse_epilogues,
        before={"fuse_elementwise": "a product cannot absorb a bias or relu within a chain"},
    ),
    Pass(
        fuse_head_loss,
        makes=(calls.HeadLoss, calls.HeadLossWeightGrad),
        after={
            "accumulate_in_place": "the gradient of the weights is added to its buffer by the product that is replaced",
            "fuse_epilogues": "the product has taken the factor and the bias of the scores",
        },
        before={
            "fuse_elementwise": "the gradient of the head's input becomes part of a chain",
            "rematerialise": "scores never take room",
        },
    ),
    Pass(
        leave_out_padding,
        makes=(calls.WantedTokens,),
        after={
            "fuse_attention": "its mask tells which keys a token reads",
            "fuse_epilogues": "rows of a product with a bias are never zero",
            "fuse_head_loss": "the loss then reads the head's input by rows",
        },
        before={
            "recompute_cheap": "repeated results stand among the gradients",
            "fuse_reductions": "an elementwise call that reduces its result is not followed",
        },
    ),
    Pass(
        recompute_cheap,
        after={
            "fuse_attention": "attention keeps statistics instead of scores, which need no recomputation",
            "fuse_epilogues": "a product keeps its result with the bias, and values computed from it are recomputed",
        },
        before={"fuse_elementwise": "recomputed values become part of the chains that read them"},
        when=FROZEN,
    ),
    Pass(
        fuse_elementwise,
        before={
            "repeat_cheap": "it repeats only results that no chain has absorbed",
            "fuse_reductions": "a chain that reduces its result can no longer be merged",
        },
    ),
    Pass(
        repeat_cheap,
        before={"fuse_reductions": "a chain that reduces its result can no longer be merged"},
    ),
    Pass(OWN["fuse_reductions"]),
    Pass(
        rematerialise,
        after={
            "fuse_attention": "attention scores never take room",
            "fuse_reductions": "only final instructions have a known size and cost",
        },
        when=BUDGETED,
    ),
    Pass(
        restore_hoisted,
        after={
            "fuse_elementwise": "the instruction before a group contains the number of instructions that it skips",
            "fuse_reductions": "results in the cache must not be fused with the step that reads them",
            "rematerialise": "cached results take no room in the workspace",
        },
        makes=(calls.SkipIfCurrent, calls.NoteCurrent),
        when=CACHING,
    ),
)


def check_order(passes: Sequence[Pass]) -> None:
    """Raise ValueError if the passes contradict their declared order."""
    places = {each.name: k for k, each in enumerate(passes)}
    if len(places) < len(passes):
        raise ValueError("Two passes have one name.")
    for each in passes:
        if unknown := {*each.after, *each.before, *each.needs} - places.keys():
            raise ValueError(f"{each.name} names unknown passes: {', '.join(sorted(unknown))}.")
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
        if each.is_for(context):
            each.run(program, context)
            if observe:
                observe(each.name, program)


def has_pass(run: Callable[[Program, Context], None], context: Context) -> bool:
    """Return whether a compilation has the pass of this function."""
    return any(each.is_for(context) for each in PASSES if each.run is run)


if __name__ == "__main__":
    print(describe())
