"""The reader's results for valid models of every form."""

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.conformance.models import make_model

from trainweb.errors import LimitError, ModelError, UnsupportedError
from trainweb.model import Graph, Limits, Node, Sequence, Tensor, Value, read_model, write_model
from trainweb.model.checks import NEWEST_OPSET, OLDEST_OPSET, ONNX_DTYPES
from trainweb.model.functions import CHANGES
from trainweb.model.graph import ITEM_SIZE, STRUCT_FORMAT

GOLDEN = Path(__file__).parents[1] / "golden"


def floats(name: str, shape: list | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(nodes, initializers=(), inputs=("x",), outputs=("y",), **kwargs) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [floats(n, ["n"]) for n in inputs],
        [floats(n, ["m"]) for n in outputs],
        initializers,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, **{"opset_imports": opsets, "ir_version": 10} | kwargs)


def node(op: str, inputs: list[str], outputs: list[str], **kwargs) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **kwargs)


def test_constants_of_onnx_are_those_of_the_package() -> None:
    assert onnx.defs.onnx_opset_version() == NEWEST_OPSET
    names = {code: name for name, code in TensorProto.DataType.items() if name != "UNDEFINED"}
    renamed = {"FLOAT": "float32", "DOUBLE": "float64"}
    assert {code: renamed.get(name, name.lower()) for code, name in names.items()} == ONNX_DTYPES


class TestSource:
    def test_bytes_path_and_message_are_the_same(self, tmp_path: Path) -> None:
        proto = model([node("Relu", ["x"], ["y"])])
        data = proto.SerializeToString()
        path = tmp_path / "model.onnx"
        path.write_bytes(data)
        expected = read_model(data)
        assert expected.nodes == [Node("Relu", ["x"], ["y"])]
        buffers = (
            bytearray(data),
            memoryview(data),
            np.frombuffer(data, "u1"),
            memoryview(data * 2)[: len(data)],
        )
        for source in (path, str(path), proto, *buffers):
            assert read_model(source) == expected

    def test_what_is_no_source(self, tmp_path: Path) -> None:
        for source in (5, None, [1, 2]):
            with pytest.raises(ModelError, match=type(source).__name__):
                read_model(source)
        for path in (tmp_path / "missing.onnx", tmp_path, Path("/dev/zero"), "a\0b"):
            with pytest.raises(ModelError, match=r"cannot read|not a regular file"):
                read_model(path)

    def test_strided_buffer(self) -> None:
        data = model([node("Relu", ["x"], ["y"])]).SerializeToString()
        strided = np.repeat(np.frombuffer(data, "u1"), 2)[::2]
        assert read_model(strided) == read_model(data)

    def test_file_limit(self, tmp_path: Path) -> None:
        data = model([node("Relu", ["x"], ["y"])]).SerializeToString()
        (tmp_path / "m").write_bytes(data)
        for source in (data, tmp_path / "m"):
            with pytest.raises(LimitError, match=f"{len(data)} bytes"):
                read_model(source, limits={"file_bytes": len(data) - 1})
            read_model(source, limits={"file_bytes": len(data)})


class TestLimits:
    def test_of(self) -> None:
        assert Limits.of(None) == Limits()
        assert Limits.of({"nodes": 3}) == Limits(nodes=3)
        assert Limits.of(Limits(nodes=3)) == Limits(nodes=3)

    @pytest.mark.parametrize("limits", [{"node": 3}, {"nodes": -1}, {"nodes": 1.5}, {"nodes": True}])
    def test_bad(self, limits: dict) -> None:
        with pytest.raises(LimitError, match="node"):
            Limits.of(limits)

    def test_nodes(self) -> None:
        data = model([node("Relu", ["x"], ["h"]), node("Relu", ["h"], ["y"])])
        read_model(data, limits={"nodes": 2})
        with pytest.raises(LimitError, match="2 nodes"):
            read_model(data, limits={"nodes": 1})

    def test_constants(self) -> None:
        tensor = numpy_helper.from_array(np.ones(4, "f4"), "w")
        data = model([node("Add", ["x", "w"], ["y"])], [tensor])
        read_model(data, limits={"arena_bytes": 16})
        with pytest.raises(LimitError, match="'w'"):
            read_model(data, limits={"arena_bytes": 15})


