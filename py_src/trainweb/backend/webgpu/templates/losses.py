"""Cross entropy and its gradient."""

from __future__ import annotations

from trainweb.backend.webgpu.shader import Kernel
from trainweb.backend.webgpu.templates.tools import fold_over_lanes, over_lanes
from trainweb.ir import calls
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import LOSS_EACH, LOSS_MEAN

Loss = calls.CrossEntropy | calls.CrossEntropyGrad | calls.HeadLoss | calls.HeadLossQuantized | calls.HeadLossWeightGrad


def label_of(k: Kernel, call: Loss, row: str, name: str = "label") -> list[str]:
    """Statements for the label of a row, its class and its weight, which is 0 where the label is ignored."""
    lines = [f"let {name} = {k.operand('labels', call.labels).load(row)};"]
    lines.append(f"let class_of_{name} = u32({name});")
    weight = "1.0f"
    if call.weights is not None:
        weight = k.operand("weights", call.weights).load(f"class_of_{name}")
    if call.has_ignore:
        weight = f"select({weight}, 0.0f, {name} == {k.signed('ignored', call.ignore_index)})"
    return [*lines, f"let weight_of_{name} = {weight};"]


def _total_weight(k: Kernel, call: Loss) -> list[str]:
    """Statements for the sum `total` of all weights."""
    all_sum = fold_over_lanes(k, "sum")
    body = label_of(k, call, "row", "each")
    return [
        "var weights_sum = 0.0f;",
        *over_lanes(k, "row", "u.rows", *body, "weights_sum += weight_of_each;"),
        f"let total = {all_sum}(lane, weights_sum);",
    ]


def divisor_of(k: Kernel, call: Loss) -> str:
    """The divisor of a mean of losses, 1 for others; statements that add up the weights go to the kernel."""
    if call.reduction != LOSS_MEAN:
        return "1.0f"
    if call.weights is None and not call.has_ignore:
        return "f32(u.rows)"
    k.add(*_total_weight(k, call))
    return "total"


def cross_entropy(call: calls.CrossEntropy) -> list[Kernel]:
    """The loss of each row, and then their sum or mean."""
    k = Kernel("cross_entropy")
    scores = k.operand("scores", call.scores)
    each = k.operand("losses", call.loss if call.reduction == LOSS_EACH else call.row_loss)
    k.count("n", call.c)
    k.blocks(call.n * call.inner)
    k.add(f"let start = (block / {k.count('inner', call.inner)}) * u.n * u.inner + block % u.inner;")
    at = "start + step * u.inner"
    k.add("var top = 0.0f;", "var rest = 0.0f;")
    if not call.from_log:
        all_max, all_sum = fold_over_lanes(k, "max"), fold_over_lanes(k, "sum")
        k.add("top = from_bits(0xff800000u);", *over_lanes(k, "step", "u.n", f"top = larger(top, {scores.load(at)});"))
        k.add(f"top = {all_max}(lane, top);")
        k.add(*over_lanes(k, "step", "u.n", f"rest += exp_({scores.load(at)} - top);"))
        k.add(f"rest = log_({all_sum}(lane, rest));")
    if call.log_prob is not None:
        log_prob = k.operand("log_prob", call.log_prob)
        k.add(*over_lanes(k, "step", "u.n", log_prob.store(at, f"({scores.load(at)} - top) - rest")))
    k.add("if (lane == 0u) {", *label_of(k, call, "block"), "var loss = 0.0f;", "if (weight_of_label != 0.0f) {")
    score = scores.load("start + class_of_label * u.inner")
    k.add(f"loss = -weight_of_label * (({score} - top) - rest);", "}", each.store("block", "loss"), "}")
    return [k] if call.reduction == LOSS_EACH else [k, mean_loss(call, call.n * call.inner)]


def mean_loss(call: calls.CrossEntropy | calls.HeadLoss | calls.HeadLossQuantized, rows: int) -> Kernel:
    """The sum or the mean of the losses of so many rows."""
    k = Kernel("cross_entropy (mean)")
    losses, loss = k.operand("losses", call.row_loss), k.operand("loss", call.loss)
    all_sum = fold_over_lanes(k, "sum")
    k.count("rows", rows)
    k.add("var sum = 0.0f;", *over_lanes(k, "row", "u.rows", f"sum += {losses.load('row')};"))
    k.add(f"sum = {all_sum}(lane, sum);")
    if call.reduction == LOSS_MEAN:
        k.add(*_total_weight(k, call), "sum = select(sum / total, sum, total == 0.0f);")
    k.add(f"if (lane == 0u) {{ {loss.store('0u', 'sum')} }}")
    return k


def cross_entropy_gradient(call: calls.CrossEntropyGrad) -> list[Kernel]:
    """(e^log_prob - onehot) weight dy / D."""
    rows = call.n * call.inner
    is_weighted = call.reduction == LOSS_MEAN and (call.weights is not None or bool(call.has_ignore))
    kernels: list[Kernel] = []
    k = Kernel("cross_entropy_gradient")
    divisor = "1.0f"
    if is_weighted:
        before = Kernel("cross_entropy_gradient (weights)")
        total, room = before.partial("total", 1)
        before.count("rows", rows)
        before.add(*_total_weight(before, call), f"if (lane == 0u) {{ {total.store('0u', 'total')} }}")
        kernels.append(before)
        divisor = k.operand("total", room).load("0u")
    elif call.reduction == LOSS_MEAN:
        divisor = f"f32({k.count('rows', rows)})"
    return [*kernels, _gradient(k, call, divisor)]


def _gradient(k: Kernel, call: calls.CrossEntropyGrad, divisor: str) -> Kernel:
    dy, dx = k.operand("dy", call.dy), k.operand("dx", call.dx)
    k.elements(call.dx.size)
    k.add(f"let column = i % {k.count('inner', call.inner)};", f"let step = (i / u.inner) % {k.count('n', call.c)};")
    k.add("let row = (i / (u.inner * u.n)) * u.inner + column;", *label_of(k, call, "row"))
    slope = dy.load("row" if call.reduction == LOSS_EACH else "0u")
    k.add(f"let divisor = {divisor};")
    k.add(f"let scale = weight_of_label * select({slope} / divisor, 0.0f, divisor == 0.0f);")
    k.add("let chosen = select(0.0f, 1.0f, step == class_of_label);", "var y = 0.0f;", "if (scale != 0.0f) {")
    probability = "0.0f" if call.from_log else f"exp_({k.operand('log_prob', _given(call.log_prob)).load('i')})"
    k.add(f"y = ({probability} - chosen) * scale;", "}", dx.store("i", "y"))
    return k


def _given(b: Buf | None) -> Buf:
    assert b is not None
    return b
