"""Loops: a body is compiled once, like a model, and stands between `loop_begin` and `loop_end`.

A carried tensor lies in a slot of the loop's workspace, and is copied there at the end of an iteration. A scanned or
stacked tensor is copied from or to its place, which the kernels find by the iteration's number. If the number of
iterations is known only at run time, `loop_while` leaves the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trainweb.autodiff.deferred import zero_gradient
from trainweb.autodiff.gradient import GRADIENT_SUFFIX, build_gradients, influences
from trainweb.backend.base import Target
from trainweb.errors import LimitError
from trainweb.ir import calls
from trainweb.ir.builder import Builder, Ending, Iterations
from trainweb.ir.instructions import Buf, Storage
from trainweb.ir.layout import ARENA, LOOP_DEPTH, LOOP_NEST_TRIPS
from trainweb.ir.loop import LoopCall, depth_of, inner_storages, n_instructions, nested_trips
from trainweb.ir.program import Program
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Graph, Node, Tensor, Value
from trainweb.ops.repeat import LoopGradient

CompileBody = Callable[[Graph, Mapping[str, TensorType], Sequence[str]], Program]
"""The finished program of a graph, by the types of its inputs and the names of its outputs."""


class LoopCompiler:
    """Emits loops; `compile_body` is the compiler itself, for the same target."""

    def __init__(self, compile_body: CompileBody, target: Target) -> None:
        self._compile, self._target = compile_body, target

    def loop(
        self,
        b: Builder,
        body: Graph,
        iterations: Iterations,
        ins: Sequence[Buf],
        outs: Sequence[Buf | None],
        saved_rows: Sequence[Buf | None],
        ending: Ending | None = None,
    ) -> None:
        """Run `body`; `saved_rows` are the values that iterations started from, one below the other."""
        if any(outs) or any(saved_rows) or (ending is not None and ending.steps is not None):
            loop = _Loop(b, body, iterations, ins, self._compile, self._target, ending)
            b.instructions.append(loop.instruction(outs, saved_rows))

    def loop_gradient(
        self,
        b: Builder,
        op: LoopGradient,
        types: Mapping[str, TensorType],
        ins: Sequence[Buf],
        outs: Sequence[Buf | None],
    ) -> None:
        """Run the gradient of a body, from the last iteration to the first."""
        _Gradient(op, types).emit(self, b, list(ins), outs)


class _Loop:
    """The instructions of a loop."""

    def __init__(
        self,
        b: Builder,
        body: Graph,
        iterations: Iterations,
        ins: Sequence[Buf],
        compile_body: CompileBody,
        target: Target,
        ending: Ending | None,
    ) -> None:
        self.b, self.it, self.ins, self.target, self.ending = b.fresh(b.node), iterations, ins, target, ending
        number, *names = [value.name for value in body.inputs]
        first = iterations.carried
        last = first + len(iterations.scanned)
        types = {number: TensorType("int64", ())}
        for k, (name, x) in enumerate(zip(names, ins, strict=True)):
            shape = x.shape[1:] if first <= k < last else x.shape
            types[name] = TensorType(x.dtype, shape, x.value if k >= last else None)
        program = compile_body(body, types, [value.name for value in body.outputs])
        feeds = {x.name: x for x in program.feeds}
        self.counter = self.back = self.b.temp("int64", (1,))
        self.slots = [feeds.get(n) or self.b.temp(types[n].dtype, types[n].shape) for n in names[:first]]
        self.elements = [feeds.get(n) for n in names[first:last]]
        self.places = {feeds[n].storage: x for n, x in zip(names[last:], ins[last:], strict=True) if n in feeds}
        if number in feeds:
            self.places[feeds[number].storage] = self.counter
        self.body = [i.moved(self._placed, i.node) for i in program.instructions]
        self.results = [self._placed(x) for x in program.outputs]

    def _placed(self, x: Buf) -> Buf:
        """A buffer of the body where it is outside of it."""
        at = self.places.get(x.storage)
        return x if at is None else Buf(at.storage, x.dtype, x.shape, x.value, at.shift + x.shift, x.name)

    def instruction(self, outs: Sequence[Buf | None], saved_rows: Sequence[Buf | None]) -> LoopCall:
        """All of it as one instruction."""
        b, it = self.b, self.it
        for slot, x in zip(self.slots, self.ins, strict=False):
            self._copy(slot, x)
        leave = self._begin()
        for slot, rows in zip(self.slots, saved_rows, strict=True):
            self._put(slot, rows, False)
        for element, x, reverse in zip(self.elements, self.ins[it.carried :], it.scanned, strict=False):
            if element is not None and element.nbytes:
                counter, backward = self._place_of_part(reverse)
                call = calls.LoopTake(
                    src=x, counter=counter, dst=element, n=element.nbytes, trips=it.trips, reverse=backward
                )
                b.emit(call)
        b.instructions += self.body
        for result, rows, reverse in zip(self.results[it.carried :], outs[it.carried :], it.stacked, strict=True):
            self._put(result, rows, reverse)
        self._carry()
        # The verifier writes where the loop begins.
        b.emit(calls.LoopEnd(counter=self.counter, begin=0, instruction=0))
        if leave is not None:
            leave.skip = n_instructions(b.instructions[b.instructions.index(leave) + 1 :])
        steps = self.ending.steps if self.ending is not None else None
        if steps is not None:
            self._copy(steps, self.counter)
        for slot, out in zip(self.slots, outs, strict=False):
            if out is not None:
                self._copy(out, slot)
        numbers = [] if self.ending is None else [self.ending.count, steps]
        outer = [*self.ins, *(x for x in (*outs, *saved_rows, *numbers) if x is not None)]
        inner = inner_storages(b.instructions, outer)
        live = [*self.slots, self.counter]
        nbytes = self.target.workspace_bytes(b.instructions, [], live, inner)
        workspace = Buf(Storage(ARENA, nbytes), "uint8", (nbytes,), name="temp")
        may_fail = self.ending is not None and self.ending.may_fail
        may_fail |= any(isinstance(i, LoopCall) and i.may_fail for i in self.body)
        self._check_nest()
        return LoopCall(b.instructions, it.trips, inner, workspace, b.node, may_fail=may_fail)

    def _check_nest(self) -> None:
        """Raise LimitError where loops within each other are more than a plan may have."""
        depth, most = 1 + depth_of(self.body), (self.it.trips + (self.ending is not None)) * nested_trips(self.body)
        if depth > LOOP_DEPTH or most > LOOP_NEST_TRIPS:
            raise LimitError(
                f"{self.b.node}: {depth} loops within each other have up to {most} iterations; a plan may have "
                f"{LOOP_DEPTH} and {LOOP_NEST_TRIPS}. Lower the trip counts or, for loops that end at run time, "
                "limits['loop_iterations']."
            )

    def _begin(self) -> calls.LoopWhile | None:
        """Begin the loop. Return the instruction that leaves it, if only the run knows the number of iterations."""
        b, trips, ending = self.b, self.it.trips, self.ending
        if ending is None:
            b.emit(calls.LoopBegin(counter=self.counter, trips=trips, left=0))
            return None
        # There must be an iteration more, to be left.
        b.emit(calls.LoopBegin(counter=self.counter, trips=trips + 1, left=0))
        condition = self.slots[0] if ending.conditional else None
        leave = calls.LoopWhile(condition=condition, count=ending.count, counter=self.counter, limit=trips, skip=0)
        b.emit(leave)
        if ending.count is not None and any((*self.it.scanned, *self.it.stacked)):
            self.back = b.temp("int64", (1,))
            b.elementwise(
                [self.back],
                [ending.count, self.counter],
                lambda e, n, k: e.sub(e.sub(n, k), e.const(1, "int64")),
            )
        return leave

    def _place_of_part(self, reverse: bool) -> tuple[Buf, int]:
        """Return the counter of an iteration's parts, and whether it counts from the end."""
        if reverse and self.ending is not None:
            return self.back, 0
        return self.counter, int(reverse)

    def _copy(self, to: Buf, source: Buf) -> None:
        if to.nbytes and not to.same_place(source):
            self.b.copy(to, source)

    def _put(self, x: Buf, rows: Buf | None, reverse: bool) -> None:
        if rows is not None and x.nbytes:
            counter, backward = self._place_of_part(reverse)
            trips = self.it.trips
            self.b.emit(calls.LoopPut(src=x, counter=counter, dst=rows, n=x.nbytes, trips=trips, reverse=backward))

    def _carry(self) -> None:
        """Copy the iteration's results to the slots of the next one, moving results in slots out of the way first."""
        slots = {slot.storage for slot in self.slots}
        values = self.results[: self.it.carried]
        for k, (x, slot) in enumerate(zip(values, self.slots, strict=True)):
            if x.storage in slots and not x.same_place(slot):
                values[k] = self.b.temp(x.dtype, x.shape)
                self._copy(values[k], x)
        for x, slot in zip(values, self.slots, strict=True):
            self._copy(slot, x)


