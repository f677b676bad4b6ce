"""Samples that ONNX's reference evaluator computes wrongly or not at all, each with the proof that it is its fault.

The proof is what the specification says (`quote`, which a test looks up in the schemas of the onnx package) and the
sample in other operators that, by these words, compute the same (`nodes`). The evaluator runs those instead: the sample
is still compared with numbers of other authors, and where the evaluator gives results for both it contradicts itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Why a sample is not run as it is, and what is run in its place.

    Attributes
    ----------
    schema
        Operator and opset of the schema that holds `quote`.
    quote
        What the specification says.
    found
        What the evaluator does.
    nodes
        Nodes in ONNX's textual syntax that compute `y0`, `y1` ... from the sample's inputs `x0`, `x1` ...
    opset
        The opset for `nodes`; None for that of the sample.
    """

    schema: tuple[str, int]
    quote: str
    found: str
    nodes: str
    opset: int | None = None


def _rows(operator: str) -> Fault:
    return Fault(
        (operator, 11),
        "the axis provided, then input will be coerced into a 2-dimensional tensor with dimensions "
        "[a_0 * ... * a_{k-1}, a_k * ... * a_{n-1}]",
        "It normalises along the one axis, as from opset 13 on, whatever the opset.",
        f"""
        shape = Shape (x0)
        flat = Flatten <axis = 1> (x0)
        rows = {operator} <axis = 1> (flat)
        y0 = Reshape (rows, shape)
        """,
        opset=13,
    )


