"""Messages that the reader decodes itself: what it makes of them against the protobuf classes of the package onnx."""

import ast
import random

import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper

from trainweb.artifacts.evidence import FOLDED, folded_from
from trainweb.errors import ModelError
from trainweb.model.encoded import notes, plain_declaration, properties
from trainweb.model.reader import read_metadata, read_model
from trainweb.model.writer import write_model

SCOPES = "pkg.torch.onnx.name_scopes"
DIMS: list[tuple[int | str | None, ...] | None] = [
    (), (3,), (1, 127, 128, 2**31 - 1), (0,), ("batch", 4), (None, 4), (-1, 2), (2, 3) * 16, None,
]  # fmt: skip


def declared(name: str, dims: tuple[int | str | None, ...] | None, **notes: str) -> onnx.ValueInfoProto:
    proto = helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    for key, value in notes.items():
        proto.metadata_props.add(key=SCOPES if key == "scopes" else key, value=value)
    return proto


def with_value_info(value_info: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    x, y = declared("x", (2,)), declared("y", (2,))
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], value_info=value_info))


def samples() -> list[onnx.ValueInfoProto]:
    protos = [declared(name, dims) for name in ("h", "long" * 40, "größe", "") for dims in DIMS]
    protos += [declared("h", (2, 3), stack="line\n" * n, scopes="['a']", other="") for n in (0, 1, 200)]
    protos += [helper.make_tensor_value_info("h", code, (2,)) for code in (TensorProto.INT64, TensorProto.INT4)]
    protos.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, (2,), doc_string="said of it"))
    protos.append(helper.make_tensor_sequence_value_info("h", TensorProto.FLOAT, (2,)))
    return protos


def damage(data: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(damaged)) if damaged else 0
        damaged[at : at + chance.randint(0, 2)] = chance.randbytes(chance.randint(0, 2))
    return bytes(damaged)


def assert_as_protobuf_decodes(data: bytes) -> bool:
    """A declaration, if it is one, says what protobuf decodes; whether it is one."""
    found = plain_declaration(data)
    if found is None:
        return False
    expected = onnx.ValueInfoProto.FromString(data)
    tensor = expected.type.tensor_type
    assert found.name == expected.name
    assert (found.code, found.shape) == (tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim))
    assert all(dim.WhichOneof("value") == "dim_value" and not dim.denotation for dim in tensor.shape.dim)
    entries = map(onnx.StringStringEntryProto.FromString, found.properties)
    assert [(e.key, e.value) for e in entries] == [(p.key, p.value) for p in expected.metadata_props]
    assert not expected.doc_string and not expected.type.denotation
    return True


def test_declarations_are_what_protobuf_decodes() -> None:
    assert sum(assert_as_protobuf_decodes(proto.SerializeToString()) for proto in samples()) > 10


def test_damaged_declarations_are_left_to_protobuf() -> None:
    """For any bytes that are taken for a declaration, protobuf decodes the same."""
    chance, taken = random.Random(3), 0
    for proto in samples()[::2]:
        data = proto.SerializeToString()
        for _ in range(400):
            try:
                taken += assert_as_protobuf_decodes(damage(data, chance))
            except DecodeError:
                continue  # An entry is damaged inside, or a name is no UTF-8: that is refused later on.
    assert taken > 100


def test_a_model_keeps_what_is_said_of_its_edges() -> None:
    value_info = [declared(f"h{k}", dims, scopes=f"['m{k}']", stack="...") for k, dims in enumerate(DIMS)]
    model = with_value_info(value_info)
    graph = read_model(model.SerializeToString())
    expected = {
        f"h{k}": None if dims is None else tuple(None if dim == -1 else dim for dim in dims)
        for k, dims in enumerate(DIMS)
    }
    assert {value.name: value.shape for value in graph.value_info.values()} == expected
    assert graph.value_info["h1"].notes == {SCOPES: "['m1']"}
    again = onnx.load_from_string(write_model(graph))
    onnx.checker.check_model(again)
    assert [proto.name for proto in again.graph.value_info] == list(expected)
    assert [(p.key, p.value) for p in again.graph.value_info[1].metadata_props] == [(SCOPES, "['m1']")]


def test_two_declarations_must_not_contradict() -> None:
    model = with_value_info([declared("h", (2,)), declared("h", (3,))])
    with pytest.raises(ModelError, match="two different value infos for 'h'"):
        read_model(model.SerializeToString())


def entry(key: str, value: str, swapped: bool = False) -> bytes:
    first, second = (onnx.StringStringEntryProto(key=key), onnx.StringStringEntryProto(value=value))
    parts = [first.SerializeToString(), second.SerializeToString()]
    return b"".join(parts[::-1] if swapped else parts)


def test_notes_are_found_in_any_order_of_fields() -> None:
    entries = [entry("other", "1"), entry(SCOPES, "2", swapped=True), entry("k" * 200, "3"), b""]
    assert notes(entries) == {SCOPES: "2"}
    assert notes([entry("a", "1"), entry(SCOPES, "2")]) == {SCOPES: "2"}


def test_properties_are_what_protobuf_decodes() -> None:
    """Of whole entries, and of damaged ones that are taken or refused as protobuf does."""
    chance, taken = random.Random(5), 0
    for value in ("", "text", "größe", "v" * 127, "v" * 128, "v" * 300, "v" * 20_000):
        for data in (entry("key", value), entry("k" * 130, value), entry("key", value, swapped=True)):
            for damaged in (data, *(damage(data, chance) for _ in range(200))):
                try:
                    expected = onnx.StringStringEntryProto.FromString(damaged)
                except DecodeError:
                    with pytest.raises(ModelError):
                        list(properties([damaged]))
                    continue
                if isinstance(expected.key, bytes) or isinstance(expected.value, bytes):
                    continue  # no UTF-8
                assert list(properties([damaged])) == [(expected.key, expected.value)]
                taken += 1
    assert taken > 300


def test_a_damaged_note_is_refused() -> None:
    with pytest.raises(ModelError, match="not valid ONNX"):
        notes([entry(SCOPES, "text")[:-1]])
    with pytest.raises(ModelError, match=r"UTF-8|not valid ONNX"):
        notes([entry(SCOPES, "text").replace(b"text", b"\xff\xff\xff\xff")])


def test_lists_of_names_are_what_python_reads() -> None:
    chance = random.Random(7)
    lists = [["".join(chance.choices("ab', \\\"[]", k=chance.randint(0, 5))) for _ in range(3)] for _ in range(300)]
    lists += [[], [""], ["a"], ["", "features.0"]]
    for names in lists:
        assert folded_from({FOLDED: repr(names)}) == names
    for text in ("['a'+'b']", "['a', b']", "['a'", "[1, 2]", "('a', 'b')", "['a\\nb']"):
        try:
            expected = [str(name) for name in ast.literal_eval(text)]
        except (SyntaxError, ValueError):
            expected = []
        assert folded_from({FOLDED: text}) == expected, text


def test_metadata_of_a_model() -> None:
    model = with_value_info([])
    helper.set_model_props(model, {"author": "me", "größe": "1" * 300})
    assert read_metadata(model.SerializeToString())["custom_metadata_map"] == {"author": "me", "größe": "1" * 300}
    again = onnx.load_from_string(write_model(read_model(model.SerializeToString())))
    assert {p.key: p.value for p in again.metadata_props} == {"author": "me", "größe": "1" * 300}