class TestTensors:
    @pytest.mark.parametrize("dtype", [d for d in ITEM_SIZE if d in STRUCT_FORMAT])
    @pytest.mark.parametrize("raw", [False, True])
    def test_every_dtype(self, dtype: str, raw: bool) -> None:
        if dtype == "bool":
            values = np.array([[True, False, True]])
        else:
            info = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
            values = np.array([[info.min, 0, info.max]], dtype)
        code = helper.np_dtype_to_tensor_dtype(values.dtype)
        payload = values.tobytes() if raw else values.ravel().tolist()
        tensor = helper.make_tensor("w", code, [1, 3], payload, raw=raw)
        graph = read_model(model([node("Cast", ["w"], ["y"], to=1)], [tensor]))
        found = graph.initializers["w"]
        assert (found.dtype, found.shape, bytes(found.data)) == (dtype, (1, 3), values.tobytes())
        assert found.values() == tuple(values.ravel().tolist())

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_half_floats_are_bit_patterns(self, dtype: str) -> None:
        proto = TensorProto(name="w", data_type=TensorProto.DataType.Value(dtype.upper()), dims=[2])
        proto.int32_data.extend([0x3C00, 0xFFFF])
        graph = read_model(model([node("Cast", ["w"], ["y"], to=1)], [proto]))
        assert graph.initializers["w"] == Tensor("w", dtype, (2,), b"\x00\x3c\xff\xff")

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 20])
    def test_shapes(self, shape: tuple[int, ...]) -> None:
        array = np.ones(shape, "f4")
        graph = read_model(model([node("Add", ["x", "w"], ["y"])], [numpy_helper.from_array(array, "w")]))
        assert graph.initializers["w"] == Tensor("w", "float32", shape, array.tobytes())

    @pytest.mark.parametrize("coordinates", [False, True])
    def test_sparse_becomes_dense(self, coordinates: bool) -> None:
        indices = np.array([[0, 1], [1, 2]]) if coordinates else np.array([1, 5])
        sparse = helper.make_sparse_tensor(
            numpy_helper.from_array(np.array([7, 8], "f4"), "w"),
            numpy_helper.from_array(indices.astype("i8")),
            [2, 3],
        )
        proto = model([node("Add", ["x", "w"], ["y"])])
        proto.graph.sparse_initializer.append(sparse)
        assert read_model(proto).initializers["w"].values() == (0, 7, 0, 0, 0, 8)


class TestValues:
    def test_types_and_shapes(self) -> None:
        proto = model([node("Relu", ["x"], ["y"])])
        proto.graph.input.extend(
            [
                helper.make_tensor_value_info("i", TensorProto.INT64, ["batch", None, 3, -1]),
                helper.make_tensor_value_info("scalar", TensorProto.DOUBLE, []),
                helper.make_tensor_value_info("any", TensorProto.BOOL, None),
                helper.make_tensor_sequence_value_info("params", TensorProto.FLOAT, None),
            ]
        )
        proto.graph.value_info.append(floats("h", [1, "k"]))
        graph = read_model(proto)
        assert graph.inputs[1:] == [
            Value("i", "int64", ("batch", None, 3, None)),
            Value("scalar", "float64", ()),
            Value("any", "bool", None),
            Sequence("params", "float32"),
        ]
        assert graph.value_info == {"h": Value("h", "float32", (1, "k"))}

    def test_header(self) -> None:
        proto = model([node("Relu", ["x"], ["y"])], producer_name="someone")
        helper.set_model_props(proto, {"key": "value"})
        graph = read_model(proto)
        assert (graph.name, graph.producer, graph.ir_version) == ("g", "someone", 10)
        assert graph.opsets == {"": 17, "local": 1}
        assert graph.metadata == graph.copy().metadata == {"key": "value"}

    def test_ai_onnx_is_the_empty_domain(self) -> None:
        relu = node("Relu", ["x"], ["y"], domain="ai.onnx")
        graph = read_model(model([relu], opset_imports=[helper.make_opsetid("ai.onnx", 13)]))
        assert graph.opsets == {"": 13} and graph.nodes[0].domain == ""

    def test_inputs_that_declare_initializers_are_left_out(self) -> None:
        """Before IR version 4, every initializer had to be an input."""
        tensor = numpy_helper.from_array(np.ones(4, "f4"), "w")
        proto = model([node("Add", ["x", "w"], ["y"])], [tensor], inputs=("x", "w"), ir_version=3)
        graph = read_model(proto)
        assert [value.name for value in graph.inputs] == ["x"]
        assert graph.ir_version == 4
        onnx.checker.check_model(write_model(graph))

    def test_graph_output_may_be_an_input_or_initializer(self) -> None:
        tensor = numpy_helper.from_array(np.ones(4, "f4"), "w")
        graph = read_model(model([], [tensor], outputs=("x", "w")))
        assert [value.name for value in graph.outputs] == ["x", "w"]


