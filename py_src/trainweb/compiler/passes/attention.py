"""Softmax attention becomes two kernels that never store the scores (wasm_kernels/attention.c).

The pattern is found among lowered calls, where all ways to write it look alike. It is a product q k', elementwise calls
that scale and mask it, and softmax along its rows. A guard against NaN, dropout and a product with v follow. With
gradients, it includes their four products, with dropout and the softmax gradient between them. Anything else that
reads scores or probabilities keeps them stored.

Several heads of queries may share a head of keys and values. The kernels then read keys and values before they are
repeated, and sum the gradients of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TypeVar

from trainweb.compiler.context import Context
from trainweb.compiler.footprint import Part, footprint
from trainweb.compiler.passes.epilogue import added_operand, scaled_operand
from trainweb.compiler.passes.strided import Move, Side, operand
from trainweb.ir import calls
from trainweb.ir.calls import Gemm, Softmax, SoftmaxGrad
from trainweb.ir.expr import Emitter, Expr, inputs_of
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, Storage
from trainweb.ir.layout import ARENA, ATTENTION_KEYS, ATTENTION_WIDTH, REDUCE_SUM
from trainweb.ir.program import ATTENTION, POSITION, Program, Refusal
from trainweb.ir.shapes import broadcast_shapes, collapse, contiguous_strides

SCORES_READ = "another node reads the scores, or they are an output"
PROBABILITIES_READ = "another node reads the probabilities, or they are an output"
GRADIENT_READ = "another node reads the gradient of the scores, as that of a trained mask does"
MOST_ADDED = 2
"""Masks that may be added to scores, as a position bias and a padding mask are; they become one."""
MIN_TASKS = 4
"""Tasks that the gradient is cut into where there are fewer heads of keys: the keys of each are split."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of matrices: strides of the two dims of the batch and of the rows, whose elements lie side by side."""

    buf: Buf
    strides: tuple[int, ...]

    def same(self, other: Rows) -> bool:
        """Return whether both are the same elements."""
        a, b = self.buf, other.buf
        return a.storage is b.storage and a.shift == b.shift and self.strides == other.strides


@dataclass(frozen=True, slots=True)
class MaskCondition:
    """Scores are kept where `buf` is True (`keeps`) or where it is False (not `keeps`); the others become `fill`."""

    buf: Buf
    keeps: bool
    fill: float

    def same(self, other: MaskCondition) -> bool:
        """Return whether both choose the same scores."""
        return self.buf.same_place(other.buf) and self.buf.shape == other.buf.shape and self.keeps == other.keeps


@dataclass(frozen=True, slots=True)
class DropoutDraw:
    """Which elements a dropout keeps: arguments of its kernel."""

    state: Buf
    ratio: float
    salt: int
    draw: int


@dataclass(slots=True)
class Forward:
    """y = dropout(softmax(condition(scale * q k' + added))) v for every item of the batch."""

    batch: tuple[int, int]
    m: int
    n: int
    width: int
    v_width: int
    q: Rows
    k: Rows
    v: Rows
    y: Rows
    scale: float
    added: list[Buf]
    """Masks that are added, two at most."""
    condition: MaskCondition | None
    scores_shape: tuple[int, ...]
    probabilities: Buf
    weights: Buf
    """Factor of v: the probabilities after dropout."""
    dropout: DropoutDraw | None
    is_nan: Buf | None
    """Condition of a guard that makes probabilities zero where they are NaN."""
    members: list[Instruction]
    """In order: the product of the scores first, that with v last."""
    group: int = 1
    """Items side by side that share keys and values."""
    copies: dict[Instruction, Buf] = field(default_factory=dict)
    """Calls that repeated keys and values for the items of a group, and what they read."""

    @property
    def masks(self) -> list[Buf]:
        """Tensors that mask the scores."""
        return [*([self.condition.buf] if self.condition else []), *self.added]

    @property
    def operands(self) -> list[Buf]:
        """Return the buffers that the scores and the weights are made from."""
        return [self.q.buf, self.k.buf, *self.masks, *([self.dropout.state] if self.dropout else [])]


@dataclass(slots=True)
class Backward:
    """Gradients of a `Forward` that are wanted."""

    dy: Rows
    dq: Rows | None = None
    dk: Rows | None = None
    dv: Rows | None = None
    conditional: bool = False
    """True if no gradient goes through the scores that the condition hides."""
    members: dict[Instruction, Rows | None] = field(default_factory=dict)
    """Instructions, and the part of dq, dk or dv that each makes."""


