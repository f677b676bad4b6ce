"""`debug={"check_numerics": True}`: the node of a step that makes the first NaN or infinity (docs/debug.md).

A checked step runs twice. The first run has a plan that keeps all tensors, which are checked one by one. If they are
finite the step runs as it always does, so it gives the same bytes. In a page `web/src/worker/numerics.ts` runs the
steps, and asks `NumericsRules` where a number is not finite (`page/numerics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol, TypeVar

from trainweb import messages
from trainweb.errors import NumericsError
from trainweb.ir.layout import (
    COPY_CHECK,
    GRADIENTS,
    PARAMETERS,
    STATE,
    STATE_LAZY_RESET,
    STATE_LEARNING_RATE,
    STATE_STEP,
)
from trainweb.training.step_kind import StepKind

if TYPE_CHECKING:
    from trainweb.backend.base import Host
    from trainweb.backend.engine import NumberRange
    from trainweb.backend.plan import InspectedNode, LoadedPlan, TensorPlace
    from trainweb.ir.shapes import TensorType
    from trainweb.model.graph import Tensor
    from trainweb.training.models import SessionModels

    InspectedPlan = Callable[[StepKind, Mapping[str, TensorType], bool], LoadedPlan]
    """Returns the plan of a step that keeps all tensors. The last argument is for a train step that overwrites."""

Result = TypeVar("Result")

Places = dict[str, tuple[int, int, tuple[int, ...]]]
"""Segment, offset in bytes and shape of tensors by their names."""
DIGITS = 6
"""Digits of numbers in errors, which show the order of magnitude."""


@dataclass(frozen=True, slots=True)
class TensorRange:
    """The range of a tensor's values: least and largest finite one (None without any), counts of NaN and infinities."""

    name: str
    shape: tuple[int, ...]
    min: float | None
    max: float | None
    nan: int
    infinite: int

    @classmethod
    def of(cls, name: str, shape: Sequence[int], numbers: NumberRange) -> TensorRange:
        """Name the range of a tensor's numbers."""
        if numbers.nan + numbers.infinite == prod(shape):
            return cls(name, tuple(shape), None, None, numbers.nan, numbers.infinite)
        return cls(name, tuple(shape), _rounded(numbers.least), _rounded(numbers.most), numbers.nan, numbers.infinite)

    @property
    def is_finite(self) -> bool:
        """True if all values are finite."""
        return not self.nan and not self.infinite

    @property
    def bad(self) -> str:
        """The counts of NaN and infinite values, in words."""
        infinite = f"{self.infinite} infinite" if self.infinite else ""
        return " and ".join(filter(None, [f"{self.nan} NaN" if self.nan else "", infinite]))

    @property
    def text(self) -> str:
        """In words."""
        finite = "nothing finite" if self.min is None else f"{self.min:g} to {self.max:g}"
        return f"{self.name!r} (" + ", ".join(filter(None, [f"{prod(self.shape)} values", finite, self.bad])) + ")"


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def first_fault(
    nodes: Sequence[InspectedNode], counts: Mapping[str, tuple[int, int]], results: Iterable[str]
) -> tuple[int, str] | None:
    """Return the node that is at fault, by its number, and its tensor; `counts` are NaN and infinities of each tensor.

    The first node counts that makes a NaN from inputs without NaN, or an infinity from finite inputs. It does not count
    if a `Where` leaves all of these values out. Without such a node the data or parameters may have a NaN or infinity
    that reaches one of the `results`. Then the first node counts that it goes through.
    """
    readers: dict[str, list[InspectedNode]] = {}
    for node in nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)

    def nan(name: str) -> int:
        return counts.get(name, (0, 0))[0]

    def is_bad(name: str) -> bool:
        return any(counts.get(name, (0, 0)))

    ends = {*results, *(name for node in nodes if node.is_state for name in node.outputs)}

    def counts_for(name: str, is_final: Callable[[InspectedNode], bool]) -> bool:
        """Return True if NaN or infinity of a tensor reaches one of the ends, or a node that `is_final` accepts."""
        waiting, seen = [name], {name}
        while waiting:
            at = waiting.pop()
            if at in ends or not readers.get(at):
                return True
            for reader in readers[at]:
                bad = [out for out in reader.outputs if is_bad(out)]
                if not bad and is_final(reader):
                    return True
                waiting += [out for out in bad if out not in seen]
                seen.update(bad)
        return False

    passed: tuple[int, str] | None = None
    for k, node in enumerate(nodes):
        for name in filter(is_bad, node.outputs):
            made_nan = nan(name) and not any(map(nan, node.inputs))
            made_infinity = not nan(name) and not any(map(is_bad, node.inputs)) and not node.is_chosen
            if made_nan or made_infinity:
                if counts_for(name, lambda reader: not reader.chooses):
                    return k, name
            elif passed is None and counts_for(name, lambda reader: False):
                passed = k, name
    return passed


