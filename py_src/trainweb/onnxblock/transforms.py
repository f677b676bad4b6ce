"""Rewrites of a forward graph before it is differentiated, and for evaluation.

They are the ones without which a model would train wrongly or not at all; what is only faster is
the compiler's business.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from trainweb.control.operators import read_names
from trainweb.model import uses
from trainweb.model.graph import SCOPES, Graph, Node, Tensor, take_name
from trainweb.model.uses import positions

TRAINING_MODE_SINCE = 14
"""ai.onnx version that brought training_mode to BatchNormalization; outputs said it before."""
STATISTICS = positions("BatchNormalization", uses.STATISTICS)
"""Inputs of BatchNormalization that hold the running mean and variance."""
AFFINE = positions("BatchNormalization", uses.NORM)
"""Inputs of BatchNormalization that hold scale and bias."""
_NOTED = re.compile(r"'_native_batch_norm_legit_(functional|no_training)(?:_\d+)?'\]")
"""The operator in the notes of torch's dynamo exporter that a batch normalization was made of, by its mode."""


def constants_to_initializers(graph: Graph) -> Graph:
    """Constant nodes become initializers; the other nodes are the same."""
    result = graph.with_nodes(())
    for node in graph.nodes:
        tensor = _constant(node) if node.op_type == "Constant" and not node.domain else None
        if tensor is None:
            result.nodes.append(node)
        else:
            result.initializers[tensor.name] = tensor
    return result


def _constant(node: Node) -> Tensor | None:
    name = node.outputs[0]
    for key, dtype in (("value_float", "float32"), ("value_int", "int64")):
        if key in node.attrs:
            return Tensor.of(name, dtype, (), [node.attrs[key]])
        if f"{key}s" in node.attrs:
            values = node.attrs[f"{key}s"]
            return Tensor.of(name, dtype, (len(values),), values)
    value = node.attrs.get("value")
    return value.renamed(name) if isinstance(value, Tensor) else None


def prune(graph: Graph) -> Graph:
    """The graph without the nodes that no output depends on; the others are the same."""
    live = {value.name for value in graph.outputs}
    nodes = []
    for node in reversed(graph.nodes):
        if live.intersection(node.outputs):
            live.update(node.inputs)
            live.update(name for body in node.bodies() for name in read_names(body))
            nodes.append(node)
    result = graph.with_nodes(reversed(nodes))
    result.initializers = {k: t for k, t in graph.initializers.items() if k in live}
    return result


# BatchNormalization


