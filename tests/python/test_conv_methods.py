"""Which kernel a convolution goes to, and that an operator gives the sums of the definition by each."""

from typing import Any

import numpy as np
import pytest
from tests.ops.op_runner import run
from tests.python.test_compiler_passes import plan_of
from tests.python.test_kernels_conv import CASES, Conv, conv2d, data_gradient, forward, weight_gradient

from trainweb.model.graph import Graph, Node, Value

METHODS: dict[str, tuple[Conv, tuple[str, str, str]]] = {
    "few positions": (
        conv2d(2, 64, 64, 3, 3, 3, 1, s=2),
        ("columns_conv_f32", "columns_data_gradient_f32", "columns_weight_gradient_f32"),
    ),
    "few positions of one tile": (
        conv2d(1, 64, 64, 4, 4, 3, 1),
        ("winograd_conv_f32", "winograd_conv_f32", "columns_weight_gradient_f32"),
    ),
    "many positions": (
        conv2d(40, 64, 64, 4, 4, 3, 1),
        ("winograd_conv_f32", "winograd_conv_f32", "winograd_weight_gradient_f32"),
    ),
    "more outputs than inputs": (
        conv2d(40, 8, 24, 4, 4, 3, 1),
        ("winograd_conv_f32", "winograd_conv_f32", "winograd_weight_gradient_f32"),
    ),
    "few weights": (
        CASES["3x3_tiny_plane"],
        ("conv_f32", "conv_data_gradient_f32", "conv_weight_gradient_f32"),
    ),
    "pointwise": (conv2d(3, 192, 192, 3, 4, 1), ("gemm_f32", "gemm_f32", "columns_weight_gradient_f32")),
}


@pytest.mark.parametrize("name", METHODS)
def test_each_convolution_goes_where_it_pays(name: str) -> None:
    conv, kernels = METHODS[name]
    rng = np.random.default_rng(7)
    x, w, dy = (
        rng.standard_normal((*shape[:2], *shape[3:])).astype(np.float32)
        for shape in (conv.x_shape, conv.w_shape, conv.y_shape)
    )
    attrs: dict[str, Any] = {"pads": [*conv.pad[1:], *conv.pad[1:]], "strides": list(conv.stride[1:])}
    nodes = [
        Node("Conv", ["x", "w"], ["y"], attrs),
        Node("ConvGrad", ["dy", "x", "w"], ["dx", "dw"], attrs, "com.microsoft"),
    ]
    feeds = {"x": x, "w": w, "dy": dy}
    graph = Graph("conv", nodes, [Value(n, "float32", a.shape) for n, a in feeds.items()])
    graph.opsets = {"": 17, "com.microsoft": 1}
    graph.outputs = [Value(n, "float32", None) for n in ("y", "dx", "dw")]
    called = [line.split("(")[0] for line in plan_of(graph, **feeds).text]
    assert [k for k in called if k != "winograd_weights_f32"] == list(kernels)
    got = run(graph, feeds)
    wide = {n: a[:, :, None] for n, a in feeds.items()}
    want = {
        "y": forward(conv, wide["x"], wide["w"]),
        "dx": data_gradient(conv, wide["dy"], wide["w"]),
        "dw": weight_gradient(conv, wide["x"], wide["dy"]),
    }
    for output, value in want.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(got[output], value[:, :, 0], rtol=0, atol=2e-5 * scale, err_msg=output)