class _MismatchError(Exception):
    """The instructions are no attention that the kernels can compute; the text is what a user could change."""


def _need(condition: bool, reason: str = "") -> None:
    if not condition:
        raise _MismatchError(reason)


def fuse_attention(program: Program, _: Context) -> None:
    """Replace attention and its gradient by `attention_f32` and `attention_gradient_f32`."""
    fusion = _Fusion(program)
    for i in program:
        if isinstance(i, Softmax):
            fusion.visit(i)


class _Fusion:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.masks: dict[tuple[object, ...], tuple[Instruction, Buf]] = {}
        """Additive masks and what makes them, by what they are made of."""

    def visit(self, softmax: Softmax) -> None:
        """Replace the attention around `softmax`, if there is one."""
        try:
            forward = self._forward(softmax)
            backward = self._backward(forward)
            if forward.is_nan is not None:
                members = {*forward.members, *(backward.members if backward else ())}
                _need(members.issuperset(self._readers(forward.is_nan)))
            forward, backward = self._in_order(forward, backward)
            mask, mask_strides = self._mask(forward)
        except _MismatchError as mismatch:
            if str(mismatch) and self._is_weighing(softmax):
                self.program.refusals.append(Refusal(ATTENTION, softmax.node, str(mismatch)))
            return
        self._emit(forward, backward, mask, mask_strides)
        for copy in forward.copies:  # of keys and values
            (y,) = copy.writes
            if self.program.is_temporary(y.storage) and not self.program.readers(y.storage):
                self.program.remove(copy)

    def _is_weighing(self, softmax: Softmax) -> bool:
        """Return whether a product reads the probabilities, at once or after a guard or dropout."""
        readers = self.program.readers(softmax.y.storage)
        later = [
            r for i in readers if not isinstance(i, Gemm) for b in i.writes for r in self.program.readers(b.storage)
        ]
        return any(isinstance(i, Gemm) for i in (*readers, *later))

    # The pattern.

    def _forward(self, softmax: Softmax) -> Forward:
        _need(not softmax.log)
        _need(softmax.inner == 1, "the softmax is not along the last axis")
        members: list[Instruction] = [softmax]
        added: list[Buf] = []
        condition: MaskCondition | None = None
        scale, shape = 1.0, softmax.x.shape
        scores, maker = softmax.x, self._maker(softmax.x, softmax, SCORES_READ)
        while isinstance(maker, ElementwiseCall):
            scores, step = self._step(maker)
            _need(scale == 1 or isinstance(step, float), "the scores are scaled after a mask")
            if isinstance(step, MaskCondition):
                _need(condition is None, "two conditions mask the scores")
                # Adding to -infinity changes nothing.
                _need(not added or step.fill == -math.inf, "a mask is added after a condition with a finite number")
                condition = step
            elif isinstance(step, Buf):
                added.append(step)
                _need(len(added) <= MOST_ADDED, f"more than {MOST_ADDED} masks are added")
            else:
                scale *= step
            _need(maker.shape == shape)
            members.insert(0, maker)
            maker = self._maker(scores, maker, SCORES_READ)
        members.insert(0, maker)
        p = _need_a(Gemm, maker)
        m, n, width = p.m, p.n, p.k
        _need(_is_plain(p) and p.c.same_place(scores) and n == softmax.n and m * n > 1)
        weights, is_nan, guard = self._guard(softmax.y)
        members += guard
        dropped = [r for r in self._readers(weights) if isinstance(r, calls.Dropout)]
        dropout = None
        if dropped:
            weights, dropout = self._dropout(dropped[0], weights)
            members.append(dropped[0])
        weighted = (r for r in self._readers(weights) if _multiplies(r, weights, m, n, False))
        w = _need_a(Gemm, next(weighted, softmax))  # the softmax is no product
        outer, inner = max((tuple(p.batch), tuple(w.batch)))
        batch = (outer, inner)
        _need(_is_whole(p, batch, m, n) and w.alpha == 1 and width >= 1)
        _need(max(width, w.n) <= ATTENTION_WIDTH, f"a head has more than {ATTENTION_WIDTH} columns")
        return Forward(
            batch,
            m,
            n,
            width,
            w.n,
            _rows(p, "a", batch),
            _columns(p, batch),
            _rows(w, "b", batch),
            _rows(w, "c", batch),
            scale * p.alpha,
            added,
            condition,
            shape,
            softmax.y,
            weights,
            dropout,
            is_nan,
            [*members, w],
        )

    def _guard(self, p: Buf) -> tuple[Buf, Buf | None, list[Instruction]]:
        """Return the weights without NaN, its condition and its calls, where torch's exporter wrote such a guard."""
        for call in self._readers(p, PROBABILITIES_READ):
            if isinstance(call, ElementwiseCall) and [root.op for root in call.roots] == ["ne"]:
                is_nan = call.outs[0]
                _need(all(a.op == "input" and call.ins[int(a.imm or 0)].same_place(p) for a in call.roots[0].args))
                guard = [r for r in self._readers(is_nan) if r in self._readers(p)]
                _need(len(guard) == 1)
                return self._guarded(guard[0], is_nan, p), is_nan, [call, *guard]
        return p, None, []

    def _guarded(self, call: Instruction, is_nan: Buf, x: Buf) -> Buf:
        """Return the result of `call`, x with zeros where `is_nan` is True."""
        e = _need_a(ElementwiseCall, call)
        operand, step = self._step(e)
        zeros = MaskCondition(is_nan, keeps=False, fill=0)
        _need(operand.same_place(x) and isinstance(step, MaskCondition) and step.same(zeros) and step.fill == 0)
        return e.outs[0]

    def _dropout(self, call: Instruction, x: Buf) -> tuple[Buf, DropoutDraw]:
        """Return the result of `call`, dropout on all of x, and the elements that it keeps. Its mask is not read."""
        g = _need_a(calls.Dropout, call)
        _need(g.x.same_place(x) and g.n == x.size)
        _need(
            g.mask is None or (self.program.is_temporary(g.mask.storage) and not self.program.readers(g.mask.storage))
        )
        return g.y, DropoutDraw(g.state, g.ratio, g.salt, g.draw)

    def _backward(self, f: Forward) -> Backward | None:
        """Return the gradient, or None if it is not wanted."""
        readers = {*self._readers(f.probabilities), *self._readers(f.weights)}
        others = sorted(readers.difference(f.members), key=POSITION)
        gradients = [r for r in others if isinstance(r, SoftmaxGrad)]
        products = [r for r in others if not isinstance(r, SoftmaxGrad)]
        _need(len(gradients) <= 1 and len(products) <= 1, PROBABILITIES_READ)
        backward = None
        for r in products:
            _need(_multiplies(r, f.weights, f.m, f.n, True), PROBABILITIES_READ)
            g = _need_a(Gemm, r)
            _need(g.alpha == 1)
            dv = _rows(g, "c", f.batch)
            backward = Backward(_rows(g, "b", f.batch), dv=dv, members={r: dv})
        return self._score_gradient(f, gradients[0], backward) if gradients else backward

    def _score_gradient(self, f: Forward, call: SoftmaxGrad, backward: Backward | None) -> Backward:
        maker, dw = self._maker(call.dy, call), call.dy
        members: list[Instruction] = [call]
        if f.is_nan is not None:
            guard, after = _need_a(ElementwiseCall, maker), dw
            dw = self._step(guard)[0]
            _need(self._guarded(guard, f.is_nan, dw).same_place(after))
            members.append(maker)
            maker = self._maker(dw, maker)
        if f.dropout:
            after = dw
            dw = _need_a(calls.Dropout, maker).x
            dropped, dropout = self._dropout(maker, dw)
            _need(dropped.same_place(after) and dropout == f.dropout)
            members.append(maker)
            maker = self._maker(dw, maker)
        p = _need_a(Gemm, maker)
        _need(call.inner == 1 and not call.log and call.n == f.n and p.c.same_place(dw))
        _need(_is_plain(p) and p.alpha == 1 and _is_whole(p, f.batch, f.m, f.n))
        dy = _rows(p, "a", f.batch)
        _need(_columns(p, f.batch).same(f.v) and (backward is None or backward.dy.same(dy)))
        result = backward or Backward(dy)
        result.members |= dict.fromkeys([maker, *members])
        scale, ds = 1.0, call.dx
        condition: MaskCondition | None = None
        while isinstance(e := (readers := self._readers(ds))[0], ElementwiseCall):
            _need(len(readers) == 1, GRADIENT_READ)
            _need(e.shape == f.scores_shape)
            x, step = self._step(e)
            _need(x.same_place(ds))
            if isinstance(step, MaskCondition):
                _need(condition is None and step.fill == 0)
                condition = step
            else:
                _need(isinstance(step, float))
                scale *= step if isinstance(step, float) else 1
            result.members[e] = None
            ds = e.outs[0]
        if condition is not None:
            _need(f.condition is not None and condition.same(f.condition))
            result.conditional = True
        else:
            _need(f.condition is None or f.condition.fill == -math.inf)
        _need(all(isinstance(r, Gemm) for r in readers), GRADIENT_READ)
        for r in readers:
            _score_product(f, result, r, ds, scale)
        return result

    def _step(self, call: ElementwiseCall) -> tuple[Buf, float | Buf | MaskCondition]:
        """Return the effect of an elementwise call on scores: their buffer, and a factor, a mask or a condition."""
        if (scaled := scaled_operand(call)) is not None:
            _need(scaled[0].size == math.prod(call.shape))
            return scaled
        ins = [call.ins[k] for k in inputs_of(call.roots)]  # it may have others that it does not read
        full = [b for b in ins if b.size == math.prod(call.shape) and b.dtype == "float32"]
        full.sort(key=lambda b: not any(isinstance(w, Gemm) for w in self.program.writers(b.storage)))
        _need(bool(full) and len(call.roots) == 1)
        x, root = full[0], call.roots[0]
        if (added := added_operand(root, call, x)) is not None:
            return x, added
        is_scaled = root.op in ("mul", "div") and any(b.size == 1 for b in call.ins)
        what = "the scale is not a constant" if is_scaled else f"{call.node} changes the scores"
        _need(root.op == "select" and root.args[0].op == "input", what)
        _need({a.op for a in root.args[1:]} == {"input", "const"})
        condition, a, b = root.args
        operand, fill = (a, b) if a.op == "input" else (b, a)
        return x, MaskCondition(call.ins[int(condition.imm or 0)], operand is a, float(fill.imm or 0))

    # Heads that share keys and values.

    def _in_order(self, f: Forward, b: Backward | None) -> tuple[Forward, Backward | None]:
        """Return the attention, with shared keys and values if possible, whose kernels may stand where they will."""
        try:
            grouped = self._grouped(f, b)
            self._check_order(*grouped)
        except _MismatchError:
            self._check_order(f, b)
            return f, b
        return grouped

    def _grouped(self, f: Forward, b: Backward | None) -> tuple[Forward, Backward | None]:
        """Return the attention with the keys and values that were repeated, and the sums of their gradients."""
        sources = [self._source(f, f.k, f.width, f.members[0]), self._source(f, f.v, f.v_width, f.members[-1])]
        (group, k, k_copy), (v_group, v, v_copy) = sources
        _need(group == v_group)
        f = replace(f, k=k, v=v, group=group, copies={**k_copy, **v_copy})
        if b is None:
            return f, b
        dk, dk_sum = self._sum(f, b.dk, f.width)
        dv, dv_sum = self._sum(f, b.dv, f.v_width)
        products = {call: gradient if gradient is b.dq else None for call, gradient in b.members.items()}
        return f, replace(b, dk=dk, dv=dv, members={**products, **dk_sum, **dv_sum})

    def _source(
        self, f: Forward, rows: Rows, width: int, reader: Instruction
    ) -> tuple[int, Rows, dict[Instruction, Buf]]:
        """How often keys or values were repeated for the `reader`, these as they were, and the call that did it."""
        makers = self.program.writers(rows.buf.storage)
        _need(len(makers) == 1 and makers[0].position < reader.position)
        call = _need_a(ElementwiseCall, makers[0])
        _need([root.op for root in call.roots] == ["input"])
        x, y = call.ins[inputs_of(call.roots)[0]], call.outs[0]
        dims, (_, strides) = collapse(call.shape, [y.shape, x.shape])
        repeated = [d for d, s in zip(dims, strides, strict=True) if s == 0]
        _need(len(repeated) == 1)
        (group,) = repeated
        return group, _shared(f, group, rows, width, Move(y, x, tuple(dims), 0, tuple(strides))), {call: x}

    def _sum(self, f: Forward, gradient: Rows | None, width: int) -> tuple[Rows | None, dict[Instruction, Rows | None]]:
        """The sum over each group of the `gradient` of keys or values, and the call that stores it."""
        if gradient is None:
            return None, {}
        readers = self._readers(gradient.buf)
        call = _need_a(calls.Reduce, readers[0])
        _need(len(readers) == 1 and call.op == REDUCE_SUM and call.n == f.group and call.x.same_place(gradient.buf))
        move = Move(call.x, call.y, (call.outer, call.n, call.inner), 0, (call.inner, 0, 1))
        total = _shared(f, f.group, gradient, width, move)
        return total, {call: total}

    # Questions.

    def _readers(self, b: Buf, reason: str = "") -> tuple[Instruction, ...]:
        """Readers, one at least, of a tensor that one instruction makes and only instructions see."""
        readers = self.program.readers(b.storage)
        _need(self.program.is_temporary(b.storage), reason)
        _need(len(self.program.writers(b.storage)) == 1 and bool(readers))
        return readers

    def _maker(self, b: Buf, reader: Instruction, reason: str = "") -> Instruction:
        """The only instruction that makes a tensor which nobody but `reader` reads."""
        for maker in self.program.writers(b.storage) if reason else ():
            if isinstance(maker, ElementwiseCall):
                self._step(maker)  # its reason says more: the gradient of what changes scores reads them
        _need(self._readers(b, reason) == (reader,), reason)
        return self.program.writers(b.storage)[0]

    # Order.

    def _check_order(self, f: Forward, b: Backward | None) -> None:
        """Operands must still hold what they did, and results must be free to be stored as early as they will be."""
        program, first, last = self.program, f.members[0], f.members[-1]
        start, end = last, last
        if b is not None:
            start, end = min(b.members, key=POSITION), max(b.members, key=POSITION)
        # A mask may be made after the product of the scores.
        read = [(next(i for i in f.members if any(b.storage is x.storage for b in i.reads)), x) for x in f.masks]
        read += [(first, x) for x in f.operands if x not in f.masks]
        for since, x in (*read, (last, f.v.buf), (last, f.y.buf), *f.copies.items()):
            later = [w for w in program.writers(x.storage) if since.position < w.position <= end.position]
            _need(all(w is last for w in later))
        _need(f.y.buf.storage not in {x.storage for x in (*f.operands, f.v.buf)})
        if b is None:
            return
        _need(start.position > last.position and not program.is_written_between(b.dy.buf.storage, start, end))
        for call, gradient in b.members.items():
            if gradient is None:
                continue
            s = gradient.buf.storage
            # The kernel writes its results in its own order, before any read or write between `start` and `call`.
            place, readers = footprint(call) if isinstance(call, Part) else None, program.readers(s)
            for i in program.users(s):
                if start.position <= i.position < call.position:
                    apart = place is not None and isinstance(i, Part) and place.is_apart(footprint(i))
                    _need(apart and i not in readers)

    # The kernels.

    def _mask(self, f: Forward) -> tuple[Buf | None, tuple[int, ...]]:
        """Return the mask that is added to the scores, and its strides. -infinity stands for the condition's `fill`."""
        if not f.masks:
            return None, (0, 0, 0)
        mask = f.masks[0]
        if f.condition is not None or len(f.masks) > 1:
            shape = broadcast_shapes(*(b.shape for b in f.masks))
            # A condition for each score would become a matrix of the size that is to be saved. Layers share a sum.
            is_small = math.prod(shape) < math.prod(f.scores_shape) or math.prod(f.batch) == 1
            _need(is_small or f.condition is None, "a condition masks each score of each item of the batch")
            mask = Buf(Storage(ARENA, 4 * math.prod(shape)), "float32", shape, name="mask")
        strides = [s if d != 1 else 0 for s, d in zip(contiguous_strides(mask.shape), mask.shape, strict=True)]
        strides = [0] * (len(f.scores_shape) - len(strides)) + strides
        *regrouped, column = _regroup(f.scores_shape, strides, (*f.batch, f.m, f.n))
        _need(column == 1 or f.n == 1)
        return (mask if mask is f.masks[0] else self._joined_mask(f, mask)), tuple(regrouped)

    def _joined_mask(self, f: Forward, mask: Buf) -> Buf:
        """Make the mask of a condition and what is added, unless another layer has made the same one."""
        last, keeps = f.members[-1], f.condition and f.condition.keeps
        key = (keeps, *((b.storage, b.shift, b.shape) for b in f.masks))
        if key in self.masks:
            maker, known = self.masks[key]
            if not any(self.program.is_written_between(b.storage, maker, last) for b in f.masks):
                return known

        def compute(e: Emitter, *masks: Expr) -> Expr:
            added = masks if keeps is None else masks[1:]
            bias = reduce(e.add, added) if added else e.const(0.0)
            hidden = e.const(-math.inf)
            if keeps is None:
                return bias
            return e.select(masks[0], bias, hidden) if keeps else e.select(masks[0], hidden, bias)

        builder = self.program.build(_name(f))
        builder.elementwise([mask], f.masks, compute)
        self.program.insert_before(last, *builder.instructions)
        self.masks[key] = (builder.instructions[0], mask)
        return mask

    def _emit(self, f: Forward, b: Backward | None, mask: Buf | None, mask_strides: tuple[int, ...]) -> None:
        """Put the kernels where the product with v and the first instruction of the gradient were."""
        program, node = self.program, _name(f)
        builder, rows = program.build(node), (*f.batch, f.m)
        top, inverse = (builder.temp("float32", rows) if b else None for _ in range(2))
        fill = f.condition.fill if f.condition else -math.inf
        dropout = f.dropout
        state = dropout.state if dropout else None
        ratio, salt, draw = (dropout.ratio, dropout.salt, dropout.draw) if dropout else (0.0, 0, 0)
        forward = calls.Attention(
            q=f.q.buf,
            k=f.k.buf,
            v=f.v.buf,
            y=f.y.buf,
            mask=mask,
            top=top,
            inverse=inverse,
            batch=f.batch,
            group=f.group,
            m=f.m,
            n=f.n,
            d=f.width,
            e=f.v_width,
            scale=f.scale,
            fill=fill,
            q_strides=f.q.strides,
            k_strides=f.k.strides,
            v_strides=f.v.strides,
            y_strides=f.y.strides,
            mask_strides=mask_strides,
            state=state,
            ratio=ratio,
            salt=salt,
            draw=draw,
            guarded=int(f.is_nan is not None),
        )
        builder.emit(forward)
        _replace(program, f.members, f.members[-1], builder.instructions)
        if b is None:
            return
        builder = program.build(f"gradient of {node}")
        builder.emit(_gradient(f, b, forward))
        _replace(program, b.members, min(b.members, key=POSITION), builder.instructions)


