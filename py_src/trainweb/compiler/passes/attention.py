"""Softmax attention becomes two kernels that never store the scores (wasm_kernels/attention.c).

The pattern is found among lowered calls, where every way to write it looks alike: a product q k', elementwise calls
that scale and mask it, softmax along its rows, dropout, a product with v; and where gradients are wanted the four
products, dropout and the softmax gradient between them. Anything else that reads scores or probabilities keeps them
stored.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainweb.compiler.passes.epilogue import added_operand, constant_factor
from trainweb.ir import calls
from trainweb.ir.layout import ARENA
from trainweb.ir.program import Buf, ElementwiseCall, Instruction, KernelCall, Storage, index_uses
from trainweb.ir.shapes import broadcast_shapes, contiguous_strides

if TYPE_CHECKING:
    from trainweb.ir.builder import Builder
    from trainweb.ir.expr import Emitter, Expr

GEMM, SOFTMAX, SOFTMAX_GRADIENT, DROPOUT = "gemm_f32", "softmax_f32", "softmax_grad_f32", "dropout_f32"

MAX_WIDTH = 256
"""Of a head: what the kernels' scratch holds."""
MIN_TASKS = 4
"""Tasks that the gradient is cut into where there are fewer items: the keys of each are split."""
KEY_BLOCK = 64
"""Keys that the gradient works on at a time."""
PARTS = (GEMM, "strided_copy", "copy")
"""Kernels that may write other parts of the storage of a result."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of matrices: strides of the two dims of the batch and of the rows, whose elements lie side by side."""

    buf: Buf
    strides: tuple[int, ...]

    def same(self, other: Rows) -> bool:
        """Whether both are the same elements."""
        a, b = self.buf, other.buf
        return a.storage is b.storage and a.shift == b.shift and self.strides == other.strides


@dataclass(frozen=True, slots=True)
class Condition:
    """Where the scores stay (`keeps`: where `buf` holds, else where it does not); elsewhere they become `fill`."""

    buf: Buf
    keeps: bool
    fill: float

    def same(self, other: Condition) -> bool:
        """Whether both choose the same scores."""
        return self.buf.same_place(other.buf) and self.buf.shape == other.buf.shape and self.keeps == other.keeps


@dataclass(frozen=True, slots=True)
class Dropout:
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
    added: Buf | None
    condition: Condition | None
    scores_shape: tuple[int, ...]
    probabilities: Buf
    weights: Buf
    """What v is multiplied by: the probabilities after dropout."""
    dropout: Dropout | None
    members: list[int]
    """Instructions, in order: the product of the scores first, that with v last."""

    @property
    def masks(self) -> list[Buf]:
        """Tensors that mask the scores."""
        return [b for b in (self.added, self.condition.buf if self.condition else None) if b is not None]

    @property
    def operands(self) -> list[Buf]:
        """What the scores and the weights are made from."""
        return [self.q.buf, self.k.buf, *self.masks, *([self.dropout.state] if self.dropout else [])]


@dataclass(slots=True)
class Backward:
    """Gradients of a `Forward` that are wanted."""

    dy: Rows
    dq: Rows | None = None
    dk: Rows | None = None
    dv: Rows | None = None
    conditional: bool = False
    """Whether no gradient goes through the scores that the condition hides."""
    members: dict[int, Rows | None] = field(default_factory=dict)
    """Instructions, and what of dq, dk and dv they make."""


class _MismatchError(Exception):
    """The instructions are no attention that the kernels can compute."""


def _need(condition: bool) -> None:
    if not condition:
        raise _MismatchError


def fuse_attention(instructions: list[Instruction], outputs: list[Buf], builder: Builder) -> list[Instruction]:
    """Replace attention and its gradient by `attention_f32` and `attention_gradient_f32`."""
    return _Fusion(instructions, outputs, builder).run()


