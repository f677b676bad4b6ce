"""Buffers that the forward of the source module changes: vectors of spectral norms, codebooks, moving averages.

ONNX has no word for that. torch's dynamo exporter notes which tensor becomes the value of which buffer, so that the
training model can do it. Its TorchScript exporter drops it: only a power iteration is recognized.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from trainweb.artifacts.evidence import SIGNATURE, detached, folded_from, notes_of
from trainweb.errors import ModelError
from trainweb.model.graph import TORCH, Graph, Node
from trainweb.onnxblock.models import TRAINED_DTYPE
from trainweb.onnxblock.transforms import all_statistics, prune
from trainweb.spelling import ARGUMENT

_MUTATION = re.compile(r"^\s*(\S+): BUFFER_MUTATION target='([^']+)'", re.MULTILINE)
_STATISTICS = re.compile(r"(.*\.)?(running_mean|running_var|num_batches_tracked)")
"""Buffers of torch's norms: batch normalization updates them here, too, and exporters warn where they fold them."""
_POWER_VECTOR = re.compile(r"(.*\.)?(parametrizations\.\w+\.\d+\._[uv]|\w+_[uv])")
"""Names of the vectors of torch's spectral norms, new and old."""
_REMOVE = " Or remove the norm first: torch.nn.utils.parametrize.remove_parametrizations, remove_spectral_norm."


def without_gradient(graph: Graph) -> list[str]:
    """Tensors that no gradient goes through in the source module: results of `detach`, and next values of buffers.

    A buffer's value for the next step belongs to no gradient of this one, or PyTorch would refuse to go back twice.
    """
    results = {name for node in graph.nodes for name in node.outputs}
    buffers = [value for value, name in _mutations(graph) if value in results and not _STATISTICS.fullmatch(name)]
    return list(dict.fromkeys([*detached(graph), *buffers]))


def _mutations(graph: Graph) -> list[tuple[str, str]]:
    """Tensors, and the buffers that they become the values of."""
    return _MUTATION.findall(graph.notes.get(SIGNATURE, ""))


def folded_norms(graph: Graph) -> list[str]:
    """Modules of batch normalizations in training mode that the exporter's optimizer folded into weights."""
    updated = [name for _, name in _mutations(graph) if name.endswith("running_mean")]
    nodes = sum(node.op_type == "BatchNormalization" for node in graph.nodes)
    lost = [name.rpartition(".")[0] for name in updated if name not in graph.initializers]
    return lost if nodes < len(updated) else []


def buffer_updates(graph: Graph, settled: Collection[str]) -> dict[str, str]:
    """Return the new value of each buffer that the module changes and the loss depends on, as names by initializers.

    Tensors in `settled`, which the caller named, stay as they are. Raise ModelError if the file lacks the new value of
    a buffer.
    """
    recorded = {name: value for value, name in _mutations(graph) if not _STATISTICS.fullmatch(name)}
    if not recorded and graph.producer != TORCH:
        return {}
    live = prune(graph)
    results = {name for node in live.nodes for name in node.outputs}
    norms = all_statistics(graph)
    updates: dict[str, str] = {}
    for name, tensor in live.initializers.items():
        if name in settled or name in norms:
            continue
        folded = [source for source in folded_from(notes_of(graph, tensor)) if source in recorded]
        if folded:
            raise _lost(folded[0], f"the exporter computed {name!r} from it once: export with optimize=False.")
        if name in recorded and tensor.dtype != TRAINED_DTYPE:
            raise _lost(name, f"it is {tensor.dtype}, which no step can change: make it an input of the module.")
        if name in recorded and recorded[name] not in results:
            why = "the file does not hold what it becomes: have forward read it after the change. "
            raise _lost(name, f"{why}To train with what it holds now, name it in {ARGUMENT.frozen_params}.")
        if name in recorded:
            updates[name] = recorded[name]
        elif not recorded and _is_iterated(live, name):
            raise _lost(name, "this export does not keep that: use torch.onnx.export(dynamo=True, optimize=False).")
    return updates


def _lost(name: str, why: str) -> ModelError:
    advice = _REMOVE if _POWER_VECTOR.fullmatch(name) else ""
    return ModelError(f"Buffer {name!r} changes whenever the module runs in training mode, and {why}{advice}")


def _is_iterated(graph: Graph, name: str) -> bool:
    """Return whether a vector is the start of a power iteration, which scales its product with a matrix to length 1."""
    if not _POWER_VECTOR.fullmatch(name) or len(graph.initializers[name].shape) != 1:
        return False
    products = _results(graph.nodes, {name}, {"MatMul"})
    return bool(_results(graph.nodes, products, {"ReduceL2", "Norm", "LpNormalization"}))


def _results(nodes: Iterable[Node], names: Collection[str], kinds: Collection[str]) -> set[str]:
    """Return the results of nodes of these operators that read the tensors."""
    return {n.outputs[0] for n in nodes if n.op_type in kinds and not set(names).isdisjoint(n.inputs)}
