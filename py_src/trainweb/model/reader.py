"""ONNX or ORT format -> `Graph`. The file is untrusted and checked here, once, for all later stages."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..arguments import mapping
from ..errors import LimitError, ModelError, UnsupportedError
from .calls import listed_parameters
from .checks import ONNX_DTYPES, Limits, check_dims, check_dtype, check_edges, check_name, check_opsets, check_shape
from .encoded import notes, parse, plain_declaration, properties
from .external_data import ExternalData, byte_view
from .functions import Frame, Function, Key, function_key
from .graph import ITEM_SIZE, TORCH, TRAINWEB, Graph, Node, Sequence, Tensor, Value
from .integrity import check_integrity
from .linear import write_out_linear
from .local import HELD, STAYS_OPEN, HeldFile, OpenFile
from .ort_format import by_use, is_ort_format, onnx_of_ort
from .plain import PlainAttribute, plain_attribute
from .remote import LOCATION, RangedFile
from .repairs import (
    add_where_indices_meet,
    check_newer,
    count_axes_from_front,
    drop_zero_biases,
    part_dims,
    part_statistics,
    rename_duplicates,
)
from .schema import messages
from .smoothing import smooth_labels
from .split import SplitModel
from .tensors import TensorReader
from .weights import GIVEN, SPARE, Weights

ATTRIBUTE_FIELD = {
    1: "f",
    2: "i",
    3: "s",
    4: "t",
    5: "g",
    6: "floats",
    7: "ints",
    8: "strings",
    9: "tensors",
    10: "graphs",
    11: "sparse_tensor",
    12: "sparse_tensors",
    13: "tp",
    14: "type_protos",
}
"""The field that holds the value of each `AttributeProto.AttributeType`."""

ATTRIBUTE_HEADER = {"name", "doc_string", "type", "ref_attr_name"}
MAX_NESTING = 64
"""Subgraphs and functions inside each other; protobuf stops at 30 subgraphs, Python at some 200."""

MESSAGE_FIELDS = {"t", "g", "sparse_tensor"}

OPSETS_SINCE = 3
"""The IR version that brought opset_import."""

UNNAMED = re.compile(r"\?*|unk__\d+")
"""Placeholders of exporters for dims without a name: dims with equal placeholders need not be equal."""


def read_model(
    source: Any,
    *,
    external_data: Mapping[str, bytes | str] | None = None,
    limits: Limits | Mapping[str, int] | None = None,
    integrity: str | None = None,
    weights: Any = None,
) -> Graph:
    """Read a model in ONNX or in ORT format, which its first bytes tell apart.

    Nodes of one name get names of their own. Model-local functions are inlined, subgraphs become
    `Graph` attributes, nodes are put in executable order, tensors of any encoding become
    little-endian bytes, sparse initializers dense ones. Inputs that only declare an initializer are
    left out of `Graph.inputs`; an optional input is what it may hold. In a subgraph, an inner name
    goes before an outer one; an output without declared type has dtype "".

    Parameters
    ----------
    source : bytes-like, str, Path, onnx.ModelProto or RangedFile
        A str is a path. Large initializers stay in the file or the bytes. The file must not be changed while the graph,
        or something made of it, is in use; it stays open for as long (on Windows it is read at once).
    external_data : mapping of str to bytes-like, optional
        Data of external tensors by location. A model from a path may also have them in files below
        its directory; a model given as bytes reads no files. A str is the path of a safetensors file.
    limits : Limits or dict, optional
        `arena_bytes`, `nodes` and `file_bytes` count here.
    integrity : str, optional
        The hash that the file (not its external data) must have, as in HTML: "sha256-" and Base64; also sha384, sha512.
    weights : bytes-like, str, Path, or a sequence of these, optional
        Safetensors files with the data that initializers lack in the model, by their names. Floats of another
        type than the model declares are converted. An initializer may also name such a file as external data.

    Returns
    -------
    Graph
        The main graph.

    Raises
    ------
    ModelError
        The model is malformed or inconsistent, or has another hash than `integrity` says.
    UnsupportedError
        It is valid, but has a dtype, type or version that is not supported.
    LimitError
        It exceeds `limits`.
    """
    limits = Limits.of(limits)
    data, directory = _open_model(source, limits)
    if integrity is not None:
        check_integrity(data[0 : len(data)], integrity, "the model")
    files: dict[str, Any] = dict(mapping("external_data", external_data or {}))
    is_ort = is_ort_format(data)
    if is_ort or isinstance(data, RangedFile):
        files[LOCATION] = data
    beside = _weights(weights, files, limits)
    with ExternalData(directory, files, beside) as external:
        graph = _Reader(limits, external).model(_split(data, limits))
        is_spare = weights is None and any(location.startswith(SPARE) for location in files)
        if beside is not None and not beside.is_read and not is_spare:
            raise ModelError("weights are given, but every initializer of the model has data of its own")
        graph.external_files = tuple(name for name in external.names if name != LOCATION)
        if is_ort:
            graph.initializers = by_use(graph)
        return graph


def _weights(weights: Any, external: Mapping[str, Any], limits: Limits) -> Weights | None:
    """Files of weights as the caller gave them, or as a page gives them among external data; None without any."""
    sources = list(weights) if isinstance(weights, (list, tuple)) else [] if weights is None else [weights]
    sources += [source for location, source in external.items() if location.startswith(GIVEN)]
    if not sources:
        return None
    # Weights count as other external data do, not as a model's file.
    limits = replace(limits, file_bytes=limits.arena_bytes)
    paths = (str, os.PathLike)
    names = [Path(one).name if isinstance(one, paths) else f"weights {k}" for k, one in enumerate(sources)]
    files = (_open_model(one, limits, "file of weights")[0] for one in sources)
    return Weights(zip(names, files, strict=True))


def _open_model(
    source: Any, limits: Limits, what: str = "model"
) -> tuple[bytes | memoryview | RangedFile, Path | None]:
    """A model, whose large tensors stay in its file or bytes, and its directory."""
    if isinstance(source, (str, os.PathLike)) and STAYS_OPEN:
        path = Path(source)
        with suppress(OSError, ValueError):  # load_bytes says what is wrong
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and HELD <= status.st_size <= limits.file_bytes:
                return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), str(path)), path.parent
    data, directory = load_bytes(source, limits, what)
    if isinstance(data, RangedFile) or len(data) < HELD:
        return data, directory
    return HeldFile(bytes(data)), directory


def read_metadata(source: Any) -> dict[str, Any]:
    """Return a model's metadata: names and texts as onnxruntime's ModelMetadata calls them."""
    limits = Limits()
    return _about(_split(load_bytes(source, limits)[0], limits).proto)


def _about(proto: Any) -> dict[str, Any]:
    return {
        "producer_name": proto.producer_name,
        "graph_name": proto.graph.name,
        "domain": proto.domain,
        "description": proto.doc_string,
        "graph_description": proto.graph.doc_string,
        # A model without a version has the largest int64 there.
        "version": proto.model_version if proto.HasField("model_version") else 2**63 - 1,
        "custom_metadata_map": dict(properties(proto.metadata_props)),
    }


def load_bytes(
    source: Any, limits: Limits, what: str = "model", error: type[Exception] = ModelError
) -> tuple[bytes | memoryview | RangedFile, Path | None]:
    """Load the bytes of a model or checkpoint; also its directory, None where it is not a file."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return _load_file(path, limits, what, error), path.parent
    if hasattr(source, "SerializeToString"):
        source = source.SerializeToString()
    if isinstance(source, RangedFile):
        _check_file_size(len(source), limits, what)
        return source, None
    try:
        data = byte_view(source)
    except TypeError as failure:
        kind = type(source).__name__
        raise error(f"a {what} is bytes, a path or a message, not {kind}") from failure
    _check_file_size(len(data), limits, what)
    return data, None