class TestAttributes:
    def test_every_kind(self) -> None:
        array = np.arange(3, dtype="f4")
        tensor = numpy_helper.from_array(array, "t")
        proto = node(
            "Custom",
            ["x"],
            ["y"],
            domain="local",
            i=-3,
            f=0.5,
            s="text",
            b=b"\xff",
            ints=[1, 2],
            t=tensor,
        )
        for name, value in {"fs": [0.5, 1.5], "ss": ["a", "ü"], "ts": [tensor, tensor]}.items():
            proto.attribute.append(helper.make_attribute(name, value))
        proto.attribute.append(helper.make_attribute("none", [], attr_type=onnx.AttributeProto.INTS))
        attrs = read_model(model([proto])).nodes[0].attrs
        expected = Tensor("t", "float32", (3,), array.tobytes())
        assert attrs == {
            "i": -3,
            "f": 0.5,
            "s": "text",
            "b": b"\xff",
            "ints": [1, 2],
            "t": expected,
            "fs": [0.5, 1.5],
            "ss": ["a", "ü"],
            "ts": [expected, expected],
            "none": [],
        }

    def test_zero_that_is_left_out(self) -> None:
        """Writers of proto3 leave out a 0."""
        proto = node("Gemm", ["x", "x"], ["y"])
        proto.attribute.add(name="transA", type=onnx.AttributeProto.INT)
        proto.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT)
        assert read_model(model([proto])).nodes[0].attrs == {"transA": 0, "alpha": 0.0}


def test_nodes_are_sorted_only_where_needed() -> None:
    a, b, c, d = (
        node("Relu", ["x"], ["a"], name="a"),
        node("Relu", ["a"], ["b"], name="b"),
        node("Relu", ["x"], ["c"], name="c"),
        node("Add", ["b", "c"], ["y"], name="d"),
    )
    for order, expected in (("acbd", "acbd"), ("abcd", "abcd"), ("dcba", "cabd"), ("bacd", "abcd")):
        nodes = [{"a": a, "b": b, "c": c, "d": d}[name] for name in order]
        assert "".join(n.name for n in read_model(model(nodes)).nodes) == expected


def test_reading_is_linear() -> None:
    """A chain in reverse, the worst case of sorting: ten times the nodes, ten times as long."""

    def seconds(count: int) -> float:
        nodes = [node("Relu", [f"h{i}"], [f"h{i + 1}"]) for i in range(count)]
        data = model(nodes[::-1], inputs=("h0",), outputs=(f"h{count}",)).SerializeToString()
        best = 1e9
        for _ in range(3):
            start = time.process_time()
            graph = read_model(data)
            best = min(best, time.process_time() - start)
        assert graph.nodes[0].inputs == ["h0"] and len(graph.nodes) == count
        return best

    assert seconds(5000) < 40 * seconds(500)