class _Gradient:
    """The body of a loop that goes back, and what it is given.

    It carries the gradients of the carried tensors, and the sums of the gradients of tensors that all iterations read.
    It scans each iteration's initial values and inputs, and the gradients of stacked outputs.
    """

    def __init__(self, op: LoopGradient, types: Mapping[str, TensorType]) -> None:
        self.op, self.types = op, types
        number, *names = [value.name for value in op.body.inputs]
        self.carried, self.names = names[: op.carried], names
        self.n_scanned = len(op.scanned)
        self.flowing = [k for k, name in enumerate(self.carried) if types[name].dtype == "float32"]
        self.summed = [i for i in op.wanted if i >= op.carried + self.n_scanned]
        self.parted = [i for i in op.wanted if op.carried <= i < op.carried + self.n_scanned]
        self.stacked = [k - op.carried for k in op.seeds if k >= op.carried]
        self.body = self._body(number)

    def _body(self, number: str) -> Graph:
        op = self.op
        forward = op.body.copy()
        forward.opsets = dict(op.opsets)
        forward.inputs = [Value(v.name, self.types[v.name].dtype, self.types[v.name].shape) for v in op.body.inputs]
        results = [f"{value.name}.result_{k}" for k, value in enumerate(op.body.outputs)]
        for value, name in zip(op.body.outputs, results, strict=True):
            forward.nodes.append(Node("Identity", [value.name], [name], {}, "", f"{name}/Identity"))
        forward.outputs = []
        seeds = [results[k] for k in (*self.flowing, *(op.carried + k for k in self.stacked))]
        wanted = [self.carried[k] for k in self.flowing] + [self.names[i] for i in (*self.parted, *self.summed)]
        reached = influences(forward, seeds)
        graph = build_gradients(forward, None, [name for name in wanted if name in reached], seeds=seeds)
        for name in wanted:
            if name not in reached:
                graph.nodes += zero_gradient(name, self.types[name], graph)
        sums = [f"{self.names[i]}.sum" for i in self.summed]
        for i, before in zip(self.summed, sums, strict=True):
            gradient = self.names[i] + GRADIENT_SUFFIX
            graph.nodes.append(Node("Add", [before, gradient], [f"{before}.after"], {}, "", f"{before}/Add"))
        back = f"{number}.back"
        ran = _number_from_the_end(graph, number, back, None if op.is_open else op.trips)
        flows = [results[k] + GRADIENT_SUFFIX for k in self.flowing]
        rows = [results[op.carried + k] + GRADIENT_SUFFIX for k in self.stacked]
        start, end = op.carried, op.carried + self.n_scanned
        inputs = [back, *flows, *sums, *self.carried, *self.names[start:end], *rows, *self.names[end:], *ran]
        outputs = [self.carried[k] + GRADIENT_SUFFIX for k in self.flowing] + [f"{name}.after" for name in sums]
        outputs += [self.names[i] + GRADIENT_SUFFIX for i in self.parted]
        graph.inputs = [Value(name, "", None) for name in inputs]
        graph.outputs = [Value(name, "", None) for name in outputs]
        graph.value_info = {}
        return graph

    def emit(self, compiler: LoopCompiler, b: Builder, ins: list[Buf], outs: Sequence[Buf | None]) -> None:
        """Emit the loop."""
        op = self.op
        start, end = op.carried, op.carried + self.n_scanned
        inputs, *ran = ins[: op.inputs], *ins[op.inputs : op.inputs + op.is_open]
        kept_from = op.inputs + len(ran)
        saved_rows, seeds = ins[kept_from : kept_from + op.carried], ins[kept_from + op.carried :]
        of_seed = dict(zip(op.seeds, seeds, strict=True))
        flows = [of_seed.get(k) or _zeros(b, inputs[k].shape) for k in self.flowing]
        sums = [_zeros(b, inputs[i].shape) for i in self.summed]
        rows = [of_seed[op.carried + k] for k in self.stacked]
        scanned = [True] * op.carried + [not r for r in op.scanned] + [not op.stacked[k] for k in self.stacked]
        parted = [not op.scanned[i - start] for i in self.parted]
        iterations = Iterations(op.trips, len(flows) + len(sums), tuple(scanned), tuple(parted))
        place = dict(zip(op.wanted, outs, strict=True))
        results = [place.get(k) for k in (*self.flowing, *self.summed, *self.parted)]
        bufs = [*flows, *sums, *saved_rows, *inputs[start:end], *rows, *inputs[end:], *ran]
        ending = Ending(ran[0]) if ran else None
        compiler.loop(b, self.body, iterations, bufs, results, [None] * iterations.carried, ending)


def _number_from_the_end(graph: Graph, number: str, back: str, trips: int | None) -> list[str]:
    """Let a body that goes back know the number of the iteration; the input that says how many ran, if it needs one."""
    one = Tensor.of(f"{number}.one", "int64", (), [1])
    last, ran = f"{number}.last", f"{number}.ran"
    nodes = [Node("Sub", [last, back], [number], {}, "", f"{back}/Sub")]
    if trips is None:
        graph.initializers[one.name] = one
        nodes.insert(0, Node("Sub", [ran, one.name], [last], {}, "", f"{last}/Sub"))
    else:
        graph.initializers[last] = Tensor.of(last, "int64", (), [trips - 1])
    graph.nodes[:0] = nodes
    return [ran] if trips is None else []


def _zeros(b: Builder, shape: tuple[int, ...]) -> Buf:
    zeros = b.temp("float32", shape)
    b.fill(zeros, 0.0)
    return zeros
