"""Products leave out the tokens that no counted label depends on, such as padding (wasm_kernels/zero_rows.c).

A loss that ignores a label does not read the scores of its token. Attention reads the keys that its mask does not rule
out. All other instructions read each token by itself. In each step `wanted_tokens` follows the masks from the labels
that count, through the layers. After the last attention only tokens with a label are wanted. A prompt has none.
Products compute the rows of wanted tokens, and repeat one of them in the other rows. The loss never depends on a
repeated row, and the gradients of such rows are zeros.

Storages say whether only tokens of them are read, and how many attentions lie between them and the loss
(compiler/rows.py). The pass adds the masks. If attention stores its scores, products before it compute all tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainweb.compiler.passes.sparse import Product
from trainweb.ir import calls
from trainweb.ir.instructions import KEYS, Buf, Instruction
from trainweb.ir.program import POSITION, Program
from trainweb.model.graph import ITEM_SIZE

if TYPE_CHECKING:
    from trainweb.compiler.context import Context

LEAST_WORK = 1 << 18
"""Multiply-adds of a product that are worth the choice of its rows."""
RULED_OUT = -1e30
"""As in wasm_kernels/zero_rows.c."""

Loss = calls.CrossEntropy | calls.HeadLoss | calls.HeadLossQuantized


@dataclass(frozen=True, slots=True)
class Masked:
    """An attention: its mask, and the distances of its items in the mask and in the rows of the loss."""

    mask: Buf | None
    m: int
    batch: tuple[int, ...]
    mask_strides: tuple[int, ...]
    token_strides: tuple[int, ...]

    def same(self, other: Masked | None) -> bool:
        """Return whether both lead to the same tokens."""
        if other is None or (self.mask is None) != (other.mask is None):
            return False
        same_mask = self.mask is None or (other.mask is not None and self.mask.same_place(other.mask))
        return same_mask and replace(self, mask=None) == replace(other, mask=None)


def leave_out_padding(program: Program, _: Context) -> None:
    """Let products leave out the tokens that no counted label depends on, if the loss ignores a label."""
    losses = [i for i in program if isinstance(i, Loss)]
    # Instructions of a loop run again, and the masks could not come first.
    if len(losses) != 1 or not losses[0].has_ignore or any(isinstance(i, calls.LoopBegin) for i in program):
        return
    loss = losses[0]
    attentions, limit = _attentions(program, loss.n)
    products = [
        (i, i.c.storage.rows.level)
        for i in program
        if isinstance(i, Product) and i.c.storage.rows and _is_by_rows(i, loss.n) and i.c.storage.rows.level < limit
    ]
    masks = [each.mask for some in attentions.values() for each in some if each.mask is not None]
    if products and _bring_forward(program, [loss.labels, *masks], products[0][0]):
        wanted = _wanted(program, loss, attentions, products)
        for i, level in products:
            new = copy(i)
            new.wanted = wanted[level]
            program.replace(i, new)


def _is_by_rows(i: Product, count: int) -> bool:
    """Return whether the rows of a product are the rows of the loss, and enough work."""
    rows = i.c.storage.rows
    if rows is None or i.c.shift or i.m != count or (isinstance(i, calls.Gemm) and tuple(i.batch) != (1, 1)):
        return False
    return rows.of_loop(i.m, i.c_row) == 1 and i.m * i.n * i.k >= LEAST_WORK


def _attentions(program: Program, count: int) -> tuple[dict[int, list[Masked]], int]:
    """Return attentions by the level of their results, from the last to the first, and the first level without masks.

    A level has no masks where the scores of an attention are stored, or where its items are not the tokens of texts.
    """
    attentions: dict[int, list[Masked]] = {}
    limits = list[int]()
    for i in reversed(program.instructions):
        if isinstance(i, calls.Softmax) and i.y.storage.rows and any(s == KEYS for _, s in i.y.storage.rows.parts):
            limits.append(i.y.storage.rows.level)
        if not isinstance(i, calls.Attention):
            continue
        levels = [b.storage.rows.level for b in (i.k, i.v) if b.storage.rows]
        result, masked = i.y.storage.rows, _masked(i, count)
        if result is None or masked is None:
            limits += levels
        else:
            attentions.setdefault(result.level, []).append(masked)
    limit = min(limits, default=len(program))
    return {level: some for level, some in attentions.items() if level + 1 < limit}, limit


def _masked(i: calls.Attention, count: int) -> Masked | None:
    """The mask of an attention, if its items and queries are all rows of the loss, one by one."""
    rows = i.y.storage.rows
    if rows is None or i.m != i.n:
        return None
    sizes = (*i.batch, i.m)
    outer, inner, step = (rows.of_loop(n, stride) for n, stride in zip(sizes, i.y_strides, strict=True))
    if outer is None or inner is None or step != int(i.m > 1):
        return None
    reached = 1
    for each, n in sorted(zip((outer, inner, step), sizes, strict=True)):
        if each not in (0, reached):
            return None
        reached *= n if each else 1
    mask = i.mask if i.fill <= RULED_OUT else None
    return Masked(mask, i.m, tuple(i.batch), tuple(i.mask_strides), (outer, inner)) if reached == count else None


def _bring_forward(program: Program, operands: Iterable[Buf], first: Instruction) -> bool:
    """Move what makes these operands before `first`, if that is possible."""
    makers = set[Instruction]()
    unseen = [b.storage for b in operands]
    while unseen:
        writers = program.writers(unseen.pop())
        late = [w for w in writers if w.position >= first.position and w not in makers]
        if late and (len(writers) > 1 or isinstance(late[0], Product | calls.Attention)):
            return False
        makers.update(late)
        unseen += [b.storage for w in late for b in w.reads]
    for i in sorted(makers, key=POSITION):
        program.remove(i)
        program.insert_before(first, i)
    return True


def _wanted(
    program: Program, loss: Loss, attentions: dict[int, list[Masked]], products: list[tuple[Product, int]]
) -> list[Buf]:
    """The tokens that are wanted at each level; equal masks need one call."""
    builder = program.build(f"tokens that {loss.node} depends on")
    labels, size, ignore = loss.labels, loss.label_size, loss.ignore_index
    wanted, last = list[Buf](), None
    for level in range(-1, max(level for _, level in products)):
        alone = [Masked(None, 1, (1, 1), (0, 0, 0), (0, 0))] if level < 0 else []
        for each in [*alone, *attentions.get(level, ())]:
            if not each.same(last):
                last, place = each, builder.temp("int32", (loss.n,))
                builder.emit(
                    calls.WantedTokens(
                        labels=labels,
                        mask=each.mask,
                        wanted=place,
                        n=loss.n,
                        label_size=size,
                        ignore=ignore,
                        batch=each.batch,
                        m=each.m,
                        mask_strides=each.mask_strides,
                        token_strides=each.token_strides,
                    )
                )
                labels, size, ignore = place, ITEM_SIZE["int32"], 0
        wanted.append(labels)
    program.insert_before(products[0][0], *builder.instructions)
    return wanted
