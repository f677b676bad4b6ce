"""The pre-flight report: the trainable parts of a model and the cost of a step, before anything is run."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from trainweb import messages
from trainweb.arguments import checks_keywords, mapping, warn
from trainweb.artifacts.builder import (
    build_artifacts,
    describe_choice,
    describe_missing_loss,
    describe_open_choice,
    suggest_loss,
    without_unread,
)
from trainweb.artifacts.evidence import Decision, untold
from trainweb.artifacts.parameters import UNSETTLED, select_parameters
from trainweb.artifacts.recover import exact_names, recover_parameters
from trainweb.artifacts.remarks import remark_on_file, remark_on_norms, remark_on_smoothing, remark_on_unread
from trainweb.backend.chosen import RUNTIME
from trainweb.control import expand_control_flow, has_control_flow
from trainweb.control.operators import unsupported_nodes
from trainweb.errors import GradientError, ModelError, TrainwebError, UnsupportedError
from trainweb.generation.past import without_past
from trainweb.ir.layout import PARAMETERS
from trainweb.ir.program import ATTENTION, HEAD, Program
from trainweb.ir.shapes import TensorType
from trainweb.model.checks import Limits
from trainweb.model.dimensions import fix_dimensions
from trainweb.model.floats import in_float32
from trainweb.model.graph import Graph, Value
from trainweb.model.reader import read_model
from trainweb.onnxblock.context import ModelAccessor
from trainweb.onnxblock.transforms import constants_to_initializers
from trainweb.ops.frame.shapes import ShapeInference
from trainweb.session.creation import FILES, prepared
from trainweb.session.example import Feed, example_code
from trainweb.spelling import by_inputs
from trainweb.training.contents import start_segments
from trainweb.training.models import SessionModels, check_feed
from trainweb.training.state import CheckpointState
from trainweb.training.step_kind import TRAIN

if TYPE_CHECKING:
    from trainweb.backend.engine import Engine

CHOICES = ("requires_grad", "frozen_params", "loss", "optimizer")
"""Positional arguments of `build_artifacts` after the model."""
Sizes = tuple[Mapping[str, int], Mapping[str, Any]]
"""Sizes by the name of a symbol, and arrays by the name of an input."""


@dataclass(slots=True)
class Problem:
    """An operator that prevents training, and its nodes.

    Attributes
    ----------
    op : str
        Operator type.
    domain : str
        Operator domain; "" is ai.onnx.
    nodes : list of str
        Names of the nodes that have it.
    message : str
        A description of the problem.
    """

    op: str
    domain: str
    nodes: list[str]
    message: str


@dataclass(slots=True)
class Described:
    """An input or output of the model.

    Attributes
    ----------
    name : str
        Its name in the model.
    dtype : str
        Type of the elements.
    dims : list of (int, str or None) or None
        A size or name for each dim; None: the model declares none.
    """

    name: str
    dtype: str
    dims: list[int | str | None] | None


@dataclass(slots=True)
class Report:
    """The result of `trainweb.check`.

    Attributes
    ----------
    trainable : dict of str to tuple of int
        Parameters of a session that are trained, with their shapes.
    frozen : dict of str to tuple of int
        Parameters of a session that keep their values, with their shapes.
    decisions : list of Decision
        What is trained and what is left out, each with the reason: `trained` and `left_out`, some of them `doubtful`.
    unsupported : list of Problem
        Operators that cannot be executed, each with the nodes that use it.
    missing_gradients : list of Problem
        Operators on the way from the loss to a parameter that cannot be differentiated.
    refined : list of str
        Sizes that operators demand of dims that the model declares as symbols, with the node: ``n = 4, as ...``.
    remarks : list of str
        Warnings from building the model, besides the doubtful tensors: it trains, but maybe not as its maker means.
        Then costs of memory and time that a change of the model would save.
    precision : str or None
        The part of the model that is computed in float32 though it was declared as another type of float.
    untold : str or None
        Facts that training depends on and that files of the model's exporter never contain.
    missing_loss : str or None
        A loss to name, or outputs to choose for it, if no loss was named and the first output is not a loss.
    error : str or None
        Any other error of the model or the arguments.
    peak_bytes : int
        Kernel memory of a session for these shapes: workspace, parameters, gradients, moments and constants.
    flops : int
        Floating-point operations of products and convolutions in one train step.
    inputs : list of Described
        Inputs of the forward model.
    outputs : list of Described
        Outputs of the forward model.
    operators : dict of str to int
        Number of nodes per operator. An operator of another domain is named ``domain.operator``.
    suggested_loss : str, dict or None
        A loss that fits the first output where that is not a loss, for classes or for numbers: its name, or its "type"
        with the settings that it needs, as `build_artifacts` takes them.
    feeds : list of Feed
        Inputs of a train step, in the shape that the report is about.
    dims : dict of str to int
        Sizes that `build_artifacts` must be given, where the model cannot be trained without those of `check`.
    code : dict of str to str
        Lines that train the model, for "javascript" and "python"; empty if an argument is no plain value.
    model_metadata : dict
        The file's description of itself: producer_name, graph_name, domain, description, graph_description, version
        and custom_metadata_map. Empty for a file that is not a model.
    """

    trainable: dict[str, tuple[int, ...]] = field(default_factory=dict)
    frozen: dict[str, tuple[int, ...]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    unsupported: list[Problem] = field(default_factory=list)
    missing_gradients: list[Problem] = field(default_factory=list)
    refined: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    precision: str | None = None
    untold: str | None = None
    missing_loss: str | None = None
    error: str | None = None
    peak_bytes: int = 0
    flops: int = 0
    inputs: list[Described] = field(default_factory=list)
    outputs: list[Described] = field(default_factory=list)
    operators: dict[str, int] = field(default_factory=dict)
    suggested_loss: str | dict[str, Any] | None = None
    feeds: list[Feed] = field(default_factory=list)
    dims: dict[str, int] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    model_metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if the model can be trained as asked."""
        return not (self.is_refused or self.missing_loss)

    @property
    def is_refused(self) -> bool:
        """True if the model cannot be trained with any loss."""
        return bool(self.unsupported or self.missing_gradients or self.error)

    @property
    def trained(self) -> list[Decision]:
        """The tensors that are trained, with those of `doubtful` that are."""
        return [d for d in self.decisions if d.trained]

    @property
    def left_out(self) -> list[Decision]:
        """The tensors that are not trained, with those of `doubtful` that are not."""
        return [d for d in self.decisions if not d.trained]

    @property
    def doubtful(self) -> list[Decision]:
        """The tensors that the file leaves open: name them in `requires_grad` or `frozen_params`."""
        return [d for d in self.decisions if d.doubtful]

    def as_data(self) -> dict[str, Any]:
        """The report as JSON has it."""
        data = {"ok": self.ok, **asdict(self)}
        del data["decisions"]
        for key in ("trainable", "frozen"):
            data[key] = {name: list(shape) for name, shape in getattr(self, key).items()}
        return data | {key: [asdict(d) for d in getattr(self, key)] for key in ("trained", "left_out", "doubtful")}

    def __str__(self) -> str:
        lines = ["cannot be trained" if self.is_refused else self.missing_loss or "can be trained"]
        for kind, values in (("input", self.inputs), ("output", self.outputs)):
            lines += [f"{kind} {v.name}: {v.dtype}{'' if v.dims is None else v.dims}" for v in values]
        if self.operators:
            lines.append("operators: " + ", ".join(f"{name} {n}" for name, n in self.operators.items()))
        for kind, problems in (("not supported", self.unsupported), ("no gradient", self.missing_gradients)):
            lines += [f"{kind}: {p.op} at {', '.join(p.nodes)}: {p.message}" for p in problems]
        lines += [*self.refined, *self.remarks]
        if self.dims:
            sizes = ", ".join(f"{name} = {size}" for name, size in self.dims.items())
            lines.append(f"control flow needs sizes when artifacts are built, dims: {sizes}")
        lines += [note for note in (self.precision, self.untold) if note]
        if self.error:
            lines.append(self.error)
        if self.ok or self.missing_loss:
            n = sum(prod(s) for s in self.trainable.values())
            frozen = f"{len(self.frozen)} frozen ones"
            lines.append(f"{len(self.trainable)} trainable parameters with {n} elements, {frozen}")
        if self.ok:
            lines.append(f"{self.peak_bytes / 2**20:.1f} MiB of kernel memory, {self.flops / 1e6:.1f} MFLOP a step of")
            lines += [f"  {feed.name}: {feed.dtype}{feed.shape}" for feed in self.feeds]
        for title, decisions in (
            ("trained", [d for d in self.trained if not d.doubtful]),
            ("left out", [d for d in self.left_out if not d.doubtful]),
            ("doubtful", self.doubtful),
        ):
            lines += [f"{title}:"] if decisions else []
            lines += [f"  {d.name}: {_verdict(d)}{d.reason}" for d in decisions]
        return "\n".join(lines)