def _batch_norms(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        if node.op_type == "BatchNormalization" and not node.domain and len(node.inputs) == 5:
            yield node


def _trains(node: Node, opset: int) -> bool:
    """Return whether the file says that the node normalizes by the statistics of the batch.

    torch's dynamo exporter leaves training_mode out, and notes which of torch's operators it was.
    """
    noted = _NOTED.search(node.notes.get(SCOPES, ""))
    if noted:
        return noted.group(1) == "functional"
    if opset >= TRAINING_MODE_SINCE:
        return bool(node.attrs.get("training_mode", 0))
    return len([name for name in node.outputs if name]) > 1


def _trained_batch_norms(
    graph: Graph, trainable: Collection[str], batch_norm: str | None, held: Collection[str]
) -> list[Node]:
    """Return the batch normalizations that normalize by the statistics of the batch in training.

    "as_exported" takes the ones in training mode in the file. "train" also takes the ones with a trainable scale or
    bias, or with neither, unless only frozen weights come before. None is "train" for files without any in training
    mode, as of a module exported in evaluation mode. If some are in training mode, the others were kept out of it on
    purpose. Nodes with computed statistics keep their mode, and do not count. Statistics in `held` stay as they are.
    """
    opset, frozen = graph.opsets.get("", 1), set(held)
    computed = {name for node in graph.nodes if node.op_type != "Constant" for name in node.outputs}
    nodes = [(node, _trains(node, opset), computed.isdisjoint(_statistics(node))) for node in _batch_norms(graph)]
    if batch_norm is None and not any(trains and counts for _, trains, counts in nodes):
        batch_norm = "train"
    weights = {name for name, tensor in graph.initializers.items() if len(tensor.shape) > 1}
    learned, weighed = (_made_of(graph, names) for names in (trainable, weights.union(trainable)))

    def is_trained(node: Node, trains: bool, counts: bool) -> bool:
        if not counts:
            return trains
        affine, before = {node.inputs[i] for i in AFFINE}, node.inputs[0]
        if batch_norm == "train" and not trains and affine.isdisjoint(learned):
            is_frozen = not frozen.isdisjoint(affine) or (before in weighed and before not in learned)
            trains = not is_frozen and _is_bare(graph, node)
        elif batch_norm == "train":
            trains = True
        return trains and frozen.isdisjoint(_statistics(node))

    return [node for node, *mode in nodes if is_trained(node, *mode)]


def _made_of(graph: Graph, names: Collection[str]) -> set[str]:
    """The edges `names`, and the edges whose numbers depend on them."""
    reached = set(names)
    for node in graph.nodes:
        read = node.inputs[:1] if node.op_type == "CastLike" else node.inputs
        if node.op_type not in ("Shape", "Size") and not reached.isdisjoint(read):
            reached.update(node.outputs)
    return reached


def _is_bare(graph: Graph, node: Node) -> bool:
    """Return whether a batch normalization has constants for scale and bias: ones and zeros, or made of no vector.

    A scale with the name of the statistics' module is a parameter, though nobody asks for its gradient.
    """
    module = _statistics(node)[0].rpartition(".")[0]
    if module and any(node.inputs[position].startswith(f"{module}.") for position in AFFINE):
        return False
    computed = _made_of(graph, {name for name, tensor in graph.initializers.items() if tensor.size > 1})
    for position, value in zip(AFFINE, (1, 0), strict=True):
        tensor = graph.initializers.get(node.inputs[position])
        if set(tensor.values()) != {value} if tensor else node.inputs[position] in computed:
            return False
    return True


def _statistics(node: Node) -> list[str]:
    return [node.inputs[i] for i in STATISTICS]


def retrained_norms(
    graph: Graph, trainable: Collection[str], batch_norm: str | None, held: Collection[str] = ()
) -> int:
    """Return the number of batch normalizations that train by the batch's statistics though the file says otherwise."""
    opset = graph.opsets.get("", 1)
    return sum(not _trains(node, opset) for node in _trained_batch_norms(graph, trainable, batch_norm, held))


def held_norms(graph: Graph, trainable: Collection[str], held: Collection[str]) -> int:
    """Return the number of batch normalizations that `held` keeps from training though scale or bias are trained."""
    norms, others = (_trained_batch_norms(graph, trainable, None, names) for names in ((), held))
    ids = {id(node) for node in others}
    return sum(id(node) not in ids and any(node.inputs[i] in trainable for i in AFFINE) for node in norms)


def running_statistics(
    graph: Graph, trainable: Collection[str], batch_norm: str | None, held: Collection[str] = ()
) -> list[str]:
    """Running means and variances that the training model updates."""
    nodes = _trained_batch_norms(graph, trainable, batch_norm, held)
    return [name for node in nodes for name in _statistics(node) if name in graph.initializers]


def all_statistics(graph: Graph) -> set[str]:
    """Running means and variances of every batch normalization."""
    return {name for node in _batch_norms(graph) for name in _statistics(node)}


def train_batch_norms(
    graph: Graph, trainable: Collection[str], batch_norm: str | None, held: Collection[str] = ()
) -> Graph:
    """Batch normalizations that train become BatchNormInternal, which updates the statistics.

    The others are in inference mode.
    """
    result = graph.copy()
    used, consumed = set(result.names()), _consumed(result)
    trained = {id(node) for node in _trained_batch_norms(result, trainable, batch_norm, held)}
    for index, node in enumerate(_batch_norms(result)):
        if id(node) not in trained:
            _infer(node, consumed)  # of the training model
            continue
        y, *running = list(node.outputs[:3])
        suffixes = ("running_mean", "running_var", "saved_mean", "saved_inv_std")
        names = [take_name(f"{y}_{suffix}", used) for suffix in suffixes]
        for k, name in enumerate(running):
            names[k] = name or names[k]
        node.name = f"{node.name or f'BatchNormalization_{index}'}_BatchNormInternal"
        node.op_type, node.domain = "BatchNormInternal", "com.microsoft"
        node.outputs = [y, *names]
        node.attrs = {
            "epsilon": float(node.attrs.get("epsilon", 1e-5)),
            "momentum": float(node.attrs.get("momentum", 0.9)),
            "training_mode": 1,
        }
        result.opsets.setdefault("com.microsoft", 1)
    return result


def for_evaluation(graph: Graph) -> Graph:
    """A copy in which Dropout and BatchNormalization are in inference mode."""
    result = graph.copy()
    consumed = _consumed(result)
    for node in result.nodes:
        if node.op_type == "Dropout" and not node.domain:
            del node.inputs[2:]
        elif node.op_type == "BatchNormalization" and not node.domain:
            _infer(node, consumed)
    return prune_constants(result)


def _consumed(graph: Graph) -> set[str]:
    return {name for node in graph.nodes for name in node.inputs} | {v.name for v in graph.outputs}


def _infer(node: Node, consumed: set[str]) -> None:
    """Have a batch normalization in inference mode."""
    if "training_mode" in node.attrs:
        node.attrs["training_mode"] = 0
    if consumed.isdisjoint(node.outputs[1:]):
        del node.outputs[1:]


def prune_constants(graph: Graph) -> Graph:
    """Remove initializers and Constant nodes that nothing reads any more."""
    read = {*read_names(graph)}
    graph.initializers = {k: t for k, t in graph.initializers.items() if k in read}
    return graph