class TestSubgraphs:
    def branch(self, nodes, output: str, initializers=()) -> onnx.GraphProto:
        return helper.make_graph(nodes, "branch", [], [floats(output)], initializers)

    def conditional(self, branch: onnx.GraphProto) -> onnx.NodeProto:
        return node("If", ["c"], ["z"], name="if", then_branch=branch, else_branch=branch)

    @property
    def condition(self) -> onnx.TensorProto:
        return helper.make_tensor("c", TensorProto.BOOL, [], [True])

    def test_become_graphs(self) -> None:
        weight = numpy_helper.from_array(np.ones(2, "f4"), "w")
        branch = self.branch([node("Add", ["x", "w"], ["t"])], "t", [weight])
        graph = read_model(model([self.conditional(branch)], [self.condition], outputs=("z",)))
        inner = graph.nodes[0].attrs["then_branch"]
        assert isinstance(inner, Graph)
        assert inner.nodes == [Node("Add", ["x", "w"], ["t"])]
        assert inner.initializers["w"].values() == (1, 1)
        assert read_model(write_model(graph)) == graph

    def test_captured_values_order_the_nodes(self) -> None:
        inner = self.conditional(self.branch([node("Relu", ["h"], ["t"])], "t"))
        outer = self.branch([inner], "z")
        later = node("Relu", ["x"], ["h"], name="later")
        nodes = [
            node("If", ["c"], ["y"], name="outer", then_branch=outer, else_branch=outer),
            later,
        ]
        assert [n.name for n in read_model(model(nodes, [self.condition])).nodes] == [
            "later",
            "outer",
        ]

    def test_branch_may_hand_out_an_outer_value(self) -> None:
        graph = read_model(model([self.conditional(self.branch([], "x"))], [self.condition], outputs=("z",)))
        assert graph.nodes[0].attrs["then_branch"].outputs[0].name == "x"

    def test_loop_body_may_have_inputs_without_type(self) -> None:
        names = ["i", "keep", "h"]
        body = helper.make_graph(
            [node("Relu", ["h"], ["o"]), node("Identity", ["keep"], ["k"])],
            "body",
            [onnx.ValueInfoProto(name=name) for name in names],
            [onnx.ValueInfoProto(name=name) for name in ("k", "o")],
        )
        trip = numpy_helper.from_array(np.array(3), "trip")
        graph = read_model(model([node("Loop", ["trip", "", "x"], ["y"], body=body)], [trip]))
        assert graph.nodes[0].attrs["body"].inputs == [Value(name, "", None) for name in names]
        assert read_model(write_model(graph)) == graph

    def test_inner_names_are_not_seen_outside(self) -> None:
        nodes = [
            self.conditional(self.branch([node("Relu", ["x"], ["t"])], "t")),
            node("Relu", ["t"], ["y"]),
        ]
        with pytest.raises(ModelError, match="'t' is read by Relu"):
            read_model(model(nodes, [self.condition]))