FAULTS: dict[str, Fault] = {
    "Softmax-2": _rows("Softmax"),
    "LogSoftmax-2": _rows("LogSoftmax"),
    "GlobalMaxPool-1": Fault(
        ("GlobalMaxPool", 1),
        "The output tensor has the same rank as the input. The first two dimensions of output shape are the same as "
        "the input (N x C), while the other dimensions are all 1.",
        "With one spatial axis its result has the shape [N, 1]: it takes the axes from rank - 2 on, not from 2 on.",
        "y0 = ReduceMax <axes = [2], keepdims = 1> (x0)",
    ),
    "MaxPool-9": Fault(
        ("MaxPool", 12),
        "The indices are computed as flatten 1-D tensor, and the indices do not consider padding. So the values in "
        "indices are in [0, N x C x D1 x ... x Dn).",
        "Where all strides are 1 it takes the place in the window apart with the shape of the output "
        "(`_get_indices(arg, out_shape)` in _op_common_pool.py) and counts from 0 in each plane again: X at Indices is "
        "not Y.",
        # The four elements of each window beside one another, and their places in the flat tensor.
        """
        zero = Constant <value_int = 0> ()
        size = Constant <value_int = 216> ()
        one = Constant <value_int = 1> ()
        shape = Shape (x0)
        flat = Range (zero, size, one)
        places = Reshape (flat, shape)
        axes = Constant <value_ints = [2, 3]> ()
        last = Constant <value_ints = [-1]> ()
        b00 = Constant <value_ints = [0, 0]> ()
        e00 = Constant <value_ints = [5, 5]> ()
        b01 = Constant <value_ints = [0, 1]> ()
        e01 = Constant <value_ints = [5, 6]> ()
        b10 = Constant <value_ints = [1, 0]> ()
        e10 = Constant <value_ints = [6, 5]> ()
        b11 = Constant <value_ints = [1, 1]> ()
        e11 = Constant <value_ints = [6, 6]> ()
        v00 = Slice (x0, b00, e00, axes)
        v01 = Slice (x0, b01, e01, axes)
        v10 = Slice (x0, b10, e10, axes)
        v11 = Slice (x0, b11, e11, axes)
        p00 = Slice (places, b00, e00, axes)
        p01 = Slice (places, b01, e01, axes)
        p10 = Slice (places, b10, e10, axes)
        p11 = Slice (places, b11, e11, axes)
        u00 = Unsqueeze (v00, last)
        u01 = Unsqueeze (v01, last)
        u10 = Unsqueeze (v10, last)
        u11 = Unsqueeze (v11, last)
        q00 = Unsqueeze (p00, last)
        q01 = Unsqueeze (p01, last)
        q10 = Unsqueeze (p10, last)
        q11 = Unsqueeze (p11, last)
        window = Concat <axis = -1> (u00, u01, u10, u11)
        indices = Concat <axis = -1> (q00, q01, q10, q11)
        largest = ArgMax <axis = -1, keepdims = 1> (window)
        y = GatherElements <axis = 4> (window, largest)
        i = GatherElements <axis = 4> (indices, largest)
        y0 = Squeeze (y, last)
        y1 = Squeeze (i, last)
        """,
    ),
    "ConvTranspose-2": Fault(
        ("ConvTranspose", 11),
        "has size (C x M/group x kH x kW), where C is the number of channels",
        "With several groups it cuts the weights by output channels (`group_W = W[group_id * num_output_channels // "
        "group ...`), though their first axis are the input channels, and fails in a reshape; each result goes to one "
        "channel, and the bias is not cut at all.",
        """
        x_parts_a, x_parts_b = Split <axis = 1> (x0)
        w_parts_a, w_parts_b = Split <axis = 0> (x1)
        b_parts_a, b_parts_b = Split <axis = 0> (x2)
        y_a = ConvTranspose <dilations = [2, 1], pads = [0, 1, 2, 0]> (x_parts_a, w_parts_a, b_parts_a)
        y_b = ConvTranspose <dilations = [2, 1], pads = [0, 1, 2, 0]> (x_parts_b, w_parts_b, b_parts_b)
        y0 = Concat <axis = 1> (y_a, y_b)
        """,
    ),
    "CumSum-4": Fault(
        ("CumSum", 14),
        "A 0-D tensor. Must be in the range [-rank(x), rank(x)-1].",
        "It is right to refuse the sample, whose axis is [1]: models of several exporters have it so, and ONNX Runtime "
        "takes it as 1 (cumsum.cc, `GetAxis`), as we do.",
        """
        axis = Squeeze (x1)
        y0 = CumSum (x0, axis)
        """,
    ),
    "OneHot-1": Fault(
        ("OneHot", 11),
        "Scalar or Rank 1 tensor containing exactly one element, specifying the number of classes in one-hot tensor.",
        "It gives a depth of rank 1 to `np.arange`, which takes scalars only.",
        """
        depth = Squeeze (x1)
        y0 = OneHot <axis = 1> (x0, depth, x2)
        """,
    ),
    "OneHot-3": Fault(
        ("OneHot", 11),
        "The data type for the elements of the output tensor is the same as the type of input 'values' is used.",
        "It computes with `on_value - off_value`, which numpy does not define for bool, one of the types allowed.",
        """
        values = Cast <to = 7> (x2)
        y = OneHot <axis = 0> (x0, x1, values)
        y0 = Cast <to = 9> (y)
        """,
    ),
    "Pad-1": Fault(
        ("Pad", 13),
        "Tensor of integers indicating the number of padding elements to add or remove (if negative) at the beginning "
        "and end of each axis.",
        "It gives the numbers to `np.pad`, which refuses negative ones.",
        """
        start = Constant <value_ints = [1, 0]> ()
        end = Constant <value_ints = [3, 2]> ()
        rest = Slice (x0, start, end)
        pads = Constant <value_ints = [0, 1, 0, 0]> ()
        y0 = Pad (rest, pads)
        """,
    ),
    "Scatter-0": Fault(
        ("Scatter", 11),
        "This operator is deprecated. Please use ScatterElements, which provides the same functionality.",
        "It has no Scatter, which opsets 9 and 10 have.",
        "y0 = ScatterElements <axis = 1> (x0, x1, x2)",
        opset=11,
    ),
    "SimplifiedLayerNormalization-0": Fault(
        ("RMSNormalization", 23),
        "XSquared = Mul(X, X) XSquaredMean = ReduceMean<axes=normalized_axes>(XSquared) MeanSquareEpsilon = "
        "Add(XSquaredMean, epsilon) RMS = Sqrt(MeanSquareEpsilon) Normalized = Div(X, RMS)",
        "It does not know the operator, which is ONNX Runtime's, in the domain ai.onnx all the same; opset 23 of ONNX "
        "took it up under another name.",
        "y0 = RMSNormalization <axis = -1, epsilon = 1e-5> (x0, x1)",
        opset=23,
    ),
    "Softsign-2": Fault(
        ("Softsign", 1),
        "The softsign (x/(1+|x|)) values of the input tensor computed element-wise",
        "Its `np.abs` of an array of rank 0 is a scalar, which it then uses as an array to write to (`out=tmp`).",
        """
        magnitude = Abs (x0)
        one = Constant <value_float = 1.0> ()
        below = Add (one, magnitude)
        y0 = Div (x0, below)
        """,
    ),
}
"""By the name of the sample (`str(Case)`)."""
