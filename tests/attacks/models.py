"""Malformed models, each with the error that must come out.

A corpus is {name: (bytes, class, part of the message)}.
"""

import gzip
import io
import zipfile
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.attacks import wire
from tests.conformance.models import make_model

from trainweb.errors import LimitError, ModelError, UnsupportedError

Case = tuple[bytes, type[Exception], str]


def good_model() -> onnx.ModelProto:
    """A small valid model: y = relu(x @ w + b)."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 3], np.arange(6, dtype="f4").tobytes(), raw=True)
    bias = helper.make_tensor("b", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    return make_model(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="gemm", alpha=0.5),
            helper.make_node("Relu", ["h"], ["y"], name="relu"),
        ],
        {"x": ["batch", 2]},
        {"y": ["batch", 3]},
        [weight, bias],
    )


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model.onnx", good_model().SerializeToString())
    return file.getvalue()


def containers() -> dict[str, Case]:
    """Files that are something else, or broken below the level of messages."""
    good = good_model().SerializeToString()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
    return {
        "empty": (b"", ModelError, "empty"),
        "random": (np.random.default_rng(0).bytes(4096), ModelError, "not valid ONNX"),
        "zeros": (bytes(4096), ModelError, "not valid ONNX"),
        "html": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", ModelError, "HTML"),
        "html_after_newline": (b"\n\n<html><body>404</body></html>", ModelError, "HTML"),
        "git_lfs_pointer": (pointer, ModelError, "git lfs pull"),
        "gzip": (gzip.compress(good), ModelError, "gzip"),
        "zip": (_zip(), ModelError, "zip"),
        "json": (b'{"irVersion": "10"}', ModelError, "JSON"),
        "ort_format": (b"\x20\0\0\0ORTM" + bytes(64), ModelError, "ORT format"),
        "checkpoint": (b"\x20\0\0\0ODTC" + bytes(64), ModelError, "checkpoint"),
        "length_beyond_end": (good + wire.tag(7, 2) + wire.varint(1000), ModelError, "1000 bytes"),
        "length_2_31": (good + wire.tag(7, 2) + wire.varint(2**31), ModelError, "2147483648"),
        "length_2_63": (
            good + wire.tag(7, 2) + wire.varint(2**63),
            ModelError,
            "9223372036854775808",
        ),
        "wire_type_6": (good + wire.tag(7, 6), ModelError, "wire type 6"),
        "wire_type_7": (good + wire.tag(7, 7), ModelError, "wire type 7"),
        "end_of_group": (good + wire.tag(7, 4), ModelError, "wire type 4"),
        "field_0": (good + b"\x02\x00", ModelError, "number 0"),
        "varint_of_11_bytes": (b"\x08" + b"\xff" * 10 + b"\x01", ModelError, "does not end"),
        "varint_without_end": (b"\x08\xff", ModelError, "does not end"),
        "no_graph": (wire.HEADER, ModelError, "no graph"),
        "deep_subgraphs": (wire.model(wire.nested_ifs(5_000)), ModelError, "not valid ONNX"),
        "million_nodes": (wire.model(wire.sub(1, b"") * 1_000_000), LimitError, "fields"),
        "thousands_of_nodes": (wire.model(wire.sub(1, b"") * 100_000), LimitError, "100000 nodes"),
        "millions_of_value_infos": (
            wire.model(wire.sub(13, b"") * 3_000_000),
            LimitError,
            "fields",
        ),
        "millions_of_versions": (b"\x08\x01" * 3_000_000, LimitError, "fields"),
        "millions_of_fields_in_a_function": (wire.sub(25, b"\x0a\0" * 3_000_000), LimitError, "fields"),
        "megabytes_of_zeros": (bytes(2**25), ModelError, "number 0"),
    }


def _edit(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = good_model()
    change(model)
    return model.SerializeToString()


def structure() -> dict[str, Case]:
    """Valid messages that make no consistent model."""

    def add(*args, **kwargs) -> bytes:
        return _edit(lambda m: m.graph.node.append(helper.make_node(*args, **kwargs)))

    def cycle(m: onnx.ModelProto) -> None:
        m.graph.node[0].input[0] = "y"

    def attribute(**fields) -> bytes:
        return _edit(lambda m: m.graph.node[1].attribute.add(name="a", **fields))

    def two_versions(m: onnx.ModelProto) -> None:
        m.opset_import.append(helper.make_opsetid("ai.onnx", 16))

    def swap(m: onnx.ModelProto) -> None:
        m.graph.input[0].type.map_type.key_type = 7

    bad_name = wire.model(wire.node(b"Relu", [b"x\xff"], [b"y"]) + wire.sub(2, b"g"))
    return {
        "name_not_utf8": (bad_name, ModelError, "UTF-8|utf-8"),
        "duplicate_initializer": (
            _edit(lambda m: m.graph.initializer.append(m.graph.initializer[0])),
            ModelError,
            "two initializers named 'w'",
        ),
        "duplicate_output": (add("Relu", ["x"], ["h"]), ModelError, "makes 'h'"),
        "duplicate_input": (
            _edit(lambda m: m.graph.input.append(m.graph.input[0])),
            ModelError,
            "two inputs named 'x'",
        ),
        "duplicate_graph_output": (
            _edit(lambda m: m.graph.output.append(m.graph.output[0])),
            ModelError,
            "output twice",
        ),
        "cycle": (_edit(cycle), ModelError, "cycle.*'gemm'"),
        "reads_itself": (add("Relu", ["z"], ["z"], name="self"), ModelError, "cycle.*'self'"),
        "undefined_input": (
            add("Relu", ["nowhere"], ["z"], name="n"),
            ModelError,
            "'nowhere'.*'n'",
        ),
        "undefined_output": (
            _edit(lambda m: setattr(m.graph.output[0], "name", "nowhere")),
            ModelError,
            "'nowhere'.*outputs",
        ),
        "output_is_input": (add("Relu", ["h"], ["x"]), ModelError, "makes 'x'"),
        "output_is_initializer": (add("Relu", ["h"], ["w"]), ModelError, "makes 'w'"),
        "shadowed_initializer": (
            _edit(lambda m: setattr(m.graph.input[0], "name", "b")),
            ModelError,
            "'b'.*declared otherwise",
        ),
        "node_without_outputs": (add("Relu", ["h"], []), ModelError, "no outputs"),
        "node_without_op": (add("", ["h"], ["z"], name="n"), ModelError, "no op_type"),
        "unknown_domain": (add("Relu", ["h"], ["z"], domain="org.x"), ModelError, "'org.x'"),
        "input_without_type": (
            _edit(lambda m: m.graph.input[0].ClearField("type")),
            ModelError,
            "'x'.*no type",
        ),
        "map_input": (_edit(swap), UnsupportedError, "'x'.*map"),
        "opset_missing": (
            _edit(lambda m: m.ClearField("opset_import")),
            ModelError,
            "opset_import",
        ),
        "two_opsets": (_edit(two_versions), ModelError, "17 and 16"),
        **{
            f"opset_{version}": (
                _edit(lambda m, v=version: setattr(m.opset_import[0], "version", v)),
                UnsupportedError if 0 < version < 2**31 else ModelError,
                str(version),
            )
            for version in (0, -1, 6, 29, 2**31 - 1, 2**31, 2**62)
        },
        "ir_version_0": (_edit(lambda m: m.ClearField("ir_version")), ModelError, "IR version"),
        "ir_version_2_40": (
            # With field 15 of the model, which ONNX does not define.
            _edit(lambda m: setattr(m, "ir_version", 2**40)) + bytes([15 << 3, 1]),
            UnsupportedError,
            "1099511627776 and uses field 15 of the model",
        ),
        "attribute_without_type": (attribute(i=1), ModelError, "type 0"),
        "attribute_unknown_type": (attribute(type=1, s=b"x", f=1.0), ModelError, r"'f', but has"),
        "attribute_wrong_type": (attribute(type=1, i=1), ModelError, "'a'.*'relu'"),
        "attribute_empty": (attribute(type=4), ModelError, "no value"),
        "attribute_of_types": (attribute(type=13, tp=onnx.TypeProto()), UnsupportedError, "'a'"),
        "attribute_reference": (attribute(type=1, ref_attr_name="alpha"), ModelError, "refers to"),
        "attribute_twice": (
            _edit(lambda m: m.graph.node[0].attribute.append(m.graph.node[0].attribute[0])),
            ModelError,
            "'alpha' twice",
        ),
        "attribute_unnamed": (
            _edit(lambda m: m.graph.node[1].attribute.add(type=1, f=1.0)),
            ModelError,
            "unnamed",
        ),
        "many_nodes_in_functions": (_bomb(), LimitError, "inlined"),
        "function_calls_itself": (_recursion(), ModelError, "calls itself"),
        "functions_in_a_long_chain": (_chain(500), LimitError, "called through|nested"),
        "subgraph_reads_a_later_value": (_later(), ModelError, "cycle"),
        "subgraph_reads_nothing": (_undefined_in_subgraph(), ModelError, "'nowhere'.*'inner'"),
    }


def _function(name: str, calls: list[str]) -> onnx.FunctionProto:
    nodes = [helper.make_node(op, ["x"], [f"y{i}" if i else "y"], domain="local") for i, op in enumerate(calls)]
    return helper.make_function("local", name, ["x"], ["y"], nodes, [helper.make_opsetid("local", 1)])


def _with_functions(functions: list[onnx.FunctionProto], first: str) -> bytes:
    model = good_model()
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.functions.extend(functions)
    model.graph.node.append(helper.make_node(first, ["x"], ["z"], domain="local"))
    return model.SerializeToString()


def _bomb() -> bytes:
    """Thirty functions that each call the next ten times: 10^30 calls."""
    functions = [_function(f"f{i}", [f"f{i + 1}"] * 10) for i in range(30)]
    return _with_functions([*functions, _function("f30", ["f31"])], "f0")


def _recursion() -> bytes:
    return _with_functions([_function("f", ["g"]), _function("g", ["f"])], "f")


def _chain(length: int) -> bytes:
    return _with_functions([_function(f"f{i}", [f"f{i + 1}"]) for i in range(length)], "f0")


def _if_model(reads: str, after: list[onnx.NodeProto]) -> bytes:
    """A model whose If has a branch that reads `reads`."""
    out = [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)]
    branch = helper.make_graph([helper.make_node("Relu", [reads], ["t"], name="inner")], "branch", [], out)
    model = good_model()
    condition = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    model.graph.initializer.append(condition)
    node = helper.make_node("If", ["c"], ["z"], name="if", then_branch=branch, else_branch=branch)
    model.graph.node.append(node)
    model.graph.node.extend(after)
    return model.SerializeToString()


def _later() -> bytes:
    return _if_model("later", [helper.make_node("Relu", ["z"], ["later"], name="after")])


def _undefined_in_subgraph() -> bytes:
    return _if_model("nowhere", [])


def tensors() -> dict[str, Case]:
    """Initializers that contradict themselves; the tensor is always named 'bad'."""

    def tensor(raw: bytes | None = None, **fields) -> bytes:
        def change(m: onnx.ModelProto) -> None:
            proto = m.graph.initializer.add(name="bad", **fields)
            if raw is not None:
                proto.raw_data = raw

        return _edit(change)

    def external(*entries: tuple[str, str], **fields) -> bytes:
        def change(m: onnx.ModelProto) -> None:
            proto = m.graph.initializer.add(name="bad", data_type=1, dims=[2], data_location=1, **fields)
            for key, value in entries:
                proto.external_data.add(key=key, value=value)

        return _edit(change)

    eight = bytes(8)
    unsupported = {
        "string": 8,
        "complex64": 14,
        "complex128": 15,
        "float8e4m3fn": 17,
        "float4e2m1": 23,
    }
    cases: dict[str, Case] = {
        "negative_size": (
            tensor(eight, data_type=1, dims=[-1, -2]),
            ModelError,
            "negative size -1",
        ),
        "product_2_32": (tensor(b"", data_type=2, dims=[2**16, 2**16]), ModelError, "4294967296"),
        "product_2_64": (tensor(b"", data_type=2, dims=[2**16] * 4), ModelError, str(2**64)),
        "no_elements_but_huge": (
            tensor(b"", data_type=1, dims=[0, 2**63 - 1]),
            LimitError,
            "dimension 1",
        ),
        "rank_100000": (
            tensor(bytes(4), data_type=1, dims=[1] * 100_000),
            LimitError,
            "rank 100000",
        ),
        "raw_too_short": (tensor(bytes(7), data_type=1, dims=[2]), ModelError, "7 bytes.*needs 8"),
        "raw_too_long": (tensor(bytes(9), data_type=1, dims=[2]), ModelError, "9 bytes.*needs 8"),
        "no_data": (tensor(data_type=1, dims=[2]), ModelError, "0 bytes.*needs 8"),
        "raw_and_typed": (
            tensor(eight, data_type=1, dims=[2], float_data=[1, 2]),
            ModelError,
            "both raw_data and float_data",
        ),
        "typed_too_few": (tensor(data_type=1, dims=[2], float_data=[1]), ModelError, "needs 8"),
        "typed_wrong_field": (
            tensor(data_type=1, dims=[2], int64_data=[1, 2]),
            ModelError,
            "float32, but has int64_data",
        ),
        "typed_out_of_range": (
            tensor(data_type=3, dims=[1], int32_data=[300]),
            ModelError,
            "range",
        ),
        "bool_of_2": (tensor(b"\2", data_type=9, dims=[1]), ModelError, "0 and 1"),
        "dtype_undefined": (tensor(eight, dims=[2]), ModelError, "data type 0"),
        "dtype_unknown": (tensor(eight, data_type=99, dims=[2]), ModelError, "data type 99"),
        "dtype_negative": (tensor(eight, data_type=-1, dims=[2]), ModelError, "data type -1"),
        "segment": (
            tensor(eight, data_type=1, dims=[2], segment=TensorProto.Segment(begin=0, end=1)),
            ModelError,
            "segment",
        ),
        "external_with_data": (external(("location", "x"), float_data=[1, 2]), ModelError, "both"),
        "external_without_location": (external(("offset", "0")), ModelError, "without a location"),
        "external_location_empty": (external(("location", "")), ModelError, "without a location"),
        "external_class_key": (
            external(("location", "x"), ("__class__", "y")),
            ModelError,
            "'__class__'",
        ),
        "external_two_locations": (
            external(("location", "x"), ("location", "y")),
            ModelError,
            "two entries",
        ),
        "external_for_bytes": (external(("location", "weights.bin")), ModelError, "external_data="),
        "external_undeclared": (
            tensor(
                eight,
                data_type=1,
                dims=[2],
                external_data=[onnx.StringStringEntryProto(key="location", value="x")],
            ),
            ModelError,
            "does not say so",
        ),
    }
    for name in ("-1", "1e3", "0x10", " 1", "9" * 400, "½"):
        cases[f"external_offset_{name[:8]}"] = (
            external(("location", "x"), ("offset", name)),
            ModelError,
            "not a number of bytes",
        )
    for name, code in unsupported.items():
        cases[f"dtype_{name}"] = (
            tensor(eight, data_type=code, dims=[2]),
            UnsupportedError,
            f"bad.*{name}",
        )
    return cases


def sparse_tensors() -> dict[str, Case]:
    def sparse(values: list[float], indices: list, dims: list[int]) -> bytes:
        flat = np.asarray(indices, "i8")
        proto = helper.make_sparse_tensor(
            helper.make_tensor("bad", TensorProto.FLOAT, [len(values)], values),
            helper.make_tensor("", TensorProto.INT64, flat.shape, flat.ravel()),
            dims,
        )
        return _edit(lambda m: m.graph.sparse_initializer.append(proto))

    return {
        "sparse_outside": (sparse([1], [6], [2, 3]), ModelError, "outside"),
        "sparse_negative": (sparse([1], [-1], [2, 3]), ModelError, "outside"),
        "sparse_not_ascending": (sparse([1, 2], [3, 3], [2, 3]), ModelError, "ascending"),
        "sparse_coordinate": (sparse([1], [[0, 3]], [2, 3]), ModelError, "coordinate 3"),
        "sparse_counts": (sparse([1, 2], [1], [2, 3]), ModelError, "indices of shape"),
        "sparse_scalar": (sparse([1], [[]], []), ModelError, "rank"),
        "sparse_huge": (sparse([1], [1], [2**20, 2**20]), LimitError, "bad"),
    }


def corpus() -> dict[str, Case]:
    """All of them."""
    return containers() | structure() | tensors() | sparse_tensors()
