"""Module, Optimizer, CheckpointState, LinearLRScheduler, as onnxruntime.training.api has them.

A script written for that module runs after its import line is changed. Three things differ. Arrays are NumPy arrays
where that module has C-level OrtValues (they also have `.numpy()`). Data are read-only copies. The warm-up and total
counts of `LinearLRScheduler` are not swapped.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trainweb.arguments import flag, instance_of, path_of, texts
from trainweb.errors import FeedError, SessionError
from trainweb.ir.layout import GRADIENTS, STATE_LAZY_RESET, STATE_RANDOM_OFFSET, STATE_SEED
from trainweb.session.training_session import TrainingSession
from trainweb.training import state as states
from trainweb.training.ort.options import SessionOptions
from trainweb.training.ort.values import OrtValue, as_array, check_device

_latest: weakref.WeakKeyDictionary[states.CheckpointState, weakref.ref[Module]] = weakref.WeakKeyDictionary()
"""The module made last for each state."""

CARRIED_STATE = (STATE_LAZY_RESET, STATE_SEED, STATE_RANDOM_OFFSET)
"""Fields of the state that outlive a change of optimizer."""


class Pairs:
    """A mapping that, as in onnxruntime, iterates over (name, value) pairs."""

    def __init__(self, mapping: Any) -> None:
        self._mapping = mapping

    def __getitem__(self, name: str) -> Any:
        return self._mapping[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._mapping[name] = value

    def __delitem__(self, name: str) -> None:
        del self._mapping[name]

    def __contains__(self, name: object) -> bool:
        return name in self._mapping

    def __len__(self) -> int:
        return len(self._mapping)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(list(self._mapping.items()))

    def __repr__(self) -> str:
        return repr(self._mapping)

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or `default`.

        Parameters
        ----------
        name : str
            A name.
        """
        return self._mapping.get(name, default)

    def keys(self) -> list[str]:
        """The names."""
        return [name for name, _ in self]

    def values(self) -> list[Any]:
        """The values."""
        return [value for _, value in self]

    def items(self) -> list[tuple[str, Any]]:
        """The pairs."""
        return list(self)


class CheckpointState(states.CheckpointState):
    """A checkpoint's content; iterating over `parameters` or `properties` gives pairs.

    Parameters
    ----------
    contents : SessionContents
        The contents, as `load_checkpoint` reads them.
    """

    @property
    def parameters(self) -> Any:
        """The parameters; assigning an array changes one."""
        return Pairs(super().parameters)

    @property
    def properties(self) -> Any:
        """The properties: int, float or str."""
        return Pairs(super().properties)


class Result(np.ndarray):
    """An array with `.numpy()`, for code that expects an OrtValue."""

    def numpy(self) -> np.ndarray:
        """The plain array."""
        return self.view(np.ndarray)


