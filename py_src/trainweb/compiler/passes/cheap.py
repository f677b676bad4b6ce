"""Recompute cheap activations next to their readers, from values that are kept anyway.

Layer normalization reads the same tensors as its gradient. GELU's parts are functions of its input, which its gradient
reads, too. Such results need no memory between the forward and the backward pass. Keys and values that are repeated for
several heads need a part of it, where scores are stored. The same instructions run again on the same operands, so
results are the same bytes. See Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).
"""

from __future__ import annotations

from bisect import bisect_right

from trainweb.compiler.context import Context
from trainweb.compiler.passes.eliminate import drop_unread_results
from trainweb.compiler.passes.recompute import work_of
from trainweb.ir.calls import TakesBias
from trainweb.ir.instructions import Buf, ElementwiseCall, Instruction, KernelCall, Storage
from trainweb.ir.layout import ARENA
from trainweb.ir.program import POSITION, Program

WORK_PER_SAVED_BYTE = 96
"""Most work (`work_of`) for a byte that is not kept: an error function and some passes over memory."""
MAX_LOOKAHEAD = 8
"""Instructions that a product may wait for an elementwise call that becomes one call with the maker of its operand."""


def recompute_cheap(program: Program, context: Context) -> None:
    """Recompute cheap results of the forward pass where the backward pass reads them, from values kept anyway."""
    ends = [w for b in program.outputs if b.storage.segment == ARENA for w in program.writers(b.storage)]
    if ends:
        _Recomputation(program, max(ends, key=POSITION)).run()
        drop_unread_results(program, context)


class _Recomputation:
    """The forward pass of a program reaches to `last`, which makes its last output."""

    def __init__(self, program: Program, last: Instruction) -> None:
        self.program, self.last = program, last
        self.again: dict[Storage, Instruction] = {}
        """Instructions that make the values that are not kept."""
        self.sources: set[Storage] = set()
        """Operands that are kept because larger values are recomputed from them."""
        self.places: dict[Storage, Storage] = {}
        """Storages in which the backward pass has the recomputed values."""

    @property
    def end(self) -> int:
        """The position of the end; insertions move positions."""
        return self.last.position

    def run(self) -> None:
        """Find the values that need not be kept, and make them where they are read."""
        for i in self.program:
            if i.position <= self.end:
                self._consider(i)
        for i in self.program:
            wanted = [s for s in dict.fromkeys(b.storage for b in i.reads) if s in self.again]
            if i.position > self.end and wanted:
                for s in wanted:
                    self._make(s, i)
                self._read_again(i)
        for i in dict.fromkeys(self.again.values()):
            self._drop_unread(i)

    # Values that are not kept.

    def _is_saved(self, s: Storage) -> bool:
        """Return whether the backward pass reads a value, which nothing changes there."""
        if s in self.sources:
            return True
        readers = self.program.readers(s)
        is_read = bool(readers) and readers[-1].position > self.end
        return is_read and all(w.position <= self.end for w in self.program.writers(s))

    def _consider(self, i: Instruction) -> None:
        saved = [s for s in _results(i) if self._is_saved(s)]
        if saved:
            last = max((self.program.readers(s)[-1] for s in saved), key=POSITION)
            nbytes = sum(s.nbytes for s in saved)
            sources: list[Storage] = []
            if self._work(i, last, WORK_PER_SAVED_BYTE * nbytes) is None:
                # Its operands are kept instead if they are smaller, as with keys that several heads share.
                sources = self._unsaved(i)
                nbytes -= sum(s.nbytes for s in sources)
                if work_of(i) > WORK_PER_SAVED_BYTE * nbytes or not self._can_repeat(i, last):
                    return
            self.again |= dict.fromkeys(_results(i), i)
            self.sources.update(sources)

    def _unsaved(self, i: Instruction) -> list[Storage]:
        """Return operands of `i` that the backward pass neither has nor recomputes."""
        operands = [s for s in dict.fromkeys(b.storage for b in i.reads) if s.segment == ARENA and not s.is_feed]
        return [s for s in operands if s not in self.again and not self._is_saved(s)]

    def _work(self, i: Instruction, last: Instruction, limit: float) -> float | None:
        """Work to make the results of `i` again before `last`; None where that is more than `limit` or impossible."""
        work = work_of(i)
        if work > limit or not self._can_repeat(i, last):
            return None
        for s in self._unsaved(i):
            more = self._work(self.program.writers(s)[0], last, limit - work)
            if more is None:
                return None
            work += more
        return work

    def _can_repeat(self, i: Instruction, last: Instruction) -> bool:
        if isinstance(i, KernelCall) and (i.checked or i.flops()):
            return False
        program = self.program
        if any(not program.is_temporary(s) or program.writers(s) != (i,) for s in _results(i)):
            return False
        return not any(program.is_written_from(b.storage, i, last) for b in i.reads)

    # Instructions that recompute them.

    def _make(self, s: Storage, before: Instruction) -> None:
        """Make a value right before an instruction, unless that was done; it may be one that was never saved."""
        if s in self.places:
            return
        maker = self.again.get(s) or self.program.writers(s)[0]
        for b in maker.reads:
            t = b.storage
            if t.segment == ARENA and not t.is_feed and (t in self.again or not self._is_saved(t)):
                self._make(t, before)
        self.places |= {t: Storage(ARENA, t.nbytes) for t in _results(maker)}
        self.program.insert_before(before, maker.moved(self._place, f"{maker.node}, again"))

    def _place(self, b: Buf) -> Buf:
        return b.among(self.places)

    def _read_again(self, i: Instruction) -> None:
        """Let `i` read the recomputed values."""
        new = i.moved(self._place, i.node)
        self.program.replace(i, new)
        if isinstance(new, TakesBias):
            self._wait(new, {w for b in i.reads if b.storage in self.again for w in self._chain(b.storage)})

    def _chain(self, s: Storage) -> set[Storage]:
        """Return the storages that a recomputed elementwise call reads and writes."""
        maker = self.again[s]
        return {self._place(b).storage for b in (*maker.reads, *maker.writes)} if _is_elementwise(maker) else set()

    def _wait(self, product: TakesBias, chain: set[Storage]) -> None:
        """Move a product behind the next elementwise calls if they read an operand of its operand's maker.

        The calls and the maker become one call, which runs at their place.
        """
        some = self.program.instructions
        at = bisect_right(some, product.position, key=POSITION)
        for _ in range(MAX_LOOKAHEAD):
            if at >= len(some) or _depend(product, some[at]):
                return
            if _is_elementwise(some[at]):
                break
            at += 1
        else:
            return
        related = False
        while at < len(some) and _is_elementwise(some[at]) and not _depend(product, some[at]):
            related |= any(b.storage in chain for b in some[at].reads)
            at += 1
        if related and at < len(some):
            before = some[at]
            self.program.remove(product)
            self.program.insert_before(before, product)

    def _drop_unread(self, i: Instruction) -> None:
        """Leave out results of the forward pass that only the backward pass has read."""
        unread = [s for s in _results(i) if not self.program.readers(s)]
        if len(unread) == len(_results(i)):
            self.program.remove(i)


def _results(i: Instruction) -> list[Storage]:
    return list(dict.fromkeys(b.storage for b in i.writes))


def _depend(a: Instruction, b: Instruction) -> bool:
    """Return whether two instructions must keep their order."""
    written, others = ({x.storage for x in i.writes} for i in (a, b))
    return any(x.storage in written for x in (*b.reads, *b.writes)) or any(x.storage in others for x in a.reads)


def _is_elementwise(i: Instruction) -> bool:
    return isinstance(i, ElementwiseCall)
