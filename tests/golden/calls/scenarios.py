"""Calls that onnxruntime-training and trainweb are both put through: each is given classes of the one or the other."""

from typing import Any

import numpy as np

X, Y = np.sin(np.arange(80, dtype=np.float32)).reshape(8, 10), np.arange(8) % 3


def sums(arrays: dict[str, Any]) -> dict[str, float]:
    return {name: float(np.abs(np.asarray(a, np.float64)).sum()) for name, a in sorted(arrays.items()) if a is not None}


def modules_on_one_state(state: Any, module: Any, optimizer: Any) -> list[Any]:
    """The calls, in the interface of onnxruntime.training.api."""
    found: list[Any] = []

    def note(what: str, value: float | None = None) -> None:
        gradients = sums({name: p.grad for name, p in state.parameters})
        parameters = sums({name: p.data for name, p in state.parameters})
        found.append({"after": what, "gradients": gradients, "parameters": parameters, "value": value})

    first = module()
    note("a module", float(first(X, Y)))
    second = module()
    note("a second module")
    note("a step of the first", float(first(X, Y)))
    note("a step of the second", float(second(X, Y)))
    one = optimizer(first)
    one.set_learning_rate(0.125)
    one.step()
    note("an optimizer of the first, which takes the gradients of the second", one.get_learning_rate())
    first.lazy_reset_grad()
    note("the second goes on adding", float(second(X, Y)))
    note("the first started again", float(first(X, Y)))
    two = optimizer(second)
    note("a second optimizer", two.get_learning_rate())
    two.set_learning_rate(0.25)
    two.step()
    note("which shares the rate", one.get_learning_rate())
    first.eval(), second.eval()
    note("evaluation", float(first(X, Y)) - float(second(X, Y)))
    return found


def two_outputs() -> Any:
    """x[b, 3] -> MatMul(w) = logits -> mean = loss; outputs loss and logits."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["logits"], "product"),
        helper.make_node("ReduceMean", ["logits"], ["loss"], "mean", keepdims=0),
        helper.make_node("Relu", ["logits"], ["a"], "rectified"),
    ]
    outputs = [
        helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", 2]),
    ]
    graph = helper.make_graph(
        nodes,
        "two_outputs",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3])],
        outputs,
        [numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def loss_model() -> Any:
    """sum(x[4] * w) + b = loss, as a ModelProto."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Mul", ["x", "w"], ["p"], "product"),
        helper.make_node("ReduceSum", ["p"], ["s"], "sum", keepdims=0),
        helper.make_node("Add", ["s", "b"], ["loss"], "shift"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    constants = {"w": np.float32([1, 2, 3, 3]), "b": np.array(1, np.float32)}
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "older", [x], [loss], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


WITHOUT_LOSS: list[dict[str, Any]] = [
    {},
    {"additional_output_names": ["a"]},
    {"loss_input_names": ["loss"]},
]
"""Arguments of `generate_artifacts` for a model whose first output is the loss."""


def describe_inference(session: Any, ort_value: Any) -> dict[str, Any]:
    """What a session of the MLP says of itself, and what it gives in every way of running it."""

    def arguments(values: Any) -> list[list[Any]]:
        return [[v.name, v.type, list(v.shape)] for v in values]

    meta = session.get_modelmeta()
    names = ("producer_name", "graph_name", "domain", "description", "graph_description", "version")
    found: dict[str, Any] = {
        "inputs": arguments(session.get_inputs()),
        "outputs": arguments(session.get_outputs()),
        "overridable": arguments(session.get_overridable_initializers()),
        "providers": session.get_providers(),
        "provider_options": session.get_provider_options(),
        "meta": {name: getattr(meta, name) for name in names} | {"map": dict(meta.custom_metadata_map)},
        "end_profiling": session.end_profiling(),
        "profiling_start": session.get_profiling_start_time_ns(),
    }
    value = ort_value.ortvalue_from_numpy(X)
    found["value"] = [
        *(value.data_type(), value.element_type(), value.shape(), value.device_name()),
        *(value.has_value(), value.is_tensor(), value.is_sparse_tensor(), value.is_tensor_sequence()),
    ]
    empty = ort_value.ortvalue_from_shape_and_type([8, 4], np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("logits")
    session.run_with_iobinding(binding)
    into = session.io_binding()
    into.bind_input("x", "cpu", 0, np.float32, X.shape, value.data_ptr())
    into.bind_ortvalue_output("logits", empty)
    session.run_with_iobinding(into)
    runs = {
        "all": session.run(None, {"x": X}),
        "none named": session.run([], {"x": X}),
        "named": session.run(["logits"], {"x": X}),
        "OrtValues": [v.numpy() for v in session.run_with_ort_values(["logits"], {"x": value})],
        "bound": binding.copy_outputs_to_cpu(),
        "bound values": [v.numpy() for v in binding.get_outputs()],
        "bound in place": [empty.numpy()],
    }
    found["runs"] = {name: [[list(a.shape), sums({"": a})[""]] for a in arrays] for name, arrays in runs.items()}
    return found