class TestFunctions:
    def function(self, name, nodes, inputs=("a", "b"), outputs=("r",), opset=17, **kwargs):
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
        return helper.make_function("local", name, list(inputs), list(outputs), nodes, opsets, **kwargs)

    def read(self, nodes, functions, **kwargs) -> Graph:
        proto = model(nodes, **kwargs)
        proto.functions.extend(functions)
        return read_model(proto)

    def call(self, name: str, inputs: list[str], outputs: list[str], **attrs) -> onnx.NodeProto:
        return node(name, inputs, outputs, domain="local", **attrs)

    def test_inlined_as_onnx_does(self) -> None:
        """Compared by value with ONNX's own inliner."""
        scale = numpy_helper.from_array(np.full(1, 3, "f4"), "")
        inner = self.function("twice", [node("Add", ["a", "a"], ["r"])], ["a"])
        outer = self.function(
            "outer",
            [
                self.call("twice", ["a"], ["t"]),
                node("Constant", [], ["s"], value=scale),
                node("Mul", ["t", "s"], ["u"]),
                node("Sub", ["u", "b"], ["r"]),
            ],
        )
        proto = model([self.call("outer", ["x", "x"], ["h"]), self.call("outer", ["h", "x"], ["y"])])
        proto.functions.extend([inner, outer])
        ours = onnx.load_from_string(write_model(read_model(proto)))
        onnx.checker.check_model(ours)
        assert not ours.functions and len(ours.graph.node) == 8
        feeds = {"x": np.array([1, 2], "f4")}
        expected = onnx.reference.ReferenceEvaluator(onnx.inliner.inline_local_functions(proto)).run(None, feeds)
        found = onnx.reference.ReferenceEvaluator(ours).run(None, feeds)
        np.testing.assert_array_equal(found[0], expected[0])

    def test_attributes(self) -> None:
        gemm = node("LeakyRelu", ["a"], ["t"])
        gemm.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
        elu = node("Elu", ["t"], ["r"])
        elu.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="other")
        function = self.function(
            "f",
            [gemm, elu],
            ["a"],
            attributes=["other"],
            attribute_protos=[helper.make_attribute("slope", 0.25)],
        )
        graph = self.read(
            [self.call("f", ["x"], ["h"]), self.call("f", ["h"], ["y"], slope=0.5, other=2.0)],
            [function],
        )
        assert [n.attrs for n in graph.nodes] == [
            {"alpha": 0.25},
            {},
            {"alpha": 0.5},
            {"alpha": 2.0},
        ]

    def test_attribute_of_another_type(self) -> None:
        relu = node("LeakyRelu", ["a"], ["r"])
        relu.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
        function = self.function("f", [relu], ["a"], attributes=["slope"])
        with pytest.raises(ModelError, match=r"'alpha'.*type 1, given is 2"):
            self.read([self.call("f", ["x"], ["y"], slope=1)], [function])

    def test_absent_inputs_and_outputs(self) -> None:
        clip = self.function("f", [node("Clip", ["a", "b"], ["r"]), node("Relu", ["r"], ["q"])], outputs=("r", "q"))
        graph = self.read([self.call("f", ["x"], ["", "y"])], [clip])
        assert graph.nodes[0].inputs == ["x", ""]
        assert graph.nodes[1].inputs == graph.nodes[0].outputs and graph.nodes[0].outputs != [""]
        assert graph.nodes[1].outputs == ["y"]

    def test_handed_through_input(self) -> None:
        function = self.function("f", [node("Relu", ["b"], ["r"])], outputs=("r", "a"))
        graph = self.read([self.call("f", ["x", "x"], ["h", "y"])], [function])
        assert graph.nodes[-1] == Node("Identity", ["x"], ["y"])

    def test_subgraph_in_a_function(self) -> None:
        branch = helper.make_graph([node("Relu", ["a"], ["t"])], "branch", [], [floats("t")])
        function = self.function("f", [node("If", ["b"], ["r"], then_branch=branch, else_branch=branch, name="if")])
        nodes = [
            node("Cast", ["x"], ["c"], to=9),
            self.call("f", ["x", "c"], ["h"]),
            self.call("f", ["h", "c"], ["y"]),
        ]
        graph = self.read(nodes, [function])
        first, second = graph.nodes[1].attrs["then_branch"], graph.nodes[2].attrs["then_branch"]
        assert first.nodes[0].inputs == ["x"] and second.nodes[0].inputs == ["h"]
        assert first.outputs[0].name == first.nodes[0].outputs[0] != second.outputs[0].name
        assert graph.nodes[1].name != graph.nodes[2].name

    def test_graph_attribute_sees_the_callers_names(self) -> None:
        branch = helper.make_graph([node("Relu", ["x"], ["t"])], "branch", [], [floats("t")])
        inner = node("If", ["a"], ["r"], else_branch=branch)
        inner.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH, ref_attr_name="then")
        function = self.function("f", [inner], ["a"], attributes=["then"])
        with pytest.raises(ModelError, match="'f_0/x' is read by Relu"):
            self.read(
                [node("Cast", ["x"], ["c"], to=9), self.call("f", ["c"], ["y"], then=branch)],
                [function],
            )
        del inner.attribute[0]
        inner.attribute.add(name="else_branch", type=onnx.AttributeProto.GRAPH, ref_attr_name="then")
        function = self.function("f", [inner], ["a"], attributes=["then"])
        graph = self.read(
            [node("Cast", ["x"], ["c"], to=9), self.call("f", ["c"], ["y"], then=branch)],
            [function],
        )
        assert graph.nodes[1].attrs["then_branch"].nodes[0].inputs == ["x"]

    def test_overloads(self) -> None:
        functions = [self.function("f", [node(op, ["a"], ["r"])], ["a"], overload=op) for op in ("Relu", "Tanh")]
        graph = self.read([self.call("f", ["x"], ["y"], overload="Tanh")], functions)
        assert [n.op_type for n in graph.nodes] == ["Tanh"]

    def test_errors(self) -> None:
        function = self.function("f", [node("Relu", ["a"], ["r"])], ["a"])
        call = self.call("f", ["x"], ["y"])
        with pytest.raises(ModelError, match="two functions 'f'"):
            self.read([call], [function, function])
        with pytest.raises(ModelError, match="2 inputs and 1 outputs; function 'f' has 1 and 1"):
            self.read([self.call("f", ["x", "x"], ["y"])], [function])
        with pytest.raises(ModelError, match="'y' is read by"):
            self.read([call], [self.function("f", [node("Relu", ["a"], ["other"])], ["a"])])
        with pytest.raises(ModelError, match="of one name"):
            self.read([call], [self.function("f", [node("Relu", ["a"], ["r"])], ["a", "a"])])

    @pytest.mark.parametrize("opset", [13, 16, 19, 21])
    def test_an_opset_that_only_adds_types_is_taken(self, opset: int) -> None:
        nodes = [node("Add", ["a", "a"], ["s"]), node("Sigmoid", ["s"], ["r"])]
        graph = self.read([self.call("f", ["x"], ["y"])], [self.function("f", nodes, ["a"], opset=opset)])
        assert [n.op_type for n in graph.nodes] == ["Add", "Sigmoid"]
        assert graph.opsets[""] == 17

    @pytest.mark.parametrize(("op", "opset"), [("Softmax", 12), ("ReduceMean", 18), ("GridSample", 20), ("Mod", 28)])
    def test_an_opset_that_changes_an_operator_is_refused(self, op: str, opset: int) -> None:
        function = self.function("f", [node(op, ["a"], ["r"])], ["a"], opset=opset)
        with pytest.raises(UnsupportedError, match=rf"{op}.*opset {opset} of 'ai.onnx', the model opset 17"):
            self.read([self.call("f", ["x"], ["y"])], [function])

    def test_an_operator_within_a_branch_is_refused(self) -> None:
        branch = helper.make_graph([node("Softmax", ["a"], ["o"])], "b", [], [helper.make_empty_tensor_value_info("o")])
        nodes = [node("If", ["c"], ["r"], then_branch=branch, else_branch=branch)]
        with pytest.raises(UnsupportedError, match="Softmax differs"):
            self.read([self.call("f", ["x", "c"], ["y"])], [self.function("f", nodes, ["a", "c"], opset=12)])

    def test_other_domains_have_one_version(self) -> None:
        nodes = [node("Relu", ["a"], ["r"], domain="com.other")]
        opsets = [helper.make_opsetid("com.other", 2)]
        function = helper.make_function("local", "f", ["a"], ["r"], nodes, opsets)
        call = self.call("f", ["x"], ["y"])
        assert self.read([call], [function]).opsets["com.other"] == 2
        models = [helper.make_opsetid(domain, 1) for domain in ("local", "com.other")]
        with pytest.raises(UnsupportedError, match=r"opset 2 of 'com.other', the model opset 1"):
            self.read([call], [function], opset_imports=[helper.make_opsetid("", 17), *models])

    def test_changes_of_operators_are_onnx_s(self) -> None:
        """By the schemas of onnx: their formal inputs and outputs, attributes and defaults."""

        def form(schema: onnx.defs.OpSchema) -> tuple:
            attributes = schema.attributes.values()
            values = sorted((a.name, a.type.value, a.required, a.default_value.SerializeToString()) for a in attributes)
            return [[p.option for p in formal] for formal in (schema.inputs, schema.outputs)], values

        history: dict[str, list] = {}
        for schema in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda s: s.since_version):
            if not schema.domain:
                history.setdefault(schema.name, []).append(schema)
        changes = {
            (later.since_version, name)
            for name, schemas in history.items()
            for earlier, later in pairwise(schemas)
            if later.since_version > OLDEST_OPSET and form(earlier) != form(later)
        }
        listed = {(since, name) for since, names in CHANGES.items() for name in names.split()}
        assert listed == changes | {(28, "Mod"), (28, "BitShift")}  # which their texts redefine


