"""Counts of n-grams in rows of integers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from trainweb.ir.dims import UndecidedError, static
from trainweb.ir.shapes import TensorType
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Floats, Int, Ints, Str, Strs
from trainweb.ops.frame.symbolic import Var, constant

MODES = ("TF", "IDF", "TFIDF")


class TfIdfVectorizer(Composite):
    """Counts of the n-grams of a pool. https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html

    X is (length) or (batch, length), of integers; the result has a column for each n-gram. Words of an n-gram may lie
    up to max_skip_count + 1 apart, all of it equally. Weights belong to columns, as ONNX Runtime takes them.
    """

    versions = (9,)
    attrs = {
        "max_gram_length": Int(required=True),
        "max_skip_count": Int(required=True),
        "min_gram_length": Int(required=True),
        "mode": Str(required=True, among=MODES),
        "ngram_counts": Ints(required=True),
        "ngram_indexes": Ints(required=True),
        "pool_int64s": Ints(),
        "pool_strings": Strs(),
        "weights": Floats(),
    }

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype not in ("int32", "int64"):
            raise self.unsupported(
                f"{x.dtype}: only n-grams of int32 and int64 are counted; map words to ids before; it"
            )
        if x.rank not in (1, 2):
            raise self.error(f"X has shape {list(x.shape)}; it must be 1-D or 2-D.")
        if self.min_gram_length < 1 or self.max_gram_length < self.min_gram_length or self.max_skip_count < 0:
            raise self.error("lengths of n-grams are at least 1, the longest last, and skips not negative.")
        self._grams()
        return TensorType("float32", (*x.shape[:-1], max(self.ngram_indexes, default=-1) + 1))

    def _grams(self) -> list[tuple[int, ...]]:
        """The n-grams of the pool, in its order."""
        pool = self.pool_int64s
        if pool is None:
            raise self.unsupported("a pool of strings")
        starts = (*self.ngram_counts, len(pool))
        grams: list[tuple[int, ...]] = []
        for n, (start, end) in enumerate(pairwise(starts), 1):
            if not 0 <= start <= end <= len(pool) or (end - start) % n:
                raise self.error(f"ngram_counts {list(self.ngram_counts)} do not fit a pool of {len(pool)} numbers.")
            grams += [pool[k : k + n] for k in range(start, end, n)]
        if len(grams) != len(self.ngram_indexes) or len(set(self.ngram_indexes)) != len(grams):
            raise self.error(f"ngram_indexes name {len(set(self.ngram_indexes))} columns for {len(grams)} n-grams.")
        if any(k < 0 for k in self.ngram_indexes):
            raise self.error("ngram_indexes are not negative.")
        columns = max(self.ngram_indexes, default=-1) + 1
        if self.weights is not None and len(self.weights) != columns:
            raise self.error(f"there are {len(self.weights)} weights for {columns} columns.")
        return grams

    def expand(self, g: Emission, x: Var) -> Sequence[Var | None]:
        length = x.shape[-1]
        if not static(length):
            raise UndecidedError("the length of the rows")
        rows = x.cast("int64") if x.rank == 2 else x.cast("int64").unsqueeze(0)
        grams = self._grams()
        parts, columns = [], []
        for n in range(self.min_gram_length, self.max_gram_length + 1):
            chosen = [k for k, gram in enumerate(grams) if len(gram) == n]
            counts = self._counts(g, rows, [grams[k] for k in chosen], n, length) if chosen else None
            if counts is not None:
                parts.append(counts)
                columns += [self.ngram_indexes[k] for k in chosen]
        size = max(self.ngram_indexes, default=-1) + 1
        # A column that nothing was found for takes the zeros that come first.
        zeros = rows.op("ReduceSum", constant(g, "int64", (1,), [1]), keepdims=1).cast("float32") * 0.0
        order = [columns.index(k) + 1 if k in columns else 0 for k in range(size)]
        counts_of = Var(g, g.op("Concat", [zeros.name, *(part.name for part in parts)], axis=1), "float32")
        y = counts_of.op("Gather", constant(g, "int64", (size,), order), axis=1)
        y = self._weighted(g, y, size)
        return [y if x.rank == 2 else y.squeeze(0)]

    def _counts(self, g: Emission, rows: Var, grams: list[tuple[int, ...]], n: int, length: int) -> Var | None:
        """Counts of the n-grams in each row, (batch, n-grams); None where rows are too short."""
        total: Var | None = None
        for step in range(1, 2 + (self.max_skip_count if n > 1 else 0)):
            width = length - (n - 1) * step
            if width < 1:
                break
            equal: Var | None = None
            for k in range(n):
                words = Var(g, g.slice(rows.name, 1, k * step, k * step + width), "int64")
                wanted = constant(g, "int64", (1, len(grams), 1), [gram[k] for gram in grams])
                same = words.unsqueeze(1).equal(wanted)
                equal = same if equal is None else equal.and_(same)
            assert equal is not None
            count = equal.cast("float32").sum([2], keepdims=False)
            total = count if total is None else total + count
        return total

    def _weighted(self, g: Emission, y: Var, size: int) -> Var:
        if self.mode == "TF":
            return y
        factors = self.weights or [1.0] * size
        counts = (y > 0.0).cast("float32") if self.mode == "IDF" else y
        return counts * constant(g, "float32", (1, size), factors)
