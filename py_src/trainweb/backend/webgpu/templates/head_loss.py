"""Cross entropy of the scores x w' + bias of a large vocabulary, which are never stored (wasm_kernels/head_loss.c).

A workgroup has four rows, and goes through a part of the classes by chunks. It adds up the rows of w by the
exponentials of the scores: that is the gradient of x, once the parts are added. The gradient of w makes the scores
again, of four classes with all rows.
"""

from __future__ import annotations

from math import ceil

from trainweb.backend.webgpu.shader import Kernel, template
from trainweb.backend.webgpu.templates import tiles
from trainweb.backend.webgpu.templates.losses import divide_by_weights, label_of, store_losses
from trainweb.backend.webgpu.templates.packed import read_packed
from trainweb.backend.webgpu.templates.tiles import ROWS, ColumnSums, Read, four
from trainweb.ir import calls
from trainweb.ir.layout import LOSS_EACH

Loss = calls.HeadLoss | calls.HeadLossQuantized


def _inputs(k: Kernel) -> Read:
    x = k.operand("x")
    return lambda row, column: x[f"{row} * u.d + {column}"]


def _weight_place(k: Kernel, row: str, column: str) -> str:
    """The element of w, or of its gradient, of a class and by depth."""
    return f"{column} * u.c + {row}" if k.call.turned else f"{row} * u.d + {column}"


def _weights(k: Kernel) -> Read:
    if isinstance(k.call, calls.HeadLossQuantized):
        read = read_packed(k, "w")
        return (lambda row, column: read(column, row)) if k.call.turned else read
    w = k.operand("w")
    return lambda row, column: w[_weight_place(k, row, column)]


@template(calls.HeadLoss, calls.HeadLossQuantized)
def head_loss(k: Kernel, call: Loss) -> None:
    """For four rows and a part of the classes: the largest score, and the sums of exponentials and of rows of w."""
    x, w, labels, target = _inputs(k), _weights(k), *k.fields("labels", "target")
    k.count("tiles", tiles.count(call.n))
    k.count("span", ceil(call.c / call.parts))
    k.blocks(part="parts", tile="tiles")
    k.add(f"let first = tile * {ROWS}u;", "let begin = part * u.span;", "let end = min(begin + u.span, u.c);")
    tiles.first_rows(k, "u.n")
    kept = tiles.keep(k, "own", x, call.d, "u.d")
    slopes = ColumnSums(k, "slopes", call.d) if call.gradient and call.slope is not None else None
    k.add("let label = vec4u(" + ", ".join(f"u32({labels[f'row{r}']})" for r in range(ROWS)) + ");")
    scores = tiles.products("score", kept, w, "other", "u.d")
    scores.append(f"least = score * u.alpha{k.if_given('bias', ' + {}', 'other')};")
    for r in range(ROWS):
        is_target = f"label[{r}] == other && first + {r}u < u.n"
        scores.append(f"if ({is_target}) {{ {target.store(f'row{r}', f'least[{r}]')} }}")
    tiles.weigh_by_softmax(k, ("begin", "end"), scores, slopes, w)
    tiles.store_rows(k, "u.n", "part * u.n + first + lane", "top", "sum")
    if slopes:
        partial = k.operand("partial")
        at = "(part * u.n + {}) * u.d + {}"
        slopes.store("u.n", lambda row, column, value: [partial.store(at.format(row, column), value)])
    _add_parts(k.then("rows"), call)


def _add_parts(k: Kernel, call: Loss) -> None:
    """The loss of a row, its gradient, and the logarithm of the row's sum."""
    target, tops, sums = k.fields("target", "top", "sum")
    k.blocks(row="n")
    is_sloped = call.gradient and call.slope is not None
    if is_sloped:
        divide_by_weights(k)
    k.add(*label_of(k, "row"), "var top = from_bits(0xff800000u);")
    of_parts = "for (var part = 0u; part < u.parts; part++) {"
    k.add(of_parts, f"top = larger(top, {tops['part * u.n + row']});", "}")
    factor = f"exp_({tops['part * u.n + row']} - top)"
    k.add("var sum = 0.0f;", of_parts, f"sum += {sums['part * u.n + row']} * {factor};", "}", "let rest = log_(sum);")
    k.add("let counts = weight_of_label != 0.0f;", "var loss = 0.0f;")
    k.add(f"if (counts) {{ loss = -weight_of_label * ({target['row']} - top - rest); }}")
    has_sums = isinstance(call, calls.HeadLoss)
    store_losses(k, **({"log_sum": "select(0.0f, top + rest, counts)"} if has_sums else {}))
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
    k.count("tiles", tiles.count(call.c))
    k.blocks(tile="tiles")
    k.add(f"let first = tile * {ROWS}u;")
    tiles.first_rows(k, "u.c")
    divide_by_weights(k)
    kept = tiles.keep(k, "own", w, call.d, "u.d")
    dw, dy, log_sum = k.fields("dw", "dy", "log_sum")
    sums = ColumnSums(k, "slopes", call.d)
    k.add(tiles.for_chunks("0u", "u.n"), "var slope = vec4f(0.0f);", "if (other < u.n) {")
    k.add(*label_of(k, "other"), "if (weight_of_label != 0.0f) {")
    k.add(*tiles.products("score", kept, x, "other", "u.d"), "score *= u.alpha;")
    if call.bias is not None:
        bias = k.operand("bias")
        k.add(f"score += {four(lambda r: bias[f'row{r}'])};")
    each = dy["other" if call.reduction == LOSS_EACH else "0u"]
    k.add(f"let scale = weight_of_label * {each} / divisor * u.alpha;")
    chosen = four(lambda r: f"select(0.0f, 1.0f, class_of_label == row{r})")
    k.add(f"slope = (exp4(score - {log_sum['other']}) - {chosen}) * scale;", "}", "}")
    tiles.add_chunk(k, "u.n", (sums, "slope", x))
    k.add("}")

    def store(row: str, column: str, value: str) -> list[str]:
        at = _weight_place(k, row, column)
        return [dw.store(at, f"{dw[at]} + {value}" if call.accumulate else value)]

    sums.store("u.c", store)
