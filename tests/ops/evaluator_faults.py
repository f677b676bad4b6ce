"""Samples that ONNX's reference evaluator computes wrongly or not at all, each with the proof that it is its fault.

The proof has two parts. `quote` is the sentence of the specification, which a test looks up in the schemas of the onnx
package. `nodes` computes the sample with other operators, by these words. The evaluator runs those instead, so the
sample is still compared with numbers of other authors. If the evaluator gives results for both, it contradicts itself.
"""

from collections.abc import Sequence
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
        The opset for `nodes`; None for the sample's.
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


def _rounded_up(window: str, pads: list[int]) -> Fault:
    return Fault(
        ("LpPool", 18),
        "xi_begin the number of pixels added at the beginning of axis `i`",
        "Where windows end beyond the input it adds some of what they lack at the beginning.",
        f"""
        pads = Constant <value_ints = {pads}> ()
        wide = Pad (x0, pads)
        y0 = LpPool <{window}> (wide)
        """,
    )


FLOORED = "output_dimension = floor(input_dimension * scale)"


def _asymmetric(operator: str, opset: int, found: str, scales: str = "x1") -> Fault:
    return Fault(
        (operator, opset),
        FLOORED,
        found,
        f"""
        {"" if scales == "x1" else f"scales = Constant <value_floats = {scales}> ()"}
        y0 = Resize <coordinate_transformation_mode = "asymmetric", mode = "MODE"> (x0, , {
            "x1" if scales == "x1" else "scales"
        })
        """.replace("MODE", "linear" if scales == "x1" else "nearest").replace(
            'mode = "nearest"', 'mode = "nearest", nearest_mode = "floor"'
        ),
        opset=13,
    )


LENGTHS = (
    "Optional tensor specifying lengths of the sequences in a batch. If not specified - assumed all sequences in the "
    "batch to have length `seq_length`."
)
CLIP = (
    "Clipping bounds the elements of a tensor in the range of [-threshold, +threshold] and is applied to the input of "
    "activations."
)


def _lengths(operator: str, steps: int) -> Fault:
    """A bidirectional layer of three steps and two items, the second of which has fewer `steps`."""
    layer = f'{operator} <direction = "bidirectional">'
    return Fault(
        (operator, 14),
        LENGTHS,
        "It does not read sequence_lens: the second item runs over its padding, the reverse direction from its end.",
        f"""
        whole, padded = Split <axis = 1> (x0)
        begin = Constant <value_ints = [0]> ()
        end = Constant <value_ints = [{steps}]> ()
        short = Slice (padded, begin, end)
        y_whole = {layer} (whole, x1, x2, x3)
        y_short = {layer} (short, x1, x2, x3)
        pads = Constant <value_ints = [0, 0, 0, 0, {3 - steps}, 0, 0, 0]> ()
        y_padded = Pad (y_short, pads)
        y0 = Concat <axis = 2> (y_whole, y_padded)
        """,
    )


