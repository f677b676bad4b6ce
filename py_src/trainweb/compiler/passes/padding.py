"""Products leave out the tokens that no counted label depends on, such as padding (wasm_kernels/zero_rows.c).

A loss that ignores a label does not read the scores of its token. Attention reads the keys that its mask does not rule
out. All other instructions read each token by itself. In each step `wanted_tokens` follows the masks from the labels
that count, through the layers. After the last attention only tokens with a label are wanted. A prompt has none.
Products compute the rows of wanted tokens, and repeat one of them in the other rows. The loss never depends on a
repeated row, so its gradient is zero. Products of gradients with the same matrix clear these rows.

Storages say whether only tokens of them are read, and how many attentions lie between them and the loss
(compiler/rows.py). The pass adds the masks. If attention stores its scores, products before it compute all tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from copy import copy
from dataclasses import dataclass

from trainweb.compiler.context import Context
from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.instructions import KEYS, Buf, Instruction, Storage
from trainweb.ir.layout import ACTIVATION_NONE
from trainweb.ir.program import POSITION, Program, Refusal
from trainweb.model.graph import ITEM_SIZE

LEAST_WORK = 1 << 18
"""Multiply-adds of a product that are worth the choice of its rows."""
RULED_OUT = -1e30
"""A mask that lowers a score by this much makes its probability zero beside any that it lowers less."""

Loss = calls.CrossEntropy | calls.HeadLoss | calls.HeadLossQuantized
Product = calls.Gemm | calls.GemmQuantized


@dataclass(frozen=True, slots=True)
class Masked:
    """An attention, the mask that rules keys out, and the rows of the loss from one item of each batch to the next."""

    at: calls.Attention
    mask: Buf | None
    token_strides: tuple[int, int]

    @property
    def key(self) -> Hashable:
        """Equal for attentions that lead to the same tokens."""
        mask = self.mask and (self.mask.storage, self.mask.shift)
        return mask, self.at.m, tuple(self.at.batch), tuple(self.at.mask_strides), self.token_strides


def leave_out_padding(program: Program, _: Context) -> None:
    """Let products leave out the tokens that no counted label depends on, if the loss ignores a label."""
    losses = [i for i in program if isinstance(i, Loss)]
    # Instructions of a loop run again, and the masks could not come first.
    if len(losses) != 1 or not losses[0].has_ignore or any(isinstance(i, calls.LoopBegin) for i in program):
        return
    loss = losses[0]
    # The value of another loss may not be read, and its gradient may.
    slopes = [i for i in program if isinstance(i, calls.CrossEntropyGrad)]
    if len(slopes) > 1 or not all(
        i.labels.same_place(loss.labels) and (i.has_ignore, i.ignore_index) == (1, loss.ignore_index) for i in slopes
    ):
        return
    attentions, (limit, late) = _attentions(program)
    products, reasons = list[tuple[Product, int]](), dict[str, Product]()
    for i in program:
        if not isinstance(i, Product) or not _is_whole(i, loss.n) or i.m * i.n * i.k < LEAST_WORK:
            continue
        rows = i.c.storage.rows
        if rows is None:
            reasons.setdefault("" if i.c.storage.is_slope else i.c.storage.whole, i)
        elif not i.c.shift and rows.of_loop(i.m, i.c_row) == 1:
            if rows.level < limit:
                products.append((i, rows.level))
            else:
                reasons.setdefault(late, i)
    masks = [(each.mask, each.at) for some in attentions.values() for each in some if each.mask is not None]
    if products and not _bring_forward(program, [(loss.labels, loss), *masks], products[0][0]):
        reasons["labels or a mask are made later"] = products[0][0]
    elif products:
        wanted = _wanted(program, loss, attentions, products)
        for clears, some in enumerate((products, _products_of_gradients(program, loss.n, products))):
            for i, level in some:
                new = copy(i)
                new.wanted, new.clears = wanted[level], clears
                program.replace(i, new)
    program.refusals += [Refusal("padding", i.node, why) for why, i in reasons.items() if why]


def _is_whole(i: Product, count: int) -> bool:
    """Return whether a product has as many rows as the loss."""
    return i.m == count and (isinstance(i, calls.GemmQuantized) or tuple(i.batch) == (1, 1))


def _matrix(i: Product) -> Storage:
    """The storage of the right matrix of a product."""
    return (i.b if isinstance(i, calls.Gemm) else i.w).storage


def _products_of_gradients(
    program: Program, count: int, products: list[tuple[Product, int]]
) -> list[tuple[Product, int]]:
    """Products of the gradients of what `products` make, with the same matrices, and the levels of their rows.

    Rows of these gradients are zero for tokens that no loss depends on. If several products have one matrix, all must
    leave out tokens, and the highest level counts.
    """
    levels, known = dict[Storage, int](), {i for i, _ in products}
    for product, level in products:
        levels[_matrix(product)] = max(level, levels.get(_matrix(product), 0))
    backward = list[Product]()
    for i in program:
        if not isinstance(i, Product) or i in known or _matrix(i) not in levels:
            continue
        if not i.a.storage.is_slope:
            del levels[_matrix(i)]
        elif _is_whole(i, count) and i.a_col == 1 and i.bias is None and i.activation == ACTIVATION_NONE:
            backward.append(i)
    return [(i, levels[_matrix(i)]) for i in backward if _matrix(i) in levels]


def _attentions(program: Program) -> tuple[dict[int, list[Masked]], tuple[int, str]]:
    """Return attentions by the level of their results, from the last to the first, and the first level without masks.

    A level has no masks where the scores of an attention are stored, or where its items are not the tokens of texts.
    The reason stands beside it.
    """
    attentions: dict[int, list[Masked]] = {}
    limits = list[tuple[int, str]]()
    for i in reversed(program.instructions):
        if isinstance(i, calls.Softmax) and i.y.storage.rows and any(s == KEYS for _, s in i.y.storage.rows.parts):
            limits.append((i.y.storage.rows.level, f"{i.node} is not fused and reads all keys"))
        if isinstance(i, calls.Attention):
            levels = [b.storage.rows.level for b in (i.k, i.v) if b.storage.rows]
            result, masked = i.y.storage.rows, _masked(i)
            if result is None or masked is None:
                limits += [(level, f"keys of {i.node} may be no tokens of its text") for level in levels]
            elif levels:
                attentions.setdefault(result.level, []).append(masked)
    limit = min(limits, default=(len(program), ""))
    return {level: some for level, some in attentions.items() if level + 1 < limit[0]}, limit


def _masked(i: calls.Attention) -> Masked | None:
    """The mask of an attention; None if an item is not of one text, as where texts and heads share an axis."""
    rows = i.y.storage.rows
    if rows is None or i.m != i.n:
        return None
    steps = [rows.of_loop(n, stride) for n, stride in zip((*i.batch, i.m), i.y_strides, strict=True)]
    if steps[0] is None or steps[1] is None or steps[2] != int(i.m > 1):
        return None
    return Masked(i, i.mask if i.fill <= RULED_OUT else None, (steps[0], steps[1]))


def _bring_forward(program: Program, readers: Iterable[tuple[Buf, Instruction]], first: Instruction) -> bool:
    """Move what makes operands of `readers` before `first`, if that is possible."""
    makers = set[Instruction]()
    unseen = [(b.storage, reader.position) for b, reader in readers]
    while unseen:
        storage, end = unseen.pop()
        # State that a later instruction advances is read as it is before.
        late = [w for w in program.writers(storage) if first.position <= w.position < end and w not in makers]
        # Another instruction may read what the first of several writers leaves.
        if len(late) > 1 or any(isinstance(w, Product | calls.Attention) for w in late):
            return False
        makers.update(late)
        unseen += [(b.storage, w.position) for w in late for b in w.reads]
    for i in sorted(makers, key=POSITION):
        program.remove(i)
        program.insert_before(first, i)
    return True


def _wanted(
    program: Program, loss: Loss, attentions: dict[int, list[Masked]], products: list[tuple[Product, int]]
) -> list[Buf]:
    """The tokens that are wanted at each level; equal masks need one call."""
    builder = program.build(f"tokens that {loss.node} depends on")
    tokens, last = _follow(builder, loss, loss.labels, None), None
    wanted = [tokens]
    for level in range(max(level for _, level in products)):
        for each in attentions.get(level, ()):
            if each.key != last:
                tokens, last = _follow(builder, loss, tokens, each), each.key
        wanted.append(tokens)
    program.insert_before(products[0][0], *builder.instructions)
    return wanted


def _follow(builder: Builder, loss: Loss, tokens: Buf, masked: Masked | None) -> Buf:
    """The tokens that others read through a mask; without one those whose label counts."""
    wanted = builder.temp("int32", (loss.n,))
    call = calls.WantedTokens(
        labels=tokens,
        mask=masked.mask if masked else None,
        wanted=wanted,
        n=loss.n,
        label_size=ITEM_SIZE["int32"] if masked else loss.label_size,
        ignore=0 if masked else loss.ignore_index,
        batch=tuple(masked.at.batch) if masked else (1, 1),
        m=masked.at.m if masked else 1,
        mask_strides=tuple(masked.at.mask_strides) if masked else (0, 0, 0),
        token_strides=masked.token_strides if masked else (0, 0),
        ruled_out=RULED_OUT,
    )
    builder.emit(call)
    return wanted
