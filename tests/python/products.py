"""Products of matrices, for tests that write programs by hand."""

from trainweb.ir import calls
from trainweb.ir.instructions import Buf


def product(
    a: Buf,
    b: Buf,
    c: Buf,
    sizes: tuple[int, int, int],
    *,
    bias: Buf | None = None,
    turned: tuple[bool, bool] = (False, False),
    beta: float = 1.0,
) -> calls.Gemm:
    """c[m, n] = a[m, k] b[k, n] + beta * bias[n]; sizes: (m, n, k); what is turned is stored transposed."""
    m, n, k = sizes
    return calls.Gemm(
        a=a,
        b=b,
        bias=bias,
        c=c,
        m=m,
        n=n,
        k=k,
        a_row=1 if turned[0] else k,
        a_col=m if turned[0] else 1,
        b_row=1 if turned[1] else n,
        b_col=k if turned[1] else 1,
        c_row=n,
        bias_row=0,
        bias_col=int(bias is not None),
        batch=(1, 1),
        a_batch=(0, 0),
        b_batch=(0, 0),
        c_batch=(0, 0),
        bias_batch=(0, 0),
        alpha=1.0,
        beta=beta,
        accumulate=0,
        activation=0,
        clears=0,
    )
