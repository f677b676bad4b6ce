"""Shape inference over symbolic dimensions."""

from typing import Any

import pytest

from trainweb.errors import ModelError, UnsupportedError
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.ops.frame.shapes import ShapeInference, infer_shapes


def graph_of(
    nodes: list[Node],
    inputs: dict[str, Any],
    constants: dict[str, list[int]] | None = None,
    **outputs: Any,
) -> Graph:
    tensors = {n: Tensor.of(n, "int64", (len(v),), v) for n, v in (constants or {}).items()}
    return Graph(
        "test",
        nodes,
        [Value(n, "float32", s) for n, s in inputs.items()],
        [Value(n, "float32", s) for n, s in outputs.items()],
        tensors,
        opsets={"": 17},
    )


def shapes(graph: Graph) -> dict[str, Any]:
    return {name: value.shape for name, value in infer_shapes(graph).items()}


def test_symbols_travel_and_static_sizes_stay() -> None:
    found = shapes(
        graph_of(
            [
                Node("MatMul", ["x", "w"], ["h"]),
                Node("Transpose", ["h"], ["t"], {"perm": [1, 0]}),
                Node("Shape", ["t"], ["s"]),
            ],
            {"x": ("batch", 5), "w": (5, 3)},
        )
    )
    assert found == {
        "x": ("batch", 5),
        "w": (5, 3),
        "h": ("batch", 3),
        "t": (3, "batch"),
        "s": (2,),
    }


def test_computed_sizes_are_expressions_of_symbols() -> None:
    found = shapes(
        graph_of(
            [
                Node("Concat", ["x", "x"], ["twice"], {"axis": 0}),
                Node("Reshape", ["x", "flat"], ["rows"]),
                Node("Reshape", ["x", "keep"], ["kept"]),
            ],
            {"x": ("n", "k", 4)},
            {"flat": [-1, 4], "keep": [0, 0, 2, 2]},
        )
    )
    assert found["twice"] == ("2*n", "k", 4)
    assert found["rows"] == ("k*n", 4)
    assert found["kept"] == ("n", "k", 2, 2)


def test_shape_arithmetic_finds_symbols_again() -> None:
    graph = graph_of(
        [
            Node("Shape", ["x"], ["shape"]),
            Node("Gather", ["shape", "first"], ["n"], {"axis": 0}),
            Node("Concat", ["n", "rest"], ["target"], {"axis": 0}),
            Node("Reshape", ["x", "target"], ["y"]),
        ],
        {"x": ("n", 2, 3)},
        {"first": [0], "rest": [6]},
    )
    assert shapes(graph)["y"] == ("n", 6)


def test_unnamed_dimensions_have_no_symbol() -> None:
    found = shapes(graph_of([Node("Abs", ["x"], ["y"])], {"x": (None, 3)}))
    assert found["y"] == (None, 3)


def test_a_minimum_is_not_taken_for_a_constant() -> None:
    graph = graph_of([Node("Slice", ["x", "start", "end"], ["y"])], {"x": ("n", 3)}, {"start": [0], "end": [40]})
    assert shapes(graph)["y"] == ("min(n, 40)", 3)


def test_differently_named_dimensions_that_broadcast_are_not_taken_for_equal() -> None:
    found = shapes(graph_of([Node("Add", ["x", "y"], ["z"])], {"x": ("a", 3), "y": ("b", 3)}))
    assert found == {"x": ("a", 3), "y": ("b", 3), "z": ("max(a, b)", 3)}


def test_differently_named_dimensions_that_must_be_equal_are() -> None:
    found = shapes(graph_of([Node("MatMul", ["x", "y"], ["z"])], {"x": ("a", "k"), "y": ("b", 3)}))
    assert found == {"x": ("a", "k"), "y": ("k", 3), "z": ("a", 3)}


def test_a_weight_refines_the_declaration_of_the_input() -> None:
    found = shapes(graph_of([Node("MatMul", ["x", "w"], ["y"])], {"x": ("batch", "n"), "w": (4, 3)}))
    assert found["x"] == ("batch", 4)


