"""Cross entropy of the scores x w' + bias of a large vocabulary, which are never stored (wasm_kernels/head_loss.c).

A workgroup has four rows, and goes through a part of the classes by chunks. It adds up the rows of w by the
exponentials of the scores: that is the gradient of x, once the parts are added. The gradient of w makes the scores
again, of four classes with all rows.
"""

from __future__ import annotations

from math import ceil

from trainweb.backend.webgpu.shader import Kernel
from trainweb.backend.webgpu.templates.losses import divisor_of, label_of, mean_loss
from trainweb.backend.webgpu.templates.packed import read_packed
from trainweb.backend.webgpu.templates.tiles import (
    ROWS,
    ColumnSums,
    Read,
    first_rows,
    for_chunks,
    four,
    keep,
    products,
    tiles,
)
from trainweb.backend.webgpu.templates.tools import fold_over_lanes, over_lanes
from trainweb.ir import calls
from trainweb.ir.layout import LOSS_EACH

Loss = calls.HeadLoss | calls.HeadLossQuantized
Head = Loss | calls.HeadLossWeightGrad


def _operands(k: Kernel, call: Head) -> tuple[Read, Read]:
    """The elements of x and of w, by row or class, and by depth."""
    for name in ("n", "c", "d"):
        k.count(name, getattr(call, name))
    k.real("alpha", call.alpha)
    x = k.operand("x", call.x)
    return (lambda row, column: x.load(f"{row} * u.d + {column}")), _weight(k, call)


def _weight(k: Kernel, call: Head) -> Read:
    if isinstance(call, calls.HeadLossQuantized):
        read = read_packed(k, call, call.w, "w")
        return (lambda row, column: read(column, row)) if call.turned else read
    w = k.operand("w", call.w)
    if call.turned:
        return lambda row, column: w.load(f"{column} * u.c + {row}")
    return lambda row, column: w.load(f"{row} * u.d + {column}")


def head_loss(call: Loss) -> list[Kernel]:
    """The loss, its gradient by x, and the logarithm of each row's sum."""
    kernels = [_parts_of_rows(call), _rows(call)]
    return kernels if call.reduction == LOSS_EACH else [*kernels, mean_loss(call, call.n)]


def _parts_of_rows(call: Loss) -> Kernel:
    """For four rows and a part of the classes: the largest score, and the sums of exponentials and of rows of w."""
    k = Kernel("head_loss")
    x, w = _operands(k, call)
    groups = k.count("tiles", tiles(call.n))
    k.blocks(tiles(call.n) * call.parts)
    k.add(f"let part = block / {groups};", f"let first = (block % {groups}) * {ROWS}u;")
    k.add(f"let begin = part * {k.count('span', ceil(call.c / call.parts))};", "let end = min(begin + u.span, u.c);")
    first_rows(k, "u.n")
    kept = keep(k, "own", x, call.d, "u.d")
    all_max, all_sum = (fold_over_lanes(k, name, is_four=True) for name in ("max", "sum"))
    slopes = ColumnSums(k, "slopes", call.d) if call.gradient and call.slope is not None else None
    labels = k.operand("labels", call.labels)
    k.add("let label = vec4u(" + ", ".join(f"u32({labels.load(f'row{r}')})" for r in range(ROWS)) + ");")
    k.add("var top = vec4f(from_bits(0xff800000u));", "var sum = vec4f(0.0f);", for_chunks("begin", "end"))
    k.add(
        "var least = vec4f(from_bits(0xff800000u));", "if (other < end) {", *products("score", kept, w, "other", "u.d")
    )
    bias = "" if call.bias is None else f" + {k.operand('bias', call.bias).load('other')}"
    k.add(f"least = score * u.alpha{bias};")
    target = k.operand("targets", call.target)
    for r in range(ROWS):
        k.add(f"if (label[{r}] == other && first + {r}u < u.n) {{ {target.store(f'row{r}', f'least[{r}]')} }}")
    k.add("}", f"let highest = larger4(top, {all_max}(lane, least));", "let shift = finite4(highest);")
    k.add("let factor = exp4(top - shift);", "var share = exp4(least - shift);", "top = highest;")
    k.add("if (other >= end) { share = vec4f(0.0f); }", "sum = sum * factor + share;")
    if slopes:
        k.add(slopes.share("share"), "workgroupBarrier();", *slopes.scale("factor"), *slopes.add(w, "end"))
        k.add("workgroupBarrier();")
    k.add("}", f"sum = {all_sum}(lane, sum);", f"if (lane < {ROWS}u && first + lane < u.n) {{")
    k.add(
        *(
            k.operand(f"{n}s", b).store("part * u.n + first + lane", f"{n}[lane]")
            for n, b in (("top", call.top), ("sum", call.sum))
        )
    )
    k.add("}")
    if slopes:
        partial = k.operand("partial", call.partial)
        at = "(part * u.n + {}) * u.d + {}"
        slopes.store("u.n", lambda row, column, value: [partial.store(at.format(row, column), value)])
    return k


