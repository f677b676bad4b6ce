"""Loops that are not written out: their body is a graph, which is compiled once and run again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainweb.errors import LimitError
from trainweb.ir.builder import Builder, Ending, Iterations
from trainweb.ir.dims import equal_shapes, maximum, static
from trainweb.ir.instructions import Buf
from trainweb.ir.layout import LOOP_TRIPS
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import MS, TRAINWEB, Graph
from trainweb.ops.frame.arguments import integers
from trainweb.ops.frame.composite import StaticTypes
from trainweb.ops.frame.gradients import GradientBuilder
from trainweb.ops.frame.op import MANY, Attr, Int, Ints, Names, Op


class _Repeat(Op, abstract=True):
    domain = TRAINWEB
    attrs = {
        "body": Attr(Graph, required=True),
        "carried": Int(required=True),
        "scanned": Ints(required=True),
        "stacked": Ints(required=True),
        "body_opset": Int(required=True),
    }
    min_inputs, max_inputs = 0, MANY
    is_open = False
    """True if the number of iterations is known only at run time: `trips` is the most."""
    body: Graph
    body_opset: int
    carried: int
    scanned: tuple[int, ...] = ()
    stacked: tuple[int, ...] = ()

    @property
    def opsets(self) -> dict[str, int]:
        """Opsets of the body."""
        return {"": self.body_opset, TRAINWEB: 1, MS: 1}

    @property
    def is_pure(self) -> bool:
        """Equal bodies are not looked for, and loops over constants are not run when models are compiled."""
        return False

    @property
    def iterations(self) -> Iterations:
        """The roles of the body's inputs and outputs in the loop."""
        return Iterations(self.trips, self.carried, tuple(map(bool, self.scanned)), tuple(map(bool, self.stacked)))

    def typed_body(self) -> Graph:
        """The body with its opsets, which a file does not keep."""
        body = self.body.copy()
        body.opsets = self.opsets
        return body

    def body_types(self, inputs: list[TensorType]) -> dict[str, TensorType]:
        """Types of the tensors in the body; inputs that all iterations read keep their values."""
        n = self.carried + len(self.scanned)
        if len(self.body.inputs) != 1 + len(inputs):
            raise self.error(f"its body has {len(self.body.inputs)} inputs, not {1 + len(inputs)}.")
        trips = self.trips
        types = StaticTypes({}, self.opsets)
        names = [value.name for value in self.body.inputs]
        types[names[0]] = TensorType("int64", ())
        for k, (name, t) in enumerate(zip(names[1:], inputs, strict=True)):
            if k >= n:
                types[name] = t
                continue
            shape = t.shape
            if k >= self.carried:
                if not shape or not equal_shapes(shape[:1], (trips,)):
                    raise self.error(f"input {k} has shape {list(shape)}; its first size must be {trips}.")
                shape = shape[1:]
            types[name] = TensorType(t.dtype, shape)
        types.add_all(self.body)
        return types


class _Counted(_Repeat, abstract=True):
    """A loop whose first input is its number of iterations."""

    static_inputs = (0,)
    min_inputs = 1

    @property
    def trips(self) -> int:
        """The number of iterations; sizes or feeds may decide it, and compilation knows it."""
        count = self.types[self.node.inputs[0]]
        counts = integers(self, count, "its number of iterations")
        if len(counts) != 1:
            raise self.error(f"its number of iterations has shape {list(count.shape)}, not one element.")
        trips: int = maximum(0, counts[0])
        if static(trips) and trips > LOOP_TRIPS:
            raise LimitError(f"{self.node}: it has {trips} iterations; a loop in a plan has at most {LOOP_TRIPS}.")
        return trips


