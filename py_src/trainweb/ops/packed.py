"""Operators of com.microsoft whose weights are numbers of 4 or 8 bits, as ONNX Runtime's quantizers write them.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence

from trainweb.ir import calls
from trainweb.ir.builder import Builder
from trainweb.ir.dims import equal, equal_shapes
from trainweb.ir.instructions import Buf
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import ITEM_SIZE, MS, NIBBLES, TRAINWEB
from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import Int, Op
from trainweb.ops.frame.symbolic import Var, integers
from trainweb.ops.index import check_range
from trainweb.ops.linear_quantization import Blocks, dequantize

BITS = (4, 8)
"""Bits of a number."""


class _Rows(Op, abstract=True):
    """Attributes of a matrix (N, K) in blocks of a row."""

    attrs = {
        "K": Int(required=True),
        "N": Int(required=True),
        "bits": Int(required=True),
        "block_size": Int(required=True),
    }

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-int(self.K) // int(self.block_size))

    @property
    def row_bytes(self) -> int:
        """Bytes of the zero points of a row."""
        return -(-self.blocks * int(self.bits) // 8)

    def check(self, packed: TensorType, scales: TensorType, zeros: TensorType | None) -> None:
        """Refuse weights that do not fit the attributes."""
        self.need_float32(scales)
        if self.bits not in BITS:
            raise self.unsupported(f"{self.bits} bits")
        if self.K < 1 or self.N < 1 or self.block_size < 1:
            raise self.error(f"K {self.K}, N {self.N} and block_size {self.block_size} must be positive.")
        shape = (self.N, self.blocks, self.block_size * self.bits // 8)
        if packed.dtype != "uint8" or not equal_shapes(packed.shape, shape):
            raise self.error(f"B is {packed.dtype} {list(packed.shape)}, not uint8 {list(shape)}.")
        if not equal(scales.size, self.N * self.blocks):
            raise self.error(f"there are {scales.size} scales for {self.N} * {self.blocks} blocks.")
        if zeros is not None and zeros.dtype not in ("uint8", "float32"):
            raise self.unsupported(f"a zero point of {zeros.dtype}")
        count = self.N * (self.blocks if zeros is not None and zeros.dtype == "float32" else self.row_bytes)
        if zeros is not None and not equal(zeros.size, count):
            raise self.error(f"there are {zeros.size} numbers of zero points, not {count}.")


class DequantizeBlocks(_Rows):
    """The matrix (N, K) of a MatMulNBits, in float32; products read it as it is stored.

    Inputs are B (N, blocks, bytes of a block), scales (N, blocks) or flat, and optionally zero points as bytes.
    """

    domain = TRAINWEB
    without_gradient = 'training quantized weights (freeze scales or "all but head", or train adapters: lora, --lora)'
    unpacks = True

    def infer(self, packed: TensorType, scales: TensorType, zeros: TensorType | None = None) -> TensorType:
        self.check(packed, scales, zeros)
        if zeros is not None and zeros.dtype != "uint8":
            raise self.error(f"zero points are {zeros.dtype}, not uint8.")
        return TensorType("float32", (self.N, self.K))

    def lower(self, b: Builder, outs: list[Buf], packed: Buf, scales: Buf, zeros: Buf | None) -> None:
        pitch, row = self.blocks * self.block_size, self.row_bytes * 8 // self.bits
        m = Blocks(self.N, self.K, pitch, 1, self.block_size, self.blocks, 1, row, 1 << self.bits - 1)
        nibbles = "uint4" if self.bits == 4 else "uint8"
        b.emit(dequantize(m, outs[0], _as(packed, nibbles), scales, zeros and _as(zeros, nibbles)))


def _as(x: Buf, dtype: str) -> Buf:
    """The bytes of x as numbers of a dtype."""
    return Buf(x.storage, dtype, (x.nbytes * (2 if dtype in NIBBLES else 1),), None, x.shift, x.name)


class MatMulNBits(_Rows, Composite):
    """The product with a matrix of 4-bit or 8-bit numbers, each block of which has a scale and a zero point.

    A is (..., K); B packs (N, blocks, bytes of a block), low bits first; scales are (N, blocks) or flat. The matrix is
    frozen: no gradient goes to it, one goes through the product.
    """

    domain = MS
    attrs = {**_Rows.attrs, "accuracy_level": Int(0)}
    min_inputs, max_inputs = 3, 6
    differentiable = (0, 5)

    def infer(self, a: TensorType, packed: TensorType, scales: TensorType, *others: TensorType | None) -> TensorType:
        zeros, order, bias = others
        self.need_float32(a, bias)
        if order is not None:
            raise self.unsupported("g_idx")
        self.check(packed, scales, zeros)
        if not equal(a.shape[-1], self.K):
            raise self.error(f"A has rows of {a.shape[-1]}, K is {self.K}.")
        self.need_shape("the bias", bias, (self.N,))
        return TensorType("float32", (*a.shape[:-1], self.N))

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        a, packed, scales, zeros, _, bias = ins
        assert a is not None and packed is not None and scales is not None
        inputs = [packed.name, scales.name]
        if zeros is not None and zeros.dtype == "uint8":
            inputs.append(zeros.name)
        sizes = {name: getattr(self, name) for name in _Rows.attrs}
        matrix = Var(g, g.op("DequantizeBlocks", inputs, domain=TRAINWEB, **sizes), "float32")
        if zeros is not None and zeros.dtype == "float32":
            shift = ((zeros - float(1 << self.bits - 1)) * scales.reshape(*zeros.shape)).reshape(self.N, -1)
            matrix = matrix - shift.op("Gather", integers(g, [k // self.block_size for k in range(self.K)]), axis=1)
        y = a.op("MatMul", matrix.op("Transpose", perm=[1, 0]))
        return [y if bias is None else y + bias]


class GatherBlockQuantized(Op):
    """Rows of a quantized matrix, dequantized: a table of embeddings.

    Data are (rows, columns) of int4 or uint4, or of uint8, which hold two numbers of 4 bits or one of 8. Each block of
    a row has a scale and a zero point. The table is frozen: it has no gradient.
    """

    domain = MS
    attrs = {"bits": Int(4), "block_size": Int(128), "gather_axis": Int(0), "quantize_axis": Int(1)}
    takes_nibbles = True

    def infer(
        self, data: TensorType, indices: TensorType, scales: TensorType, zeros: TensorType | None = None
    ) -> TensorType:
        self.need_float32(scales)
        if self.bits not in BITS or (data.dtype in NIBBLES and self.bits != 4):
            raise self.unsupported(f"{data.dtype} of {self.bits} bits")
        if data.dtype not in (*NIBBLES, "uint8") or data.rank != 2:
            raise self.unsupported(f"data of {data.dtype} {list(data.shape)}")
        if self.axis_of(self.gather_axis, 2) != 0 or self.axis_of(self.quantize_axis, 2) != 1:
            raise self.unsupported("an order other than rows that are gathered and blocks of a row")
        if self.block_size < 1:
            raise self.error(f"block_size is {self.block_size}; it must be positive.")
        rows, columns = data.shape[0], self._columns(data)
        blocks = (columns + self.block_size - 1) // self.block_size
        self.need_shape("the input scales", scales, (rows, blocks))
        of_row = (blocks + 1) // 2 if data.dtype == "uint8" and self.bits == 4 else blocks
        if zeros is not None and (zeros.dtype != data.dtype or not equal_shapes(zeros.shape, (rows, of_row))):
            raise self.error(
                f"the zero points are {zeros.dtype} {list(zeros.shape)}, not {data.dtype} {[rows, of_row]}."
            )
        check_range(self, indices, rows)
        return TensorType("float32", (*indices.shape, columns))

    def _columns(self, data: TensorType | Buf) -> int:
        return data.shape[1] * (2 if data.dtype == "uint8" and self.bits == 4 else 1)

    def lower(self, b: Builder, outs: list[Buf], data: Buf, indices: Buf, scales: Buf, zeros: Buf | None) -> None:
        out, (rows, blocks), columns = outs[0], scales.shape, self._columns(data)
        b.check_index(indices, rows)
        dtype = data.dtype if data.dtype in NIBBLES else "uint4" if self.bits == 4 else "uint8"
        row = None if zeros is None else zeros.shape[1] * (2 if data.dtype == "uint8" and self.bits == 4 else 1)
        center = 1 << self.bits - 1 if data.dtype == "uint8" else 0
        m = Blocks(rows, columns, columns, 1, self.block_size, blocks, 1, row, center)
        b.emit(gathered(dequantize(m, out, _as(data, dtype), scales, zeros and _as(zeros, dtype)), indices, out))


def gathered(call: calls.Dequantize, indices: Buf, y: Buf) -> calls.GatherDequantized:
    """The call that makes only the rows that `indices` name."""
    matrix = {name: value for name, value in call.arguments() if name != "y"}
    return calls.GatherDequantized(**matrix, y=y, indices=indices, n=indices.size, index_size=ITEM_SIZE[indices.dtype])