def _load_file(path: Path, limits: Limits, what: str, error: type[Exception]) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{what} {str(path)!r} is not a regular file")
        _check_file_size(status.st_size, limits, what)
        with path.open("rb") as file:
            # Python allocates what it is asked for at once, so never the limit itself (2 GiB).
            data = file.read(status.st_size + 1)
    except (OSError, ValueError) as failure:
        raise error(f"cannot read {what} {str(path)!r}: {failure}") from failure
    _check_file_size(len(data), limits, what)
    return data


def _check_file_size(nbytes: int, limits: Limits, what: str) -> None:
    if nbytes > limits.file_bytes:
        raise LimitError(f"the {what} has {nbytes} bytes; the limit is {limits.file_bytes}")


def _split(data: bytes | memoryview | RangedFile, limits: Limits) -> SplitModel:
    if is_ort_format(data):
        return SplitModel(onnx_of_ort(data, limits), limits)
    return SplitModel(data if isinstance(data, RangedFile) else bytes(data), limits)


def _absent(notes: Mapping[str, str], main: SplitModel) -> list[str]:
    """Parameters of the source module that the main graph has no initializers of, as they are tied to others."""
    held = {entry.name for entry in main.initializers()}
    return [name for name in listed_parameters(notes) if name not in held]


class _Reader:
    """State of reading one model."""

    def __init__(self, limits: Limits, external: ExternalData) -> None:
        self._limits = limits
        self._tensors = TensorReader(limits, external)
        self._functions: dict[Key, Function] = {}
        self._sizes: dict[Key, int] = {}
        self._opsets: dict[str, int] = {}
        self._producer = ""
        self._free: dict[int, Mapping[str, Node | str]] = {}
        self._node_names: set[str] = set()
        self._nodes = self._calls = self._depth = 0

    def model(self, split: SplitModel) -> Graph:
        """The main graph of a model."""
        proto, newest = split.proto, messages().IR_VERSION
        if proto.ir_version < 1:
            raise ModelError(f"the model has IR version {proto.ir_version}; 1 to {newest} exist")
        if proto.ir_version > newest:
            check_newer(split.protos(), proto.ir_version, newest)
        self._opsets = check_opsets(proto.opset_import, "the model")
        if not self._opsets:
            old = f"IR version {proto.ir_version}" if proto.ir_version < OPSETS_SINCE else "no opset_import"
            raise ModelError(
                f"the model has {old}: the versions of its operators are unknown. Convert it with "
                "onnx.version_converter, or export it anew"
            )
        for entry in proto.functions:
            function = Function(entry)
            if function.key[0] == TRAINWEB:
                continue  # the body is for runtimes that do not have the operator
            if self._functions.setdefault(function.key, function) is not function:
                raise ModelError(f"the model has two functions {function.name!r} in one domain")
        count = self._size(split.nodes()) if self._functions else 0
        if count > self._limits.nodes:  # before any is made
            raise LimitError(
                f"the model has {count} nodes, once its functions are inlined; the limit is {self._limits.nodes}"
            )
        self._producer = check_name(proto.producer_name, "the producer name")
        graph = self.graph(proto.graph, None, split)
        undefined = self._free.pop(id(graph))
        if undefined:
            name, reader = next(iter(undefined.items()))
            raise ModelError(f"{name!r} is read by {reader}, but nothing in the model makes it")
        graph.opsets = self._opsets
        # before IR version 4 every initializer had to be an input, which they are not any more
        graph.ir_version = min(max(proto.ir_version, 4), newest)
        graph.producer = self._producer
        graph.about = _about(proto)
        graph.metadata = graph.about["custom_metadata_map"]
        graph.loop_iterations = self._limits.loop_iterations
        return graph

    # --- graphs

    def graph(self, proto: Any, frame: Frame | None, main: SplitModel | None = None) -> Graph:
        """A graph and everything in it, most of it in `main` if given; `_free` notes what it reads from outside."""
        self._enter()
        graph = Graph(check_name(proto.name, "the name of a graph"), notes=notes(proto.metadata_props))
        what = f"graph {graph.name!r}"
        if main:
            self._tensors.absent = partial(_absent, graph.notes, main)
        for entry in main.initializers() if main else proto.initializer:
            tensor = self._tensor(entry)
            self._add_initializer(graph, tensor, frame)
        for entry in proto.sparse_initializer:
            name = check_name(entry.values.name, "the name of a sparse initializer")
            self._add_initializer(graph, self._tensors.sparse(entry, f"sparse tensor {name!r}"), frame)
        for entry in proto.input:
            value = self._value(entry, f"an input of {what}", frame)
            for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
                if dim.dim_param and UNNAMED.fullmatch(dim.dim_param):
                    graph.unnamed.setdefault(dim.dim_param, []).append(f"{value.name}[{axis}]")
            if value.name in graph.initializers:
                _check_declaration(value, graph)
            elif main and value.dtype == "":
                raise ModelError(f"input {value.name!r} of {what} has no type")
            else:
                graph.inputs.append(value)
        graph.nodes = self._node_list(main.nodes() if main else proto.node, frame)
        rename_duplicates(graph.nodes, self._node_names)
        part_statistics(graph.nodes, graph.initializers)
        drop_zero_biases(graph.nodes)
        add_where_indices_meet(graph.nodes, graph.initializers)
        if self._producer == TORCH:
            count_axes_from_front(graph.nodes)
        graph.outputs = [self._output(entry, f"an output of {what}", frame) for entry in proto.output]
        graph.nodes = write_out_linear(graph)
        graph.nodes = smooth_labels(graph.nodes, self._opsets.get("", 1))
        if main and len({value.name for value in graph.outputs}) != len(graph.outputs):
            raise ModelError(f"{what} lists an output twice: {[value.name for value in graph.outputs]}")
        if main:
            part_dims(graph)
        self._add_value_info(graph, main.value_info() if main else proto.value_info[:], frame)
        self._free[id(graph)] = check_edges(graph, self._free)
        self._depth -= 1
        return graph

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise LimitError(f"subgraphs and functions are nested more than {MAX_NESTING} deep")

    def _tensor(self, proto: Any, what: str = "") -> Tensor:
        """A tensor with its notes."""
        tensor = self._tensors.read(proto, what)
        tensor.notes = notes(proto.metadata_props)
        return tensor

    def _add_initializer(self, graph: Graph, tensor: Any, frame: Frame | None) -> None:
        if not tensor.name:
            raise ModelError(f"an initializer of graph {graph.name!r} has no name")
        if frame:
            tensor.name = frame.rename(tensor.name)
        if tensor.name in graph.initializers:
            raise ModelError(f"graph {graph.name!r} has two initializers named {tensor.name!r}")
        graph.initializers[tensor.name] = tensor

    def _add_value_info(self, graph: Graph, entries: Iterable[bytes], frame: Frame | None) -> None:
        """Keep the declarations of intermediate tensors; of other types, nobody asks."""
        where = f"a value info of graph {graph.name!r}"
        for data in entries:
            value = self._value_info(data, where, frame)
            if value and not _may_be_same(graph.value_info.setdefault(value.name, value), value):
                raise ModelError(
                    f"graph {graph.name!r} has two different value infos for {value.name!r}. The exporter gave two "
                    "tensors one name, such as a buffer 'mean' and the result of x.mean(): rename that attribute of "
                    "the module and export again"
                )

    def _value_info(self, data: bytes, where: str, frame: Frame | None) -> Value | None:
        plain = plain_declaration(data)
        if plain and plain.name and ONNX_DTYPES.get(plain.code) in ITEM_SIZE:
            shape = check_shape(plain.shape, f"{plain.name!r}, {where},")
            name = frame.rename(plain.name) if frame else plain.name
            return Value(name, ONNX_DTYPES[plain.code], shape, notes(plain.properties))
        proto = parse(messages().ValueInfoProto(), data)
        kind = proto.type
        if not kind.HasField("tensor_type") or ONNX_DTYPES.get(kind.tensor_type.elem_type) not in ITEM_SIZE:
            return None
        value = self._value(proto, where, frame)
        return None if isinstance(value, Sequence) else value

    def _output(self, proto: Any, where: str, frame: Frame | None) -> Value | Sequence:
        """An output. One of a type that tensors here cannot have is undeclared: its node says so where it is read."""
        try:
            return self._value(proto, where, frame)
        except UnsupportedError:
            name = check_name(proto.name, f"the name of {where}")
            return Value(frame.rename(name) if frame else name, "", None)

    def _value(self, proto: Any, where: str, frame: Frame | None) -> Value | Sequence:
        name = check_name(proto.name, f"the name of {where}")
        if not name:
            raise ModelError(f"{where} has no name")
        what = f"{name!r}, {where},"
        name = frame.rename(name) if frame else name
        declared = proto.type
        if declared.WhichOneof("value") == "optional_type":
            # An optional that holds a value is treated as the value.
            declared = declared.optional_type.elem_type
        kind = declared.WhichOneof("value")
        if kind is None:
            return Value(name, "", None, notes(proto.metadata_props))
        if kind == "sequence_type":
            element = declared.sequence_type.elem_type
            if element.WhichOneof("value") != "tensor_type":
                raise UnsupportedError(f"{what} is a sequence of something else than tensors")
            return Sequence(name, check_dtype(element.tensor_type.elem_type, what))
        if kind != "tensor_type":
            raise UnsupportedError(f"{what} has type {kind.removesuffix('_type')}; tensors and sequences are supported")
        tensor = declared.tensor_type
        if not tensor.HasField("shape"):
            return Value(name, check_dtype(tensor.elem_type, what), None, notes(proto.metadata_props))
        shape = check_dims(map(_dim, tensor.shape.dim), what)
        return Value(name, check_dtype(tensor.elem_type, what), shape, notes(proto.metadata_props))

    # --- nodes

    def _node_list(self, protos: Iterable[Any], frame: Frame | None) -> list[Node]:
        nodes: list[Node] = []
        for proto in protos:
            self._nodes += 1
            if self._nodes > self._limits.nodes:
                raise LimitError(f"the model has more than {self._limits.nodes} nodes, the limit, once inlined")
            key = function_key(proto, proto.op_type)
            node, attrs = self._node(proto, key, frame)
            function = self._functions.get(key) if self._functions else None
            if function:
                nodes += self._inline(function, node, attrs, frame)
            else:
                nodes.append(node)
        return nodes

    def _node(self, proto: Any, key: Key, frame: Frame | None) -> tuple[Node, dict[str, tuple[int, Any]]]:
        domain, op_type, _ = key
        name = check_name(proto.name, f"the name of a {op_type} node")
        if not op_type:
            raise ModelError(f"node {name!r} has no op_type")
        inputs, outputs = proto.input[:], proto.output[:]
        node = Node(op_type, inputs, outputs, {}, domain, name, notes(proto.metadata_props))
        if not {str}.issuperset(map(type, (*inputs, *outputs))):
            for edge in (*inputs, *outputs):
                check_name(edge, f"an input or output of a {op_type} node {name!r}")
        if frame:
            node.inputs, node.outputs = (
                list(map(frame.rename, inputs)),
                list(map(frame.rename, outputs)),
            )
            node.name = frame.prefix + name if name else ""
        if not any(outputs):
            raise ModelError(f"{op_type} node {name!r} has no outputs")
        if domain not in self._opsets and not (frame and domain in frame.function.opsets):
            raise ModelError(f"{node} uses domain {domain or 'ai.onnx'!r}, of which no opset is imported")
        if frame:
            frame.function.check_opset(node, self._opsets)
        attrs = self._attributes(proto.attribute, node, frame)
        node.attrs = {key: value for key, (_, value) in attrs.items()}
        return node, attrs

    def _attributes(self, protos: Iterable[Any], node: Node, frame: Frame | None) -> dict[str, tuple[int, Any]]:
        """Attributes as (type, value)."""
        attrs: dict[str, tuple[int, Any]] = {}
        for encoded in protos:
            proto = _attribute_of(encoded)
            name = check_name(proto.name, f"the name of an attribute of {node}")
            if not name or name in attrs:
                raise ModelError(f"{node} has attribute {name!r} twice" if name else f"{node} has an unnamed attribute")
            if proto.ref_attr_name:
                if frame is None:
                    raise ModelError(f"attribute {name!r} of {node} refers to a function's, but is in none")
                argument = frame.attrs.get(check_name(proto.ref_attr_name, f"attribute {name!r} of {node}"))
                if argument is None:
                    continue
                if argument[0] != proto.type:
                    raise ModelError(f"attribute {name!r} of {node} has type {proto.type}, given is {argument[0]}")
                attrs[name] = argument
            else:
                attrs[name] = (
                    proto.type,
                    self._attribute(proto, f"attribute {name!r} of {node}", frame),
                )
        return attrs

    def _attribute(self, proto: Any, what: str, frame: Frame | None) -> Any:
        if isinstance(proto, PlainAttribute):
            if isinstance(proto.value, bytes):
                return _texts([proto.value])[0]
            return _texts(proto.value) if ATTRIBUTE_FIELD[proto.type] == "strings" else proto.value
        kind = proto.type
        field = ATTRIBUTE_FIELD.get(kind)
        if field is None:
            raise ModelError(f"{what} has type {kind}, which ONNX does not define")
        used = {descriptor.name for descriptor, _ in proto.ListFields()} - ATTRIBUTE_HEADER
        if not used <= {field}:
            raise ModelError(f"{what} should have its value in {field!r}, but has {sorted(used)}")
        if field in MESSAGE_FIELDS and not used:
            raise ModelError(f"{what} has no value")
        value = getattr(proto, field)
        if field in ("f", "i"):
            return value
        if field in ("floats", "ints"):
            return list(value)
        if field == "s":
            return _texts([value])[0]
        if field == "strings":
            return _texts(list(value))
        if field == "t":
            return self._tensor(value, what)
        if field == "tensors":
            return [self._tensor(tensor, what) for tensor in value]
        if field == "g":
            return self.graph(value, frame)
        if field == "graphs":
            return [self.graph(graph, frame) for graph in value]
        if field == "sparse_tensor":
            return self._tensors.sparse(value, what)
        raise UnsupportedError(f"{what} has a value of kind {field!r}, which is not supported")

    # --- functions

    def _inline(
        self,
        function: Function,
        call: Node,
        attrs: dict[str, tuple[int, Any]],
        caller: Frame | None,
    ) -> list[Node]:
        """The nodes of a function's body, for one call."""
        self._enter()
        frame = Frame(function, f"{function.name}_{self._calls}/", caller)
        self._calls += 1
        through = frame.bind(call.inputs, call.outputs, str(call))
        what = Node(function.name, [], ["its attributes"], {}, "", function.name)
        frame.attrs = self._attributes(function.defaults, what, None) | attrs
        nodes = self._node_list(function.nodes, frame)
        for source, target in through:
            if not source:
                raise ModelError(f"{call} wants output {target!r}, which hands through an absent input")
            nodes.append(Node("Identity", [source], [target]))
        self._depth -= 1
        return nodes

    def _size(self, nodes: Iterable[Any], depth: int = 0) -> int:
        """The number of nodes, with nodes of bodies and of called functions. Too deep nesting is refused later."""
        count = 0
        for node in nodes if depth <= MAX_NESTING else ():
            key = function_key(node, node.op_type)
            if key in self._functions and key not in self._sizes:
                self._sizes[key] = 0  # of a function that calls itself, which is refused later
                self._sizes[key] = self._size(self._functions[key].nodes, depth + 1)
            count += 1 + self._sizes.get(key, 0)
            for encoded in node.attribute:
                attribute = _attribute_of(encoded)
                bodies = () if isinstance(attribute, PlainAttribute) else (attribute.g, *attribute.graphs)
                count += sum(self._size(body.node, depth + 1) for body in bodies)
        return count


