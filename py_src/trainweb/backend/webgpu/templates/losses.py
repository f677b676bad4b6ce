"""Cross entropy and its gradient."""

from __future__ import annotations

from math import prod
from typing import Any

from trainweb.backend.webgpu.shader import Kernel, template
from trainweb.backend.webgpu.templates.tools import fold_steps, middle_axis
from trainweb.ir import calls
from trainweb.ir.layout import LOSS_EACH, LOSS_MEAN


def label_of(k: Kernel, row: str, name: str = "label") -> list[str]:
    """Statements for the label of a row, its class and its weight, which is 0 where the label is ignored."""
    weight = k.if_given("weights", "{}", f"class_of_{name}") or "1.0f"
    if k.call.has_ignore:
        weight = f"select({weight}, 0.0f, {name} == u.ignore_index)"
    return [
        f"let {name} = {k.operand('labels')[row]};",
        f"let class_of_{name} = u32({name});",
        f"let weight_of_{name} = {weight};",
    ]


def _total_weight(k: Kernel) -> None:
    """Add up all weights: `total`."""
    fold_steps(k, "sum", k.count("rows", _rows(k.call)), *label_of(k, "step", "each"), total="weight_of_each")


def _rows(call: Any) -> int:
    return prod((call.n, getattr(call, "inner", 1)))


def divide_by_weights(k: Kernel) -> None:
    """Statements for `divisor`: the sum of the weights for a mean of losses, or 1."""
    if k.call.reduction != LOSS_MEAN:
        k.add("let divisor = 1.0f;")
    elif k.call.weights is None and not k.call.has_ignore:
        k.add(f"let divisor = f32({k.count('rows', _rows(k.call))});")
    else:
        _total_weight(k)
        k.add("let divisor = total;")


@template(calls.CrossEntropy)
def cross_entropy(k: Kernel, call: calls.CrossEntropy) -> None:
    """The loss of each row, and then their sum or mean."""
    scores, at = k.operand("scores"), middle_axis(k, "n", "c", "inner")
    if call.from_log:
        k.add("let top = 0.0f;", "let rest = 0.0f;")
    else:
        fold_steps(k, "max", "u.c", top=scores[at])
        fold_steps(k, "sum", "u.c", rest=f"exp_({scores[at]} - top)")
        k.add("rest = log_(rest);")
    if call.log_prob is not None:
        k.each_step("u.c", k.operand("log_prob").store(at, f"({scores[at]} - top) - rest"))
    k.add(*label_of(k, "block"), "var loss = 0.0f;", "if (weight_of_label != 0.0f) {")
    k.add(f"loss = -weight_of_label * (({scores['start + class_of_label * u.inner']} - top) - rest);", "}")
    store_losses(k)


def store_losses(k: Kernel, **results: str) -> None:
    """Store `loss` of a row, with other results; a further kernel has their sum or mean."""
    if k.call.reduction == LOSS_EACH:
        return k.once(loss="loss", **results)
    k.once(row_loss="loss", **results)
    mean = k.then("mean")
    losses, loss = mean.fields("row_loss", "loss")
    mean.count("rows", _rows(k.call))
    fold_steps(mean, "sum", "u.rows", sum=losses["step"])
    if k.call.reduction == LOSS_MEAN:
        _total_weight(mean)
        mean.add("sum = select(sum / total, sum, total == 0.0f);")
    return mean.once(loss.store("0u", "sum"))


@template(calls.CrossEntropyGrad)
def cross_entropy_gradient(k: Kernel, call: calls.CrossEntropyGrad) -> None:
    """(e^log_prob - onehot) weight dy / D."""
    if call.reduction == LOSS_MEAN and (call.weights is not None or call.has_ignore):
        divide_by_weights(k)
        room = k.room(1)
        k.once(k.operand("total", room).store("0u", "divisor"))
        k = k.then("elements")
        k.add(f"let divisor = {k.operand('total', room)['0u']};")
    else:
        divide_by_weights(k)
    k.elements(item="n", step="c", column="inner")
    k.add("let row = item * u.inner + column;", *label_of(k, "row"))
    slope = k.operand("dy")["row" if call.reduction == LOSS_EACH else "0u"]
    k.add(f"let scale = weight_of_label * select({slope} / divisor, 0.0f, divisor == 0.0f);")
    k.add("let chosen = select(0.0f, 1.0f, step == class_of_label);", "var y = 0.0f;", "if (scale != 0.0f) {")
    probability = "0.0f" if call.from_log else f"exp_({k.operand('log_prob')['i']})"
    k.add(f"y = ({probability} - chosen) * scale;", "}", k.operand("dx").store("i", "y"))
