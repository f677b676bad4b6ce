"""Calls of gemm. Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead."""

from __future__ import annotations

from math import prod

from trainweb.ir.instructions import Buf, KernelCall


class Gemm(KernelCall):
    """A call of `gemm_f32`.

    c[i,j][m,n] = activation(alpha * sum_k a[i,j](m,k) b[i,j](k,n) + beta * bias(m,n) + (accumulate ? c : 0)); strides
    in elements, so a transposed operand has its strides swapped; batch strides may be 0 (broadcast).
    """

    __slots__ = (
        "a",
        "b",
        "bias",
        "c",
        "m",
        "n",
        "k",
        "a_row",
        "a_col",
        "b_row",
        "b_col",
        "c_row",
        "bias_row",
        "bias_col",
        "batch",
        "a_batch",
        "b_batch",
        "c_batch",
        "bias_batch",
        "alpha",
        "beta",
        "accumulate",
        "activation",
    )
    KERNEL = "gemm_f32"
    OPCODE = 62
    WORDS = 28
    ARGUMENTS = __slots__
    OPERANDS = ("a", "b", "bias", "c")
    FLOATS = ("alpha", "beta")
    ACCUMULATED = ("c",)
    PARTS = ("c",)

    def __init__(
        self,
        *,
        a: Buf,
        b: Buf,
        bias: Buf | None = None,
        c: Buf,
        m: int,
        n: int,
        k: int,
        a_row: int,
        a_col: int,
        b_row: int,
        b_col: int,
        c_row: int,
        bias_row: int,
        bias_col: int,
        batch: tuple[int, ...],
        a_batch: tuple[int, ...],
        b_batch: tuple[int, ...],
        c_batch: tuple[int, ...],
        bias_batch: tuple[int, ...],
        alpha: float,
        beta: float,
        accumulate: int,
        activation: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.a = a
        self.b = b
        self.bias = bias
        self.c = c
        self.m = m
        self.n = n
        self.k = k
        self.a_row = a_row
        self.a_col = a_col
        self.b_row = b_row
        self.b_col = b_col
        self.c_row = c_row
        self.bias_row = bias_row
        self.bias_col = bias_col
        self.batch = batch
        self.a_batch = a_batch
        self.b_batch = b_batch
        self.c_batch = c_batch
        self.bias_batch = bias_batch
        self.alpha = alpha
        self.beta = beta
        self.accumulate = accumulate
        self.activation = activation

    @property
    def reads(self) -> list[Buf]:
        found = [self.a, self.b]
        if self.bias is not None:
            found.append(self.bias)
        if self.accumulate:
            found.append(self.c)
        return found

    @property
    def writes(self) -> list[Buf]:
        return [self.c]

    @property
    def result(self) -> Buf:
        return self.c

    @result.setter
    def result(self, b: Buf) -> None:
        self.c = b

    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * prod(self.batch)


class GemmInt(KernelCall):
    """A call of `gemm_int`.

    c [batch, m, n] = the products of matrices of integers of 4 or 8 bytes, which wrap; strides as in gemm_f32
    """

    __slots__ = (
        "a",
        "b",
        "c",
        "m",
        "n",
        "k",
        "a_row",
        "a_col",
        "b_row",
        "b_col",
        "batch",
        "a_batch",
        "b_batch",
        "size",
    )
    KERNEL = "gemm_int"
    OPCODE = 63
    WORDS = 17
    ARGUMENTS = __slots__
    OPERANDS = ("a", "b", "c")

    def __init__(
        self,
        *,
        a: Buf,
        b: Buf,
        c: Buf,
        m: int,
        n: int,
        k: int,
        a_row: int,
        a_col: int,
        b_row: int,
        b_col: int,
        batch: tuple[int, ...],
        a_batch: tuple[int, ...],
        b_batch: tuple[int, ...],
        size: int,
        node: str = "",
    ) -> None:
        self.node = node
        self.a = a
        self.b = b
        self.c = c
        self.m = m
        self.n = n
        self.k = k
        self.a_row = a_row
        self.a_col = a_col
        self.b_row = b_row
        self.b_col = b_col
        self.batch = batch
        self.a_batch = a_batch
        self.b_batch = b_batch
        self.size = size

    @property
    def reads(self) -> list[Buf]:
        return [self.a, self.b]

    @property
    def writes(self) -> list[Buf]:
        return [self.c]

    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * prod(self.batch)