def _attribute_of(encoded: Any) -> Any:
    """A PlainAttribute or AttributeProto; the attribute of a PlainNode is bytes."""
    if not isinstance(encoded, bytes):
        return encoded
    return plain_attribute(encoded) or parse(messages().AttributeProto(), encoded)


def _may_be_same(a: Value, b: Value) -> bool:
    """Return whether two declarations do not contradict each other."""
    if a.dtype != b.dtype or a.shape is None or b.shape is None:
        return a.dtype == b.dtype
    pairs = zip(a.shape, b.shape, strict=False)
    return len(a.shape) == len(b.shape) and all(
        x == y or not (isinstance(x, int) and isinstance(y, int)) for x, y in pairs
    )


def _check_declaration(value: Value | Sequence, graph: Graph) -> None:
    """Raise ModelError if an input that declares an initializer differs from its tensor."""
    tensor = graph.initializers[value.name]
    said = value.shape if isinstance(value, Value) else ()
    fits = said is None or (
        len(said) == len(tensor.shape)
        and all(not isinstance(dim, int) or dim == size for dim, size in zip(said, tensor.shape, strict=True))
    )
    if isinstance(value, Sequence) or value.dtype not in ("", tensor.dtype) or not fits:
        raise ModelError(
            f"input {value.name!r} of graph {graph.name!r} is declared otherwise than its "
            "initializer, "
            f"{tensor.dtype} {list(tensor.shape)}"
        )


def _dim(proto: Any) -> int | str | None:
    """A dimension; -1 is what some exporters write for unknown, and some names are none."""
    if proto.HasField("dim_value"):
        return None if proto.dim_value == -1 else proto.dim_value
    name = check_name(proto.dim_param, "the symbol of a dimension")
    return None if UNNAMED.fullmatch(name) else name


def _texts(values: list[bytes]) -> list[Any]:
    """Strings where all are UTF-8, else bytes."""
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError:
        return values
