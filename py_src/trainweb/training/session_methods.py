"""Made by scripts/session_description.py of training/calls.py: edit that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainweb.arguments import checks_keywords, flag
from trainweb.training.arrays import parameter_bytes, to_numpy
from trainweb.training.core import SessionCore, SessionMemory
from trainweb.training.ort.interface import NodeArg


@checks_keywords
class SessionMethods(ABC):
    """The calls that `TrainingSession` passes on to its core."""

    @property
    @abstractmethod
    def core(self) -> SessionCore:
        """The session on bytes."""

    def lazy_reset_grad(self) -> None:
        """Let the next train step overwrite the gradients instead of adding to them."""
        self.core.lazy_reset_grad()

    def get_learning_rate(self) -> float:
        """The current learning rate; 0.001 for a fresh session.

        Raises
        ------
        SessionError
            The session has no optimizer model.
        """
        return self.core.get_learning_rate()

    def set_learning_rate(self, lr: float) -> None:
        """Set the current learning rate.

        Parameters
        ----------
        lr : float
            A float32 >= 0.

        Raises
        ------
        SessionError
            The rate is negative, infinite or NaN; or the session has no optimizer model.
        """
        self.core.set_learning_rate(lr)

    def register_linear_lr_scheduler(self, warmup_step_count: int, total_step_count: int, initial_lr: float) -> None:
        """Register a linear schedule: up from 0 to a rate, then down to 0.

        The rate becomes `initial_lr` now, and the schedule's at each `scheduler_step`.

        Parameters
        ----------
        warmup_step_count : int
            Optimizer steps of the warm-up.
        total_step_count : int
            Optimizer steps after which the rate is 0.
        initial_lr : float
            The rate at the end of the warm-up, a float32 >= 0.

        Raises
        ------
        SessionError
            A count is not an integer >= 0, the warm-up is longer than the total, or `initial_lr` is not a float32 >= 0;
            or the session has no optimizer model.
        """
        self.core.register_linear_lr_scheduler(warmup_step_count, total_step_count, initial_lr)

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Number of elements of all (trainable) parameters.

        Parameters
        ----------
        trainable_only : bool, default True
            Leave out the frozen ones.
        """
        return self.core.get_parameters_size(flag("trainable_only", trainable_only))

    def load_parameters_buffer(self, buffer: Any, trainable_only: bool = True) -> None:
        """Overwrite all (trainable) parameters. Gradients and moments stay.

        Parameters
        ----------
        buffer : ndarray or bytes
            A float32 array of `get_parameters_size` elements, or its little-endian bytes.
        trainable_only : bool, default True
            Leave out the frozen ones.

        Raises
        ------
        BufferSizeError
            Wrong number of elements.
        """
        self.core.load_parameters_buffer(parameter_bytes(buffer), flag("trainable_only", trainable_only))

    def get_parameter(self, name: str) -> np.ndarray:
        """A copy of one parameter.

        Parameters
        ----------
        name : str
            The parameter's name.

        Returns
        -------
        np.ndarray
            Float32 of the parameter's shape.

        Raises
        ------
        CheckpointError
            There is no such parameter.
        """
        return to_numpy(self.core.get_parameter(name))

    def get_parameter_type_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Element type and shape of one parameter.

        Parameters
        ----------
        name : str
            The parameter's name.

        Returns
        -------
        tuple[str, tuple[int, ...]]
            float32, and the sizes of its axes; none for a scalar.

        Raises
        ------
        CheckpointError
            There is no such parameter.
        """
        return self.core.get_parameter_type_and_shape(name)

    def parameter_names(self, trainable_only: bool = False) -> list[str]:
        """Names of all (trainable) parameters, in the order of the training model's inputs.

        Parameters
        ----------
        trainable_only : bool, default False
            Leave out the frozen ones.
        """
        return self.core.parameter_names(flag("trainable_only", trainable_only))

    def get_gradient(self, name: str) -> np.ndarray:
        """A copy of one accumulated gradient: zeros before the first step.

        Parameters
        ----------
        name : str
            The parameter's name.

        Returns
        -------
        np.ndarray
            Float32 of the parameter's shape.

        Raises
        ------
        CheckpointError
            There is no such parameter, or it is frozen.
        """
        return to_numpy(self.core.get_gradient(name))

    def get_moments(self, name: str) -> dict[str, np.ndarray]:
        """Copies of the optimizer's moments of one parameter, by the names that checkpoints have for them.

        A frozen parameter has none.

        Parameters
        ----------
        name : str
            The parameter's name.

        Returns
        -------
        dict[str, np.ndarray]
            Float32, of the parameter's shape; Adafactor and Muon have smaller ones for matrices.

        Raises
        ------
        CheckpointError
            There is no such parameter.
        SessionError
            The session has no optimizer model.
        """
        return {n: to_numpy(t) for n, t in self.core.get_moments(name).items()}

    def gradient_norms(self) -> dict[str, float]:
        """Euclidean norms of the accumulated gradients, by the names of the trainable parameters.

        Call it after train steps: before the first, all norms are 0. Clipping comes later, in the optimizer step.

        Raises
        ------
        CheckpointError
            The session has a nominal checkpoint, which has no values yet.
        """
        return self.core.gradient_norms()

    def step_count(self) -> int:
        """Completed optimizer steps.

        Raises
        ------
        SessionError
            The session has no optimizer model.
        """
        return self.core.step_count()

    def input_metadata(self, training: bool = True) -> list[NodeArg]:
        """Name, type and dims, with symbols, of the inputs of a train (or eval) step.

        Parameters
        ----------
        training : bool, default True
            False: of an eval step.
        """
        return [NodeArg.of(v) for v in self.core.input_metadata(flag("training", training))]

    def output_metadata(self, training: bool = True) -> list[NodeArg]:
        """Name, type and dims, with symbols, of the outputs of a train (or eval) step.

        Parameters
        ----------
        training : bool, default True
            False: of an eval step.
        """
        return [NodeArg.of(v) for v in self.core.output_metadata(flag("training", training))]

    def memory(self) -> SessionMemory:
        """Bytes of kernel memory that the session takes, and the cost of `memory_budget`; call it after a step."""
        return self.core.memory()

    def prepare(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Compile the plans of steps with feeds of these shapes ahead, for example while data load.

        These are the plans of the train step, the eval step and the optimizer step, if the session has their models.
        Nothing runs. The plan of the train step overwrites gradients, as the first step does, and each step after
        `lazy_reset_grad`. A train step that adds to gradients has another plan, which its first call compiles.

        Parameters
        ----------
        shapes : dict of str to sequence of int
            The sizes of the axes of every training input, by its name.

        Raises
        ------
        FeedError
            A shape is missing, unknown, or does not fit the model.
        SessionError
            The values of an input decide about shapes: only a step has them.
        """
        self.core.prepare(shapes)

    def export_weights(self, format: str = "safetensors", ema: bool = False) -> bytes:
        """All parameters by name, as a file that other programs read. It has no optimizer state.

        Parameters
        ----------
        format : str, default "safetensors"
            safetensors or npz.
        ema : bool, default False
            Use the averages of the parameters that the session keeps.

        Raises
        ------
        ModelError
            There is no such format.
        SessionError
            `ema` is true, but the session keeps no averages.
        """
        return self.core.export_weights(format, flag("ema", ema))

    def load_weights(self, weights: bytes, strict: bool = True) -> None:
        """Overwrite parameters with the contents of a safetensors or npz file. Gradients and moments stay.

        Parameters
        ----------
        weights : bytes
            The contents of the file.
        strict : bool, default True
            Whether the file must have all parameters, and no others.

        Raises
        ------
        CheckpointError
            The file has neither format, other parameters though `strict`, or a wrong type or shape. Nothing was
            changed.
        """
        self.core.load_weights(weights, flag("strict", strict))