def _shared(f: Forward, group: int, rows: Rows, width: int, move: Move) -> Rows:
    """Keys or values where `move` takes them from, or their gradients where it sums them: one for each group."""
    outer, inner = f.batch
    _need(inner % group == 0)
    outer_stride, stride, row = rows.strides
    loops = ((outer, outer_stride), (inner // group, group * stride), (group, stride), (f.n, row), (width, 1))
    strides = move.strides_of(loops, rows.buf)
    if strides is None or strides[2] != 0 or strides[4] != int(width > 1):
        raise _MismatchError
    return Rows(move.place(rows.buf), (strides[0], strides[1], strides[3]))


def _gradient(f: Forward, b: Backward, y: calls.Attention) -> calls.AttentionGradient:
    """The call for the gradients of the attention `y`."""
    groups, blocks = math.prod(f.batch) // f.group, -(-f.n // ATTENTION_KEYS)
    return calls.AttentionGradient(
        **y.shared(calls.AttentionGradient),
        dy=b.dy.buf,
        dq=b.dq.buf if b.dq else None,
        dk=b.dk.buf if b.dk else None,
        dv=b.dv.buf if b.dv else None,
        dy_strides=b.dy.strides,
        dq_strides=b.dq.strides if b.dq else (0, 0, 0),
        dk_strides=b.dk.strides if b.dk else (0, 0, 0),
        dv_strides=b.dv.strides if b.dv else (0, 0, 0),
        conditional=int(b.conditional),
        parts=min(-(-MIN_TASKS // groups), blocks),
    )


def _name(f: Forward) -> str:
    return f"attention from {f.members[0].node} to {f.members[-1].node}"


def _replace(program: Program, members: Iterable[Instruction], at: Instruction, new: Sequence[Instruction]) -> None:
    """Replace `at`, one of the `members`, by `new`, and remove the other members."""
    for i in members:
        if i is not at:
            program.remove(i)
    program.replace(at, *new)


def _score_product(f: Forward, result: Backward, call: Instruction, ds: Buf, scale: float) -> None:
    """Find in `result` the place of the product of the gradient of scores `ds` with q or k."""
    g = _need_a(Gemm, call)
    _need(math.isclose(scale * g.alpha, f.scale, rel_tol=1e-6))
    gradient = result.members[call] = _rows(g, "c", f.batch)
    other = _rows(g, "b", f.batch)
    if _multiplies(call, ds, f.m, f.n, False):
        _need(result.dq is None and other.same(f.k))
        result.dq = gradient
    else:
        _need(_multiplies(call, ds, f.m, f.n, True) and result.dk is None and other.same(f.q))
        result.dk = gradient


Call = TypeVar("Call", Gemm, calls.Dropout, calls.Reduce, ElementwiseCall)


def _need_a(kind: type[Call], i: Instruction) -> Call:
    if not isinstance(i, kind):
        raise _MismatchError
    return i


def _multiplies(i: Instruction, b: Buf, rows: int, columns: int, transposed: bool) -> bool:
    """Return whether an instruction is a product with `b`, matrices [rows, columns] in order, on its left."""
    if not isinstance(i, Gemm):
        return False
    m, inner, row, column = (columns, rows, 1, columns) if transposed else (rows, columns, columns, 1)
    return (
        _is_plain(i)
        and i.a.storage is b.storage
        and i.a.shift == b.shift
        and i.b.storage is not b.storage
        and (i.m, i.k) == (m, inner)
        and (i.a_row == row or m == 1)
        and (i.a_col == column or inner == 1)
        and math.prod(i.batch) * rows * columns == b.size
        and _regroup(i.batch, i.a_batch, i.batch) == _dense(i.batch, rows * columns)
    )


def _is_plain(g: Gemm) -> bool:
    """Return whether a product is alpha * a b and no more."""
    return g.bias is None and not g.accumulate and not g.activation


def _is_whole(g: Gemm, batch: tuple[int, int], m: int, n: int) -> bool:
    """Return whether a product's result is matrices [m, n] one after the other."""
    fits = (g.m, g.n) == (m, n) and (g.c_row == n or m == 1)
    return fits and _regroup(g.batch, g.c_batch, batch) == _dense(batch, m * n)


def _rows(g: Gemm, side: Side, batch: tuple[int, int]) -> Rows:
    """An operand of a product, whose rows must be contiguous."""
    buf, ((_, outer), (_, inner), (rows, row), (columns, column)) = operand(g, side)
    _need(column == 1 or columns == 1)
    return Rows(buf, (*_regroup(g.batch, (outer, inner), batch), row if rows > 1 else 0))


def _columns(g: Gemm, batch: tuple[int, int]) -> Rows:
    """The right operand of a product, transposed, whose columns must be contiguous."""
    _need(g.b_row == 1 or g.k == 1, "a node computes on the keys after they were transposed")
    return Rows(g.b, (*_regroup(g.batch, g.b_batch, batch), g.b_col if g.n > 1 else 0))


def _dense(batch: Sequence[int], size: int) -> tuple[int, ...]:
    """Strides of a batch of things of `size` elements, one after the other."""
    return _regroup(batch, (batch[1] * size, size), batch)


def _regroup(dims: Sequence[int], strides: Sequence[int], loops: Sequence[int]) -> tuple[int, ...]:
    """Strides, 0 where there is one step, for loops that go over the same elements in the same order as `dims`."""
    rest = [(d, s) for d, s in zip(dims, strides, strict=True) if d != 1]
    result = []
    for size in reversed(loops):
        stride, done = 0, 1
        while done < size:
            _need(bool(rest))
            d, s = rest.pop()
            take = min(d, size // done)
            _need(d % take == 0 and size % (done * take) == 0 and (done == 1 or s == stride * done))
            stride = s if done == 1 else stride
            if take < d:
                rest.append((d // take, s * take))
            done *= take
        result.append(stride)
    _need(not rest)
    return tuple(reversed(result))
