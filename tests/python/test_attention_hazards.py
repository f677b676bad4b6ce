"""The gradient of attention in programs made by hand, in which results lie on each other or operands change.

Fused or not, the program computes its instructions one after the other in float64.
"""

from collections.abc import Callable, Mapping
from functools import partial

import pytest
from tests.python import pipelines
from tests.python.hazard_motifs import WIDTH, M, N, bounded
from tests.python.test_compiler_hazards import RandomProgram, check

from trainweb.ir import calls

INPUTS = {"q": M * WIDTH, "k": N * WIDTH, "v": N * WIDTH, "dy": M * WIDTH}
SIZES = {"y": M * WIDTH, "dq": M * WIDTH, "dk": N * WIDTH, "dv": N * WIDTH, "all": (M + 2 * N) * WIDTH}
"""Elements of the results, and of a tensor for all gradients."""
DQ, DK, DV = 0, SIZES["dq"], SIZES["dq"] + SIZES["dk"]
"""Where each of them begins in it."""
PACKED = {"dq": ("all", DQ), "dk": ("all", DK), "dv": ("all", DV)}


def gradients(p: RandomProgram, steps: str, places: Mapping[str, tuple[str, int]]) -> None:
    """softmax(q k') v, then these steps towards its gradients.

    Parameters
    ----------
    steps
        Results that are computed, `change:NAME` to change what a tensor holds, `copy:NAME` to copy something over it.
    places
        Gradients that lie in another tensor, from that element on.
    """
    b = {name: bounded(p, size) for name, size in INPUTS.items()}
    b |= {name: p.new((size,)) for name, size in SIZES.items()}
    for name, (other, start) in places.items():
        b[name] = b[other].view((SIZES[name],), start)
    scores, weights, d, ds = (p.new((M, N)) for _ in range(4))
    rows = {"outer": M, "n": N, "inner": 1, "log": 0}
    p.emit_product(b["q"], b["k"], scores, M, N, WIDTH, turned=(False, True))
    p.builder.emit(calls.Softmax(x=scores, y=weights, **rows))
    p.emit_product(weights, b["v"], b["y"], M, WIDTH, N, turned=(False, False))
    compute: dict[str, Callable[[], None]] = {
        "dv": lambda: p.emit_product(weights, b["dy"], b["dv"], N, WIDTH, M, turned=(True, False)),
        "d": lambda: p.emit_product(b["dy"], b["v"], d, M, N, WIDTH, turned=(False, True)),
        "ds": lambda: p.builder.emit(calls.SoftmaxGrad(dy=d, y=weights, dx=ds, **rows)),
        "dq": lambda: p.emit_product(ds, b["k"], b["dq"], M, WIDTH, N, turned=(False, False)),
        "dk": lambda: p.emit_product(ds, b["q"], b["dk"], N, WIDTH, M, turned=(True, False)),
    }
    for step in steps.split():
        what, _, name = step.partition(":")
        if what == "change":
            p.builder.elementwise([b[name]], [b[name]], lambda e, x: e.sub(x, e.const(3)))
        elif what == "copy":
            p.builder.copy(b[name], p.part(p.feeds[0], b[name].size))
        else:
            compute[what]()
    p.done(b["y"], b["dq"], b["dk"], b["dv"])


def is_fused(steps: str, places: Mapping[str, tuple[str, int]]) -> bool:
    """True if the gradient is one kernel; the program must compute the same in any case."""
    made = RandomProgram(0, partial(gradients, steps=steps, places=places))
    program = check(made, pipelines.alone("fuse_attention"), steps)
    return any(isinstance(i, calls.AttentionGradient) for i in program)


@pytest.mark.parametrize("steps", ["dv d ds dq dk", "d ds dk dq dv"])
@pytest.mark.parametrize("places", [{}, PACKED], ids=["alone", "packed"])
def test_gradients_that_lie_apart_are_made_by_one_kernel(steps: str, places: Mapping[str, tuple[str, int]]) -> None:
    assert is_fused(steps, places)


@pytest.mark.parametrize(
    ("steps", "places"),
    [
        ("dv change:dy d ds dq dk", {}),
        ("dv d ds copy:dq dq dk", {}),
        ("d ds copy:dv dq dk dv", {}),
        ("dv d ds dk dq", {"dq": ("dy", 0)}),
        ("dv d ds dq dk", {"dk": ("all", DK), "dq": ("all", DK)}),
        ("dv d ds dk dq", {"dk": ("all", DK), "dq": ("all", DK)}),
        ("d ds dk dq dv", {**PACKED, "dv": ("all", DK + 4)}),
        ("dv d ds dk dq", {**PACKED, "dv": ("all", DK + 4)}),
    ],
)
def test_gradients_that_cannot_be_made_at_once_are_made_as_they_were(
    steps: str, places: Mapping[str, tuple[str, int]]
) -> None:
    assert not is_fused(steps, places)
