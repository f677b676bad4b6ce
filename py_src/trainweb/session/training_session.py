"""`TrainingSession` with numpy arrays at the edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from trainweb import messages
from trainweb.arguments import OtherNames, checks_keywords, flag, mapping, only_one, texts, warn
from trainweb.checkpoint import written
from trainweb.errors import BufferSizeError, ModelError, UnsupportedError
from trainweb.federated.client import FederatedClient
from trainweb.model.dimensions import fix_dimensions
from trainweb.session.tasks import SessionTasks
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.core import SessionCore
from trainweb.training.debug.units import DeadUnits
from trainweb.training.models import read_models
from trainweb.training.ort.options import Log, RunOptions, SessionOptions
from trainweb.training.ort.profile import Profile
from trainweb.training.state import CheckpointState
from trainweb.training.step_kind import EVAL, TRAIN
from trainweb.training.steps import Fetches, as_tensors, run_step

Model = Any
"""bytes, a path, or an onnx.ModelProto."""


@checks_keywords
class TrainingSession(SessionTasks, OtherNames):
    """Trains a model from its artifacts.

    Parameters
    ----------
    state : CheckpointState, optional
        Parameters to start from; sessions on one state share it.
    train_model, eval_model, optimizer_model : bytes, path or onnx.ModelProto
        Artifacts as `trainweb.artifacts` or onnxruntime-training made them; the last two are optional.
    checkpoint : bytes, path or CheckpointState, optional
        A checkpoint in the place of `state`: `TrainingSession(**artifacts)` takes what `build_artifacts` returns.
    training_model : optional
        Another name of `train_model`.
    options : dict or SessionOptions, optional
        See `SessionOptions`, such as ``{"memory_budget": 2**28}``.

    Raises
    ------
    ModelError, UnsupportedError, CheckpointError
        The artifacts are malformed, not supported, or do not fit the checkpoint.
    TypeError
        An option is unknown; the message suggests the nearest name.

    Notes
    -----
    The interface is that of onnxruntime-training 1.19 (C, C#, Objective-C, Python forms), as a context manager.
    """

    def __init__(
        self,
        state: CheckpointState | None = None,
        train_model: Model = None,
        eval_model: Model = None,
        optimizer_model: Model = None,
        options: SessionOptions | Mapping[str, Any] | None = None,
        *,
        checkpoint: CheckpointState | bytes | str | Path | None = None,
        training_model: Model = None,
    ) -> None:
        state = only_one(("state", state), ("checkpoint", checkpoint))
        if checkpoint is not None and not isinstance(checkpoint, CheckpointState):
            state = CheckpointState.load_checkpoint(checkpoint)
        train_model = only_one(("train_model", train_model), ("training_model", training_model))
        checked = SessionOptions._of(options)
        if checked.enable_profiling:
            raise UnsupportedError("enable_profiling is not supported by this class: call session.profile(feeds).")
        settings = checked._core_settings()
        files = (train_model, eval_model, optimizer_model)
        graphs = read_models(*files, settings["limits"], checked.integrity, tells_which=True)
        fix_dimensions(graphs, checked.free_dimension_overrides)
        self._opened: SessionCore | None = SessionCore(
            state, *graphs, check_numerics=checked._checks_numerics, log=Log(checked), **settings
        )

    def __repr__(self) -> str:
        if (core := getattr(self, "_opened", None)) is None:
            return "<TrainingSession: released>"
        every, trained = core.get_parameters_size(False), core.get_parameters_size(True)
        update = "no optimizer"
        if core.models.graphs["optimizer"] is not None:
            update = f"{core.layout.optimizer}, learning rate {core.get_learning_rate():g}, steps {core.step_count()}"
        return f"<TrainingSession: {every:,} parameters, {trained:,} trainable, {update}>"

    @property
    def _core(self) -> SessionCore:
        """The session on bytes.

        Raises
        ------
        ReleasedError
            After `release`.
        """
        if self._opened is None:
            raise messages.RELEASED()
        return self._opened

    @property
    def state(self) -> CheckpointState:
        """The session's checkpoint: its `properties` are saved with the parameters.

        Raises
        ------
        ReleasedError
            After `release`.
        """
        return self._core.state

    # Steps.

    def train_step(
        self, feeds: Mapping[str, Any], fetches: Fetches = None, options: RunOptions | Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        """Forward and backward; gradients accumulate until `lazy_reset_grad`.

        Parameters
        ----------
        feeds : dict of str to array_like
            Every training input by name, with the input's dtype. Lists and numbers are converted.
        fetches : sequence of str, or dict of str to ndarray or None, optional
            Outputs to return; all by default. Results are written into the arrays of a dict.
        options : dict or RunOptions, optional
            ``tag``, ``log_severity_level``, ``terminate``; for eval steps also ``ema``: use averages of the
            parameters, which the session must keep.

        Returns
        -------
        dict of str to ndarray
            The outputs, in that order; a scalar loss has shape ().

        Raises
        ------
        FeedError
            A feed is missing, unknown, of the wrong dtype or shape, or holds a label or index out of range.
        SessionError
            ``terminate`` is set; the session is as before.
        """
        return run_step(self._core, TRAIN, feeds, fetches, options)

    def eval_step(
        self, feeds: Mapping[str, Any], fetches: Fetches = None, options: RunOptions | Mapping[str, Any] | None = None
    ) -> dict[str, np.ndarray]:
        """Run the eval model with the current parameters.

        Parameters
        ----------
        feeds : dict of str to array_like
            Every input of the eval model by name.
        fetches : sequence of str, or dict of str to ndarray or None
            Outputs to return; all by default.
        options : dict or RunOptions, optional
            As `train_step`.
        """
        return run_step(self._core, EVAL, feeds, fetches, options)

    def optimizer_step(self, options: RunOptions | Mapping[str, Any] | None = None) -> None:
        """Update the trainable parameters with the accumulated gradients, which stay until reset.

        Parameters
        ----------
        options : dict or RunOptions, optional
            ``tag``, ``log_severity_level``, ``terminate``.
        """
        self._core.optimizer_step(RunOptions._of(options))

    def federated(self, **options: Any) -> FederatedClient:
        """Return a client of federated learning, which trains locally and returns its update.

        Parameters
        ----------
        **options
            Of `trainweb.federated.FederatedClient`: clipping and noise of the updates, and running statistics.

        Raises
        ------
        ModelError
            An option is wrong, or there is noise without a clip norm or with averaged statistics.
        """
        client = FederatedClient(self, **options)
        if client._trainable_only and (moving := self._core.models.moving):
            warn(str(messages.LOCAL_STATISTICS(count=len(moving), name=moving[0])))
        if (optimizer := self._core.layout.optimizer) not in ("", "SGD"):
            warn(str(messages.LOCAL_MOMENTS(optimizer=optimizer)))
        return client

    # Learning rate.

    def scheduler_step(self) -> None:
        """Set the learning rate of the schedule for the number of completed optimizer steps."""
        self._core.scheduler_step()

    @property
    def seed(self) -> int:
        """The seed of the session's random operators: 0, or the last argument of `trainweb.set_seed`."""
        return self._core.get_seed()

    # Parameters.

    def get_contiguous_parameters(
        self, trainable_only: bool = True, out: np.ndarray | None = None, *, ema: bool = False
    ) -> np.ndarray:
        """All (trainable) parameters as one float32 vector, a copy, in the order of the training model's inputs.

        Parameters
        ----------
        out : ndarray, optional
            Writable float32 vector of `get_parameters_size` elements, which is filled and returned.
        trainable_only : bool
            False: frozen ones, too.
        ema : bool
            Return averages in place of the trainable parameters.

        Raises
        ------
        BufferSizeError
            `out` is not such a vector.
        SessionError
            `ema` is True, but the session keeps no averages.
        """
        trainable_only, ema = flag("trainable_only", trainable_only), flag("ema", ema)
        if out is None:
            return to_numpy(self._core.get_contiguous_parameters(trainable_only, ema))
        size = self._core.get_parameters_size(trainable_only)
        if (
            not isinstance(out, np.ndarray)
            or out.dtype != np.float32
            or out.shape != (size,)
            or not out.flags.writeable
        ):
            actual = f"{out.dtype}{list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
            raise BufferSizeError(f"'out' must be a writable array float32[{size}], got {actual}.")
        out[...] = np.frombuffer(self._core.get_contiguous_parameters(trainable_only, ema).data, "<f4")
        return out

    def update_parameter(self, name: str, value: Any) -> None:
        """Overwrite one parameter; dtype and shape must match. Gradients and moments stay.

        Raises
        ------
        CheckpointError
            There is no such parameter, or the dtype or shape differs.

        Parameters
        ----------
        name : str
            The parameter.
        value : array_like
            Its new value.
        """
        self._core.update_parameter(from_numpy(name, value))

    # Names.

    def input_names(self, training: bool = True) -> list[str]:
        """User inputs of the training (or eval) model; empty without an eval model.

        Parameters
        ----------
        training : bool
            False: of the eval model.
        """
        return list(self._core.inputs["train" if flag("training", training) else "eval"])

    def output_names(self, training: bool = True) -> list[str]:
        """User outputs of the training (or eval) model; empty without an eval model."""
        return list(self._core.outputs["train" if flag("training", training) else "eval"])

    # Out.

    def export_model_for_inferencing(
        self,
        path: str | Path | Sequence[str] | None = None,
        graph_output_names: Sequence[str] | str | None = None,
        *,
        ema: bool = False,
    ) -> bytes | None:
        """The eval model cut to `graph_output_names`, with the current parameters as initializers.

        Parameters
        ----------
        path
            Path of the .onnx to write; None returns its bytes. A list here is taken as `graph_output_names`.
        graph_output_names
            One or several tensors of the eval model, in order.
        ema
            Export averages in place of the trainable parameters.

        Raises
        ------
        SessionError
            There is no eval model, or `ema` is True, but the session keeps no averages.
        ModelError
            The eval model does not have a name, or no name is given.
        """
        if isinstance(path, (list, tuple)):
            if graph_output_names is not None:
                raise TypeError(f"'path' must be a path, got the list {list(path)!r:.80}.")
            path, graph_output_names = None, path
        if path is not None and graph_output_names is None:
            raise ModelError(
                f"Expected a non empty vector of graph output names: {str(path)!r} was taken as the file to write. "
                "Give the names after it, or only a list of names, for which the bytes are returned."
            )
        names = [graph_output_names] if isinstance(graph_output_names, str) else graph_output_names
        if names is not None:
            names = texts("graph_output_names", names)
        return written("path", path, self._core.export_model_for_inferencing(names, flag("ema", ema)))

    def profile(self, feeds: Mapping[str, Any], runs: int = 10, training: bool = True) -> Profile:
        """Time every instruction of a step, the mean over `runs` runs.

        A training profile changes gradients and running statistics as `runs` + 1 steps would. If it fails, the session
        stays as it was.

        Parameters
        ----------
        feeds : dict of str to array_like
            As for the step.
        runs : int
            Number of runs.
        training : bool
            False: an eval step.
        """
        kind = TRAIN if flag("training", training) else EVAL
        plan, milliseconds = self._core.profile(kind, as_tensors(self._core, kind, feeds), runs)
        return Profile(plan.text, plan.nodes, milliseconds)

    def dead_units(self, batches: Sequence[Mapping[str, Any]]) -> list[DeadUnits]:
        """Find units of ReLU, ThresholdedRelu, and Clip from 0 that are 0 for all given batches; nothing changes.

        A unit is a channel of a convolution, or a column of a product.

        Parameters
        ----------
        batches : sequence of dict
            Feeds as for `eval_step`.

        Returns
        -------
        list of DeadUnits
            One for each such activation of the eval model, in order.

        Raises
        ------
        SessionError
            There is no eval model.
        FeedError
            There are no batches, or one does not fit.
        """
        if isinstance(batches, (Mapping, str, bytes)) or not isinstance(batches, Sequence):
            raise TypeError(f"'batches' must be a sequence of feeds, got {type(batches).__name__}.")
        return self._core.dead_units(
            [as_tensors(self._core, EVAL, mapping(f"batches[{k}]", feeds)) for k, feeds in enumerate(batches)]
        )

    def explain(self, feeds: Mapping[str, Any], training: bool = True) -> str:
        """Explain how the compiler makes the plan of a step for such feeds; nothing runs, and no plan is kept.

        Parameters
        ----------
        feeds : dict of str to array_like
            As for the step. Only their types count, and the values of feeds that determine shapes.
        training : bool
            False explains an eval step.

        Returns
        -------
        str
            The instructions as the operators emit them, one a line, with names of tensors; then the changes of each
            compiler pass as a unified diff, with the reasons why fusions did not fire.
        """
        kind = TRAIN if flag("training", training) else EVAL
        tensors = as_tensors(self._core, kind, feeds)
        return self._core.explain(kind, self._core.models.signature(kind, tensors))

    def release(self) -> None:
        """Free the kernel memory; the state keeps its contents. You may repeat the call.

        In a thread other than the one of a fit or a step, the call waits for the end of the step.
        """
        if self._opened is not None:
            self._opened.release()
            self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