def test_repeated_halving_needs_sizes_that_can_be_halved() -> None:
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [Node("AveragePool", ["x"], ["p"], pool)]
    nodes += [Node("AveragePool", ["p"], ["q"], pool)]
    nodes += [Node("Reshape", ["q", "fold"], ["f"]), Node("Reshape", ["x", "unfold"], ["g"])]
    nodes += [Node("Add", ["f", "g"], ["z"])]
    graph = graph_of(nodes, {"x": ("n", 1, "h", "h")}, {"fold": [1, -1, 1], "unfold": [1, -1, 16]})
    assert shapes(graph)["z"] == (1, "max((h*h*n)//16, (h//4)*(h//4)*n)", 16)


def test_a_net_that_halves_and_doubles_needs_multiples() -> None:
    strides = {"strides": [2, 2]}
    nodes = [
        Node("Conv", ["x", "w"], ["half"], {**strides, "pads": [1, 1, 1, 1]}),
        Node("Conv", ["half", "v"], ["quarter"], {**strides, "pads": [1, 1, 1, 1]}),
        Node("ConvTranspose", ["quarter", "t"], ["up"], strides),
        Node("Concat", ["up", "half"], ["joined"], {"axis": 1}),
        Node("ConvTranspose", ["joined", "u"], ["top"], strides),
        Node("Concat", ["top", "x"], ["y"], {"axis": 1}),
    ]
    weights = {"w": (8, 3, 3, 3), "v": (8, 8, 3, 3), "t": (8, 8, 2, 2), "u": (16, 8, 2, 2)}
    found = shapes(graph_of(nodes, {"x": ("n", 3, "h", 32), **weights}))
    assert found["x"] == ("n", 3, "h", 32)
    assert found["half"] == ("n", 8, "h//2", 16) and found["quarter"] == ("n", 8, "h//4", 8)
    assert found["y"] == ("n", 11, "h", 32)


def test_a_baked_batch_size_is_found() -> None:
    graph = graph_of([Node("Reshape", ["x", "shape"], ["y"])], {"x": ("n", 6)}, {"shape": [8, 2, 3]})
    assert shapes(graph)["y"] == (8, 2, 3) and shapes(graph)["x"] == (8, 6)


def test_heads_by_shape_arithmetic() -> None:
    nodes = [
        Node("Shape", ["x"], ["shape"]),
        *(Node("Gather", ["shape", k], [f"dim_{k}"]) for k in ("zero", "one", "two")),
        Node("Div", ["dim_two", "eight"], ["heads"]),
        Node("Concat", ["dim_zero", "dim_one", "heads", "eight"], ["split"], {"axis": 0}),
        Node("Reshape", ["x", "split"], ["parts"]),
        Node("Transpose", ["parts"], ["q"], {"perm": [0, 2, 1, 3]}),
        Node("Transpose", ["parts"], ["k"], {"perm": [0, 2, 3, 1]}),
        Node("MatMul", ["q", "k"], ["scores"]),
        Node("MatMul", ["scores", "q"], ["context"]),
        Node("Transpose", ["context"], ["rows"], {"perm": [0, 2, 1, 3]}),
        Node("Reshape", ["rows", "shape"], ["joined"]),
        Node("Add", ["joined", "x"], ["y"]),
    ]
    graph = graph_of(nodes, {"x": ("batch", "seq", "width")}, {"zero": [0], "one": [1], "two": [2], "eight": [8]})
    found = shapes(graph)
    assert found["q"] == ("batch", "width//8", "seq", 8)
    assert found["scores"] == ("batch", "width//8", "seq", "seq")
    assert found["y"] == ("batch", "seq", "width")
    fixed = graph.copy()
    fixed.inputs = [Value("x", "float32", ("batch", "seq", 32))]
    assert shapes(fixed)["parts"] == ("batch", "seq", 4, 8)


def test_reshapes_that_copy_and_infer() -> None:
    graph = graph_of([Node("Reshape", ["x", "s"], ["y"])], {"x": ("batch", "n")}, {"s": [0, -1, 4]})
    assert shapes(graph)["y"] == ("batch", "n//4", 4)