def _verdict(decision: Decision) -> str:
    if not decision.doubtful:
        return ""
    return "trained; " if decision.trained else "left out; "


@checks_keywords
def check(
    model: Any,
    requires_grad: Any = None,
    frozen_params: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    *,
    dims: Mapping[str, int] | None = None,
    feeds: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Report:
    """Report whether and at what cost a forward model can be trained.

    Parameters
    ----------
    model, requires_grad, frozen_params, loss, optimizer, **arguments
        As for `trainweb.artifacts.build_artifacts`; also `head` and `lora` of
        `TrainingSession.from_model`.
    dims
        Sizes of symbolic dimensions, e.g. ``{"batch": 32}``. The default is the least size that fits the operators.
        A model that cannot be trained otherwise is built with them (`Report.dims`). A dimension without a name is
        called by its place, "x[0]", or by the name that an exporter made up, "unk__5".
    feeds
        Arrays for some of the training inputs, labels too, by name. Sizes follow from their shapes. An input whose
        values decide about shapes needs an array.

    Returns
    -------
    Report
        Faults of the model never raise: the report lists all that can be found.
    """
    choices = (requires_grad, frozen_params, loss, optimizer)
    sizes = mapping("dims", {} if dims is None else dims), mapping("feeds", {} if feeds is None else feeds)
    return report_on(model, choices, arguments, sizes, RUNTIME.get_engine())


def report_on(
    model: Any, choices: tuple[Any, ...], arguments: Mapping[str, Any], sizes: Sizes, engine: Engine
) -> Report:
    """Return the report of `check` with plans of this engine; `choices` are positional in `build_artifacts`."""
    report = _report(model, choices, arguments, sizes, engine)
    dims, feeds = sizes
    if report.is_refused and dims:
        fixed = _report(model, choices, {**arguments, "dims": dims}, ({}, feeds), engine)
        fixed.dims = dict(dims)
        if not fixed.is_refused or len(fixed.unsupported) < len(report.unsupported):
            return fixed
    return report


def _report(model: Any, choices: tuple[Any, ...], arguments: Mapping[str, Any], sizes: Sizes, engine: Engine) -> Report:
    report = Report()
    try:
        graph = read_model(model, external_data=arguments.get("external_data"), weights=arguments.get("weights"))
        report.model_metadata = graph.about
        graph = without_past(graph)
        outputs, files = [v.name for v in graph.outputs], graph.external_files
        named = {**dict(zip(CHOICES, choices, strict=True)), **arguments}
        asked_for, lora, adapted = dict(named), named.pop("lora", None), None
        if lora is not None or named.get("head") is not None:
            named = {name: value for name, value in named.items() if name not in FILES}
            model, named, adapted = prepared(graph, lora, named)
            graph = model
        choices = tuple(named.pop(name) for name in CHOICES)
        arguments = {name: value for name, value in named.items() if name != "head"}
        report.remarks += remark_on_smoothing(graph)
        _describe(graph, report)
        sizes = graph.placed(sizes[0]), sizes[1]
        fix_dimensions([graph], graph.placed(arguments.get("dims") or {}))
        report.untold = untold(graph)
        asked = arguments.get("loss_input_names"), arguments.get("additional_output_names")
        graph, declared = in_float32(without_unread(graph, *asked))
        report.precision = str(declared) or None
        _find_unsupported(graph, report, describe_choice(graph, asked[0]))
        _survey(graph, report)
        if not (report.unsupported or report.error):
            _try(model, graph, choices, arguments, sizes, engine, report)
        if adapted is not None:
            report.decisions = [replace(d, reason="adapter") for d in report.decisions if d.trained]
        if report.feeds:
            report.code = example_code(asked_for, report.feeds, outputs, files)
    except GradientError as e:
        report.missing_gradients += [Problem(x.op or "", "", [x.node or ""], str(x)) for x in (e, *e.others)]
    except UnsupportedError as e:
        report.unsupported.append(Problem(e.op or "", e.domain or "", [e.node or ""], str(e)))
    except TrainwebError as e:
        report.error = f"{type(e).__name__}: {e}"
    return report


def _describe(graph: Graph, report: Report) -> None:
    """Report the model's inputs and outputs as the file declares them."""
    for values, described in ((graph.inputs, report.inputs), (graph.outputs, report.outputs)):
        for v in values:
            dims = list(v.shape) if isinstance(v, Value) and v.shape is not None else None
            described.append(Described(v.name, v.dtype, dims))
    names = [f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in graph.nodes]
    report.operators = dict(sorted(Counter(names).items()))


def _find_unsupported(graph: Graph, report: Report, more: str) -> None:
    """Every operator that is not there, not only the first."""
    problems: dict[tuple[str, str], Problem] = {}
    for node, e in unsupported_nodes(graph):
        problem = problems.setdefault((node.domain, node.op_type), Problem(node.op_type, node.domain, [], f"{e}{more}"))
        problem.nodes.append(node.name or node.outputs[0])
    report.unsupported = list(problems.values())


def _survey(graph: Graph, report: Report) -> None:
    """Report faults of single nodes; nodes that read the result of a faulty node are left out."""
    if has_control_flow(graph):
        if report.unsupported:
            return  # what a body holds may not be written out
        graph = expand_control_flow(graph, differentiable=True)
    known = {(problem.domain, problem.op) for problem in report.unsupported}
    header = graph.copy()
    header.nodes = []
    inference, errors = ShapeInference(header), []
    lost: set[str] = set()
    for node in graph.nodes:
        if (node.domain, node.op_type) in known or not lost.isdisjoint(node.inputs):
            lost.update(node.outputs)
            continue
        try:
            inference.add(node)
        except UnsupportedError as e:
            report.unsupported.append(Problem(node.op_type, node.domain, [node.name or node.outputs[0]], str(e)))
            lost.update(node.outputs)
        except TrainwebError as e:
            errors.append(f"{type(e).__name__}: {e}")
            lost.update(node.outputs)
    report.error = "\n".join(errors) or None


def _try(
    model: Any,
    graph: Graph,
    choices: tuple[Any, ...],
    arguments: Mapping[str, Any],
    sizes: Sizes,
    engine: Engine,
    report: Report,
) -> None:
    names = arguments.get("loss_input_names")
    too_many = None if names else describe_open_choice(graph, choices[2])
    if choices[2] is None or too_many:
        written = expand_control_flow(graph) if has_control_flow(graph) else graph.with_nodes(graph.nodes)
        ModelAccessor(written).correct_outputs()
        report.missing_loss = too_many or describe_missing_loss(written, names)
        report.suggested_loss = suggest_loss(written, names)
        if report.missing_loss:
            recovered = recover_parameters(written, exact_names(*choices[:2]))
            _select(recovered, choices, arguments.get("batch_norm"), report)
            return
    with _noting(report):
        built = build_artifacts(model, *choices, **arguments)
    report.decisions = built.decisions
    origin = CheckpointState(built.contents())._lent()
    # The models alone: a session would take memory for the weights.
    models = SessionModels(
        origin.trainable, *built.graphs, engine=engine, limits=Limits(), memory_budget=None, halves=origin.halves
    )
    start_segments(models.layout, origin)
    for slot in models.layout.slots.values():
        (report.trainable if slot.trainable_offset >= 0 else report.frozen)[slot.name] = slot.shape
    inference = ShapeInference(_as_declared(built.graphs[1], graph))
    report.refined = inference.table.refinements()
    types = _signature(models, inference, *sizes)
    programs: dict[str, Program] = {}
    with warnings.catch_warnings(action="ignore"):  # the rows are a guess
        plan = models.compile_step(TRAIN, types, True, observe=programs.__setitem__)
    report.remarks += _remark_on_refusals(list(programs.values())[-1])
    if built.graphs[2] is not None:
        models.compile_optimizer()
    fixed = sum(nbytes for k, nbytes in enumerate(models.segment_bytes) if k >= PARAMETERS)
    report.peak_bytes = plan.arena_bytes + len(plan.constants) + len(plan.large) + len(plan.words) + fixed
    report.flops = plan.flops
    report.feeds = [Feed(name, t.dtype, list(t.shape)) for name, t in types.items()]


def _remark_on_refusals(program: Program) -> list[str]:
    """Fusions that did not fire, of attention and of the head: their scores cost the most memory and time."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for refusal in program.refusals:
        if refusal.what in (ATTENTION, HEAD):
            nodes.setdefault((refusal.what, refusal.reason), []).append(refusal.node)
    return [
        f"{what} keeps its scores in memory ({len(names)} times, first at {names[0]}), as {reason}: see docs/slow.md."
        for (what, reason), names in nodes.items()
    ]


def _signature(
    models: SessionModels, inference: ShapeInference, dims: Mapping[str, int], feeds: Mapping[str, Any]
) -> dict[str, TensorType]:
    """Types of the feeds of a train step, by the sizes that are given."""
    inputs = models.inputs["train"]
    if feeds:
        from trainweb.training.arrays import as_feed
    inference.table.fix(dims)
    tensors = {}
    for name, array in by_inputs(feeds, inputs).items():
        if name not in inputs:
            raise messages.UNKNOWN_FEED(name=name, names=", ".join(inputs))
        tensors[name] = as_feed(name, array, inputs[name].dtype)
    known = models.signature(TRAIN, tensors)
    for name, t in known.items():
        check_feed(inputs[name], t, {})
        declared = _shape_of(inference, name) if name in inference else t.shape
        inference.table.node = f"feed {name!r}"
        if not all(inference.table.unify(dim, size) for dim, size in zip(declared, t.shape, strict=True)):
            raise ModelError(f"Feed {name!r} of shape {list(t.shape)} does not fit: {inference.table.conflict}.")
    for name in models.deciding["train"] - known.keys():
        raise ModelError(f"Input {name!r} decides about shapes by its value: say which, feeds={{{name!r}: ...}}.")
    # An input that no node reads may have an unknown rank.
    shapes = {n: tuple(inference.table.evaluated(d, {}) for d in _shape_of(inference, n)) for n in inputs}
    return {n: known.get(n) or TensorType(v.dtype, shapes[n]) for n, v in inputs.items()}


@contextmanager
def _noting(report: Report) -> Iterator[None]:
    """Let the report have what is warned of; it lists the tensors that are doubtful already."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    texts = [str(w.message) for w in caught]
    report.remarks += [text for text in texts if not text.startswith(UNSETTLED)]


def _select(graph: Graph, choices: tuple[Any, ...], batch_norm: str | None, report: Report) -> None:
    """Report which parameters would be trained; an unknown loss is taken to depend on the first output only."""
    constants = constants_to_initializers(graph).initializers
    with _noting(report):
        chosen = select_parameters(graph, graph.initializers, constants, *choices[:2])
        norms = remark_on_norms(graph, chosen, batch_norm)
        for remark in (*remark_on_file(graph, constants), *remark_on_unread(graph), *norms):
            warn(remark)
    report.decisions = chosen.decisions
    report.trainable = {name: constants[name].shape for name in chosen.trainable}
    report.frozen = {name: constants[name].shape for name in chosen.frozen}


def _shape_of(inference: ShapeInference, name: str) -> tuple[int, ...]:
    return inference[name].shape if name in inference else ()


def _as_declared(built: Graph, source: Graph) -> Graph:
    """A built model whose inputs have the dims of its source again, before operators refined them."""
    declared = {v.name: v for v in source.inputs}
    result = built.copy()
    result.inputs = [declared.get(v.name, v) for v in built.inputs]
    return result