class _Forward(_Repeat, abstract=True):
    differentiable = range(MANY)

    def carried_types(self, inputs: list[TensorType]) -> tuple[list[TensorType], list[TensorType]]:
        """Types of the carried tensors, and of the stacked tensors of one iteration."""
        types = self.body_types(inputs)
        results = [types[value.name] for value in self.body.outputs]
        first = inputs[: self.carried]
        for k, (old, new) in enumerate(zip(first, results, strict=False)):
            if old.dtype != new.dtype or old.rank != new.rank or not equal_shapes(old.shape, new.shape):
                raise self.error(
                    f"carried tensor {k} is {old.dtype}{list(old.shape)} at first, then {list(new.shape)}."
                )
        return [TensorType(t.dtype, t.shape) for t in first], results[self.carried :]

    def going_back(self, g: GradientBuilder, edges: list[str], douts: Names, op_type: str, inputs: list[str]) -> Names:
        """Emit the node of the gradients of `edges`, which reads `inputs` and the gradients of outputs."""
        wanted = [i for i, name in enumerate(edges) if g.wants(name) and g.dtype(name) == "float32"]
        seeds = [k for k, dy in enumerate(douts) if dy]
        attrs = {name: self.node.attrs[name] for name in self.attrs}
        attrs |= {"inputs": len(edges), "wanted": wanted, "seeds": seeds}
        names = g.ops(op_type, [*inputs, *filter(None, douts)], len(wanted), domain=TRAINWEB, **attrs)
        gradients = dict(zip(wanted, names, strict=True))
        return [None, *(gradients.get(i) for i in range(len(edges)))]


class Repeat(_Counted, _Forward):
    """A loop of a number of iterations that is known when it is compiled (ai.trainweb).

    The first input is that number. The body's inputs are the number of the iteration (an int64 scalar), then carried
    tensors, scanned ones, and tensors that all iterations read. Its outputs are what is carried and what is stacked;
    the node has for the gradient also what each iteration started from.
    """

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        carried, rows = self.carried_types([t for t in inputs[1:] if t is not None])
        trips = self.trips
        return *carried, *(TensorType(t.dtype, (trips, *t.shape)) for t in (*rows, *carried))

    def lower(self, b: Builder, outs: list[Buf | None], *inputs: Any) -> None:
        ins = inputs[1:]
        if not self.trips:
            for out, first in zip(outs, ins[: self.carried], strict=False):
                if out is not None:
                    b.copy(out, first)
            return
        n = self.carried + len(self.stacked)
        before = outs[n : n + self.carried]
        before += [None] * (self.carried - len(before))
        b.loops.loop(b, self.typed_body(), self.iterations, list(ins), outs[:n], before)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        """One node, of which compilation makes the loop that goes back."""
        n = self.carried + len(self.stacked)
        before = [g.extra_output(n + k, f"_before_{k}") for k in range(self.carried)]
        return self.going_back(g, ins[1:], douts[:n], "RepeatGradient", [*ins, *before])


class LoopGradient(_Repeat, abstract=True):
    """Gradients of a loop. After the first `counted` inputs, the next `inputs` are the body's."""

    attrs = {
        **_Repeat.attrs,
        "inputs": Int(required=True),
        "wanted": Ints(required=True),
        "seeds": Ints(required=True),
    }
    counted = 0
    inputs: int
    wanted: tuple[int, ...]
    seeds: tuple[int, ...]

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        types = [t for t in inputs if t is not None]
        n = self.counted + self.inputs + self.is_open + self.carried + len(self.seeds)
        if len(types) != n or not all(i < self.inputs for i in self.wanted):
            raise self.error(f"{len(types)} inputs do not fit those of the loop.")
        of_body = types[self.counted :]
        return tuple(TensorType(of_body[i].dtype, of_body[i].shape) for i in self.wanted)

    def lower(self, b: Builder, outs: list[Buf | None], *inputs: Any) -> None:
        ins = list(inputs[self.counted :])
        if not self.trips:
            self._pass_on(b, outs, ins)
            return
        names = self.node.inputs[self.counted : self.counted + self.inputs]
        types: Mapping[str, TensorType] = self.body_types([self.types[name] for name in names])
        b.loops.loop_gradient(b, self, types, ins, outs)

    def _pass_on(self, b: Builder, outs: list[Buf | None], ins: list[Buf]) -> None:
        """Write the gradients of a loop without iterations: gradients of carried tensors pass through."""
        seeds = dict(zip(self.seeds, ins[self.inputs + self.carried :], strict=True))
        for i, out in zip(self.wanted, outs, strict=True):
            if out is not None and i < self.carried and i in seeds:
                b.copy(out, seeds[i])
            elif out is not None and out.size:
                b.fill(out, 0.0)


