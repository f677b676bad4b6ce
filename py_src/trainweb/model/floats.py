"""Floating-point types other than float32, which is what everything is computed in.

`in_float32` turns a graph with float16, bfloat16 or float64 into one that computes in float32. Weights are converted as
they are read, where `training/models.py` does not keep them. The model's inputs keep their types behind a Cast. The
declared type of a tensor stands in its notes (`DECLARED_TYPE`), so that checkpoints and exported models have it again.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..errors import UnsupportedError
from .checks import DTYPE_CODES, ONNX_DTYPES
from .graph import DECLARED_TYPE, ITEM_SIZE, Graph, Node, Sequence, Tensor, Value, take_name
from .lazy import LARGE, LazyTensor

HALVES = ("float16", "bfloat16")
"""Types that are computed in float32 wherever they occur."""
FLOATS = ("float32", *HALVES)
ABOUT_SHAPES = ("Shape", "Size", "SequenceLength")
"""Operators whose results are sizes, whatever the numbers are that they are asked about."""
OTHER_FLOATS = (*HALVES, "float64")
"""Types that parameters may be declared as besides float32."""
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision", "precision")
"""Attributes that name a data type."""
CHUNK = 1 << 16
"""Elements that are converted at once."""
_QUIET_NAN = 0x7FC0


def converted(tensor: Tensor, dtype: str) -> Tensor:
    """A tensor of floats as another type of float: rounded to nearest, beyond its range infinity.

    Large ones, and those whose data lies elsewhere, are converted when their data is read.
    """
    if tensor.dtype == dtype:
        return tensor
    if isinstance(tensor, ConvertedTensor) and tensor.source.dtype in (dtype, tensor.dtype):
        return converted(tensor.source.renamed(tensor.name), dtype)
    nbytes = tensor.size * ITEM_SIZE[dtype]
    # The larger of the two decides, so that the way back finds the source.
    if isinstance(tensor, LazyTensor) or max(nbytes, tensor.nbytes) >= LARGE:
        return ConvertedTensor(tensor, dtype)
    data = bytearray(nbytes)
    convert(memoryview(tensor.data).cast("B"), tensor.dtype, memoryview(data), dtype)
    return Tensor(tensor.name, dtype, tensor.shape, bytes(data), tensor.notes)


class ConvertedTensor(LazyTensor):
    """The elements of another tensor of floats, as another type."""

    __slots__ = ("source",)

    def __init__(self, source: Tensor, dtype: str, notes: dict[str, str] | None = None) -> None:
        place = source.place if isinstance(source, LazyTensor) and not isinstance(source, ConvertedTensor) else None
        moved = None if place is None else replace(place, conversion=(source.dtype, dtype))
        read_into = partial(_read_into, source, dtype)
        super().__init__(source.name, dtype, source.shape, read_into, moved, notes or source.notes)
        self.source = source

    def renamed(self, name: str) -> Tensor:
        return ConvertedTensor(self.source.renamed(name), self.dtype, self.notes)


def _read_into(source: Tensor, dtype: str, out: memoryview) -> None:
    convert(memoryview(source.data).cast("B"), source.dtype, out, dtype)


def convert(source: memoryview, dtype: str, out: memoryview, wanted: str) -> None:
    """Convert little-endian floats of one type to another, by way of Python's floats."""
    size, step = ITEM_SIZE[dtype], ITEM_SIZE[wanted]
    for start in range(0, len(source) // size, CHUNK):
        count = min(CHUNK, len(source) // size - start)
        values = _unpacked(source[start * size : (start + count) * size], dtype, count)
        out[start * step : (start + count) * step] = _packed(values, wanted)


def _unpacked(data: memoryview, dtype: str, count: int) -> Iterable[float]:
    if dtype == "bfloat16":
        wide = bytearray(4 * count)
        wide[2::4], wide[3::4] = data[::2].tobytes(), data[1::2].tobytes()
        return struct.unpack(f"<{count}f", wide)
    code = {"float16": "e", "float32": "f", "float64": "d"}[dtype]
    return struct.unpack(f"<{count}{code}", data)


def _packed(values: Iterable[float], dtype: str) -> bytes:
    if dtype == "float64":
        return _little_endian(array("d", values))
    if dtype == "float16":
        numbers = tuple(values)
        try:
            return struct.pack(f"<{len(numbers)}e", *numbers)
        except OverflowError:
            return b"".join(map(_half, numbers))
    # array rounds values beyond the range to infinity, where struct raises.
    singles = array("f", values)
    if dtype == "float32":
        return _little_endian(singles)
    words = memoryview(_little_endian(singles)).cast("I")
    return _little_endian(array("H", map(_rounded_to_bfloat16, words)))


def _little_endian(numbers: array[Any]) -> bytes:
    if struct.pack("=H", 1) != struct.pack("<H", 1):
        numbers.byteswap()
    return numbers.tobytes()


def _half(value: float) -> bytes:
    try:
        return struct.pack("<e", value)
    except OverflowError:
        return struct.pack("<e", float("inf") if value > 0 else float("-inf"))


def _rounded_to_bfloat16(word: int) -> int:
    """The upper half of the word of a float32, rounded to nearest even."""
    if word & 0x7FFFFFFF > 0x7F800000:
        return word >> 16 & 0x8000 | _QUIET_NAN
    return word + 0x7FFF + (word >> 16 & 1) >> 16


def stored_type(tensor: Tensor) -> str:
    """Return the type that the data of a tensor has where it lies."""
    return tensor.source.dtype if isinstance(tensor, ConvertedTensor) else tensor.dtype


def declared_type(tensor: Tensor) -> str:
    """Return the type of a tensor in the model that it came from."""
    return tensor.notes.get(DECLARED_TYPE, tensor.dtype)


def as_declared(tensor: Tensor) -> Tensor:
    """A tensor as the type that it was in the model that it came from."""
    return converted(tensor, declared_type(tensor))


def as_float32(tensor: Tensor) -> Tensor:
    """A tensor of floats as float32, with a note of what it was; others as they are."""
    if tensor.dtype not in OTHER_FLOATS:
        return tensor
    noted = tensor.renamed(tensor.name)
    noted.notes = {**tensor.notes, DECLARED_TYPE: tensor.dtype}
    return converted(noted, "float32")


@dataclass(slots=True)
class Declared:
    """The declarations of a model before it was made one of float32.

    `inputs` and `outputs` are types of tensors that had another type of float. `tensors` and `casts` count constants of
    each type, and casts to it.
    """

    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, int] = field(default_factory=dict)
    casts: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{n} constants of {dtype}" for dtype, n in sorted(self.tensors.items())]
        for what, dtypes in (("inputs", self.inputs), ("outputs", self.outputs)):
            for dtype in sorted(set(dtypes.values())):
                names = [name for name, t in dtypes.items() if t == dtype]
                parts.append(f"{what} of {dtype}: {', '.join(names)}")
        parts += [f"{n} casts to {dtype}" for dtype, n in sorted(self.casts.items())]
        if not parts:
            return ""
        return (
            f"computed in float32 ({'; '.join(parts)}); inputs and outputs keep their types, and checkpoints and "
            "exported models give parameters their declared type"
        )


def in_float32(graph: Graph) -> tuple[Graph, Declared]:
    """A graph that computes in float32, and what it was declared with.

    float16 and bfloat16 are replaced wherever they occur. float64 is replaced in models that have float64 inputs,
    constants of more than one element, or data that are cast to it; elsewhere, in shape arithmetic above all, it stays,
    and so it does where bits are looked at. Inputs have their declared types, and are cast; `cast_outputs` brings back
    the types of outputs.
    """
    replaced = {*HALVES, *(["float64"] if _has_float64(graph) else [])}
    if replaced.isdisjoint(_dtypes(graph)):
        return graph, Declared()
    declared = Declared()
    for tensor in graph.tensors():
        if tensor.dtype in replaced:
            declared.tensors[tensor.dtype] = declared.tensors.get(tensor.dtype, 0) + 1
    for node in graph.nodes:
        dtype = ONNX_DTYPES.get(_type_codes(node).get("to", 0), "")
        if node.op_type == "Cast" and dtype in replaced:
            declared.casts[dtype] = declared.casts.get(dtype, 0) + 1
    declared.inputs = {v.name: v.dtype for v in graph.inputs if v.dtype in replaced and isinstance(v, Value)}
    declared.outputs = {
        v.name: v.dtype for v in graph.outputs if v.dtype in replaced and isinstance(v, Value) and v not in graph.inputs
    }
    result = _replaced(graph, frozenset(replaced))
    return cast_inputs(_without_casts(result), declared.inputs), declared


def computed_in_float32(graph: Graph) -> Graph:
    """A graph that computes in float32, whose inputs and outputs have their declared types."""
    result, declared = in_float32(graph)
    return cast_outputs(result, declared.outputs)


def _has_float64(graph: Graph) -> bool:
    """Return whether float64 is more than shape arithmetic: inputs, constants of several numbers, or casts of data."""
    if any(node.op_type == "BitCast" for node in graph.nodes):
        return False  # its bits are looked at
    inputs = any(v.dtype == "float64" for v in graph.inputs)
    constants = {t.name: t for t in graph.initializers.values()}
    for node in graph.nodes:
        value = node.attrs.get("value") if node.op_type == "Constant" else None
        constants |= {node.outputs[0]: value} if isinstance(value, Tensor) else {}
    tables = any(t.dtype == "float64" and t.size > 1 for t in constants.values())
    return inputs or tables or _casts_data(graph, constants)


def _casts_data(graph: Graph, constants: Mapping[str, Tensor]) -> bool:
    """Return whether data of other types of float are cast to float64 and read; numbers for sizes do not count."""
    read = {name for node in graph.nodes for name in node.inputs}
    data = {v.name for v in graph.inputs if v.dtype in FLOATS}
    data |= {name for name, t in constants.items() if t.dtype in FLOATS and t.size > 1}
    for node in graph.nodes:
        if data.isdisjoint(node.inputs) or node.op_type in ABOUT_SHAPES:
            continue
        if node.op_type == "Cast" and node.attrs.get("to") == DTYPE_CODES["float64"]:
            if not read.isdisjoint(node.outputs):
                return True
            continue
        data.update(node.outputs)
    return False


def _dtypes(graph: Graph) -> Iterator[str]:
    """Every type that a graph names; bodies of nodes, too."""
    yield from (v.dtype for v in (*graph.inputs, *graph.outputs))
    yield from (t.dtype for t in graph.tensors())
    for node in graph.nodes:
        yield from (ONNX_DTYPES.get(code, "") for code in _type_codes(node).values())
        for inner in node.bodies():
            yield from _dtypes(inner)


def _type_codes(node: Node) -> dict[str, int]:
    return {name: code for name in TYPE_ATTRIBUTES if isinstance(code := node.attrs.get(name), int)}


def _replaced(graph: Graph, replaced: frozenset[str]) -> Graph:
    """A copy with float32 in the place of these types, at the edges as well."""
    result = graph.copy()
    result.inputs = [_float32_value(v, replaced) for v in graph.inputs]
    result.outputs = [_float32_value(v, replaced) for v in graph.outputs]
    result.value_info = {
        name: replace(v, dtype="float32") if v.dtype in replaced else v for name, v in graph.value_info.items()
    }
    result.initializers = {name: _float32_item(t, replaced) for name, t in graph.initializers.items()}
    for node in result.nodes:
        for name, code in _type_codes(node).items():
            if ONNX_DTYPES.get(code) in replaced:
                if node.op_type == "BitCast":
                    raise UnsupportedError(f"{node}: the bits of a {ONNX_DTYPES[code]} are not there: it is float32.")
                node.attrs[name] = DTYPE_CODES["float32"]
        for name, value in node.attrs.items():
            if isinstance(value, (Tensor, Graph)):
                node.attrs[name] = _float32_item(value, replaced)
            elif isinstance(value, list) and any(isinstance(v, (Tensor, Graph)) for v in value):
                node.attrs[name] = [_float32_item(v, replaced) for v in value]
    return result


def _float32_value(value: Value | Sequence, replaced: frozenset[str]) -> Value | Sequence:
    return replace(value, dtype="float32") if value.dtype in replaced else value


def _float32_item(item: Any, replaced: frozenset[str]) -> Any:
    if isinstance(item, Graph):
        return _replaced(item, replaced)
    return as_float32(item) if isinstance(item, Tensor) and item.dtype in replaced else item


def _without_casts(graph: Graph) -> Graph:
    """A copy without casts of float32 constants to float32, which would hide the readers of trained constants."""
    outputs = {v.name for v in graph.outputs}
    names: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        source = graph.initializers.get(names.get(node.inputs[0], node.inputs[0])) if node.inputs else None
        same = source is not None and source.dtype == "float32" and node.attrs.get("to") == DTYPE_CODES["float32"]
        if node.op_type == "Cast" and same and node.outputs[0] not in outputs:
            names[node.outputs[0]] = names.get(node.inputs[0], node.inputs[0])
        else:
            nodes.append(node)
    result = graph.copy()
    result.nodes = nodes
    rename_reads(result.nodes, names)
    return result


def rename_reads(nodes: Iterable[Node], names: Mapping[str, str]) -> None:
    """Let nodes, which are changed, read tensors of other names, also in bodies that read them from outside."""
    if not names:
        return
    for node in nodes:
        node.inputs = [names.get(name, name) for name in node.inputs]
        for key, value in node.attrs.items():
            if isinstance(value, Graph):
                node.attrs[key] = _renamed_body(value, names)
            elif isinstance(value, list) and any(isinstance(v, Graph) for v in value):
                node.attrs[key] = [_renamed_body(v, names) if isinstance(v, Graph) else v for v in value]


def _renamed_body(body: Graph, names: Mapping[str, str]) -> Graph:
    inner_names = set(body.names())
    outer = {a: b for a, b in names.items() if a not in inner_names}
    inner = body.copy()
    rename_reads(inner.nodes, outer)
    inner.outputs = [replace(v, name=outer.get(v.name, v.name)) for v in inner.outputs]
    return inner


def cast_inputs(graph: Graph, dtypes: Mapping[str, str]) -> Graph:
    """A copy with inputs of these types, which are cast to float32 before anything reads them."""
    if not dtypes:
        return graph
    result, taken = graph.copy(), set(graph.names())
    names = {name: take_name(f"{name}.float32", taken) for name in dtypes}
    rename_reads(result.nodes, names)
    result.inputs = [replace(v, dtype=dtypes[v.name]) if v.name in dtypes else v for v in graph.inputs]
    to = DTYPE_CODES["float32"]
    result.nodes[:0] = [Node("Cast", [a], [b], {"to": to}, name=f"{b}/cast") for a, b in names.items()]
    return result


def cast_outputs(graph: Graph, dtypes: Mapping[str, str]) -> Graph:
    """A copy whose outputs are cast from float32 to these types; names that it does not have are left out."""
    wanted = {v.name: dtypes[v.name] for v in graph.outputs if dtypes.get(v.name, v.dtype) != v.dtype}
    if not wanted:
        return graph
    result, taken = graph.copy(), set(graph.names())
    names = {name: take_name(f"{name}.float32", taken) for name in wanted}
    rename_reads(result.nodes, names)
    for node in result.nodes:
        node.outputs = [names.get(name, name) for name in node.outputs]
    for name, tensor in list(result.initializers.items()):
        if name in names:
            del result.initializers[name]
            result.initializers[names[name]] = tensor.renamed(names[name])
    for old, new in names.items():
        if old in result.value_info:
            result.value_info[new] = replace(result.value_info.pop(old), name=new)
    result.outputs = [replace(v, dtype=wanted[v.name]) if v.name in wanted else v for v in graph.outputs]
    result.nodes += [
        Node("Cast", [names[name]], [name], {"to": DTYPE_CODES[dtype]}, name=f"{names[name]}/cast")
        for name, dtype in wanted.items()
    ]
    return result


def note_outputs(graph: Graph, outputs: Iterable[Value | Sequence], dtypes: Mapping[str, str]) -> Graph:
    """A copy that remembers of a model's outputs, which need not be its own, as what type they were declared."""
    values = {v.name: v for v in outputs if isinstance(v, Value) and v.name in dtypes}
    if not values:
        return graph
    result, names = graph.copy(), {v.name for v in graph.outputs}
    for name, value in values.items():
        if name not in names:
            value = graph.value_info.get(name, value)
            result.value_info[name] = replace(value, notes={**value.notes, DECLARED_TYPE: dtypes[name]})
    return result


def as_noted(graph: Graph) -> Graph:
    """A copy whose outputs have the types that are noted of them (`note_outputs`)."""
    noted = {v.name: v.notes for v in graph.outputs if isinstance(v, Value)}
    return cast_outputs(graph, {name: notes[DECLARED_TYPE] for name, notes in noted.items() if DECLARED_TYPE in notes})


def with_declared_types(graph: Graph) -> Graph:
    """A copy whose constants have the types that they were declared with, and are cast to float32 before use."""
    graph = _without_constant_nodes(graph)
    outputs = {v.name for v in graph.outputs}
    tensors = {name: as_declared(t) for name, t in graph.initializers.items() if name not in outputs}
    dtypes = {name: t.dtype for name, t in tensors.items() if t.dtype != graph.initializers[name].dtype}
    if not dtypes:
        return graph
    result = cast_inputs(graph, dtypes)
    result.initializers = {**graph.initializers, **tensors}
    return result


def _without_constant_nodes(graph: Graph) -> Graph:
    """A copy with initializers in the place of Constant nodes whose tensors were declared as another type."""
    values = {}
    for node in graph.nodes:
        tensor = node.attrs.get("value")
        if node.op_type == "Constant" and isinstance(tensor, Tensor) and declared_type(tensor) != tensor.dtype:
            values[node.outputs[0]] = tensor.renamed(node.outputs[0])
    if not values:
        return graph
    result = graph.copy()
    result.nodes = [node for node in graph.nodes if node.outputs[0] not in values]
    result.initializers = {**graph.initializers, **values}
    return result