def _unrolled(
    operator: str,
    quote: str,
    found: str,
    steps: Sequence[int],
    gates: int,
    cell: str,
    *,
    layout: int = 0,
    bias: bool = False,
) -> Fault:
    """One direction of a recurrent layer, a step after the other in the order of `steps`.

    `cell` makes `h_T` (and `c_T`) of `row_T`, the product with W, and `h_P` (and `c_P`), the states before; `rt` is R
    transposed.
    """
    rows = ", ".join(f"part_{t}" for t in sorted(steps))
    parts = ", ".join(["state", *(f"unused_{k}" for k in range(gates - 1))])
    previous = dict(zip(steps, ("start", *map(str, steps)), strict=False))
    lines = f"""
        first = Constant <value_ints = [0]> ()
        front = Constant <value_ints = [0, 1]> ()
        one = Constant <value_float = 1.0> ()
        most = Constant <value_float = 6.0> ()
        least = Neg (most)
        w = Squeeze (x1, first)
        r = Squeeze (x2, first)
        wt = Transpose <perm = [1, 0]> (w)
        rt = Transpose <perm = [1, 0]> (r)
        x = Transpose <perm = {[1, 0, 2] if layout else [0, 1, 2]}> (x0)
        products = MatMul (x, wt)
        """
    if bias:
        lines += """
        b_w, b_r = Split <axis = 1> (x3)
        b = Add (b_w, b_r)
        inputs = Add (products, b)
        """
    else:
        lines += "inputs = Identity (products)\n"
    lines += f"{rows} = Split <axis = 0> (inputs)\n"
    lines += "\n".join(f"row_{t} = Squeeze (part_{t}, first)" for t in steps)
    lines += f"""
        {parts} = Split <axis = 1> (row_0)
        h_start = Sub (state, state)
        c_start = Sub (state, state)
        """
    for t in steps:
        lines += cell.replace("_T", f"_{t}").replace("_P", f"_{previous[t]}")
    lines += "\n".join(f"y_{t} = Unsqueeze (h_{t}, front)" for t in steps)
    lines += f"""
        y = Concat <axis = 0> ({", ".join(f"y_{t}" for t in sorted(steps))})
        y0 = Transpose <perm = {[2, 0, 1, 3] if layout else [0, 1, 2, 3]}> (y)
        """
    return Fault((operator, 14), quote, found, lines)


def _gru(update: str, new: str, bound: str) -> str:
    return f"""
        rz_T, rr_T, rh_T = Split <axis = 1> (rt)
        xz_T, xr_T, xh_T = Split <axis = 1> (row_T)
        hz_T = MatMul (h_P, rz_T)
        hr_T = MatMul (h_P, rr_T)
        sz_T = Add (xz_T, hz_T)
        sr_T = Add (xr_T, hr_T)
        bz_T = {bound.format("sz_T")}
        br_T = {bound.format("sr_T")}
        z_T = {update} (bz_T)
        reset_T = {update} (br_T)
        kept_T = Mul (reset_T, h_P)
        hh_T = MatMul (kept_T, rh_T)
        sh_T = Add (xh_T, hh_T)
        bh_T = {bound.format("sh_T")}
        new_T = {new} (bh_T)
        rest_T = Sub (one, z_T)
        fresh_T = Mul (rest_T, new_T)
        old_T = Mul (z_T, h_P)
        h_T = Add (fresh_T, old_T)
        """


def _lstm(new: str, hidden: str, bound: str, forget: str) -> str:
    return f"""
        hr_T = MatMul (h_P, rt)
        all_T = Add (row_T, hr_T)
        bound_T = {bound.format("all_T")}
        si_T, so_T, sf_T, sc_T = Split <axis = 1> (bound_T)
        i_T = Sigmoid (si_T)
        o_T = Sigmoid (so_T)
        f_T = {forget}
        n_T = {new} (sc_T)
        kept_T = Mul (f_T, c_P)
        fresh_T = Mul (i_T, n_T)
        c_T = Add (kept_T, fresh_T)
        bc_T = {bound.format("c_T")}
        out_T = {hidden} (bc_T)
        h_T = Mul (o_T, out_T)
        """


_BOUND, _FREE = "Clip ({}, least, most)", "Identity ({})"
_OVERRIDDEN = "It computes with Sigmoid and Tanh and reads neither (`# TODO: support overridden attributes.`)."


def _dequantize(inputs: str) -> Fault:
    return Fault(
        ("DequantizeLinear", 13),
        "The dequantization formula is `y = (x - x_zero_point) * x_scale`.",
        "It has the operator from opset 19 on, none of the opsets 10 and 13.",
        f"y0 = DequantizeLinear ({inputs})",
        opset=19,
    )


def _sampled(attributes: str) -> Fault:
    return Fault(
        ("GridSample", 16),
        "Three interpolation modes: bilinear (default), nearest and bicubic.",
        "It knows the names of opset 20 alone, linear and cubic, which are the same in two dimensions.",
        f"y0 = GridSample <{attributes}> (x0, x1)",
        opset=20,
    )