def _rows(call: Loss) -> Kernel:
    """The parts of a row: its loss, and its gradient."""
    k = Kernel("head_loss (rows)")
    for name in ("n", "d", "c", "parts"):
        k.count(name, getattr(call, name))
    k.count("rows", call.n)
    tops, sums = k.operand("tops", call.top), k.operand("sums", call.sum)
    k.blocks(call.n)
    divisor = divisor_of(k, call)
    k.add(*label_of(k, call, "block"), "var top = from_bits(0xff800000u);")
    k.add(
        "for (var part = 0u; part < u.parts; part++) {", f"top = larger(top, {tops.load('part * u.n + block')});", "}"
    )
    factor = f"exp_({tops.load('part * u.n + block')} - top)"
    k.add("var sum = 0.0f;", "for (var part = 0u; part < u.parts; part++) {")
    k.add(f"sum += {sums.load('part * u.n + block')} * {factor};", "}", "let rest = log_(sum);")
    each = k.operand("losses", call.loss if call.reduction == LOSS_EACH else call.row_loss)
    k.add("let counts = weight_of_label != 0.0f;", "if (lane == 0u) {", "var loss = 0.0f;")
    k.add(
        f"if (counts) {{ loss = -weight_of_label * ({k.operand('targets', call.target).load('block')} - top - rest); }}"
    )
    k.add(each.store("block", "loss"))
    if isinstance(call, calls.HeadLoss) and call.log_sum is not None:
        k.add(k.operand("log_sum", call.log_sum).store("block", "select(0.0f, top + rest, counts)"))
    k.add("}")
    if call.gradient and call.slope is not None:
        partial, w = k.operand("partial", call.partial), _weight(k, call)
        k.add(f"let divisor = {divisor};", f"let scale = weight_of_label / divisor * {k.real('alpha', call.alpha)};")
        body = ["var y = 0.0f;", "if (counts) {", "for (var part = 0u; part < u.parts; part++) {"]
        body += [f"y += {partial.load('(part * u.n + block) * u.d + column')} * ({factor} / sum);", "}"]
        body += [f"y = (y - {w('class_of_label', 'column')}) * scale;", "}"]
        body.append(k.operand("slope", call.slope).store("block * u.d + column", "y"))
        k.add(*over_lanes(k, "column", "u.d", *body))
    return k


def head_loss_weight_gradient(call: calls.HeadLossWeightGrad) -> list[Kernel]:
    """dw (+)= sum over the rows of (probability - onehot) weight dy / D x."""
    k = Kernel("head_loss_weight_gradient")
    x, w = _operands(k, call)
    k.count("rows", call.n)
    k.blocks(tiles(call.c))
    k.add(f"let first = block * {ROWS}u;")
    first_rows(k, "u.c")
    divisor = divisor_of(k, call)
    kept = keep(k, "own", w, call.d, "u.d")
    dw, dy, log_sum = k.operand("dw", call.dw), k.operand("dy", call.dy), k.operand("log_sum", call.log_sum)
    sums = ColumnSums(k, "slopes", call.d)
    k.add(f"let divisor = {divisor};", for_chunks("0u", "u.n"), "var slope = vec4f(0.0f);", "if (other < u.n) {")
    k.add(*label_of(k, call, "other"), "if (weight_of_label != 0.0f) {")
    k.add(*products("score", kept, x, "other", "u.d"), "score *= u.alpha;")
    if call.bias is not None:
        bias = k.operand("bias", call.bias)
        k.add(f"score += {four(lambda r: bias.load(f'row{r}'))};")
    each = dy.load("other" if call.reduction == LOSS_EACH else "0u")
    k.add(f"let scale = weight_of_label * {each} / divisor * u.alpha;")
    chosen = four(lambda r: f"select(0.0f, 1.0f, class_of_label == row{r})")
    k.add(f"slope = (exp4(score - {log_sum.load('other')}) - {chosen}) * scale;", "}", "}")
    k.add(sums.share("slope"), "workgroupBarrier();", *sums.add(x, "u.n"), "workgroupBarrier();", "}")

    def store(row: str, column: str, value: str) -> list[str]:
        at = f"{column} * u.c + {row}" if call.turned else f"{row} * u.d + {column}"
        return [dw.store(at, f"{dw.load(at)} + {value}" if call.accumulate else value)]

    sums.store("u.c", store)
    return [k]