def test_names_that_are_none_are_no_symbols() -> None:
    dims = ["?", "?", "unk__12", "", "batch", 3]
    model = make_model([helper.make_node("Abs", ["x"], ["y"])], {"x": dims}, {"y": None}, {})
    (value,) = read_model(model.SerializeToString()).inputs
    assert isinstance(value, Value) and value.shape == (None, None, None, None, "batch", 3)


def test_what_an_exporter_noted_about_parameters_survives_and_its_stack_traces_do_not() -> None:
    kind, folded = "pkg.torch.export.graph_signature.InputSpec.kind", "pkg.onnxscript.optimizer.folded_from"
    scopes, trace = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.stack_trace"
    signature = "pkg.torch.export.ExportedProgram.graph_signature"
    w = onnx.numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    info = helper.make_tensor_value_info("w", TensorProto.FLOAT, [2, 2])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 2]) for n in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [w], value_info=[info])
    for target, key in (
        (graph.value_info[0], kind),
        (graph.initializer[0], folded),
        (graph.node[0], scopes),
        (graph.node[0], trace),
        (graph, signature),
    ):
        helper.set_metadata_props(target, {**{p.key: p.value for p in target.metadata_props}, key: "noted"})
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    for read in (read_model(data), read_model(write_model(read_model(data).copy()))):
        assert read.value_info["w"].notes == {kind: "noted"}
        assert read.initializers["w"].notes == {folded: "noted"}
        assert read.nodes[0].notes == {scopes: "noted"}
        assert read.notes == {signature: "noted"}