class RepeatGradient(_Counted, LoopGradient):
    """Gradients of Repeat (ai.trainweb): the loop from the last iteration to the first.

    Inputs are the inputs of the Repeat, the initial states of each of its iterations, and the gradients of its outputs
    `seeds`; outputs are the gradients of the body's inputs `wanted`. An iteration computes again what its gradient
    needs.
    """

    counted = 1


OPEN_ATTRIBUTES = {
    **{name: attr for name, attr in _Repeat.attrs.items() if name not in ("scanned", "stacked")},
    "trips": Int(required=True),
}


class RepeatWhile(_Forward):
    """A loop that ends when its condition is false, after at most a number of iterations (ai.trainweb).

    The first input is how often it runs at most, if that is given; then the condition, as the first of what is
    carried, the others, and what all iterations read. `trips` is how many iterations it may have: to go on beyond them
    is an error. The outputs are what is carried, how often it ran, and for the gradient what each iteration
    started from.
    """

    attrs = OPEN_ATTRIBUTES
    is_open = True

    def looked_at(self) -> tuple[list[str], list[str]]:
        """All but the initial states: they have room for iterations that did not run."""
        return list(self.node.inputs), self.node.outputs[: self.carried]

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        count, *types = inputs
        if count is not None and (count.dtype != "int64" or count.size != 1):
            raise self.error(f"its number of iterations is {count.dtype}{list(count.shape)}, not one int64.")
        carried, _ = self.carried_types([t for t in types if t is not None])
        if not carried or carried[0] != TensorType("bool", ()):
            raise self.error("its condition is not one bool.")
        return *carried, TensorType("int64", ()), *(TensorType(t.dtype, (self.trips, *t.shape)) for t in carried)

    def lower(self, b: Builder, outs: list[Buf | None], *ins: Any) -> None:
        n = self.carried
        steps, before = outs[n : n + 1], outs[n + 1 :]
        known = self.types[self.node.inputs[0]].value if self.node.inputs[0] else None
        may_fail = known is None or known[0] > self.trips
        ending = Ending(ins[0], conditional=True, steps=steps[0] if steps else None, may_fail=may_fail)
        before += [None] * (n - len(before))
        results = [*outs[:n], *[None] * (n - len(outs))]
        b.loops.loop(b, self.typed_body(), self.iterations, list(ins[1:]), results, before, ending)

    def gradient(self, g: GradientBuilder, ins: list[str], outs: list[str], douts: Names) -> Names:
        """One node, of which compilation makes the loop that goes back as often."""
        tensors, n = ins[1:], self.carried
        steps = g.extra_output(n, "_steps")
        before = [g.extra_output(n + 1 + k, f"_before_{k}") for k in range(n)]
        return self.going_back(g, tensors, douts[:n], "RepeatWhileGradient", [*tensors, steps, *before])


class RepeatWhileGradient(LoopGradient):
    """Gradients of RepeatWhile (ai.trainweb): as many iterations as it had, the last one first.

    Inputs are the inputs of the RepeatWhile without the number of iterations, and the number of iterations that ran.
    The initial states of each iteration and the gradients of its outputs `seeds` follow.
    """

    attrs = {**OPEN_ATTRIBUTES, **{name: LoopGradient.attrs[name] for name in ("inputs", "wanted", "seeds")}}
    is_open = True

    def looked_at(self) -> tuple[list[str], list[str]]:
        """All but the initial states: they have room for iterations that did not run."""
        before = self.inputs + 1
        return [*self.node.inputs[:before], *self.node.inputs[before + self.carried :]], list(self.node.outputs)
