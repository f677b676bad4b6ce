"""Cross entropy and its gradient: of scores, or of x w' + bias of a large vocabulary (wasm_kernels/head_loss.c).

The scores of a head are never stored. A workgroup has four rows, and goes through a part of the classes by chunks. It
adds up the rows of w by the exponentials of the scores: that is the gradient of x, once the parts are added. The
gradient of w makes the scores again, of four classes with all rows.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from trainweb.backend.webgpu.shader import Kernel, template
from trainweb.backend.webgpu.templates import tiles
from trainweb.backend.webgpu.templates.packed import read_packed
from trainweb.backend.webgpu.templates.tiles import ROWS, ColumnSums, Read, four
from trainweb.backend.webgpu.templates.tools import fold_steps, middle_axis
from trainweb.ir import calls
from trainweb.ir.layout import LOSS_EACH, LOSS_MEAN

Loss = calls.HeadLoss | calls.HeadLossQuantized


def _label_of(k: Kernel, row: str, name: str = "label") -> list[str]:
    """Statements for the label of a row, its class and its weight, which is 0 where the label is ignored."""
    weight = k.if_given("weights", "{}", f"class_of_{name}") or "1.0f"
    if k.call.has_ignore:
        weight = f"select({weight}, 0.0f, {name} == u.ignore_index)"
    return [
        f"let {name} = {k.operand('labels')[row]};",
        f"let class_of_{name} = u32({name});",
        f"let weight_of_{name} = {weight};",
    ]


def _rows(call: Any) -> int:
    return prod((call.n, getattr(call, "inner", 1)))


def _divide_by_weights(k: Kernel) -> None:
    """Statements for `divisor`: the sum of the weights for a mean of losses, or 1."""
    if k.call.reduction != LOSS_MEAN:
        k.add("let divisor = 1.0f;")
    elif k.call.weights is None and not k.call.has_ignore:
        k.add(f"let divisor = f32({k.count('rows', _rows(k.call))});")
    else:
        fold_steps(k, "sum", k.count("rows", _rows(k.call)), *_label_of(k, "step", "each"), divisor="weight_of_each")


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
    k.add(*_label_of(k, "block"), "var loss = 0.0f;", "if (weight_of_label != 0.0f) {")
    k.add(f"loss = -weight_of_label * (({scores['start + class_of_label * u.inner']} - top) - rest);", "}")
    _store_losses(k)


def _store_losses(k: Kernel, **results: str) -> None:
    """Store `loss` of a row, with other results; a further kernel has their sum or mean."""
    if k.call.reduction == LOSS_EACH:
        return k.once(loss="loss", **results)
    k.once(row_loss="loss", **results)
    mean = k.then("mean")
    losses, loss = mean.fields("row_loss", "loss")
    fold_steps(mean, "sum", mean.count("rows", _rows(k.call)), sum=losses["step"])
    _divide_by_weights(mean)
    mean.add("sum = select(sum / divisor, sum, divisor == 0.0f);")
    return mean.once(loss.store("0u", "sum"))


@template(calls.CrossEntropyGrad)
def cross_entropy_gradient(k: Kernel, call: calls.CrossEntropyGrad) -> None:
    """(e^log_prob - onehot) weight dy / D."""
    _divide_by_weights(k)
    if call.reduction == LOSS_MEAN and (call.weights is not None or call.has_ignore):
        total = k.room("total", 1)
        k.once(total.store("0u", "divisor"))
        k = k.then("elements")
        k.add(f"let divisor = {total['0u']};")
    k.elements(item="n", step="c", column="inner")
    k.add("let row = item * u.inner + column;", *_label_of(k, "row"))
    slope = k.operand("dy")["row" if call.reduction == LOSS_EACH else "0u"]
    k.add(f"let scale = weight_of_label * select({slope} / divisor, 0.0f, divisor == 0.0f);")
    k.add("let chosen = select(0.0f, 1.0f, step == class_of_label);", "var y = 0.0f;", "if (scale != 0.0f) {")
    probability = "0.0f" if call.from_log else f"exp_({k.operand('log_prob')['i']})"
    k.add(f"y = ({probability} - chosen) * scale;", "}", k.operand("dx").store("i", "y"))


def _inputs(k: Kernel) -> Read:
    return lambda row, column: k.operand("x")[f"{row} * u.d + {column}"]


def _weight_place(k: Kernel, row: str, column: str) -> str:
    """The element of w, or of its gradient, of a class and by depth."""
    return f"{column} * u.c + {row}" if k.call.turned else f"{row} * u.d + {column}"


def _weights(k: Kernel) -> Read:
    if isinstance(k.call, calls.HeadLossQuantized):
        read = read_packed(k, "w")
        return (lambda row, column: read(column, row)) if k.call.turned else read
    return lambda row, column: k.operand("w")[_weight_place(k, row, column)]


@template(calls.HeadLoss, calls.HeadLossQuantized)
def head_loss(k: Kernel, call: Loss) -> None:
    """For four rows and a part of the classes: the largest score, and the sums of exponentials and of rows of w."""
    x, w, labels, target = _inputs(k), _weights(k), *k.fields("labels", "target")
    k.count("span", ceil(call.c / call.parts))
    tiles.start(k, "n", part="parts")
    k.add("let begin = part * u.span;", "let end = min(begin + u.span, u.c);")
    x_tile = tiles.keep(k, "own", x, call.d, "u.d")
    slopes = ColumnSums(k, "slopes", call.d) if call.gradient and call.slope is not None else None
    k.add("let label = vec4u(" + ", ".join(f"u32({labels[f'row{r}']})" for r in range(ROWS)) + ");")
    scores = tiles.products("score", x_tile, w, "other", "u.d")
    scores.append(f"least = score * u.alpha{k.if_given('bias', ' + {}', 'other')};")
    for r in range(ROWS):
        is_target = f"label[{r}] == other && first + {r}u < u.n"
        scores.append(f"if ({is_target}) {{ {target.store(f'row{r}', f'least[{r}]')} }}")
    tiles.weigh_by_softmax(k, ("begin", "end"), scores, slopes, w)
    tiles.store_rows(k, "u.n", "part * u.n + first + lane", "top", "sum")
    if slopes:
        slopes.store("u.n", k.operand("partial"), lambda row, column: f"(part * u.n + {row}) * u.d + {column}")
    _add_parts(k.then("rows"), call)


def _add_parts(k: Kernel, call: Loss) -> None:
    """The loss of a row, its gradient, and the logarithm of the row's sum."""
    target, tops, sums = k.fields("target", "top", "sum")
    k.blocks(row="n")
    is_sloped = call.gradient and call.slope is not None
    if is_sloped:
        _divide_by_weights(k)
    k.add(*_label_of(k, "row"), "var top = from_bits(0xff800000u);")
    of_parts = "for (var part = 0u; part < u.parts; part++) {"
    k.add(of_parts, f"top = larger(top, {tops['part * u.n + row']});", "}")
    factor = f"exp_({tops['part * u.n + row']} - top)"
    k.add("var sum = 0.0f;", of_parts, f"sum += {sums['part * u.n + row']} * {factor};", "}", "let rest = log_(sum);")
    k.add("let counts = weight_of_label != 0.0f;", "var loss = 0.0f;")
    k.add(f"if (counts) {{ loss = -weight_of_label * ({target['row']} - top - rest); }}")
    has_sums = isinstance(call, calls.HeadLoss)
    _store_losses(k, **({"log_sum": "select(0.0f, top + rest, counts)"} if has_sums else {}))
    if is_sloped:
        partial, slope, w = *k.fields("partial", "slope"), _weights(k)
        k.add("let scale = weight_of_label / divisor * u.alpha;")
        body = ["var y = 0.0f;", "if (counts) {", of_parts]
        body += [f"y += {partial['(part * u.n + row) * u.d + column']} * ({factor} / sum);", "}"]
        body += [f"y = (y - {w('class_of_label', 'column')}) * scale;", "}", slope.store("row * u.d + column", "y")]
        k.each_step("u.d", *body, variable="column")