def within_body(operator: str, nodes: list[onnx.NodeProto], result: str) -> onnx.NodeProto:
    """A node with these in a branch or a body."""
    value = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
    inputs = [
        helper.make_tensor_value_info(n, kind, []) for n, kind in (("k", TensorProto.INT64), ("c", TensorProto.BOOL))
    ]
    if operator == "If":
        body, empty = (helper.make_graph(part, "branch", [], [value]) for part in (nodes, []))
        return helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=empty)
    body = helper.make_graph(nodes, "body", inputs, [inputs[1], value])
    return helper.make_node("Loop", ["x"], ["y"], body=body)


@pytest.mark.parametrize(
    ("levels", "width", "within", "count"),
    [
        (10, 10, "", 21_111_111_111),
        (40, 2, "", 3 * 2**40 - 1),
        (49, 2, "", 3 * 2**49 - 1),
        (10, 10, "If", 22_222_222_222),
        (10, 10, "Loop", 22_222_222_222),
    ],
)
def test_functions_that_call_functions_are_counted_before_they_are_inlined(
    levels: int, width: int, within: str, count: int
) -> None:
    """Calls may stand in a branch or a body, which are a node of each level more."""
    functions = []
    for level in range(levels + 1):
        called, domain = (f"f{level - 1}", "local") if level else ("Neg", "")
        edges = ["x", *(f"y{k}" for k in range(width if level else 1))]
        nodes = [helper.make_node(called, [a], [b], domain=domain) for a, b in pairwise(edges)]
        if within and level:
            nodes, edges = [within_body(within, nodes, edges[-1])], ["x", "y"]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"f{level}", ["x"], edges[-1:], nodes, opsets))
    call = helper.make_node(f"f{levels}", ["x"], ["y"], domain="local")
    start = time.process_time()
    with pytest.raises(
        LimitError, match=rf"the model has {count} nodes, once its functions are inlined; the limit is 250000"
    ):
        read_model(model([call], functions=functions).SerializeToString())
    assert time.process_time() - start < 1
