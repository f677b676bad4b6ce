"""Each call of a session declares the segments that it reads and changes in the host's memory, and no others."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.python import sessions
from tests.python.test_averages import made, opened

from trainweb.backend.wasm.host import PlanHost
from trainweb.ir.layout import ARENA, STATE
from trainweb.model.graph import Tensor
from trainweb.training.arrays import from_numpy
from trainweb.training.calls import CALLS, MOMENTS, Public
from trainweb.training.core import SessionCore
from trainweb.training.step_kind import TRAIN

Notes = dict[str, set[int]]
ARGUMENTS: dict[str, Callable[[SessionCore], tuple[Any, ...]]] = {
    "get_parameter": lambda s: (first(s),),
    "get_gradient": lambda s: (first(s),),
    "get_moments": lambda s: (first(s),),
    "get_parameter_type_and_shape": lambda s: (first(s),),
    "update_parameter": lambda s: (s.get_parameter(first(s)),),
    "set_learning_rate": lambda s: (0.5,),
    "register_linear_lr_scheduler": lambda s: (1, 5, 0.25),
    "get_parameters_size": lambda s: (True,),
    "get_contiguous_parameters": lambda s: (True, True),
    "load_parameters_buffer": lambda s: (bytes(s.get_contiguous_parameters(True, False).data), True),
    "dead_units": lambda s: ([tensors()],),
    "add_property": lambda s: ("a", 1),
    "get_property": lambda s: ("kept",),
    "get_property_kind": lambda s: ("kept",),
    "delete_property": lambda s: ("kept",),
    "prepare": lambda s: ({name: t.shape for name, t in tensors().items()},),
    "explain": lambda s: (TRAIN, s.models.signature(TRAIN, tensors())),
    "set_seed": lambda s: (7,),
    "save_checkpoint": lambda s: (True,),
    "export_model_for_inferencing": lambda s: (["logits"], True),
    "export_weights": lambda s: ("npz", True),
    "load_checkpoint": lambda s: (s.save_checkpoint(True),),
    "load_weights": lambda s: (s.export_weights("npz", False), True),
}
"""Arguments of the calls that take some, for a core after a step."""
MORE_IN_PAGES = {"dead_units": "its plan reads parameters"}
"""Calls that declare more than a host's methods show, and why."""


def first(core: SessionCore) -> str:
    return core.parameter_names()[0]


def tensors() -> dict[str, Tensor]:
    return {name: from_numpy(name, np.asarray(array)) for name, array in sessions.batch().items()}


@contextmanager
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notes]:
    """Note the segments that a host reads and writes, by its methods and by the plans that it runs."""
    notes: Notes = {"reads": set(), "writes": set()}

    def note(name: str, kind: str, segment: Callable[..., int]) -> None:
        method = getattr(PlanHost, name)

        def call(host: PlanHost, *args: Any) -> Any:
            notes[kind].add(segment(*args))
            return method(host, *args)

        monkeypatch.setattr(PlanHost, name, call)

    for name in ("read_segment", "read_segment_into", "segment_range"):
        note(name, "reads", lambda segment, *_: segment)
    note("write_segment", "writes", lambda segment, *_: segment)
    note("read_state", "reads", lambda *_: STATE)
    note("write_state", "writes", lambda *_: STATE)
    run = PlanHost.run

    def ran(host: PlanHost, loaded: Any, *args: Any) -> None:
        written = host.engine.written(loaded.ptr)
        notes["writes"] |= {s for s in range(len(host.sizes)) if written >> s & 1 and s != ARENA}
        run(host, loaded, *args)

    monkeypatch.setattr(PlanHost, "run", ran)
    yield notes


@pytest.mark.parametrize("call", [c for c in CALLS if c.python is not Public.NO_CORE], ids=lambda call: call.name)
def test_a_call_touches_what_it_says(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(made()) as s:
        s.train_step(sessions.batch())
        s.optimizer_step()
        s._core.add_property("kept", 1)
        if call.name == "go_back":
            s._core.keep_state()
        arguments = ARGUMENTS.get(call.name, lambda _: ())(s._core)
        with noted(monkeypatch) as notes:
            getattr(s._core, call.name)(*arguments)
            assert notes["writes"] <= {*call.held.writes}, "its declaration in training/calls.py lacks segments"
            assert notes["reads"] <= {*call.held.reads, *call.held.writes}
            if call.name not in MORE_IN_PAGES:
                assert {*call.held.writes} <= notes["writes"]
                assert {*call.held.reads} - {*MOMENTS} <= notes["reads"]
