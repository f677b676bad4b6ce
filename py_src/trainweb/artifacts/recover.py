"""Parameters as the source module had them: renamed, tied and untied where an exporter's notes or bytes prove it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial

from trainweb.artifacts.evidence import (
    FOLDED,
    KIND,
    folded_from,
    is_transposed,
    listed_parameters,
    merged,
    module_of,
    named_by_calls,
    note,
    notes_of,
    signature,
)
from trainweb.artifacts.untie import untie
from trainweb.control.repeat import with_bodies
from trainweb.model.calls import call_of
from trainweb.model.floats import ConvertedTensor, rename_reads
from trainweb.model.graph import FX_NODE, ITEM_SIZE, Graph, Node, Tensor, take_name
from trainweb.model.lazy import LazyTensor
from trainweb.model.local import are_transposes, elements
from trainweb.model.remote import LONG_READ, RemoteTensor
from trainweb.model.uses import EMBEDDING, MOVES, PRODUCTS, role_at, weight_uses
from trainweb.onnxblock.transforms import all_statistics


def recover_parameters(graph: Graph, keep: Collection[str] = ()) -> Graph:
    """A graph that computes the same from the parameters of the source module; initializers in `keep` stay as they are.

    Equal tensors that were merged, running statistics among them, become one for each parameter and buffer. A matrix
    that is the transpose of another one is computed from it. A transposed parameter gets the name and shape of the
    module's, and a node transposes it.
    """
    result = graph.copy()
    listed = listed_parameters(graph)
    if listed:
        untie(result, keep)
    _unmerge(result, keep)
    _tie(result, keep)
    if listed:
        _turn(result, listed, keep)
        _rename(result, listed, keep)
    return result


def _unmerge(graph: Graph, keep: Collection[str]) -> None:
    """Separate the tensors that the TorchScript exporter merged in evaluation mode because they were equal.

    These are tensors filled with one number, and running statistics, which are equal in norms of one input. Other
    equal tensors were tied in the module, or copied.
    """
    outputs, statistics = {value.name for value in graph.outputs}, all_statistics(graph)
    gone: set[str] = set()
    for node, tensor in merged(graph):
        name = node.outputs[0]
        is_apart = name not in outputs and (name in statistics or _is_uniform(tensor))
        if is_apart and (tensor.name not in keep or name in keep):
            graph.initializers[name] = tensor.renamed(name)
            gone.add(name)
    if gone:
        graph.nodes = [node for node in graph.nodes if gone.isdisjoint(node.outputs)]


def _is_uniform(tensor: Tensor) -> bool:
    tensor = tensor.source if isinstance(tensor, ConvertedTensor) else tensor
    if isinstance(tensor, RemoteTensor):
        return tensor.is_uniform()
    data, item = bytes(tensor.data), len(tensor.data) // max(1, tensor.size)
    return data == data[:item] * tensor.size


def _turn(graph: Graph, listed: Collection[str], keep: Collection[str]) -> None:
    """Let a node transpose each parameter that the exporter transposed, so that it is as in the module."""
    folded = {name: folded_from(notes_of(graph, tensor)) for name, tensor in graph.initializers.items()}
    uses = Counter(sources[0] for sources in folded.values() if len(sources) == 1)
    taken, written = set(graph.names()), with_bodies(graph)
    consumers = written.consumers()
    multiplied = {use.tensor.name for use in weight_uses(written, through=MOVES) if use.node.op_type in PRODUCTS}
    turned: dict[str, Tensor] = {}
    noted: dict[str, dict[str, str]] = {}
    for name, tensor in graph.initializers.items():
        source = folded[name][0] if is_transposed(tensor, folded[name]) else ""
        if source not in listed or uses[source] > 1 or name in keep or (source in taken and source != name):
            continue
        notes = dict(notes_of(graph, tensor))
        if name in multiplied or not (name == source or name.startswith("val")):
            notes = {KIND: "PARAMETER"} | {key: note for key, note in notes.items() if key != FOLDED}
        elif name == source:
            continue  # it is as in the module already
        turned[name] = transposed(tensor.renamed(source))
        noted[name] = notes
    outputs = {name: take_name(f"{name}_t", taken) for name in turned if name == turned[name].name}
    rename_reads(graph.nodes, outputs)
    graph.initializers = {t.name: t for t in (turned.get(name, t) for name, t in graph.initializers.items())}
    for name, tensor in turned.items():
        graph.value_info.pop(name, None)
        note(graph, tensor, noted[name])
        output = outputs.get(name, name)
        reader = next(iter(consumers.get(name, ())), None)
        _transpose(graph, tensor.name, output, f"{output}_turned", reader.notes if reader else {})


def _rename(graph: Graph, listed: list[str], keep: Collection[str]) -> None:
    """Tied parameters get the first name of the module."""
    order = {name: i for i, name in enumerate(listed)}
    names: dict[str, str] = {}
    taken, called = set(graph.names()), named_by_calls(graph)
    for node in graph.nodes:
        for name in node.inputs:
            if name not in order or name not in graph.initializers or name in keep:
                continue
            first = f"{module_of(node)}.{name.rpartition('.')[2]}"
            if first not in taken | called and order.get(first, len(order)) < order[names.get(name, name)]:
                names[name] = first
                taken.add(first)
    _apply(graph, names)


def _apply(graph: Graph, names: dict[str, str]) -> None:
    if not names:
        return
    tensors = [t.renamed(names.get(n, n)) for n, t in graph.initializers.items()]
    values = [replace(v, name=names.get(n, n)) for n, v in graph.value_info.items()]
    graph.initializers = {tensor.name: tensor for tensor in tensors}
    graph.value_info = {value.name: value for value in values}
    rename_reads(graph.nodes, names)
    # A later build of the graph must not take the tied names for two parameters.
    arguments = {name: argument for argument, (_, name) in signature(graph).items()}
    tied = {arguments[old]: arguments[new] for old, new in names.items() if {old, new} <= arguments.keys()}
    for node in graph.nodes:
        for argument in tied.keys() & set(call_of(node)[1]):
            call = re.sub(rf"%{argument}\b", f"%{tied[argument]}", node.notes[FX_NODE])
            node.notes = {**node.notes, FX_NODE: call}


def _tie(graph: Graph, keep: Collection[str]) -> None:
    """A matrix that is bit for bit the transpose of another is computed from it.

    Of an embedding table, or of a parameter that the exporter notes it was made of, and which the file holds, too.
    """
    tables = [
        graph.initializers[node.inputs[0]]
        for node in graph.nodes
        if role_at(node, 0) == EMBEDDING and node.inputs[0] in graph.initializers
    ]
    matrices: dict[str, tuple[Tensor, Node]] = {}
    for node in graph.nodes:
        for position, name in enumerate(node.inputs):
            if name in keep or name in matrices or name not in graph.initializers:
                continue
            matrix = graph.initializers[name]
            noted = folded_from(notes_of(graph, matrix))
            sources = [graph.initializers[n] for n in noted if n in graph.initializers and is_transposed(matrix, noted)]
            candidates = sources + (tables if node.op_type in PRODUCTS and position == 1 else [])
            table = next((t for t in candidates if t.name != name and _is_transpose(t, matrix)), None)
            if table is not None:
                matrices[name] = table, node
    for name, (table, node) in matrices.items():
        del graph.initializers[name]
        _transpose(graph, table.name, name, f"{name}_tied", node.notes)


def _transpose(graph: Graph, table: str, output: str, node: str, notes: dict[str, str]) -> None:
    """Add the node that makes `output` of an initializer."""
    graph.value_info.pop(output, None)
    graph.nodes.insert(0, Node("Transpose", [table], [output], {"perm": [1, 0]}, "", node, notes))


def _is_transpose(a: Tensor, b: Tensor) -> bool:
    if a.dtype != "float32" or b.dtype != a.dtype or len(a.shape) != 2 or a.shape[::-1] != b.shape or _is_uniform(a):
        return False
    left_source, right_source = (t.source if isinstance(t, ConvertedTensor) else t for t in (a, b))
    if isinstance(left_source, RemoteTensor) and isinstance(right_source, RemoteTensor):
        return left_source.dtype == right_source.dtype and left_source.is_transpose(right_source)
    return are_transposes(a.data, b.data, a.shape, ITEM_SIZE[a.dtype])


def exact_names(*arguments: object) -> set[str]:
    """Names that a caller gave in arguments, which may hold regular expressions."""
    names: set[str] = set()
    for argument in arguments:
        if isinstance(argument, str):
            names.add(argument)
        elif isinstance(argument, Collection):
            names.update(name for name in argument if isinstance(name, str))
    return names


def transposed(tensor: Tensor) -> Tensor:
    """The transpose of a matrix. Data that lies elsewhere stays there, and is transposed as it is read."""
    if isinstance(tensor, ConvertedTensor):
        return ConvertedTensor(transposed(tensor.source), tensor.dtype, tensor.notes)
    rows, width = tensor.shape
    if isinstance(tensor, LazyTensor):
        place = tensor.place and replace(tensor.place, rows=rows)
        return LazyTensor(
            tensor.name, tensor.dtype, (width, rows), partial(_transpose_into, tensor), place, tensor.notes
        )
    data = bytearray(tensor.nbytes)
    _transpose_into(tensor, memoryview(data))
    return Tensor(tensor.name, tensor.dtype, (width, rows), bytes(data), tensor.notes)


def _transpose_into(tensor: Tensor, out: memoryview) -> None:
    """Fill a buffer with the transpose of a matrix."""
    (rows, width), size = tensor.shape, ITEM_SIZE[tensor.dtype]
    target, start = elements(out, size), 0
    for strip in _strips(tensor):
        numbers = elements(strip, size)
        end = start + len(numbers) // max(1, width)
        for j in range(width):
            target[j * rows + start : j * rows + end] = numbers[j::width]
        start = end


def _strips(tensor: Tensor) -> Iterator[bytes | bytearray | memoryview]:
    """The data of a matrix, of a file some rows at a time."""
    row = tensor.shape[1] * ITEM_SIZE[tensor.dtype]
    if not isinstance(tensor, RemoteTensor) or not row:
        yield tensor.data
        return
    step = max(1, LONG_READ // row) * row
    for start in range(0, tensor.nbytes, step):
        yield tensor.read(start, min(step, tensor.nbytes - start))
