"""Chains of elementwise calls that merge, or repeat a cheap result, and those that must not: small programs."""

from functools import reduce

import pytest
from tests.python.test_pass_guards import N, Written

from trainweb.compiler.passes.fuse import CHEAP_OPERATIONS, MAX_BUFFERS, MAX_OPERATIONS, fuse_elementwise, repeat_cheap
from trainweb.ir.expr import Emitter, Expr
from trainweb.ir.instructions import ElementwiseCall
from trainweb.ir.layout import ARENA, GRADIENTS


def gated(*between: str, kept: tuple[str, ...] = (), segment: int = ARENA) -> int:
    """Elementwise calls that are left of the gradients of y = sigmoid(a) b.

    A product reads that of b, then come steps, then the gradient of a, which reads the sigmoid.
    """
    w = Written()
    for name in ("a", "b", "dy", "s", "db", "w", "dx"):
        w.new(name, N, N)
    b, da = w.bufs, w.new("da", N, N, segment=segment)
    w.builder.elementwise([b["s"]], [b["a"]], lambda e, a: e.sigmoid(a))
    w.builder.elementwise([b["db"]], [b["dy"], b["s"]], lambda e, dy, s: e.mul(dy, s))
    w.product("dx", "db", "w")
    for step in between:
        what, _, name = step.partition(" ")
        if what == "read":
            w.read(name)
        else:
            w.builder.copy(b[name], b["w"])
    w.builder.elementwise(
        [da], [b["dy"], b["b"], b["s"]], lambda e, dy, b, s: e.mul(e.mul(dy, b), e.mul(s, e.sub(e.const(1), s)))
    )
    w.outputs = ["dx", "da", *kept]
    if segment == ARENA:
        w.read("da")
        w.outputs.remove("da")
    program = w.after(fuse_elementwise)
    return sum(isinstance(i, ElementwiseCall) and len(i.ins) > 0 for i in program)


@pytest.mark.parametrize("between", [(), ("read s",), ("read b", "read db"), ("change db",)])
def test_a_chain_that_others_wait_for_takes_in_a_later_one(between: tuple[str, ...]) -> None:
    assert gated(*between) == 1


@pytest.mark.parametrize("between", ["change dy", "change s", "change b", "read da", "change da"])
def test_a_chain_stays_behind_what_changes_its_operands_or_sees_its_result(between: str) -> None:
    assert gated(between) == 2


def test_a_chain_stays_where_its_result_would_wait_beside_its_operands() -> None:
    assert gated(kept=("dy", "b")) == 1, "the sigmoid makes room"
    assert gated(kept=("dy", "b", "s")) == 2


def test_a_chain_that_changes_state_stays_behind_what_may_fail() -> None:
    assert gated(segment=GRADIENTS) == 2


def fused(w: Written) -> int:
    """Elementwise calls that are left of a program."""
    program = w.after(fuse_elementwise)
    return sum(isinstance(i, ElementwiseCall) for i in program)


def test_a_chain_of_another_shape_takes_in_no_operand_that_is_repeated() -> None:
    w = Written()
    for name, shape in (("x", (N, N)), ("bias", (N,)), ("y", (N, N)), ("z", (N * N,))):
        w.new(name, *shape)
    b = w.bufs
    for operand, count in (("x", 1), ("bias", 2)):
        w.builder.instructions.clear()
        w.builder.elementwise([b["y"]], [b["x"], b[operand]], lambda e, x, v: e.add(x, v))
        w.builder.elementwise([b["z"]], [b["y"].view((N * N,))], lambda e, y: e.exp(y))
        w.outputs = ["z"]
        assert fused(w) == count


def test_a_chain_takes_in_no_call_of_another_size_that_leaves_its_result_unread() -> None:
    w = Written()
    for name, shape in (("x", (N, N)), ("y", (N, N)), ("q", (N,)), ("r", (N,))):
        w.new(name, *shape)
    b = w.bufs
    w.builder.elementwise([b["y"]], [b["x"]], lambda e, x: e.exp(x))
    w.builder.elementwise([b["r"]], [b["q"], b["y"]], lambda e, q, _: e.exp(q))
    w.read("r")
    w.outputs = ["y"]
    assert fused(w) == 2