class Numbers(Protocol):
    """The numbers of a session in kernel memory."""

    def output_range(self, loaded: LoadedPlan, slot: TensorPlace) -> NumberRange: ...

    def segment_range(self, segment: int, offset: int, count: int, copy: int | None = None) -> NumberRange: ...

    def has_copy(self, copy: int, segment: int) -> bool: ...

    def read_state(self, word: int) -> int | float: ...


class NumericsRules:
    """Looks at the numbers of a session before and after a step: its segments, and their copies of before the step."""

    def __init__(self, models: SessionModels, numbers: Numbers) -> None:
        self._models, self._layout, self._numbers = models, models.layout, numbers

    def check_results(self, kind: str, loaded: LoadedPlan, before: Mapping[str, int]) -> None:
        """Raise NumericsError for a result with more NaN and infinities than in the step which kept all tensors."""
        after = self._results(kind, loaded)
        worse = next((name for name, numbers in after.items() if _bad(numbers) > before.get(name, 0)), None)
        if worse is not None:
            raise self._error(kind, f"The compiled {kind} step", "", after[worse], [])

    def bad_results(self, kind: str, loaded: LoadedPlan) -> dict[str, int]:
        """The counts of NaN and infinities in what `check_results` compares."""
        return {name: _bad(numbers) for name, numbers in self._results(kind, loaded).items()}

    def check_optimizer(self) -> None:
        """Raise NumericsError for a parameter or moment that got NaN or infinities."""
        for places in self._optimized():
            for what, place in places.items():
                numbers = self._range(what, *place)
                if _bad(numbers) > _bad(self._range(what, *place, COPY_CHECK)):
                    raise self._optimizer_error(numbers, places)

    def _range(
        self, name: str, segment: int, offset: int, shape: tuple[int, ...], copy: int | None = None
    ) -> TensorRange:
        """The range of a tensor now, or in a copy: `COPY_CHECK` has what was there before the step."""
        return TensorRange.of(name, shape, self._numbers.segment_range(segment, offset, prod(shape), copy))

    def check_inspected(self, kind: str, loaded: LoadedPlan, overwrite: bool) -> None:
        """Raise NumericsError for a tensor at fault after a step that kept all tensors."""
        host, plan = self._numbers, loaded.plan
        ranges = {
            name: TensorRange.of(name, slot.shape, host.output_range(loaded, slot))
            for name, slot in plan.outputs.items()
            if slot.dtype == "float32" and slot.nbytes
        }
        counts = {name: (numbers.nan, numbers.infinite) for name, numbers in ranges.items() if not numbers.is_finite}
        # A step reads the old contents of the tensors that it updates.
        results = {name for node in plan.inspected_nodes for name in node.outputs}
        for name, slot in plan.outputs.items():
            is_lasting = host.has_copy(COPY_CHECK, slot.segment)
            if is_lasting and name not in results and name in ranges:
                ranges[name] = numbers = self._range(name, slot.segment, slot.offset, slot.shape, COPY_CHECK)
                counts[name] = (numbers.nan, numbers.infinite)
                if slot.segment == GRADIENTS and overwrite:
                    # The step overwrites them without reading them.
                    del ranges[name], counts[name]
        fault = first_fault(plan.inspected_nodes, counts, self._models.outputs[kind])
        if fault is not None:
            number, name = fault
            node = plan.inspected_nodes[number]
            inputs = [ranges[n] for n in node.inputs if n in ranges]
            raise self._error(kind, node.name, node.op, ranges[name], inputs)

    def _results(self, kind: str, loaded: LoadedPlan) -> dict[str, TensorRange]:
        """The outputs of a step, and all parameters and gradients but weights of 16 bits, which no step changes."""
        host = self._numbers
        ranges = {}
        for name in self._models.outputs[kind]:
            place = loaded.plan.outputs[name]
            if place.dtype == "float32":
                ranges[name] = TensorRange.of(name, place.shape, host.output_range(loaded, place))
        for slot in (s for s in self._layout.slots.values() if s.dtype == "float32"):
            for suffix, segment, at in (("", PARAMETERS, slot.offset), ("_grad", GRADIENTS, slot.trainable_offset)):
                if at >= 0:
                    ranges[slot.name + suffix] = self._range(slot.name + suffix, segment, 4 * at, slot.shape)
        return ranges

    def _optimized(self) -> Iterator[Places]:
        """Yield the places of each trained parameter and of its moments."""
        layout = self._layout
        for slot in layout.trained():
            places = {slot.name: (PARAMETERS, 4 * slot.offset, slot.shape)}
            for moment in layout.moments:
                places[f"{slot.name}.{moment}"] = layout.moment(moment, slot)
            yield places

    def _optimizer_error(self, values: TensorRange, places: Places) -> NumericsError:
        parameter = next(iter(places))
        slot = self._layout.slots[parameter]
        read = {
            parameter: places[parameter],
            f"{parameter}_grad": (GRADIENTS, 4 * slot.trainable_offset, slot.shape),
            **places,
            "learning_rate": (STATE, 4 * STATE_LEARNING_RATE, (1,)),
        }
        inputs = [self._range(name, *place, COPY_CHECK) for name, place in read.items()]
        op = self._models.optimizer_operator()
        return self._error("optimizer", f"The optimizer {op} of {parameter!r}", op, values, inputs)

    def _error(
        self, kind: str, node: str, op: str, tensor: TensorRange, inputs: Sequence[TensorRange]
    ) -> NumericsError:
        step = int(self._numbers.read_state(STATE_STEP))
        read = f" Its inputs are {'; '.join(r.text for r in inputs)}." if inputs else ""
        error = messages.NUMERICS(
            node=node, bad=tensor.bad, count=prod(tensor.shape), tensor=tensor.name, kind=kind, step=step, inputs=read
        )
        assert isinstance(error, NumericsError)
        error.node, error.op, error.tensor, error.step = node, op, tensor.name, step
        error.made, error.inputs = asdict(tensor), [asdict(r) for r in inputs]
        return error


