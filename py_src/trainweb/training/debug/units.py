"""Dead units: channels of an activation that never fire (docs/debug.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainweb.ir.layout import COPY_CHECK, STATE

if TYPE_CHECKING:
    from trainweb.backend.base import Host
    from trainweb.backend.plan import InspectedNode, LoadedPlan, Plan
    from trainweb.model.graph import Tensor


@dataclass(frozen=True, slots=True)
class DeadUnits:
    """Units of an activation that were zero for all that a model was fed.

    Attributes
    ----------
    tensor : str
        The activation.
    node : str
        The node that makes it, as errors name it.
    axis : int
        The axis that counts units: channels of convolutions, else columns of products, else the second one.
    units : int
        Number of units.
    dead : list of int
        Numbers of the units that never fired.
    """

    tensor: str
    node: str
    axis: int
    units: int
    dead: list[int]


def rectified_units(plan: Plan) -> list[DeadUnits]:
    """The activations that may have dead units, none of which has fired yet."""
    makers = {name: node for node in plan.inspected_nodes for name in node.outputs}
    results = []
    for node in plan.inspected_nodes:
        if node.is_rectifier and node.outputs:
            slot = plan.outputs[node.outputs[0]]
            if len(slot.shape) > 1:
                axis = _unit_axis(node, makers) % len(slot.shape)
                units = slot.shape[axis]
                results.append(DeadUnits(slot.name, node.name, axis, units, list(range(units))))
    return results


def _unit_axis(node: InspectedNode, makers: Mapping[str, InspectedNode]) -> int:
    """Return the unit axis of the product or convolution before a node."""
    at: InspectedNode | None = node
    while at is not None:
        if at.unit_axis is not None:
            return at.unit_axis
        at = makers.get(at.inputs[0]) if at.inputs else None
    return 1


def dead_units(
    host: Host, plan: Callable[[Mapping[str, Tensor]], LoadedPlan], batches: Sequence[Mapping[str, Tensor]]
) -> list[DeadUnits]:
    """Run the plans of eval steps on some batches, and see which units never fire. Nothing changes."""
    import numpy as np  # the core does without

    fired: dict[str, np.ndarray] = {}
    names: dict[str, DeadUnits] = {}
    host.save(COPY_CHECK, 1 << STATE)
    for feeds in batches:
        loaded = plan(feeds)
        host.write_feeds(loaded, feeds)
        host.run(loaded)
        for one in rectified_units(loaded.plan):
            output = host.read_outputs(loaded, [one.tensor])[one.tensor]
            values = np.moveaxis(np.frombuffer(output.data, "<f4").reshape(output.shape), one.axis, 0)
            fires = (values.reshape(one.units, -1) > 0).any(axis=1)
            names.setdefault(one.tensor, one)
            fired[one.tensor] = np.logical_or(fires, fired.get(one.tensor, False))
    host.put_back(COPY_CHECK)
    host.forget(COPY_CHECK)
    return [
        DeadUnits(one.tensor, one.node, one.axis, one.units, np.flatnonzero(~fired[one.tensor]).tolist())
        for one in names.values()
    ]