class _Fusion:
    def __init__(self, instructions: list[Instruction], outputs: list[Buf], builder: Builder) -> None:
        self.instructions, self.builder = instructions, builder
        self.kept = {b.storage for b in outputs}
        self.readers, self.writers = index_uses(instructions, _reads)
        self.slots: list[list[Instruction]] = [[i] for i in instructions]
        self.masks: dict[tuple[object, ...], tuple[int, Buf]] = {}
        """Where additive masks were made, by what they were made of."""

    def run(self) -> list[Instruction]:
        """The instructions that are left."""
        for k in range(len(self.instructions)):
            if self._is(k, SOFTMAX):
                try:
                    forward = self._forward(k)
                    backward = self._backward(forward)
                    self._check_order(forward, backward)
                    mask, mask_strides = self._mask(forward)
                except _MismatchError:
                    continue
                self._emit(forward, backward, mask, mask_strides)
        return [i for slot in self.slots for i in slot]

    # The pattern.

    def _forward(self, k: int) -> Forward:
        g = self._args(k, SOFTMAX)
        _need(g["inner"] == 1 and not g["log"])
        members, scale, added, condition, shape = [k], 1.0, None, None, g["x"].shape
        scores, made = g["x"], self._maker(g["x"], k)
        while isinstance(call := self.instructions[made], ElementwiseCall):
            scores, step = self._step(call)
            if isinstance(step, Condition):
                # What is added to -infinity changes nothing.
                _need(scale == 1 and condition is None and (added is None or step.fill == -math.inf))
                condition = step
            elif isinstance(step, Buf):
                _need(scale == 1 and added is None)
                added = step
            else:
                scale *= step
            _need(call.shape == shape)
            members.insert(0, made)
            made = self._maker(scores, made)
        members.insert(0, made)
        p = self._args(made, GEMM)
        m, n, width = p["m"], p["n"], p["k"]
        _need(_is_plain(p) and p["c"].same_place(scores) and n == g["n"] and m * n > 1)
        probabilities = weights = g["y"]
        dropped = [r for r in self._readers(probabilities) if self._is(r, DROPOUT)]
        dropout = None
        if dropped:
            weights, dropout = self._dropout(dropped[0], probabilities)
            members.append(dropped[0])
        weighted = [r for r in self._readers(weights) if self._multiplies(r, weights, m, n, False)]
        _need(bool(weighted))
        w = self._args(weighted[0], GEMM)
        batch = max((tuple(p["batch"]), tuple(w["batch"])))
        _need(_is_whole(p, batch, m, n) and w["alpha"] == 1 and max(width, w["n"]) <= MAX_WIDTH and width >= 1)
        return Forward(
            batch,
            m,
            n,
            width,
            w["n"],
            _rows(p, "a", batch),
            _columns(p, batch),
            _rows(w, "b", batch),
            _rows(w, "c", batch),
            scale * p["alpha"],
            added,
            condition,
            shape,
            probabilities,
            weights,
            dropout,
            [*members, weighted[0]],
        )

    def _dropout(self, k: int, x: Buf) -> tuple[Buf, Dropout]:
        """What instruction `k` makes of all of x by dropout, and which elements it keeps; nobody may read its mask."""
        g = self._args(k, DROPOUT)
        mask = g["mask"]
        _need(g["x"].same_place(x) and g["n"] == x.size)
        _need(mask is None or (mask.storage not in self.kept and mask.storage not in self.readers))
        return g["y"], Dropout(g["state"], g["ratio"], g["salt"], g["draw"])

    def _backward(self, f: Forward) -> Backward | None:
        """The gradient, or None where none is wanted."""
        readers = {*self._readers(f.probabilities), *self._readers(f.weights)}
        others = sorted(readers - set(f.members))
        gradients = [r for r in others if self._is(r, SOFTMAX_GRADIENT)]
        products = [r for r in others if r not in gradients]
        _need(len(gradients) <= 1 and len(products) <= 1)
        found = None
        for r in products:
            _need(self._multiplies(r, f.weights, f.m, f.n, True))
            g = self._args(r, GEMM)
            _need(g["alpha"] == 1)
            dv = _rows(g, "c", f.batch)
            found = Backward(_rows(g, "b", f.batch), dv=dv, members={r: dv})
        return self._score_gradient(f, gradients[0], found) if gradients else found

    def _score_gradient(self, f: Forward, k: int, found: Backward | None) -> Backward:
        g = self._args(k, SOFTMAX_GRADIENT)
        made, dw, members = self._maker(g["dy"], k), g["dy"], [k]
        if f.dropout:
            dw = self._args(made, DROPOUT)["x"]
            dropped, dropout = self._dropout(made, dw)
            _need(dropped.same_place(g["dy"]) and dropout == f.dropout)
            members.append(made)
            made = self._maker(dw, made)
        p = self._args(made, GEMM)
        _need(g["inner"] == 1 and not g["log"] and g["n"] == f.n and p["c"].same_place(dw))
        _need(_is_plain(p) and p["alpha"] == 1 and _is_whole(p, f.batch, f.m, f.n))
        dy = _rows(p, "a", f.batch)
        _need(_columns(p, f.batch).same(f.v) and (found is None or found.dy.same(dy)))
        result = found or Backward(dy)
        result.members |= dict.fromkeys([made, *members])
        scale, ds = 1.0, g["dx"]
        condition: Condition | None = None
        while isinstance(call := self.instructions[(readers := self._readers(ds))[0]], ElementwiseCall):
            _need(len(readers) == 1 and call.shape == f.scores_shape)
            x, step = self._step(call)
            _need(x.same_place(ds))
            if isinstance(step, Condition):
                _need(condition is None and step.fill == 0)
                condition = step
            else:
                _need(isinstance(step, float))
                scale *= step if isinstance(step, float) else 1
            result.members[readers[0]] = None
            ds = call.outs[0]
        if condition is not None:
            _need(f.condition is not None and condition.same(f.condition))
            result.conditional = True
        else:
            _need(f.condition is None or f.condition.fill == -math.inf)
        for r in readers:
            self._score_product(f, result, r, ds, scale)
        return result

    def _score_product(self, f: Forward, result: Backward, r: int, ds: Buf, scale: float) -> None:
        g = self._args(r, GEMM)
        _need(math.isclose(scale * g["alpha"], f.scale, rel_tol=1e-6))
        made = result.members[r] = _rows(g, "c", f.batch)
        other = _rows(g, "b", f.batch)
        if self._multiplies(r, ds, f.m, f.n, False):
            _need(result.dq is None and other.same(f.k))
            result.dq = made
        else:
            _need(self._multiplies(r, ds, f.m, f.n, True) and result.dk is None and other.same(f.q))
            result.dk = made

    def _step(self, call: ElementwiseCall) -> tuple[Buf, float | Buf | Condition]:
        """What an elementwise call does with scores: their buffer, and a factor, a mask to add or a condition."""
        full = [b for b in call.ins if b.size == math.prod(call.shape) and b.dtype == "float32"]
        full.sort(key=lambda b: not any(self._is(w, GEMM) for w in self.writers.get(b.storage, ())))
        _need(bool(full) and len(call.roots) == 1)
        x, root = full[0], call.roots[0]
        if (factor := constant_factor(root)) is not None:
            return x, factor
        if (added := added_operand(root, call, x)) is not None:
            return x, added
        _need(root.op == "select" and root.args[0].op == "input")
        _need({a.op for a in root.args[1:]} == {"input", "const"})
        condition, a, b = root.args
        kept, fill = (a, b) if a.op == "input" else (b, a)
        _need(call.ins[int(kept.imm or 0)].same_place(x))
        return x, Condition(call.ins[int(condition.imm or 0)], kept is a, float(fill.imm or 0))

    # Questions.

    def _is(self, k: int, kernel: str) -> bool:
        i = self.instructions[k]
        return isinstance(i, KernelCall) and kernel == i.KERNEL

    def _args(self, k: int, kernel: str) -> MutableMapping[str, Any]:
        i = self.instructions[k]
        _need(self._is(k, kernel))
        assert isinstance(i, KernelCall)
        return i.args

    def _readers(self, b: Buf) -> list[int]:
        """Readers, one at least, of a tensor that lives in the arena and is no output."""
        readers = sorted(set(self.readers.get(b.storage, ())))
        _need(b.storage.segment == ARENA and b.storage not in self.kept and not b.storage.is_feed and bool(readers))
        return readers

    def _maker(self, b: Buf, reader: int) -> int:
        """The only instruction that makes a tensor which nobody but `reader` reads."""
        _need(self._readers(b) == [reader] and len(self.writers.get(b.storage, ())) == 1)
        return self.writers[b.storage][0]

    def _multiplies(self, k: int, b: Buf, rows: int, columns: int, transposed: bool) -> bool:
        """Whether instruction `k` is a product with `b`, matrices [rows, columns] in order, on its left."""
        if not self._is(k, GEMM):
            return False
        g = self._args(k, GEMM)
        m, inner, row, column = (columns, rows, 1, columns) if transposed else (rows, columns, columns, 1)
        return (
            _is_plain(g)
            and g["a"].storage is b.storage
            and g["a"].shift == b.shift
            and g["b"].storage is not b.storage
            and (g["m"], g["k"]) == (m, inner)
            and (g["a_row"] == row or m == 1)
            and (g["a_col"] == column or inner == 1)
            and math.prod(g["batch"]) * rows * columns == b.size
            and _regroup(g["batch"], g["a_batch"], g["batch"]) == _dense(g["batch"], rows * columns)
        )

    # Order.

    def _check_order(self, f: Forward, b: Backward | None) -> None:
        """Operands must still hold what they did, and results must be free to be stored as early as they will be."""
        first, last = f.members[0], f.members[-1]
        start = last if b is None else min(b.members)
        for since, operands in ((first, f.operands), (last, [f.v.buf, f.y.buf])):
            for x in operands:
                _need(not any(since < w <= start and w != last for w in self.writers.get(x.storage, ())))
        _need(f.y.buf.storage not in {x.storage for x in (*f.operands, f.v.buf)})
        if b is None:
            return
        read = {x.storage for x in (*f.operands, f.v.buf, f.y.buf, b.dy.buf)}
        _need(start > last and not any(start < w < max(b.members) for w in self.writers.get(b.dy.buf.storage, ())))
        for k, made in b.members.items():
            if made is None:
                continue
            storage = made.buf.storage
            _need(storage not in read)
            _need(not any(start <= r < k and r not in b.members for r in self.readers.get(storage, ())))
            for w in self.writers.get(storage, ()):
                _need(not start <= w < k or w in b.members or any(self._is(w, part) for part in PARTS))

    # The kernels.

    def _mask(self, f: Forward) -> tuple[Buf | None, tuple[int, ...]]:
        """What is added to the scores, and its strides; -infinity stands for the condition's `fill`."""
        mask = f.added
        if f.condition is not None:
            shape = broadcast_shapes(f.condition.buf.shape, mask.shape if mask else ())
            # A condition for each score would become a matrix of the size that is to be saved.
            _need(math.prod(shape) < math.prod(f.scores_shape) or math.prod(f.batch) == 1)
            mask = Buf(Storage(ARENA, 4 * math.prod(shape)), "float32", shape, name="mask")
        if mask is None:
            return None, (0, 0, 0)
        strides = [s if d != 1 else 0 for s, d in zip(contiguous_strides(mask.shape), mask.shape, strict=True)]
        strides = [0] * (len(f.scores_shape) - len(strides)) + strides
        *regrouped, column = _regroup(f.scores_shape, strides, (*f.batch, f.m, f.n))
        _need(column == 1 or f.n == 1)
        return (mask if f.condition is None else self._conditional_mask(f, f.condition, mask)), tuple(regrouped)

    def _conditional_mask(self, f: Forward, c: Condition, mask: Buf) -> Buf:
        """Make the mask, unless another layer has made the same one."""
        at = f.members[-1]
        key = (c.keeps, *((b.storage, b.shift, b.shape) for b in f.masks))
        made, known = self.masks.get(key, (at, mask))
        if known is not mask and not any(made < w < at for b in f.masks for w in self.writers.get(b.storage, ())):
            return known
        self.masks[key] = (at, mask)
        self.builder.node, self.builder.instructions = self._name(f), self.slots[at]

        def compute(e: Emitter, condition: Expr, added: Expr | None = None) -> Expr:
            kept, hidden = added or e.const(0.0), e.const(-math.inf)
            return e.select(condition, kept, hidden) if c.keeps else e.select(condition, hidden, kept)

        self.builder.elementwise([mask], [c.buf, *([f.added] if f.added else [])], compute)
        return mask

    def _name(self, f: Forward) -> str:
        return f"attention from {self.instructions[f.members[0]].node} to {self.instructions[f.members[-1]].node}"

    def _emit(self, f: Forward, b: Backward | None, mask: Buf | None, mask_strides: tuple[int, ...]) -> None:
        """Put the kernels where the product with v and the first instruction of the gradient were."""
        last = f.members[-1]
        for k in (*f.members, *(b.members if b else ())):
            self.slots[k] = [i for i in self.slots[k] if i is not self.instructions[k]]
        builder, rows = self.builder, (*f.batch, f.m)
        top, inverse = (builder.temp("float32", rows) if b else None for _ in range(2))
        fill = f.condition.fill if f.condition else -math.inf
        dropout = f.dropout
        shared: dict[str, Any] = {
            "q": f.q.buf,
            "k": f.k.buf,
            "v": f.v.buf,
            "y": f.y.buf,
            "mask": mask,
            "top": top,
            "inverse": inverse,
            "batch": f.batch,
            "m": f.m,
            "n": f.n,
            "d": f.width,
            "e": f.v_width,
            "scale": f.scale,
            "fill": fill,
            "q_strides": f.q.strides,
            "k_strides": f.k.strides,
            "v_strides": f.v.strides,
            "y_strides": f.y.strides,
            "mask_strides": mask_strides,
            "state": dropout and dropout.state,
            "ratio": dropout.ratio if dropout else 0.0,
            "salt": dropout.salt if dropout else 0,
            "draw": dropout.draw if dropout else 0,
        }
        builder.node, builder.instructions = self._name(f), self.slots[last]
        builder.emit(calls.Attention(**shared))
        if b is None:
            return
        items, blocks = math.prod(f.batch), -(-f.n // KEY_BLOCK)
        results = {"dq": b.dq, "dk": b.dk, "dv": b.dv}
        shared |= {name: x.buf if x else None for name, x in results.items()}
        shared |= {f"{name}_strides": x.strides if x else (0, 0, 0) for name, x in results.items()}
        builder.node, builder.instructions = f"gradient of {builder.node}", self.slots[min(b.members)]
        builder.emit(
            calls.AttentionGradient(
                **shared,
                dy=b.dy.buf,
                dy_strides=b.dy.strides,
                conditional=int(b.conditional),
                parts=min(-(-MIN_TASKS // items), blocks),
            )
        )


def _reads(i: Instruction) -> list[Buf]:
    # A product names its result among its reads, though it only writes it.
    if isinstance(i, KernelCall) and i.KERNEL == GEMM and not i.args["accumulate"]:
        return [b for b in i.reads if b is not i.args["c"]]
    return i.reads


def _is_plain(g: MutableMapping[str, Any]) -> bool:
    """Whether a product is alpha * a b and no more."""
    return g["bias"] is None and not g["accumulate"] and not g["activation"]


def _is_whole(g: MutableMapping[str, Any], batch: tuple[int, int], m: int, n: int) -> bool:
    """Whether a product's result is matrices [m, n] one after the other."""
    fits = (g["m"], g["n"]) == (m, n) and (g["c_row"] == n or m == 1)
    return fits and _regroup(g["batch"], g["c_batch"], batch) == _dense(batch, m * n)


def _rows(g: MutableMapping[str, Any], pointer: str, batch: tuple[int, int]) -> Rows:
    """An operand of a product, whose rows must be contiguous."""
    rows, columns = {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")}[pointer]
    _need(pointer == "c" or g[f"{pointer}_col"] == 1 or g[columns] == 1)
    row = g[f"{pointer}_row"] if g[rows] > 1 else 0
    return Rows(g[pointer], (*_regroup(g["batch"], g[f"{pointer}_batch"], batch), row))


def _columns(g: MutableMapping[str, Any], batch: tuple[int, int]) -> Rows:
    """The right operand of a product, transposed, whose columns must be contiguous."""
    _need(g["b_row"] == 1 or g["k"] == 1)
    return Rows(g["b"], (*_regroup(g["batch"], g["b_batch"], batch), g["b_col"] if g["n"] > 1 else 0))


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