class NumericsCheck(NumericsRules):
    """Runs the steps of a session that checks them."""

    def __init__(self, models: SessionModels, host: Host, inspected: InspectedPlan) -> None:
        super().__init__(models, host)
        self._host, self._inspected = host, inspected

    def step(self, kind: str, feeds: Mapping[str, Tensor], compiled: LoadedPlan, run: Callable[[], Result]) -> Result:
        """Run a "train" or "eval" step by `run`, which runs its plan, unless a tensor of it is at fault."""
        host, plain = self._host, StepKind(kind)
        overwrite = kind != "train" or bool(host.read_state(STATE_LAZY_RESET))
        with host.undone(COPY_CHECK):
            loaded = self._inspected(plain, self._models.signature(plain, feeds), overwrite)
            host.write_feeds(loaded, feeds)
            host.run(loaded)
            self.check_inspected(kind, loaded, overwrite)
            before = self.bad_results(kind, loaded)
            host.put_back(COPY_CHECK)
            results = run()
            self.check_results(kind, compiled, before)
        return results

    def optimizer_step(self, run: Callable[[], None]) -> None:
        """Run an optimizer step, unless it makes a parameter or moment that is not a number."""
        with self._host.undone(COPY_CHECK):
            run()
            self.check_optimizer()


def _bad(values: TensorRange) -> int:
    return values.nan + values.infinite