def _response(size: int, below: int, above: int, alpha: float, beta: float, bias: float) -> Fault:
    """Sums over `below` channels before and `above` after, by an average that counts the margins."""
    return Fault(
        ("LRN", 13),
        "where `max(0, c - floor((size - 1) / 2)) <= i <= min(C - 1, c + ceil((size - 1) / 2))`",
        "It sums for as many channels as the batch has items (`for c in range(x.shape[0])`): others are divided by "
        "bias ^ beta.",
        f"""
        squares = Mul (x0, x0)
        flat = Constant <value_ints = [2, 1, 5, 12]> ()
        image = Reshape (squares, flat)
        mean = AveragePool <kernel_shape = [{size}, 1], pads = [{below}, 0, {above}, 0], count_include_pad = 1> (image)
        shape = Shape (x0)
        back = Reshape (mean, shape)
        alpha = Constant <value_float = {alpha}> ()
        beta = Constant <value_float = {beta}> ()
        bias = Constant <value_float = {bias}> ()
        scaled = Mul (back, alpha)
        total = Add (scaled, bias)
        divisor = Pow (total, beta)
        y0 = Div (x0, divisor)
        """,
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
    "Pad-3": Fault(
        ("Pad", 13),
        "Tensor of integers indicating the number of padding elements to add or remove (if negative) at the beginning "
        "and end of each axis.",
        "It gives the numbers to `np.pad`, which refuses negative ones.",
        """
        start = Constant <value_ints = [1, 0]> ()
        end = Constant <value_ints = [3, 2]> ()
        rest = Slice (x0, start, end)
        pads = Constant <value_ints = [0, 1, 0, 0]> ()
        value = Constant <value_float = 2.5> ()
        y0 = Pad (rest, pads, value)
        """,
    ),
    "Scatter-0": Fault(
        ("Scatter", 11),
        "This operator is deprecated. Please use ScatterElements, which provides the same functionality.",
        "It has no Scatter, which opsets 9 and 10 have.",
        "y0 = ScatterElements <axis = 1> (x0, x1, x2)",
        opset=11,
    ),
    "Scatter-1": Fault(
        ("Scatter", 11),
        "This operator is deprecated. Please use ScatterElements, which provides the same functionality.",
        "It has no Scatter, which opsets 9 and 10 have.",
        "y0 = ScatterElements (x0, x1, x2)",
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
    "CumProd-1": Fault(
        ("CumProd", 26),
        "A 0-D tensor. Must be in the range [-rank(x), rank(x)-1].",
        "It is right to refuse the sample, whose axis is [1]: it is taken as 1, as that of CumSum.",
        """
        axis = Squeeze (x1)
        y0 = CumProd <exclusive = 1> (x0, axis)
        """,
    ),
    **{f"DequantizeLinear-{k}": _dequantize(inputs) for k, inputs in enumerate(("x0, x1, x2", "x0, x1", "x0, x1"))},
    "GlobalLpPool-0": Fault(
        ("GlobalLpPool", 2),
        "This is equivalent to LpPool with kernel size equal to the spatial dimension of input tensor.",
        "It does not have the operator.",
        "y0 = LpPool <kernel_shape = [4, 5], p = 2> (x0)",
    ),
    "GlobalLpPool-1": Fault(
        ("GlobalLpPool", 2),
        "This is equivalent to LpPool with kernel size equal to the spatial dimension of input tensor.",
        "It does not have the operator.",
        "y0 = LpPool <kernel_shape = [4], p = 3> (x0)",
    ),
    "GridSample-2": _sampled('mode = "linear", padding_mode = "reflection"'),
    "GridSample-5": Fault(
        ("GridSample", 20),
        "border: use border values for out-of-bound grid locations",
        "It moves the place to the border instead, and interpolates around that. PyTorch and ONNX Runtime read the "
        "border wherever a pixel around the place is out of bounds, as in this image with wide margins.",
        """
        pads = Constant <value_ints = [0, 0, 10, 10, 0, 0, 10, 10]> ()
        image = Pad <mode = "edge"> (x0, pads)
        width = Constant <value_floats = [0.13043478260869565, 0.16666666666666666]> ()
        grid = Mul (x1, width)
        y0 = GridSample <mode = "cubic", align_corners = 1> (image, grid)
        """,
        opset=20,
    ),
    "GRU-2": _lengths("GRU", 2),
    "GRU-3": _unrolled(
        "GRU",
        "A list of 2 (or 4 if bidirectional) activation functions for update, reset, and hidden gates.",
        _OVERRIDDEN,
        (0, 1, 2),
        3,
        _gru("HardSigmoid", "Softsign", _FREE),
        layout=1,
    ),
    "GRU-4": _unrolled("GRU", CLIP, "It does not clip.", (2, 1, 0), 3, _gru("Sigmoid", "Tanh", _BOUND), bias=True),
    "Hardmax-3": _rows("Hardmax"),
    "LpNormalization-1": Fault(
        ("LpNormalization", 1),
        "The output is computed as: `output = input / Lp_norm(input, axis)`.",
        "It leaves out the absolute value in the norm, which is negative or nearly 0 here.",
        """
        norm = ReduceL1 <axes = [1], keepdims = 1> (x0)
        y0 = Div (x0, norm)
        """,
    ),
    "LpPool-2": _rounded_up("kernel_shape = [3, 2], strides = [3, 2]", [0, 0, 0, 0, 0, 0, 2, 0]),
    "LpPool-3": _rounded_up("kernel_shape = [2], dilations = [2], p = 3, strides = [4]", [0, 0, 1, 0, 0, 2]),
    "LpPool-5": Fault(
        ("LpPool", 18),
        "SAME_UPPER or SAME_LOWER: output_spatial_shape[i] = ceil(input_spatial_shape[i] / strides_spatial_shape[i])",
        "It refuses ceil_mode beside auto_pad, which rounds up by itself.",
        'y0 = LpPool <kernel_shape = [3], strides = [3], auto_pad = "SAME_LOWER"> (x0)',
    ),
    "LRN-0": _response(3, 1, 1, 0.5, 0.75, 1.0),
    "LRN-1": _response(4, 1, 2, 0.5, 0.6, 2.0),
    "LSTM-2": _lengths("LSTM", 2),
    "LSTM-3": _unrolled(
        "LSTM",
        "Couple the input and forget gates if 1.",
        "It reads no input_forget.",
        (2, 1, 0),
        4,
        _lstm("Tanh", "Tanh", _FREE, "Sub (one, i_T)"),
        layout=1,
    ),
    "LSTM-4": _unrolled(
        "LSTM",
        "A list of 3 (or 6 if bidirectional) activation functions for input, output, forget, cell, and hidden.",
        _OVERRIDDEN,
        (0, 1, 2),
        4,
        _lstm("Elu", "LeakyRelu", _BOUND, "Sigmoid (sf_T)"),
    ),
    "MatMulInteger-1": Fault(
        ("MatMulInteger", 10),
        "If the input is 2D of shape [M, K] then zero point tensor may be an M element vector [zp_1, zp_2, ..., zp_M].",
        "It subtracts that vector from the rows, not from the columns.",
        """
        last = Constant <value_ints = [1]> ()
        zeros = Unsqueeze (x2, last)
        y0 = MatMulInteger (x0, x1, zeros, x3)
        """,
    ),
    "Resize-8": _asymmetric("Resize", 10, "It takes the scales for the roi of opset 11."),
    "Resize-10": Fault(
        ("Resize", 18),
        "output_dimension = floor(input_dimension * (roi_end - roi_start) * scale)",
        "It leaves the roi out of the size of the result, which is floor(5 * 0.95 * 2) by floor(4 * 0.5).",
        """
        sizes = Constant <value_ints = [9, 2]> ()
        y0 = Resize <
            mode = "nearest", coordinate_transformation_mode = "tf_crop_and_resize", axes = [1, 2]
        > (x0, x1, , sizes)
        """,
    ),
    "Upsample-1": _asymmetric("Upsample", 9, "It knows no mode linear."),
    "Upsample-2": _asymmetric("Upsample", 7, "It knows no attribute scales.", "[1.0, 1.0, 2.0]"),
    "MaxRoiPool-0": Fault(
        ("MaxRoiPool", 1),
        "ROI max pool consumes an input tensor X and region of interests (RoIs) to apply max pooling across each RoI",
        "It has no such operator. The regions are rows 1 to 4 and columns 0 to 3 of the first image, rows 0 to 5 and "
        "columns 1 to 4 of the second one.",
        """
        begin = Constant <value_ints = [0, 0, 1, 0]> ()
        end = Constant <value_ints = [1, 3, 5, 4]> ()
        one = Slice (x0, begin, end)
        begin2 = Constant <value_ints = [1, 0, 0, 1]> ()
        end2 = Constant <value_ints = [2, 3, 6, 5]> ()
        other = Slice (x0, begin2, end2)
        upper = MaxPool <kernel_shape = [4, 2], strides = [4, 2]> (one)
        lower = MaxPool <kernel_shape = [6, 2], strides = [6, 2]> (other)
        y0 = Concat <axis = 0> (upper, lower)
        """,
    ),
    "MaxRoiPool-1": Fault(
        ("MaxRoiPool", 1),
        "Multiplicative spatial scale factor to translate ROI coordinates from their input scale to the scale used "
        "when pooling.",
        "It has no such operator. The region is rows and columns 3 to 9, of which the first bin has 3 to 6 and the "
        "image the last row and column.",
        """
        begin = Constant <value_ints = [0, 0, 3, 3]> ()
        end = Constant <value_ints = [1, 2, 4, 4]> ()
        corner = Slice (x0, begin, end)
        pads = Constant <value_ints = [0, 0, 0, 0, 0, 0, 1, 1]> ()
        y0 = Pad (corner, pads)
        """,
    ),
    "RoiAlign-2": Fault(
        ("RoiAlign", 16),
        "'output_half_pixel' to omit the pixel shift for the input (use this for a backward-compatible behavior)",
        "It shifts by half a pixel, as from opset 16 on, whatever the opset.",
        'y0 = RoiAlign <coordinate_transformation_mode = "output_half_pixel", sampling_ratio = 1> (x0, x1, x2)',
        opset=16,
    ),
    "RoiAlign-4": Fault(
        ("RoiAlign", 16),
        "'output_half_pixel' to omit the pixel shift for the input (use this for a backward-compatible behavior)",
        "It shifts by half a pixel, as from opset 16 on, whatever the opset.",
        'y0 = RoiAlign <coordinate_transformation_mode = "output_half_pixel", output_width = 2> (x0, x1, x2)',
        opset=16,
    ),
    "RoiAlign-8": Fault(
        ("RoiAlign", 16),
        "'output_half_pixel' to omit the pixel shift for the input (use this for a backward-compatible behavior)",
        "It shifts by half a pixel, as from opset 16 on, whatever the opset.",
        """
        y0 = RoiAlign <coordinate_transformation_mode = "output_half_pixel", mode = "max", output_height = 2,
            output_width = 3> (x0, x1, x2)
        """,
        opset=16,
    ),
    "RNN-1": _lengths("RNN", 1),
    "RNN-4": _unrolled(
        "RNN",
        "The activation function must be one of the activation functions specified above.",
        "It has Tanh and Affine alone.",
        (0, 1, 2),
        1,
        """
        five_T = Constant <value_float = 5.0> ()
        lowest_T = Neg (five_T)
        hr_T = MatMul (h_P, rt)
        all_T = Add (row_T, hr_T)
        bound_T = Clip (all_T, lowest_T, five_T)
        h_T = Tanh (bound_T)
        """,
    ),
}
"""By the name of the sample (`str(Case)`)."""
