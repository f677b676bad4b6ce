"""Steps of a session's core on arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trainweb.errors import FeedError
from trainweb.ir.shapes import TensorType
from trainweb.model.graph import Tensor
from trainweb.spelling import by_inputs
from trainweb.training.arrays import as_feed, from_numpy, to_numpy
from trainweb.training.core import SessionCore
from trainweb.training.ort.options import RunOptions
from trainweb.training.step_kind import StepKind

Fetches = Sequence[str] | Mapping[str, "np.ndarray | None"] | None


def run_step(
    core: SessionCore,
    kind: StepKind,
    feeds: Mapping[str, Any],
    fetches: Fetches = None,
    options: RunOptions | Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Run a step; see `SessionCore.step`. Results are written into the arrays of `fetches`, where it has some."""
    run = RunOptions._of(options)
    names, targets = check_fetches(fetches)
    types = {n: TensorType(str(t.dtype), t.shape) for n, t in targets.items()}
    results = core.step(kind, as_tensors(core, kind, feeds), names, types, run)
    arrays = {n: to_numpy(t) for n, t in results.items()}
    for n, target in targets.items():
        target[...] = arrays[n]
    return arrays | targets


def as_tensors(core: SessionCore, kind: StepKind, feeds: Any) -> dict[str, Tensor]:
    """The feeds of a step, where lists and numbers have the types of the inputs."""
    inputs = core.models.inputs_of(kind)
    named = by_inputs(check_feeds(feeds), inputs)
    return {n: as_feed(n, v, inputs[n].dtype) if n in inputs else from_numpy(n, v) for n, v in named.items()}


def check_feeds(feeds: Any) -> Mapping[str, Any]:
    """`feeds`, if it is a mapping."""
    if not isinstance(feeds, Mapping):
        raise FeedError(f"feeds must be a dict of input name to array, got {type(feeds).__name__}.")
    return feeds


def check_fetches(fetches: Any) -> tuple[list[str] | None, dict[str, np.ndarray]]:
    """Names wanted (None: all) and the arrays to write into."""
    if fetches is None:
        return None, {}
    if isinstance(fetches, str) or not isinstance(fetches, Iterable) or not all(isinstance(n, str) for n in fetches):
        raise FeedError("fetches must be a list of output names, or a dict of name to array or None.")
    if not isinstance(fetches, Mapping):
        return list(fetches), {}
    targets = {n: t for n, t in fetches.items() if t is not None}
    for name, target in targets.items():
        if not isinstance(target, np.ndarray) or not target.flags.writeable:
            what = "a read-only array" if isinstance(target, np.ndarray) else type(target).__name__
            raise FeedError(f"Fetch {name!r} is to be written into {what}; that takes a writable array, or None.")
    return list(fetches), targets
