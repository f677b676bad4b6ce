"""Numbers of fewer bits, unpacked where they are read (wasm_kernels/unpack.c): dequantization, lookups and products."""

from __future__ import annotations

from trainweb.backend.webgpu.shader import Kernel, NoKernelError, template
from trainweb.backend.webgpu.templates.products import Offsets, Side, matrix_product
from trainweb.backend.webgpu.templates.tiles import Read
from trainweb.backend.webgpu.templates.tools import wrapped_index
from trainweb.ir import calls
from trainweb.ir.layout import PACKED_4, PACKED_8, PACKED_16, PACKED_32, PACKED_BFLOAT, PACKED_HALF

BITS = {PACKED_4: 4, PACKED_8: 8, PACKED_16: 16, PACKED_32: 32, PACKED_HALF: 16, PACKED_BFLOAT: 16}


def _bits(k: Kernel, name: str) -> str:
    """Declare the function that reads a number's bits, by its place."""
    bits, x = BITS[k.call.packing], k.operand(name, is_raw=True)
    word = f"({x.word(f'at / {32 // bits}u')} >> ({bits}u * (at % {32 // bits}u))) & {(1 << bits) - 1}u"
    k.declare(f"fn bits_of_{name}(at: u32) -> u32 {{ return {word}; }}")
    return f"bits_of_{name}"


def read_packed(k: Kernel, name: str) -> Read:
    """Declare the element of a packed matrix at a row and a column, as float32."""
    packing = k.call.packing
    if packing not in BITS:
        raise NoKernelError(f"the packing {packing}")
    bits = f"{_bits(k, name)}(row * u.pitch + column)"
    if packing == PACKED_HALF:
        result = f"unpack2x16float({bits}).x"
    elif packing == PACKED_BFLOAT:
        result = f"bitcast<f32>({bits} << 16u)"
    else:
        # ((x ^ flip) - (zero ^ flip)) * scale: elements of a block share scale and zero point.
        place = "row / u.block_rows * u.{0}_row + column / u.block_cols * u.{0}_col".format
        center = "u.center"
        if k.call.zero is not None:
            center = f"bitcast<i32>({_bits(k, 'zero')}({place('zero')}) ^ u.flip)"
        result = f"f32(bitcast<i32>({bits} ^ u.flip) - {center}){k.if_given('scale', ' * {}', place('scale'))}"
    k.declare(f"fn element_of_{name}(row: u32, column: u32) -> f32 {{ return {result}; }}")
    return lambda row, column: f"element_of_{name}({row}, {column})"


@template(calls.Dequantize)
def dequantize(k: Kernel, call: calls.Dequantize) -> None:
    """A packed matrix as float32."""
    k.elements(row="rows", column="cols")
    k.add(k.operand("y").store("i", read_packed(k, "x")("row", "column")))


@template(calls.GatherDequantized)
def gather_dequantized(k: Kernel, call: calls.GatherDequantized) -> None:
    """Rows of a packed matrix by their indices."""
    k.elements(row="n", column="cols")
    k.add(*wrapped_index(k.operand("indices"), "row", "u.rows"))
    k.add(k.operand("y").store("i", read_packed(k, "x")("u32(index)", "column")))


@template(calls.GemmQuantized)
def gemm_quantized(k: Kernel, call: calls.GemmQuantized) -> None:
    """A product whose right operand is packed, and transposed if `turned`."""
    read = read_packed(k, "w")

    def load(offsets: Offsets) -> str:
        column, step = f"column + {offsets['column']}u", f"k + {offsets['k']}u"
        return read(column, step) if call.turned else read(step, column)

    matrix_product(k, Side(lambda _: [], {}, load, bool(call.turned)))
