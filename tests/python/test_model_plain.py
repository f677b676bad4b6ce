"""Nodes, attributes and tensors that the reader decodes itself, against the protobuf classes of the package onnx."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from trainweb.errors import ModelError
from trainweb.model.plain import plain_attribute, plain_node, plain_tensor
from trainweb.model.reader import read_model

from .test_model_encoded import damage

NUMBERS = [0, 1, -1, 127, 128, -128, 300, 2**31, -(2**31), 2**63 - 1, -(2**63)]
VALUES: dict[str, Any] = {
    "int": -1,
    "float": -0.1,
    "string": "größe",
    "long": "text" * 50,
    "ints": NUMBERS,
    "floats": [0.5, -1e-30, float("inf")],
    "strings": ["a", "", "größe"],
}
FIELDS = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints", 8: "strings"}


def attributes() -> list[AttributeProto]:
    found = [helper.make_attribute("a", value, doc_string="said of it") for value in VALUES.values()]
    found += [helper.make_attribute("long name" * 20, number) for number in NUMBERS]
    found += [AttributeProto(name="empty", type=kind) for kind in (6, 7, 8)]
    found.append(helper.make_attribute("t", numpy_helper.from_array(np.ones(3, np.float32))))
    found.append(AttributeProto(name="axis", ref_attr_name="outer", type=2))
    found.append(AttributeProto(name="two", type=2, i=1, f=2))
    found.append(AttributeProto(name="other", type=2, f=2))
    return found


def nodes() -> list[NodeProto]:
    found = [
        helper.make_node("Op", ["x", "", "größe"], ["y" * 130], name="n", domain="d", a=v) for v in VALUES.values()
    ]
    found += [NodeProto(), helper.make_node("Op", [], ["y"], doc_string="said", overload="o")]
    for node in found:
        node.metadata_props.add(key="key", value="v" * 300)
    return found


def tensors() -> list[TensorProto]:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = [numpy_helper.from_array(array, "w"), numpy_helper.from_array(np.zeros((0, 300), np.int64), "größe")]
    found += [TensorProto(), TensorProto(name="t", dims=[6], data_type=1, float_data=[1, 2]), TensorProto(dims=NUMBERS)]
    found += [TensorProto(raw_data=b""), TensorProto(raw_data=bytes(20_000), doc_string="said", data_type=200)]
    outside = TensorProto(name="e", dims=[2, 1], data_type=1, data_location=1)
    for key, value in (("location", "f.data"), ("offset", "4096"), ("length", "8")):
        outside.external_data.add(key=key, value=value)
    outside.metadata_props.add(key="key", value="value")
    return [*found, outside]


def text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


def assert_same_attribute(data: bytes) -> bool:
    found = plain_attribute(data)
    if found is None:
        return False
    expected = AttributeProto.FromString(data)
    assert (found.name, found.type, found.ref_attr_name) == (expected.name, expected.type, expected.ref_attr_name)
    value = getattr(expected, FIELDS[expected.type])
    np.testing.assert_array_equal(found.value, value if isinstance(value, (int, float, bytes)) else list(value))
    set_fields = {descriptor.name for descriptor, _ in expected.ListFields()}
    assert set_fields <= {"name", "type", "doc_string", FIELDS[expected.type]}
    return True


def assert_same_node(data: bytes) -> bool:
    found = plain_node(data)
    if found is None:
        return False
    expected = NodeProto.FromString(data)
    assert (found.op_type, found.domain, found.name, "") == (
        expected.op_type, expected.domain, expected.name, expected.overload,
    )  # fmt: skip
    assert (found.input, found.output) == (list(expected.input), list(expected.output))
    assert list(map(AttributeProto.FromString, found.attribute)) == list(expected.attribute)
    assert list(map(onnx.StringStringEntryProto.FromString, found.metadata_props)) == list(expected.metadata_props)
    return True


def assert_same_tensor(data: bytes) -> bool:
    found = plain_tensor(data)
    if found is None:
        return False
    expected = TensorProto.FromString(data)
    assert (found.name, found.data_type, found.data_location) == (
        expected.name, expected.data_type, expected.data_location,
    )  # fmt: skip
    assert (found.dims, found.raw_data) == (list(expected.dims), expected.raw_data)
    assert found.HasField("raw_data") == expected.HasField("raw_data")
    assert not found.HasField("segment") and not expected.HasField("segment")
    assert [(e.key, e.value) for e in found.external_data] == [(e.key, e.value) for e in expected.external_data]
    assert list(map(onnx.StringStringEntryProto.FromString, found.metadata_props)) == list(expected.metadata_props)
    for name in ("float_data", "double_data", "int32_data", "int64_data", "uint64_data", "string_data"):
        assert list(getattr(found, name)) == list(getattr(expected, name))
    return True


CASES: list[Any] = [
    pytest.param(attributes, assert_same_attribute, 21, id="attributes"),
    pytest.param(nodes, assert_same_node, 8, id="nodes"),
    pytest.param(tensors, assert_same_tensor, 6, id="tensors"),
]


@pytest.mark.parametrize(("samples", "assert_same", "plain"), CASES)
def test_what_is_decoded_is_what_protobuf_decodes(
    samples: Callable[[], list[Message]], assert_same: Callable[[bytes], bool], plain: int
) -> None:
    assert sum(assert_same(sample.SerializeToString()) for sample in samples()) == plain


@pytest.mark.parametrize(("samples", "assert_same", "plain"), CASES)
def test_whatever_bytes_are_taken_protobuf_decodes_to_the_same(
    samples: Callable[[], list[Message]], assert_same: Callable[[bytes], bool], plain: int
) -> None:
    chance, taken = random.Random(11), 0
    for sample in samples():
        data = sample.SerializeToString()
        for _ in range(300):
            try:
                taken += assert_same(damage(data, chance))
            except (DecodeError, UnicodeDecodeError):
                continue  # what is encoded inside is damaged: that is refused when it is decoded
    assert taken > 10 * plain


def test_lists_are_the_same_packed_and_one_by_one() -> None:
    packed = b"\x0a\x01a" + b"\x42\x0c\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x05" + b"\xa0\x01\x07"
    assert list(AttributeProto.FromString(packed).ints) == [1, -1, 5]
    assert assert_same_attribute(packed)
    assert assert_same_attribute(b"\x0a\x01a\x3a\x08\x00\x00\x80\x3f\x00\x00\x00\xc0\xa0\x01\x06")
    assert assert_same_tensor(b"\x0a\x03\x02\xac\x02\x10\x01\x42\x01w\x4a\x00")


def model(**fields: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], **fields)


def test_a_graph_in_two_parts_is_one() -> None:
    """Protobuf joins messages that come twice: so does who takes them apart."""
    first, second = model(), onnx.ModelProto()
    second.graph.node.append(helper.make_node("Neg", ["y"], ["z"]))
    second.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "v"))
    data = first.SerializeToString() + second.SerializeToString()
    graph = read_model(data)
    assert [n.op_type for n in graph.nodes] == [n.op_type for n in onnx.load_from_string(data).graph.node]
    assert list(graph.initializers) == ["w", "v"]


def test_a_node_that_is_damaged_inside_is_refused() -> None:
    data = model().SerializeToString()
    at = data.index(b"\x22\x03Add")  # field 4, three bytes
    for byte in (b"\x22\x7f", b"\x22\x04", b"\x27\x03"):
        with pytest.raises(ModelError, match="not valid ONNX"):
            read_model(data[:at] + byte + data[at + 2 :])