class Module:
    """A model to train, called with its inputs in order.

    Several modules on one state share its parameters; each accumulates gradients separately, and `Parameter.grad`
    belongs to the module made last.

    Parameters
    ----------
    train_model_uri : path, bytes or onnx.ModelProto
        The training model.
    state : CheckpointState
        Its parameters.
    eval_model_uri : path, bytes or onnx.ModelProto, optional
        The eval model, for `eval` and for export.
    device : str
        "cpu".
    session_options : dict or SessionOptions, optional
        Options of `trainweb.TrainingSession`.
    """

    def __init__(
        self,
        train_model_uri: Any,
        state: states.CheckpointState,
        eval_model_uri: Any = None,
        device: str = "cpu",
        session_options: Any = None,
    ) -> None:
        name, _, number = instance_of(str, "device", device).partition(":")
        check_device(name, int(number) if number.isdecimal() else -len(number))
        self.training = True
        self._state = state
        self._models = train_model_uri, eval_model_uri
        self._options = SessionOptions._of(session_options)
        self._optimizer_model: Any = None
        self._options = self._options._without_warning()
        self._session = TrainingSession(state, train_model_uri, eval_model_uri, None, self._options)
        _latest[state] = weakref.ref(self)

    def __call__(self, *user_inputs: Any) -> Any:
        """Run a train step, or an eval step after `eval()`.

        Parameters
        ----------
        *user_inputs : array_like, or OrtValue
            In the order of `input_names()`.

        Returns
        -------
        ndarray or OrtValue, or a tuple of them
            The outputs, as OrtValues where an input is one; one output is returned bare. Arrays have `.numpy()`, too.
        """
        if not self.training and self._models[1] is None:
            raise SessionError("This Module has no EvalModel loaded.")
        names = self.input_names()
        if len(names) != len(user_inputs):
            raise FeedError(
                f"The model takes {len(names)} inputs ({', '.join(names)}), but {len(user_inputs)} were given."
            )
        feeds = {n: as_array(x) for n, x in zip(names, user_inputs, strict=True)}
        step = self._session.train_step if self.training else self._session.eval_step
        is_wrapped = any(isinstance(x, OrtValue) for x in user_inputs)
        outputs = tuple(OrtValue(array) if is_wrapped else array.view(Result) for array in step(feeds).values())
        return outputs[0] if len(outputs) == 1 else outputs

    def train(self, mode: bool = True) -> Module:
        """Let calls be train steps, or eval steps if `mode` is False."""
        self.training = flag("mode", mode)
        return self

    def eval(self) -> Module:
        """Let calls be eval steps."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Let the next train step overwrite the gradients."""
        self._session.lazy_reset_grad()

    def input_names(self) -> list[str]:
        """User inputs of the model that the mode stands for."""
        return self._session.input_names(self.training)

    def output_names(self) -> list[str]:
        """User outputs of the model that the mode stands for."""
        return self._session.output_names(self.training)

    def get_contiguous_parameters(self, trainable_only: bool = False) -> Result:
        """All (trainable) parameters as one float32 vector.

        Parameters
        ----------
        trainable_only : bool
            True: no frozen ones.
        """
        return self._session.get_contiguous_parameters(trainable_only).view(Result)

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Number of elements of all (trainable) parameters.

        Parameters
        ----------
        trainable_only : bool
            False: frozen ones, too.
        """
        return self._session.get_parameters_size(trainable_only)

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Overwrite all (trainable) parameters with a float32 vector.

        Parameters
        ----------
        buffer : array_like or OrtValue
            float32, as long as `get_parameters_size` says.
        trainable_only : bool
            False: frozen ones, too.
        """
        self._session.load_parameters_buffer(as_array(buffer), trainable_only)

    def export_model_for_inferencing(self, inference_model_uri: Any, graph_output_names: Sequence[str]) -> None:
        """Write the eval model, cut to these outputs, with the current parameters.

        Parameters
        ----------
        inference_model_uri : path
            The file to write.
        graph_output_names : sequence of str
            Outputs of the eval model.
        """
        path = path_of("inference_model_uri", inference_model_uri)
        self._session.export_model_for_inferencing(path, texts("graph_output_names", graph_output_names))

    def release(self) -> None:
        """Give kernel memory back; the state keeps its contents."""
        self._session.release()

    def _use_optimizer(self, model: Any) -> TrainingSession:
        """The session with an optimizer; gradients accumulated so far are kept."""
        if self._optimizer_model is None:
            old = self._session._core.host
            gradients = old.read_segment(GRADIENTS, 0, old.sizes[GRADIENTS])
            carried = {word: old.read_state(word) for word in CARRIED_STATE}
            self._session.release()
            try:
                self._reopen(model, gradients, carried)
            except Exception:
                # An invalid model leaves the module as it was.
                self._reopen(None, gradients, carried)
                raise
            self._optimizer_model = model
        return self._session

    def _reopen(self, optimizer: Any, gradients: bytes, carried: dict[int, int | float]) -> None:
        self._session = TrainingSession(self._state, *self._models, optimizer, self._options)
        host = self._session._core.host
        host.write_segment(GRADIENTS, 0, gradients)
        for word, value in carried.items():
            host.write_state(word, value)


class Optimizer:
    """Updates parameters; optimizers of one checkpoint state share step, moments and learning rate.

    The gradients belong to the module that was made last for the state of `module`, as in onnxruntime.

    Parameters
    ----------
    optimizer_uri : path, bytes or onnx.ModelProto
        The optimizer model. The first one of a module counts.
    module : Module
        One of the modules on the state to update.
    """

    def __init__(self, optimizer_uri: Any, module: Module) -> None:
        if optimizer_uri is None:
            raise SessionError("An Optimizer needs an optimizer model.")
        latest = _latest[instance_of(Module, "module", module)._state]()
        self._module = module if latest is None else latest
        self._module._use_optimizer(optimizer_uri)

    @property
    def _session(self) -> TrainingSession:
        return self._module._session

    def step(self) -> None:
        """Update the parameters with the accumulated gradients."""
        self._session.optimizer_step()

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the current learning rate.

        Parameters
        ----------
        learning_rate : float
            At least 0.
        """
        self._session.set_learning_rate(learning_rate)

    def get_learning_rate(self) -> float:
        """The current learning rate."""
        return self._session.get_learning_rate()


class LinearLRScheduler:
    """Raises the rate from 0 over `warmup_step_count` steps, lowers it to 0 at `total_step_count`.

    The rate of the current step is set at once, then at each `step`. (In onnxruntime 1.19 this
    class takes its counts the wrong way round; here they mean what they are called.)

    Parameters
    ----------
    optimizer : Optimizer
        Whose rate is set.
    warmup_step_count, total_step_count : int
        Optimizer steps of the warm-up and of all.
    initial_lr : float
        The rate at the end of the warm-up.
    """

    def __init__(self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float) -> None:
        self._optimizer = instance_of(Optimizer, "optimizer", optimizer)
        optimizer._session.register_linear_lr_scheduler(warmup_step_count, total_step_count, initial_lr)
        self.step()

    def step(self) -> None:
        """Set the rate for the number of completed optimizer steps."""
        self._optimizer._session.scheduler_step()


__all__ = [
    "CheckpointState",
    "LinearLRScheduler",
    "Module",
    "Optimizer",
]
__dir__ = __all__.copy
