"""If, Loop and Scan, written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainweb.control.branch import advice, is_decided, write_branch
from trainweb.control.expansion import Expansion, Scope
from trainweb.control.lists import with_rows
from trainweb.control.repeat import OPEN_TRIPS, Outline, is_short, run_again_and_again, write_repeat
from trainweb.errors import LimitError, ModelError, UnsupportedError
from trainweb.ir.dims import equal, static
from trainweb.ir.layout import LOOP_TRIPS
from trainweb.model.graph import Graph, Node, Tensor, Value

INPUT_AXES_SINCE = 13
"""The opset in which axes of Squeeze and Unsqueeze became an input."""


def write_if(x: Expansion, node: Node, scope: Scope) -> None:
    """The branch that is chosen, or both and a choice between their results, or a node that waits for the condition."""
    branches = {True: x.body(node, "then_branch"), False: x.body(node, "else_branch")}
    known = x.value(node.inputs[0])
    prefix = f"{node.name or 'If'}/"
    if known is not None:
        inner = Scope(scope, x.fresh(prefix))
        x.hand_all(x.inline(branches[bool(known)], [], inner), node.outputs)
        return
    start, sizes = x.mark(scope), x.inference.table.known()
    try:
        _write_both(x, node, scope, branches)
    except (ModelError, UnsupportedError) as error:
        x.rewind(start)
        x.node = node
        if not is_decided(x, node.inputs[0]):
            raise
        x.inference.table.back_to(sizes)
        try:
            write_branch(x, node, scope, branches)
        except UnsupportedError as failure:
            if failure.op == "If" and failure.node != node.name:
                raise  # what decides within a branch is enough
            reason = str(failure).rstrip(".")
            raise x.unsupported(f"{advice(x, node.inputs[0])}. The reason is: {reason}") from error


def _write_both(x: Expansion, node: Node, scope: Scope, branches: Mapping[bool, Graph]) -> None:
    """Both branches and a choice between their results."""
    condition = x.scalar(node.inputs[0])
    prefix = f"{node.name or 'If'}/"
    since = len(x.graph.nodes)
    results = {}
    for when, branch in branches.items():
        label = x.fresh(f"{prefix}{'then' if when else 'else'}/")
        inner = Scope(scope, label, x.gate(condition, when), (condition, when))
        results[when] = x.inline(branch, [], inner)
    x.check_pure(since)
    for yes, no, target in zip(results[True], results[False], node.outputs, strict=False):
        if target:
            x.choose(condition, yes, no, target)


def write_loop(x: Expansion, node: Node, scope: Scope) -> None:
    """Iterations until the trip count is reached or the condition is false, written out or as a node that runs them.

    If the condition is only known at run time and the loop is short, all iterations run, and their results are chosen.
    """
    body = x.body(node)
    count_name, condition, *carried = [*node.inputs, *[""] * (2 - len(node.inputs))]
    count = x.value(count_name) if count_name else None
    known = x.value(condition) if condition else True
    if count is None or not is_short(x, count, body):
        collecting = with_rows(x, node)
        if collecting is not None:
            write_loop(x, collecting.node, scope)
            x.rows.update(collecting.lists)
            return
    if count_name and count is None and known is not False:
        if not write_counted_loop(x, node, scope):
            write_open_loop(x, node, scope)
        return
    start = x.mark(scope)
    n_stacked = len(body.outputs) - 1 - len(carried)
    if count is not None and known:
        results = run_again_and_again(x, node, scope, Outline(count, carried, [], [False] * n_stacked, is_loop=True))
        if results is not None:
            x.hand_all(results, node.outputs)
            return
        if holds_throughout(x, body):
            refuse_too_many(x, count)
    stacked: list[list[str]] = [[] for _ in range(n_stacked)]
    k = 0
    while count is None or k < count:
        goes_on = x.value(condition) if condition else True
        if goes_on is False:
            break
        if goes_on is None and (count is None or stacked or not is_short(x, count, body)):
            x.rewind(start)
            write_open_loop(x, node, scope)
            return
        since = len(x.graph.nodes)
        inner = Scope(scope, x.fresh(f"{node.name or 'Loop'}/{k}/"))
        if goes_on is None:
            condition = x.scalar(condition)
            inner.gate = x.gate(condition, True)
        gated = [inner.gate(name) for name in carried] if inner.gate is not None else carried
        iteration = x.constant("int64", (), [k])
        first, *rest = x.inline(body, [iteration, condition or x.constant("bool", (), [True]), *gated], inner)
        results, parts = rest[: len(carried)], rest[len(carried) :]
        if goes_on is None and not x.is_pure(since):
            x.rewind(start)
            write_open_loop(x, node, scope)
            return
        if goes_on is None:
            results = [x.choose(condition, new, old) for new, old in zip(results, carried, strict=True)]
            first = x.op("And", [condition, x.scalar(first)])
        condition, carried = first, results
        for rows, part in zip(stacked, parts, strict=True):
            rows.append(part)
        x.count_unrolled(since)
        k += 1
    x.hand_all(carried, node.outputs)
    declared = body.outputs[1 + len(carried) :]
    for rows, value, target in zip(stacked, declared, node.outputs[len(carried) :], strict=False):
        stack(x, rows, 0, target, value)


def holds_throughout(x: Expansion, body: Graph) -> bool:
    """Return whether a body passes its condition on, or has a true constant as condition."""
    makers = {n.outputs[0]: n for n in body.nodes if n.op_type == "Identity"}
    name = body.outputs[0].name
    while name in makers:
        name = makers[name].inputs[0]
    value = next((n.attrs.get("value") for n in body.nodes if n.op_type == "Constant" and name in n.outputs), None)
    constant = value or body.initializers.get(name) or x.graph.initializers.get(name)
    return name == body.inputs[1].name or (isinstance(constant, Tensor) and all(constant.values()))


def refuse_too_many(x: Expansion, count: int) -> None:
    """Raise LimitError before iterations are written, where they are too many for a plan, or to be written out."""
    if count > LOOP_TRIPS:
        raise LimitError(f"{x.node}: it has {count} iterations; a loop in a plan has at most {LOOP_TRIPS}.")
    x.check_unrolled(count)


def write_counted_loop(x: Expansion, node: Node, scope: Scope) -> bool:
    """A loop whose results are stacked as often as sizes decide, as one node; False where it is another loop."""
    count_name, condition, *carried = [*node.inputs, *[""] * (2 - len(node.inputs))]
    always = not condition or bool(x.value(condition))
    if not any(node.outputs[len(carried) :]) or x.type(count_name).value is None or not always:
        return False
    n_stacked = len(x.body(node).outputs) - 1 - len(carried)
    outline = Outline(0, carried, [], [False] * n_stacked, is_loop=True, count=count_name)
    x.hand_all(write_repeat(x, node, scope, outline), node.outputs)
    return True


def write_open_loop(x: Expansion, node: Node, scope: Scope) -> None:
    """Write a loop whose number of iterations is only known at run time as one node.

    It has as many iterations at most as the model says or, where that is more than a plan can have, as a limit says.
    """
    count_name, condition, *carried = [*node.inputs, *[""] * (2 - len(node.inputs))]
    for target in node.outputs[len(carried) :]:
        if target:
            raise x.unsupported(
                f"how many rows its output {target!r} has is only known at run time. Carry a tensor that has room for "
                "all of them and write each into it (ScatterND, or Where by the number of the iteration), or fix the "
                "trip count and let the condition hold throughout"
            )
    count, trips = x.value(count_name) if count_name else None, x.source.loop_iterations
    if count is not None and 0 < count <= OPEN_TRIPS:
        trips = count
    elif not 0 < trips <= OPEN_TRIPS:
        raise LimitError(f"The limit loop_iterations is {trips}; it must be from 1 to {OPEN_TRIPS}.")
    first = x.scalar(condition) if condition else x.constant("bool", (), [True])
    first = x.only_where_chosen(first, scope)
    outline = Outline(trips, carried, [], [], is_loop=True, condition=first, count=count_name)
    results = write_repeat(x, node, scope, outline)
    x.hand_all(results, node.outputs)


def write_scan(x: Expansion, node: Node, scope: Scope) -> None:
    """An iteration for each element of the scanned inputs."""
    if x.graph.opset("") < 9:
        write_batched_scan(x, node, scope)
        return
    body = x.body(node)
    scanned = x.attribute(node, "num_scan_inputs")
    n = len(node.inputs) - scanned
    outs = len(body.outputs) - n
    axes = node.attrs.get("scan_input_axes") or [0] * scanned
    backward = node.attrs.get("scan_input_directions") or [0] * scanned
    out_axes = node.attrs.get("scan_output_axes") or [0] * outs
    out_backward = node.attrs.get("scan_output_directions") or [0] * outs
    if repeat_scan(x, node, scope, n, list(axes), list(backward), list(out_axes), list(out_backward)):
        return
    parts = [
        elements(x, name, axis, bool(back)) for name, axis, back in zip(node.inputs[n:], axes, backward, strict=True)
    ]
    states, stacked = scan(x, node.inputs[:n], parts, scope, node)
    x.hand_all(states, node.outputs)
    for k, (rows, target) in enumerate(zip(stacked, node.outputs[n:], strict=False)):
        stack(x, rows[::-1] if out_backward[k] else rows, out_axes[k], target, body.outputs[n + k])


def repeat_scan(
    x: Expansion,
    node: Node,
    scope: Scope,
    n: int,
    axes: list[int],
    backward: list[int],
    out_axes: list[int],
    out_backward: list[int],
) -> bool:
    """Write a long scan as one node, if that is possible."""
    names = node.inputs[n:]
    if not names or any(name in x.sequences for name in names):
        return False
    places = [axis % max(1, x.type(name).rank) for name, axis in zip(names, axes, strict=True)]
    sizes = [(*x.type(name).shape, 0)[at] for name, at in zip(names, places, strict=True)]
    if not all(equal(size, sizes[0]) for size in sizes):
        return False
    start = x.mark(scope)
    scanned = [(to_front(x, name, at), bool(back)) for name, at, back in zip(names, places, backward, strict=True)]
    trips, count = sizes[0], ""
    if not static(trips):
        trips, count = 0, x.op("Gather", [x.op("Shape", [scanned[0][0]]), x.constant("int64", (), [0])], axis=0)
    outline = Outline(
        trips, node.inputs[:n], scanned, [bool(back) for back in out_backward], is_loop=False, count=count
    )
    results = write_repeat(x, node, scope, outline) if count else run_again_and_again(x, node, scope, outline)
    if results is None:
        x.rewind(start)
        return False
    x.hand_all(results[:n], node.outputs)
    for source, axis, target in zip(results[n:], out_axes, node.outputs[n:], strict=False):
        if target:
            rank = x.type(source).rank
            at = axis % rank
            order = [*range(1, at + 1), 0, *range(at + 1, rank)]
            if at:
                x.op("Transpose", [source], target, perm=order)
            else:
                x.hand(source, target)
    return True


def to_front(x: Expansion, name: str, axis: int) -> str:
    """A tensor with one of its axes before the others."""
    if not axis:
        return name
    rank = x.type(name).rank
    return x.op("Transpose", [name], perm=[axis, *(k for k in range(rank) if k != axis)])


def write_batched_scan(x: Expansion, node: Node, scope: Scope) -> None:
    """Scan of opset 8: all inputs have a batch in front, and each of its samples is scanned along the next axis."""
    body = x.body(node)
    lengths, *inputs = node.inputs
    if lengths:
        raise x.unsupported("sequence_lens, which Scan of opset 8 has, are not supported")
    scanned = x.attribute(node, "num_scan_inputs")
    n = len(inputs) - scanned
    backward = node.attrs.get("directions") or [0] * scanned
    samples = [elements(x, name, 0, False) for name in inputs]
    finals: list[list[str]] = [[] for _ in body.outputs]
    for sample in zip(*samples, strict=True):
        parts = [elements(x, name, 0, bool(back)) for name, back in zip(sample[n:], backward, strict=True)]
        states, stacked = scan(x, list(sample[:n]), parts, scope, node)
        label = f"{node.name or 'Scan'}/rows"
        rows = [stack(x, part, 0, x.fresh(label), value) for part, value in zip(stacked, body.outputs[n:], strict=True)]
        for final, name in zip(finals, [*states, *rows], strict=True):
            final.append(name)
    for rows, target, value in zip(finals, node.outputs, body.outputs, strict=False):
        stack(x, rows, 0, target, value)


def scan(
    x: Expansion, states: list[str], parts: list[list[str]], scope: Scope, node: Node
) -> tuple[list[str], list[list[str]]]:
    """The last states, and the parts of each output by iteration."""
    body = x.body(node)
    if len({len(part) for part in parts}) > 1:
        raise x.unsupported(f"its inputs are scanned along {[len(part) for part in parts]} elements")
    stacked: list[list[str]] = [[] for _ in range(len(body.outputs) - len(states))]
    for k, items in enumerate(zip(*parts, strict=True)):
        since = len(x.graph.nodes)
        results = x.inline(body, [*states, *items], Scope(scope, x.fresh(f"{node.name or 'Scan'}/{k}/")))
        for rows, part in zip(stacked, results[len(states) :], strict=True):
            rows.append(part)
        states = results[: len(states)]
        x.count_unrolled(since)
    return states, stacked


# Taking tensors apart, and together again.


def elements(x: Expansion, name: str, axis: int, backward: bool) -> list[str]:
    """The elements of a tensor along an axis, without it."""
    t = x.type(name)
    if not -t.rank <= axis < t.rank:
        raise x.unsupported(f"axis {axis} is outside the {t.rank} dimensions of {name!r}")
    axis %= t.rank
    size = t.shape[axis]
    if not static(size):
        raise x.unsupported(f"it runs along dimension {axis} of {name!r}, {size}, which is not fixed")
    parts = [reshaped(x, "Squeeze", part, axis) for part in split(x, name, axis, [1] * size)]
    return parts[::-1] if backward else parts


def split(x: Expansion, name: str, axis: int, sizes: list[int]) -> list[str]:
    """Parts of these sizes along an axis."""
    if len(sizes) == 1:
        return [name]
    if not sizes:
        return []
    if x.graph.opset("") < INPUT_AXES_SINCE:
        return x.ops("Split", [name], [""] * len(sizes), axis=axis, split=sizes)
    return x.ops("Split", [name, x.constant("int64", (len(sizes),), sizes)], [""] * len(sizes), axis=axis)


def reshaped(x: Expansion, op_type: str, name: str, axis: int) -> str:
    """A tensor without a dim of 1 (`Squeeze`), or with one put in (`Unsqueeze`)."""
    if x.graph.opset("") < INPUT_AXES_SINCE:
        return x.op(op_type, [name], axes=[axis])
    return x.op(op_type, [name, x.constant("int64", (1,), [axis])])


def stack(x: Expansion, rows: list[str], axis: int, target: str, declared: Any = None) -> str:
    """Tensors one beside the other along a new axis, as the tensor `target`; of none, an empty one as declared."""
    if not target:
        return ""
    if any(row in x.sequences for row in rows):
        raise x.unsupported("what its iterations make is stacked, which sequences cannot be")
    if rows:
        at = axis % (x.type(rows[0]).rank + 1)
        return x.op("Concat", [reshaped(x, "Unsqueeze", row, at) for row in rows], target, axis=at)
    shape = declared.shape if isinstance(declared, Value) else None
    if shape is None or not all(isinstance(dim, int) for dim in shape) or not declared.dtype:
        raise x.unsupported(f"it has no iterations, and {target!r} no declared shape")
    dims = [int(dim or 0) for dim in shape]
    dims.insert(axis % (len(dims) + 1), 0)
    return x.op("Identity", [x.add_initializer(Tensor.of(x.fresh("empty"), declared.dtype, dims, []))], target)


HANDLERS = {"If": write_if, "Loop": write_loop, "Scan": write_scan}
