"""Numbers of fewer bits, unpacked where they are read (wasm_kernels/unpack.c): dequantization, lookups and products."""

from __future__ import annotations

from trainweb.backend.webgpu.shader import Kernel, NoKernelError
from trainweb.backend.webgpu.templates.products import Side, matrix_product
from trainweb.backend.webgpu.templates.tiles import Read
from trainweb.backend.webgpu.templates.tools import wrapped_index
from trainweb.ir import calls
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import PACKED_4, PACKED_8, PACKED_16, PACKED_32, PACKED_BFLOAT, PACKED_HALF

Packed = calls.Dequantize | calls.GatherDequantized | calls.GemmQuantized | calls.HeadLossQuantized
BITS = {PACKED_4: 4, PACKED_8: 8, PACKED_16: 16, PACKED_32: 32, PACKED_HALF: 16, PACKED_BFLOAT: 16}


def _bits(k: Kernel, name: str, b: Buf, bits: int) -> str:
    """Declare the function that reads a number's bits, by its place."""
    x, per = k.operand(name, b, is_raw=True), 32 // bits
    word = f"({x.word(f'at / {per}u')} >> ({bits}u * (at % {per}u))) & {(1 << bits) - 1}u"
    k.declare(f"fn bits_of_{name}(at: u32) -> u32 {{ return {word}; }}")
    return f"bits_of_{name}"


def read_packed(k: Kernel, call: Packed, b: Buf, name: str) -> Read:
    """Declare the element of a packed matrix at a row and a column, as float32."""
    if call.packing not in BITS:
        raise NoKernelError(f"the packing {call.packing}")
    function = _bits(k, name, b, BITS[call.packing])
    pitch = k.count(f"{name}_pitch", call.pitch)
    bits = f"{function}(row * {pitch} + column)"
    if call.packing == PACKED_HALF:
        result = f"unpack2x16float({bits}).x"
    elif call.packing == PACKED_BFLOAT:
        result = f"bitcast<f32>({bits} << 16u)"
    else:
        result = _scaled(k, call, name, bits)
    k.declare(f"fn element_of_{name}(row: u32, column: u32) -> f32 {{ return {result}; }}")
    return lambda row, column: f"element_of_{name}({row}, {column})"


def _scaled(k: Kernel, call: Packed, name: str, bits: str) -> str:
    """((x ^ flip) - (zero ^ flip)) * scale; elements of a block share scale and zero point."""
    flip = k.count(f"{name}_flip", call.flip)
    row, column = (
        f"(row / {k.count(f'{name}_rows', call.block_rows)})",
        f"(column / {k.count(f'{name}_columns', call.block_cols)})",
    )

    def place(of: str, strides: tuple[int, int]) -> str:
        down, right = (k.count(f"{name}_{of}{n}", step) for n, step in enumerate(strides))
        return f"{row} * {down} + {column} * {right}"

    zero = k.signed(f"{name}_center", call.center)
    if call.zero is not None:
        zeros = _bits(k, f"{name}_zeros", call.zero, BITS[call.packing])
        zero = f"bitcast<i32>({zeros}({place('zero', (call.zero_row, call.zero_col))}) ^ {flip})"
    value = f"f32(bitcast<i32>({bits} ^ {flip}) - {zero})"
    if call.scale is None:
        return value
    scale = k.operand(f"{name}_scales", call.scale)
    return f"{value} * {scale.load(place('scale', (call.scale_row, call.scale_col)))}"


def dequantize(call: calls.Dequantize) -> list[Kernel]:
    """A packed matrix as float32."""
    k = Kernel("dequantize")
    read, y, columns = read_packed(k, call, call.x, "x"), k.operand("y", call.y), k.count("width", call.cols)
    k.elements(call.rows * call.cols)
    k.add(y.store("i", read(f"i / {columns}", f"i % {columns}")))
    return [k]


def gather_dequantized(call: calls.GatherDequantized) -> list[Kernel]:
    """Rows of a packed matrix by their indices."""
    k = Kernel("gather_dequantized")
    read, y, columns = read_packed(k, call, call.x, "x"), k.operand("y", call.y), k.count("width", call.cols)
    indices = k.operand("indices", call.indices)
    k.elements(call.n * call.cols)
    k.add(*wrapped_index(indices, f"i / {columns}", k.count("dim", call.rows)))
    k.add(y.store("i", read("u32(index)", f"i % {columns}")))
    return [k]


def gemm_quantized(call: calls.GemmQuantized) -> list[Kernel]:
    """A product whose right operand is packed, and transposed if `turned`."""

    def packed(k: Kernel) -> Side:
        read = read_packed(k, call, call.w, "w")
        return Side(lambda at: [], lambda at: read(at, "step") if call.turned else read("step", at))

    return matrix_product(call, packed)
