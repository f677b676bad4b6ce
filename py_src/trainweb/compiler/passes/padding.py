"""Products leave out the tokens that no counted label depends on, such as padding (wasm_kernels/zero_rows.c).

A loss that ignores a label does not read the scores of its token. Attention reads the keys that its mask does not rule
out. All other instructions read each token by itself. In each step `wanted_tokens` follows the masks from the labels
that count, through the layers. After the last attention only tokens with a label are wanted. A prompt has none.
Products compute the rows of wanted tokens, and repeat one of them in the other rows. The loss never depends on a
repeated row, so its gradient is zero. Products of gradients with the same matrix clear these rows.

The pass goes from the loss to the inputs, and finds the place of the tokens in each operand. Some instructions mix
tokens, and some are not known here. Their operands are read as a whole, and so is everything before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.expr import Expr
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, Storage
from trainweb.ir.layout import ACTIVATION_NONE
from trainweb.ir.program import POSITION, Program
from trainweb.ir.shapes import collapse
from trainweb.model.graph import ITEM_SIZE

if TYPE_CHECKING:
    from trainweb.compiler.context import Context

LEAST_WORK = 1 << 18
"""Multiply-adds of a product that are worth the choice of its rows."""
RULED_OUT = -1e30
"""As in wasm_kernels/zero_rows.c."""

Loop = tuple[int, int, int]
"""Steps of a loop, and the distance of two in a result and in an operand, in elements."""
Head = calls.HeadLoss | calls.HeadLossQuantized
Product = calls.Gemm | calls.GemmQuantized


@dataclass(frozen=True, slots=True)
class Place:
    """The place of the tokens in a tensor: elements from one to the next, and from a text to the next; 0 for one."""

    token: int
    text: int


@dataclass(frozen=True, slots=True)
class Path:
    """The elements of an operand that an instruction makes its result from."""

    loops: tuple[Loop, ...]
    start: int = 0
    """The first element in the result."""
    operand_start: int = 0


@dataclass(frozen=True, slots=True)
class Texts:
    """The tokens of a step: `count` texts of `length`."""

    count: int
    length: int

    def rows(self, width: int) -> Place:
        """The place of tokens that are rows, one after the other."""
        return Place(width * (self.length > 1), width * self.length * (self.count > 1))


@lru_cache(4096)
def place_in(texts: Texts, path: Path, result: Place) -> Place | None:
    """The place of the tokens in an operand; None if the instruction mixes tokens."""
    units = (result.token, result.token * texts.length, result.text, result.text * texts.count)
    loops = _cut(path.loops, sorted(units, reverse=True))
    distances = []
    for steps, distance in ((texts.length, result.token), (texts.count, result.text)):
        found = [x for n, out, x in loops if n == steps and out == distance]
        if steps > 1 and not any(found):
            return None
        distances.append(found[0] if steps > 1 else 0)
    place = Place(*distances)
    apart = _are_apart(texts, [(n, out) for n, out, _ in loops], path.start, result)
    return place if apart and _are_apart(texts, [(n, x) for n, _, x in loops], path.operand_start, place) else None


def _are_apart(texts: Texts, loops: Sequence[tuple[int, int]], start: int, place: Place) -> bool:
    """Return whether the other loops stay within the elements of a token."""
    for steps, distance in ((texts.length, place.token), (texts.count, place.text)):
        inner = start + sum((n - 1) * stride for n, stride in loops if stride < distance)
        outer = sorted(stride for n, stride in loops if stride >= distance and n > 1)
        if steps > 1 and (inner >= distance or any(stride % (distance * steps) for stride in outer[1:])):
            return False
    return all(stride >= 0 for _, stride in loops)


def _cut(loops: Iterable[Loop], units: Sequence[int]) -> list[Loop]:
    """Cut each loop where its distance in the result reaches one of the falling `units`, if that is possible."""
    whole = []
    for n, out, given in loops:
        for unit in units:
            if 0 < out < unit < n * out and unit % out == 0 and n % (unit // out) == 0:
                steps = unit // out
                whole.append((n // steps, unit, given * steps))
                n = steps
        whole.append((n, out, given))
    return whole


def _paths(i: Instruction) -> list[tuple[Buf, Path]]:
    """Operands of an instruction that may keep tokens apart, with their paths. The others are read as a whole."""
    match i:
        case ElementwiseCall(reduction=None):
            return [(b, _elementwise(i.shape, b.shape)) for b in i.ins]
        case calls.Copy() if i.n == i.src.nbytes == i.dst.nbytes:
            return [(i.src, Path(((i.src.size, 1, 1),)))]
        case calls.StridedCopy():
            loops = tuple(zip(i.dims, i.dst_strides, i.src_strides, strict=True))
            return [(i.src, Path(loops, i.dst_offset, i.src_offset))]
        case calls.Gemm() | calls.GemmQuantized():
            return _product(i)
        case calls.Attention():
            (outer, inner), (y_outer, y_inner, y) = i.batch, i.y_strides
            q = (outer, y_outer, i.q_strides[0]), (inner, y_inner, i.q_strides[1])
            k, v = (
                ((outer, y_outer, shared[0]), (inner // i.group, i.group * y_inner, shared[1]), (i.group, y_inner, 0))
                for shared in (i.k_strides, i.v_strides)
            )
            return [
                (i.q, Path((*q, (i.m, y, i.q_strides[2]), (i.e, 1, 0), (i.d, 0, 1)))),
                (i.k, Path((*k, (i.n, y, i.k_strides[2]), (i.e, 1, 0), (i.d, 0, 1)))),
                (i.v, Path((*v, (i.n, y, i.v_strides[2]), (i.e, 1, 1)))),
            ]
        case calls.Rotary():
            rows, width = zip(i.dims, i.y_strides, i.x_strides, strict=True), 2 * i.half
            return [(i.x, Path((*rows, (width, 1, 0), (width, 0, 1))))]
        case calls.Reduce():
            return [(i.x, Path(((i.outer, i.inner, i.n * i.inner), (i.n, 0, i.inner), (i.inner, 1, 1))))]
        case calls.Softmax():
            size = i.n * i.inner
            return [(i.x, Path(((i.outer, size, size), (i.n, i.inner, 0), (i.n, 0, i.inner), (i.inner, 1, 1))))]
        case calls.LayerNorm():
            return [(i.x, Path(((i.rows, i.n, i.n), (i.n, 1, 0), (i.n, 0, 1))))]
        case calls.Dropout():
            return [(i.x, Path(((i.n, 1, 1),)))]
    return []


@lru_cache(4096)
def _elementwise(shape: tuple[int, ...], operand: tuple[int, ...]) -> Path:
    dims, (steps, given) = collapse(shape, [shape, operand])
    return Path(tuple(zip(dims, steps, given, strict=True)))


def _batch(batch: Sequence[int], result: Sequence[int], operand: Sequence[int]) -> list[Loop]:
    return list(zip(batch[:2], result[:2], operand[:2], strict=True))


def _product(i: Product) -> list[tuple[Buf, Path]]:
    one = (1, 1), (0, 0), (0, 0), (0, 0)
    batch, c, a, bias = (i.batch, i.c_batch, i.a_batch, i.bias_batch) if isinstance(i, calls.Gemm) else one
    paths = [(i.a, Path((*_batch(batch, c, a), (i.m, i.c_row, i.a_row), (i.n, 1, 0), (i.k, 0, i.a_col))))]
    if i.bias is not None:
        paths.append((i.bias, Path((*_batch(batch, c, bias), (i.m, i.c_row, i.bias_row), (i.n, 1, i.bias_col)))))
    if i.accumulate:
        paths.append((i.c, Path((*_batch(batch, c, c), (i.m, i.c_row, i.c_row), (i.n, 1, 1)))))
    return paths


def gradients_of(program: Program) -> set[Storage]:
    """Storages of the gradients of a loss."""
    gradients = set[Storage]()
    for i in program:
        if isinstance(i, calls.CrossEntropyGrad):
            gradients.add(i.dx.storage)
        elif isinstance(i, Head):
            gradients.update(b.storage for b in [i.slope] if b)
        elif any(b.storage in gradients for b in i.reads):
            gradients.update(b.storage for b in i.writes)
    return gradients


def _matrix(i: Product) -> Storage:
    """The storage of the right matrix of a product."""
    return (i.b if isinstance(i, calls.Gemm) else i.w).storage


def leave_out_padding(program: Program, _: Context) -> None:
    """Let products leave out the tokens that no counted label depends on, if the loss ignores a label."""
    losses = [i for i in program if isinstance(i, calls.CrossEntropy | Head)]
    if len(losses) != 1 or not losses[0].has_ignore or any(isinstance(i, calls.LoopBegin) for i in program):
        return
    # The value of another loss may not be read, and its gradient may.
    slopes = [i for i in program if isinstance(i, calls.CrossEntropyGrad)]
    if len(slopes) > 1 or not all(i.labels.same_place(losses[0].labels) for i in slopes):
        return
    search = _Search(program, losses[0])
    for i in reversed(program.instructions):
        search.visit(i)
    search.finish()


@dataclass(frozen=True, slots=True)
class _Items:
    """The items of an attention: its mask, and where each has its tokens."""

    mask: Buf | None
    m: int
    batch: tuple[int, ...]
    mask_strides: tuple[int, ...]
    token_strides: tuple[int, ...]

    def same(self, other: _Items | None) -> bool:
        """Return whether both lead to the same tokens."""
        if other is None or (self.mask is None) != (other.mask is None):
            return False
        same_mask = self.mask is None or (other.mask is not None and self.mask.same_place(other.mask))
        return same_mask and replace(self, mask=None) == replace(other, mask=None)


class _Search:
    """Finds the place of tokens in all that a loss depends on, from its end on."""

    def __init__(self, program: Program, loss: calls.CrossEntropy | Head) -> None:
        self.program, self.loss = program, loss
        self.gradients = gradients_of(program)
        lengths = [i.m for i in program if isinstance(i, calls.Attention) and loss.n % i.m == 0]
        self.texts = Texts(loss.n // lengths[-1], lengths[-1]) if lengths else Texts(1, loss.n)
        self.places: dict[Storage, Place | None] = {}
        """Tensors that are read later on: where they have tokens, None if they are read as a whole."""
        self.attentions: list[_Items] = []
        """From the last to the first."""
        self.products: list[tuple[Product, int]] = []
        """Products whose rows are tokens, and how many attentions come after each."""

    def visit(self, i: Instruction) -> None:
        """Note the operands of an instruction, after all that come later."""
        for b, place in self._operands(i):
            if self.places.setdefault(b.storage, place) != place:
                self.places[b.storage] = None

    def _operands(self, i: Instruction) -> Iterable[tuple[Buf, Place | None]]:
        if i is self.loss:
            return self._scores(self.loss)
        if isinstance(i, calls.HeadLossWeightGrad):
            return [(b, self._rows(b, i.d) if b is i.x else None) for b in i.reads]
        if any(b.storage in self.gradients for b in i.reads):
            return [(b, None) for b in i.reads if not self._is_gradient(b) and not self._is_factor(b, i)]
        return self._values(i)

    def _rows(self, b: Buf, width: int) -> Place | None:
        return None if b.shift else self.texts.rows(width)

    def _is_gradient(self, b: Buf | None) -> bool:
        return b is not None and b.storage in self.gradients

    def _scores(self, loss: calls.CrossEntropy | Head) -> Iterator[tuple[Buf, Place | None]]:
        """Operands of the loss. It reads scores by rows, unless something else reads their logarithms."""
        place = self._rows(loss.x, loss.d) if isinstance(loss, Head) else self._rows(loss.scores, loss.c)
        if isinstance(loss, calls.CrossEntropy):
            known = [] if loss.log_prob is None else [loss.log_prob.storage]
            others = any(s in self.places or not self.program.is_temporary(s) for s in known)
            place = None if others or loss.inner != 1 else place
        scores = loss.x if isinstance(loss, Head) else loss.scores
        return ((b, place if b is scores else None) for b in loss.reads)

    def _is_factor(self, b: Buf, i: Instruction) -> bool:
        """Return whether the result is zero for a token whose gradient is, whatever `b` is there."""
        match i:
            case ElementwiseCall():
                zeros = {k for k, x in enumerate(i.ins) if self._is_gradient(x)}
                return all(_is_zero(root, zeros) for root in i.roots)
            case calls.Gemm():
                return (b is i.a and self._is_gradient(i.b)) or (b is i.b and self._is_gradient(i.a))
            case calls.AttentionGradient():
                return b is not i.mask and self._is_gradient(i.dy)
            case calls.SoftmaxGrad() | calls.LayerNormGrad():
                return self._is_gradient(i.dy)
        return False

    def _values(self, i: Instruction) -> Iterable[tuple[Buf, Place | None]]:
        """Operands of an instruction of the forward pass; none if only gradients read its results."""
        found = {(self.places[b.storage], _start(b)) for b in i.writes if b.storage in self.places}
        whole = not all(self.program.is_temporary(b.storage) for b in i.writes) or self._is_added(i)
        if not found and not whole:
            return []
        place, start = found.pop() if len(found) == 1 and not whole else (None, 0)
        if place is None:
            return [(b, None) for b in i.reads]
        operands = {}
        for b, path in _paths(i):
            if self.program.is_temporary(b.storage):
                moved = Path(path.loops, path.start + start, path.operand_start + _start(b))
                operands[id(b)] = place_in(self.texts, moved, place)
        if isinstance(i, calls.Attention) and any(operands.values()):
            items = self._items(i, place)
            if items is None:
                return [(b, None) for b in i.reads]
            self.attentions.append(items)
        elif isinstance(i, Product) and self._is_by_rows(i, place):
            self.products.append((i, len(self.attentions)))
        return [(b, operands.get(id(b))) for b in i.reads]

    def _is_added(self, i: Instruction) -> bool:
        """Return whether a value becomes a part of a gradient."""
        return not isinstance(i, calls.CrossEntropyGrad) and any(map(self._is_gradient, i.writes))

    def _items(self, i: calls.Attention, place: Place) -> _Items | None:
        """The items of an attention, unless a dim of its batch is texts as well as heads."""
        texts, dims = self.texts, zip(i.batch, i.y_strides[:2], strict=True)
        strides = tuple(texts.length * (texts.count > 1 and dim == (texts.count, place.text)) for dim in dims)
        if texts.count > 1 and not any(strides):
            return None
        return _Items(i.mask if i.fill <= RULED_OUT else None, i.m, tuple(i.batch), tuple(i.mask_strides), strides)

    def _is_by_rows(self, i: Product, place: Place) -> bool:
        """Return whether the rows of a product are the tokens, and enough work."""
        return self._is_whole(i) and place == self._rows(i.c, i.c_row) and i.m * i.n * i.k >= LEAST_WORK

    def _is_whole(self, i: Product) -> bool:
        """Return whether a product has as many rows as there are tokens."""
        return i.m == self.loss.n and (isinstance(i, calls.GemmQuantized) or tuple(i.batch) == (1, 1))

    def _products_of_gradients(self) -> list[tuple[Product, int]]:
        """Products of the gradients of what `self.products` make, with the same matrices.

        Rows of these gradients are zero for tokens that no loss depends on. If several products have one matrix, all
        must leave out tokens, and the tokens of the first product count.
        """
        later, known = dict[Storage, int](), {i for i, _ in self.products}
        for product, attentions in self.products:
            later[_matrix(product)] = max(attentions, later.get(_matrix(product), 0))
        backward = list[Product]()
        for i in self.program:
            if not isinstance(i, Product) or i in known or _matrix(i) not in later:
                continue
            if not self._is_gradient(i.a):
                del later[_matrix(i)]
            elif self._is_whole(i) and i.a_col == 1 and i.bias is None and i.activation == ACTIVATION_NONE:
                backward.append(i)
        return [(i, later[_matrix(i)]) for i in backward if _matrix(i) in later]

    # Which tokens are wanted.

    def finish(self) -> None:
        """Compute which tokens of a step are wanted, and let products leave out the others."""
        masks = [i.mask for i in self.attentions if i.mask is not None]
        if not self.products or not self._bring_forward([self.loss.labels, *masks], self.products[-1][0]):
            return
        wanted = self._wanted()
        for clears, products in enumerate((self.products, self._products_of_gradients())):
            for i, later in products:
                new = copy(i)
                new.wanted, new.clears = wanted[later], clears
                self.program.replace(i, new)

    def _bring_forward(self, operands: Iterable[Buf], first: Instruction) -> bool:
        """Move what makes these operands before `first`, if that is possible."""
        makers = set[Instruction]()
        unseen = [b.storage for b in operands]
        while unseen:
            writers = self.program.writers(unseen.pop())
            late = [w for w in writers if w.position >= first.position and w not in makers]
            if late and (len(writers) > 1 or isinstance(late[0], Product | calls.Attention)):
                return False
            makers.update(late)
            unseen += [b.storage for w in late for b in w.reads]
        for i in sorted(makers, key=POSITION):
            self.program.remove(i)
            self.program.insert_before(first, i)
        return True

    def _wanted(self) -> list[Buf]:
        """The tokens that are wanted after all attention, before the last, and so on; equal masks need one call."""
        loss, first = self.loss, self.products[-1][0]
        builder = self.program.build(f"tokens that {loss.node} depends on")
        labels, size, ignore = loss.labels, loss.label_size, loss.ignore_index
        wanted, last = list[Buf](), None
        for item in (_Items(None, 1, (1, 1), (0, 0, 0), (0, 0)), *self.attentions):
            if not item.same(last):
                labels, last = self._follow(builder, item, labels, size, ignore), item
                size, ignore = ITEM_SIZE["int32"], 0
            wanted.append(labels)
        self.program.insert_before(first, *builder.instructions)
        return wanted

    def _follow(self, builder: Builder, item: _Items, labels: Buf, size: int, ignore: int) -> Buf:
        wanted = builder.temp("int32", (self.loss.n,))
        call = calls.WantedTokens(
            labels=labels,
            mask=item.mask,
            wanted=wanted,
            n=self.loss.n,
            label_size=size,
            ignore=ignore,
            batch=item.batch,
            m=item.m,
            mask_strides=item.mask_strides,
            token_strides=item.token_strides,
        )
        builder.emit(call)
        return wanted


def _start(b: Buf) -> int:
    """The first element of a tensor in its storage."""
    return b.shift // ITEM_SIZE[b.dtype]


def _is_zero(e: Expr, zeros: set[int]) -> bool:
    """Return whether an expression is zero where these inputs are, and no other input is NaN or infinity."""
    match e.op:
        case "input":
            return e.imm in zeros
        case "const":
            return e.imm == 0
        case "mul":
            return any(_is_zero(x, zeros) for x in e.args)
        case "div":
            return _is_zero(e.args[0], zeros)
        case "select":
            return all(_is_zero(x, zeros) for x in e.args[1:])
        case "add" | "sub" | "neg" | "abs":
            return all(_is_zero(x, zeros) for x in e.args)
    return False