def test_flattened_images_of_unknown_size() -> None:
    nodes = [
        Node("Conv", ["x", "w"], ["c"], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        Node("MaxPool", ["c"], ["p"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Node("Flatten", ["p"], ["f"]),
        Node("MatMul", ["f", "v"], ["y"]),
    ]
    found = shapes(graph_of(nodes, {"x": ("n", 3, "h", 32), "w": (8, 3, 3, 3), "v": (8 * 4 * 8, 10)}))
    assert found["c"] == ("n", 8, "(h + 1)//2", 16)
    assert found["p"] == ("n", 8, 4, 8) and found["f"] == ("n", 256) and found["y"] == ("n", 10)


@pytest.mark.parametrize(
    ("nodes", "constants", "expected"),
    [
        ([Node("Split", ["x"], ["y", "z"], {"axis": 0})], {}, ("n//2", 6)),
        ([Node("Split", ["x", "parts"], ["y", "z"], {"axis": 1})], {"parts": [2, 4]}, ("n", 2)),
        ([Node("Slice", ["x", "one", "end"], ["y"])], {"one": [1], "end": [2**63 - 1]}, ("n - 1", 6)),
        ([Node("Slice", ["x", "one", "end"], ["y"])], {"one": [0], "end": [-1]}, ("n - 1", 6)),
        ([Node("Slice", ["x", "one", "end"], ["y"])], {"one": [-1], "end": [2**31 - 1]}, (1, 6)),
        ([Node("Pad", ["x", "pads"], ["y"])], {"pads": [1, 0, 2, 0]}, ("n + 3", 6)),
        ([Node("Concat", ["x", "x"], ["y"], {"axis": 1})], {}, ("n", 12)),
        ([Node("Tile", ["x", "times"], ["y"])], {"times": [3, 2]}, ("3*n", 12)),
        ([Node("Expand", ["x", "to"], ["y"])], {"to": [5, 1, 6]}, (5, "n", 6)),
        (
            [Node("Shape", ["x"], ["s"]), Node("ConstantOfShape", ["s"], ["y"])],
            {},
            ("n", 6),
        ),
        (
            [Node("Size", ["x"], ["s"]), Node("Range", ["zero", "s", "three"], ["y"])],
            {},
            ("2*n",),
        ),
    ],
)
def test_sizes_of_what_is_moved(nodes: list[Node], constants: dict[str, list[int]], expected: tuple[Any, ...]) -> None:
    graph = graph_of(nodes, {"x": ("n", 6)}, constants)
    graph.initializers |= {n: Tensor.of(n, "int64", (), [v]) for n, v in (("zero", 0), ("three", 3))}
    assert shapes(graph)["y"] == expected


@pytest.mark.parametrize(("factor", "shown"), [(2.0, "2*h"), (0.5, "h//2"), (1.5, "h + h//2")])
def test_resized_images(factor: float, shown: str) -> None:
    graph = graph_of([Node("Resize", ["x", "", "scales"], ["y"])], {"x": ("n", 3, "h", "w")})
    graph.initializers["scales"] = Tensor.of("scales", "float32", (4,), [1, 1, factor, 1])
    assert shapes(graph)["y"] == ("n", 3, shown, "w")
    # As torch's first exporter writes scale_factor: sizes by arithmetic in floats.
    nodes = [
        Node("Shape", ["x"], ["s"]),
        Node("Slice", ["s", "zero", "two"], ["lead"]),
        Node("Slice", ["s", "two", "four"], ["size"]),
        Node("Cast", ["size"], ["f"], {"to": 1}),
        Node("Mul", ["f", "factor"], ["g"]),
        Node("Floor", ["g"], ["r"]),
        Node("Cast", ["r"], ["target"], {"to": 7}),
        Node("Concat", ["lead", "target"], ["sizes"], {"axis": 0}),
        Node("Resize", ["x", "", "", "sizes"], ["y"]),
    ]
    graph = graph_of(nodes, {"x": ("n", 3, "h", 8)}, {"zero": [0], "two": [2], "four": [4]})
    graph.initializers["factor"] = Tensor.of("factor", "float32", (), [factor])
    assert shapes(graph)["y"] == ("n", 3, shown, int(8 * factor))


def test_sizes_that_data_decide_are_symbols_of_their_own() -> None:
    nodes = [
        Node("Reshape", ["x", "s"], ["y"]),
        Node("Reshape", ["x", "s"], ["z"]),
        Node("Add", ["y", "z"], ["sum"]),
        Node("Shape", ["y"], ["again"]),
        Node("Reshape", ["x", "again"], ["same"]),
        Node("Add", ["same", "y"], ["total"]),
    ]
    graph = graph_of(nodes, {"x": ("n", 6)})
    graph.inputs.append(Value("s", "int64", (2,)))
    inference = ShapeInference(graph)
    y, z = inference["y"].shape, inference["z"].shape
    assert y[0] != z[0] and inference.value("y").shape == (None, None)
    assert inference["total"].shape == y


def test_dims_without_a_name_are_dims_of_their_own() -> None:
    inference = ShapeInference(graph_of([Node("Add", ["x", "y"], ["z"])], {"x": (None, 3), "y": (None, 3)}))
    assert inference["x"].shape != inference["y"].shape
    assert inference.value("z").shape == (None, 3)


def test_a_symbol_that_is_declared_of_a_computed_size_is_shared_with_labels() -> None:
    graph = graph_of(
        [Node("Reshape", ["x", "rows"], ["logits"]), Node("Mul", ["logits", "t"], ["y"])],
        {"x": ("n", 6, 4), "t": ("tokens", 4)},
        {"rows": [-1, 4]},
        logits=("tokens", 4),
    )
    found = shapes(graph)
    assert found["y"] == ("tokens", 4) and found["x"] == ("n", 6, 4)


def test_a_contradiction_names_what_was_needed_before() -> None:
    nodes = [Node("MatMul", ["x", "w"], ["y"], name="first"), Node("MatMul", ["x", "v"], ["z"], name="second")]
    graph = graph_of(nodes, {"x": ("b", "n")})
    graph.initializers |= {n: Tensor.of(n, "float32", (k, 3), [0.0] * 3 * k) for n, k in (("w", 4), ("v", 5))}
    message = (
        r"MatMul node 'second': shapes \[b, 4\] and \[5, 3\] do not fit: 4 columns, 5 rows. "
        r"\('x' \[b, 4\] is an input; 'v' \[5, 3\] is a constant; n = 4, as MatMul node 'first' needs n = 4.\)"
    )
    with pytest.raises(ModelError, match=message):
        infer_shapes(graph)


def test_what_cannot_fit_is_an_error_that_names_the_node() -> None:
    graph = graph_of([Node("MatMul", ["x", "w"], ["y"], name="bad")], {"x": ("n", 5), "w": (4, 3)})
    with pytest.raises(ModelError, match=r"MatMul node 'bad': shapes \[n, 5\] and \[4, 3\] .*'x' \[n, 5\] is an input"):
        infer_shapes(graph)
    with pytest.raises(ModelError, match="Input 'x' has no declared shape"):
        infer_shapes(graph_of([Node("Abs", ["x"], ["y"])], {"x": None}))
    with pytest.raises(UnsupportedError, match="'Nonsense'"):
        infer_shapes(graph_of([Node("Nonsense", ["x"], ["y"])], {"x": (1,)}))
    with pytest.raises(ModelError, match="reads 'zz', which nothing defines"):
        infer_shapes(graph_of([Node("Add", ["x", "zz"], ["y"])], {"x": (1,)}))


def test_chains_of_slices_do_not_pile_up() -> None:
    nodes = [Node("Slice", [f"x{k}", f"last_{k}", "end"], [f"x{k + 1}"]) for k in range(60)]
    graph = graph_of(nodes, {"x0": ("n", 3)}, {"end": [2**62], **{f"last_{k}": [k - 100] for k in range(60)}})
    found = shapes(graph)
    assert found["x1"] == ("min(n, 100)", 3) and found["x60"] == ("min(n, 41)", 3)


@pytest.mark.parametrize(("number", "expected"), [(-1, ("n", 3)), (4, (None, 3))])
def test_a_choice_by_a_size_is_made_where_it_is_certain(number: int, expected: tuple[Any, ...]) -> None:
    nodes = [
        Node("Shape", ["x"], ["s"]),
        Node("Equal", ["s", "number"], ["is"]),
        Node("Where", ["is", "one", "s"], ["target"]),
        Node("Expand", ["row", "target"], ["y"]),
    ]
    graph = graph_of(nodes, {"x": ("n", 3), "row": (1, 3)}, {"number": [number], "one": [1]})
    assert shapes(graph)["y"] == expected


def test_a_declared_output_does_not_rename_what_was_read() -> None:
    nodes = [Node("Abs", ["t"], ["u"]), Node("Concat", ["x", "x"], ["y"], {"axis": 0})]
    found = shapes(graph_of(nodes, {"x": ("n", 4), "t": ("m", 4)}, y=("m", 4)))
    assert found["t"] == ("m", 4) and found["y"] == ("2*n", 4)
