"""One of two graphs, by a condition that is known when a plan is compiled, and decides about sizes."""

from __future__ import annotations

from collections.abc import Sequence

from trainweb.errors import ModelError
from trainweb.ir.dims import UndecidedError, static
from trainweb.ir.shapes import TensorType
from trainweb.ir.symbols import SymbolTable
from trainweb.model.graph import MS, TRAINWEB, Graph, Node
from trainweb.ops.frame.composite import Composite, StaticTypes
from trainweb.ops.frame.emission import Emission
from trainweb.ops.frame.op import MANY, Attr, Int, Str
from trainweb.ops.frame.symbolic import Var


class Branch(Composite):
    """The results of `then_branch` where a condition holds, else of `else_branch` (ai.trainweb).

    The first input is the condition, the others are the inputs of both branches, which are graphs without control
    flow. It belongs to the signature, so that a plan has the nodes, and the sizes, of one of them. A branch that no
    size can run is empty: `refused` is the error where it is chosen.
    """

    domain = TRAINWEB
    attrs = {
        "then_branch": Attr(Graph, required=True),
        "else_branch": Attr(Graph, required=True),
        "body_opset": Int(required=True),
        "refused": Str(""),
    }
    min_inputs, max_inputs = 1, MANY
    differentiable = range(MANY)
    static_inputs = (0,)
    then_branch: Graph
    else_branch: Graph
    body_opset: int
    refused: str

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        condition, *types = inputs
        if condition is None or condition.dtype != "bool" or condition.size != 1:
            raise self.error("its condition is not one bool.")
        chosen = self._chosen(condition)
        if chosen is not None:
            return tuple(TensorType(t.dtype, t.shape, t.value) for t in self._results(chosen, types))
        table: SymbolTable | None = getattr(self.types, "table", None)
        if table is None:
            raise self.unsupported("a condition that is only known at run time")
        bodies = [body for body in (self.then_branch, self.else_branch) if body.outputs]
        then, other = (self._supposed(body, types, table) for body in (bodies * 2)[:2])
        return tuple(self._either(k, *pair, table) for k, pair in enumerate(zip(then, other, strict=True)))

    def _chosen(self, condition: TensorType) -> Graph | None:
        """The branch that runs, None where that is not known yet."""
        if condition.value is None or not static(*condition.value):
            return None
        return self.then_branch if condition.value[0] else self.else_branch

    def _supposed(self, body: Graph, types: Sequence[TensorType | None], table: SymbolTable) -> list[TensorType]:
        """The results of a branch; its demands on sizes hold only if it is chosen."""
        known = table.known()
        results = self._results(body, types)
        table.back_to(known)
        return results

    def _results(self, body: Graph, outer: Sequence[TensorType | None]) -> list[TensorType]:
        if not body.outputs:
            raise ModelError(self.refused)
        if len(body.inputs) != len(outer):
            raise self.error(f"a branch has {len(body.inputs)} inputs, not {len(outer)}.")
        inputs = {value.name: t for value, t in zip(body.inputs, outer, strict=True) if t is not None}
        types = StaticTypes(inputs, {"": self.body_opset, TRAINWEB: 1, MS: 1})
        types.table = getattr(self.types, "table", None)
        types.add_all(body)
        return [types[value.name] for value in body.outputs]

    def _either(self, index: int, a: TensorType, b: TensorType, table: SymbolTable) -> TensorType:
        """The type of an output that is one of two: sizes that differ are symbols of their own."""
        if a.dtype != b.dtype or a.rank != b.rank:
            raise self.unsupported(f"a result that is {a.dtype}{list(a.shape)} or {b.dtype}{list(b.shape)}")
        dims: list[int] = []
        name = self.node.outputs[index] if index < len(self.node.outputs) else ""
        for axis, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)):
            size = f"{name or index}[{axis}]"
            dims.append(m if m == n else table.symbol(size, f"dimension {axis} of {name!r}", low=0, named=False))
        return TensorType(a.dtype, tuple(dims))

    def expand(self, g: Emission, *ins: Var | None) -> Sequence[Var | None]:
        condition, *outer = ins
        body = self._chosen(condition.type) if condition is not None else None
        if body is None:
            raise UndecidedError("its condition")
        names = {value.name: v.name for value, v in zip(body.inputs, outer, strict=True) if v is not None}
        for tensor in body.initializers.values():
            names[tensor.name] = g.constant(tensor.dtype, tensor.shape, tensor.values())
        for node in body.nodes:
            inputs = [name and names[name] for name in node.inputs]
            for name in filter(None, node.outputs):
                names[name] = g.fresh(f"{g.prefix}/{name}")
            outputs = [name and names[name] for name in node.outputs]
            label = g.fresh(f"{g.prefix}/{node.name or node.op_type}")
            g.add(Node(node.op_type, inputs, outputs, dict(node.attrs), node.domain, label, node.notes))
        return [Var(g, names[value.name], value.dtype) for value in body.outputs]