@pytest.mark.parametrize(("start", "count"), [(0, 1), (1, 2), (N, 1)])
def test_a_chain_is_not_stored_across_its_operands(start: int, count: int) -> None:
    w = Written()
    x, y, w.outputs = w.new("x", 2 * N), w.new("y", N), ["x"]
    w.builder.elementwise([y], [x.view((N,))], lambda e, a: e.exp(a))
    w.builder.elementwise([x.view((N,), start)], [y], lambda e, a: e.tanh(a))
    assert fused(w) == count


@pytest.mark.parametrize(("inputs", "count"), [(MAX_BUFFERS - 2, 1), (MAX_BUFFERS - 1, 2)])
def test_a_chain_holds_no_more_addresses_than_registers(inputs: int, count: int) -> None:
    w = Written()
    ins = [w.new(f"x{k}", N) for k in range(inputs)]
    y, z, w.outputs = w.new("y", N), w.new("z", N), ["y", "z"]
    w.builder.elementwise([y], ins, lambda e, *xs: reduce(e.add, xs))
    w.builder.elementwise([z], [y], lambda e, x: e.exp(x))
    assert fused(w) == count


@pytest.mark.parametrize(("operations", "count"), [(MAX_OPERATIONS - 1, 1), (MAX_OPERATIONS, 2)])
def test_a_chain_has_a_limit_of_operations(operations: int, count: int) -> None:
    w = Written()
    x, y, z, w.outputs = w.new("x", N), w.new("y", N), w.new("z", N), ["z"]
    w.builder.elementwise([y], [x], lambda e, x: reduce(lambda v, k: e.add(v, e.const(k)), range(operations), x))
    w.builder.elementwise([z], [y], lambda e, x: e.exp(x))
    assert fused(w) == count


# Cheap results.


def repeated(*steps: str) -> set[str]:
    """Results that calls make themselves that read them.

    A step is "fill NAME" or "read NAME", or a result, its operands, and how many constants are added to their sum.
    """
    w = Written()
    for name in "xyzabcd":
        w.new(name, N, N)
    w.bufs["part of y"] = w.bufs["y"].view((N,))
    results = []
    for step in steps:
        what, _, name = step.partition(" ")
        if what in ("read", "fill"):
            (w.read if what == "read" else w.fill)(name)
            continue
        result, operands, constants = step.split(",")
        ins = [w.bufs[name] for name in operands.split("+")]
        out = w.bufs[result] if ins[-1].size == N * N else w.new(result, N)
        results.append(result)

        def compute(e: Emitter, *xs: Expr, count: str = constants) -> Expr:
            if count == "exp":
                return e.exp(reduce(e.add, xs))
            return reduce(lambda v, k: e.mul(v, e.const(float(k + 2))), range(int(count)), reduce(e.add, xs))

        w.builder.elementwise([out], ins, compute)
    w.outputs = [name for name in results if name in "abcd"]
    program = w.after(repeat_cheap)
    return {name for name in results if not program.writers(w.bufs[name].storage)}


MANY = CHEAP_OPERATIONS - 1
"""Products with constants that are cheap, and still are with another operation."""


def test_cheap_results_are_made_where_they_are_read() -> None:
    assert repeated("y,x,1", "a,y+x,1", "b,y+x,1") == {"y"}
    assert repeated("y,x,1", "z,y+x,1", "a,z+x,1") == {"y", "z"}


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        (("y,x,1", "a,y+x,1", "fill x", "b,y+x,1"), ""),
        (("y,x,1", "a,y+x,1", "read y"), ""),
        (("y,x,exp", "a,y+x,1"), ""),
        ((f"y,x,{CHEAP_OPERATIONS}", "a,y+x,1"), "y"),
        ((f"y,x,{CHEAP_OPERATIONS + 1}", "a,y+x,1"), ""),
        (("y,x,1", "a,y+x,1", "b,y,1"), ""),
        (("y,x,1", "a,x+part of y,1"), ""),
        (("y,x,1", f"z,y+x,{MANY}", "a,z+x,1"), "y"),
        (("y,x,1", "z,y+x,1", "a,z,1"), "y"),
        (("y,x,1", "z,y+x,1", "a,z+x,1", "fill x", "b,z+x,1"), "y"),
    ],
    ids=str,
)
def test_results_are_stored_that_others_read_or_that_are_not_cheap(steps: tuple[str, ...], names: str) -> None:
    assert repeated(*steps) == set(names)
