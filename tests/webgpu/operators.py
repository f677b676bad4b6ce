"""Samples of operators on the GPU: which of them have no plan, and why.

python -m tests.webgpu.operators > tests/golden/webgpu/operators.txt
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from tests.ops import test_forward, test_gradient
from tests.ops.op_runner import Case, label
from tests.webgpu.host import GpuHost, forms_of

from trainweb.autodiff.gradient import build_gradients
from trainweb.backend.chosen import RUNTIME, WEBGPU
from trainweb.backend.plan import Plan
from trainweb.errors import UnsupportedError
from trainweb.ir.layout import PARAMETERS
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import Limits
from trainweb.model.graph import Graph, Value
from trainweb.training.arrays import from_numpy
from trainweb.training.inference import InferenceModel

GOLDEN = Path(__file__).parents[1] / "golden" / "webgpu" / "operators.txt"
FORWARD = [case for case in test_forward.CASES if not case.is_random]
BACKWARD = test_gradient.CASES


def backward_graph(case: Case) -> tuple[Graph, dict[str, np.ndarray], list[np.ndarray]]:
    """The gradients of a sample's loss, what to feed it, and the weights of its outputs."""
    graph, feeds, weights = test_gradient.loss_graph(case)
    names = [f"x{k}" for k in test_gradient.wanted(case)]
    extended = build_gradients(graph, "loss", names)
    extended.outputs = [Value(f"{name}_grad", "float32", None) for name in names]
    return extended, feeds, weights


def plan_of(graph: Graph, feeds: Mapping[str, np.ndarray]) -> tuple[InferenceModel, Plan]:
    model = InferenceModel(graph, engine=RUNTIME.get_engine(), limits=Limits(), memory_budget=None)
    types = {name: TensorType(str(feeds[name].dtype), feeds[name].shape) for name in model.inputs}
    return model, model.compile(types, target=WEBGPU)


def runs(graph: Graph, feeds: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Outputs of a graph on the GPU, by each form of its dispatches."""
    model, plan = plan_of(graph, feeds)
    for form in forms_of(plan):
        host = GpuHost(model.segment_bytes, form)
        try:
            for offset, tensor in model.weights():
                host.write(PARAMETERS, offset, bytes(tensor.data))
            loaded = host.load(plan)
            host.run(loaded, {name: from_numpy(name, feeds[name]) for name in model.inputs})
            yield {name: host.output(loaded, name) for name in model.outputs}
        finally:
            host.release()


def run(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of a graph on the GPU."""
    return next(runs(graph, feeds))


def reason(case: Case, is_gradient: bool) -> str:
    """Why nothing of a sample runs on the GPU, or not in a train step, which has no tail; empty if it does."""
    graph, feeds = backward_graph(case)[:2] if is_gradient else test_forward.graph_of(case)
    try:
        with patch("trainweb.backend.webgpu.partition.OF_TAIL", ()):
            _, plan = plan_of(graph, feeds)
    except UnsupportedError as error:
        needs = re.search(r" needs (.*), for which there is no GPU kernel", str(error))
        return needs[1] if needs else str(error)
    return "" if plan.body is not None and plan.body.dispatches else "only the head computes it"


def refusals() -> Iterator[str]:
    """A line for each operator and reason, with the samples that it concerns; ' marks gradients."""
    found: dict[str, dict[str, list[str]]] = {}
    for is_gradient, cases in ((False, FORWARD), (True, BACKWARD)):
        for case in cases:
            if why := reason(case, is_gradient):
                samples = found.setdefault(label(case.cls), {}).setdefault(why, [])
                samples.append(f"{case.number}{chr(39) * is_gradient}")
    for name, reasons in sorted(found.items()):
        for why, samples in sorted(reasons.items()):
            yield f"{name} [{' '.join(samples)}]: {why}"


def refused(text: str) -> set[tuple[str, int, bool]]:
    """Operators, samples, and whether their gradients, that a list of refusals has."""
    samples = set()
    for line in text.splitlines():
        name, _, rest = line.partition(" [")
        for number in rest.partition("]")[0].split():
            samples.add((name, int(number.rstrip("'")), number.endswith("'")))
    return samples


def first_that_fit(cases: Sequence[Case], *, is_gradient: bool) -> list[Case]:
    """The first sample of each operator that the golden list does not have."""
    listed = refused(GOLDEN.read_text())
    first: dict[str, Case] = {}
    for case in cases:
        if (label(case.cls), case.number, is_gradient) not in listed:
            first.setdefault(label(case.cls), case)
    return [*first.values()]


if __name__ == "__main__":
    print("\n".join(refusals()))