@template(calls.HeadLossWeightGrad)
def head_loss_weight_gradient(k: Kernel, call: calls.HeadLossWeightGrad) -> None:
    """dw (+)= sum over the rows of (probability - onehot) weight dy / D x."""
    x, w = _inputs(k), _weights(k)
    tiles.start(k, "c")
    _divide_by_weights(k)
    w_tile = tiles.keep(k, "own", w, call.d, "u.d")
    dw, dy, log_sum = k.fields("dw", "dy", "log_sum")
    sums = ColumnSums(k, "slopes", call.d)
    k.add(tiles.for_chunks(k, "0u", "u.n"), "var slope = vec4f(0.0f);", "if (other < u.n) {")
    k.add(*_label_of(k, "other"), "if (weight_of_label != 0.0f) {")
    k.add(*tiles.products("score", w_tile, x, "other", "u.d"), "score *= u.alpha;")
    if call.bias is not None:
        bias = k.operand("bias")
        k.add(f"score += {four(lambda r: bias[f'row{r}'])};")
    each = dy["other" if call.reduction == LOSS_EACH else "0u"]
    k.add(f"let scale = weight_of_label * {each} / divisor * u.alpha;")
    chosen = four(lambda r: f"select(0.0f, 1.0f, class_of_label == row{r})")
    k.add(f"slope = (exp4(score - {log_sum['other']}) - {chosen}) * scale;", "}", "}")
    tiles.add_chunk(k, "u.n", (sums, "slope", x))
    k.add("}")
    sums.store("u.c", dw, lambda row, column: _weight_place(k, row, column), accumulate=bool(call.accumulate))
