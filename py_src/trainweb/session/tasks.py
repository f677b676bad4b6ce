"""The tasks of a session: create it from a model, train, evaluate, predict and generate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, Unpack, cast

import numpy as np

from trainweb import messages
from trainweb.arguments import checks_keywords, flag
from trainweb.artifacts.builder import LossLike, OptimizerLike
from trainweb.checkpoint import written
from trainweb.fit.find_rate import find_learning_rate
from trainweb.fit.options import FitOptions
from trainweb.fit.predict import evaluate, predict
from trainweb.fit.trainer import Trainer
from trainweb.generation.generate import GeneratedToken, generate, logits_of, request_of
from trainweb.generation.pretrained import Pretrained
from trainweb.lora.adapted import LoraModel
from trainweb.lora.quantize import quantize
from trainweb.metrics import Value
from trainweb.model.graph import Graph
from trainweb.session.creation import session_of_model
from trainweb.training.core import Uncopied
from trainweb.training.history import History, LearningRates
from trainweb.training.ort.options import SessionOptions
from trainweb.training.session_methods import SessionMethods
from trainweb.training.store import load_checkpoint


@checks_keywords
class SessionTasks(SessionMethods, Uncopied):
    """The calls of `TrainingSession` that take a whole model or whole data."""

    _adapted: LoraModel | None = None
    tokenizer: Any = None
    """Default tokenizer of `generate`."""
    generation_config: Mapping[str, Any] = MappingProxyType({})
    """Default arguments of `generate`, by name."""

    @property
    def adapted(self) -> LoraModel:
        """The `LoraModel` of a session made with `lora`: it saves, loads and merges.

        Raises
        ------
        SessionError
            The session was made without `lora`.
        """
        if self._adapted is None:
            raise messages.NO_ADAPTERS()
        return self._adapted

    @classmethod
    def from_model(
        cls,
        model: Any,
        *,
        loss: LossLike,
        optimizer: OptimizerLike = "AdamW",
        learning_rate: float | None = None,
        head: Mapping[str, Any] | None = None,
        lora: Mapping[str, Any] | None = None,
        options: SessionOptions | Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Self:
        """Create a session from a forward model. Its training artifacts are built in memory.

        Parameters
        ----------
        model : bytes, path, onnx.ModelProto or Graph
            The forward model.
        loss : str, dict, Loss or None
            A loss by its name or with its settings. None: the first output of the model is the loss.
        optimizer : str, dict, Optimizer or None
            An optimizer by its name or with its settings, ``learning_rate`` among them. None: the session cannot
            update parameters.
        learning_rate : float, optional
            The rate that the session starts with; 0.001 by default.
        head : dict, optional
            Replace the last layer by one for ``classes`` classes with random weights, such as ``{"classes": 5}``;
            ``seed`` draws the weights, and ``layer`` names the layer where several may be meant. A warning names
            what was replaced. ``frozen_params="all but head"`` then freezes the other parameters.
        lora : dict, optional
            Freeze the model and train adapters: settings of `trainweb.lora.inject`, or ``adapter_config`` with the text
            or values of PEFT's file.
        options : dict or SessionOptions, optional
            As `TrainingSession` takes them.
        **settings
            The other arguments of `trainweb.artifacts.build_artifacts`.

        Raises
        ------
        TypeError
            `build_artifacts` has no such argument.
        ModelError
            A setting is wrong, or the learning rate is given twice with different values.
        GradientError
            An operator between the loss and a parameter has no gradient.
        """
        settings = settings if head is None else {**settings, "head": head}
        return cast("Self", session_of_model(cls, model, loss, optimizer, learning_rate, lora, options, settings))

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        loss: LossLike = MappingProxyType({"type": "CrossEntropyLoss", "ignore_index": -100}),
        file: str | None = None,
        bits: int | None = None,
        tokenizer: Any = None,
        **options: Any,
    ) -> Self:
        """Create a session from a folder with the files of a Hugging Face repository. Nothing is downloaded.

        The graph is ``model.onnx`` or ``onnx/model.onnx``. Initializers without data get it from
        ``model.safetensors`` or its shards beside it, or else in the folder. ``generation_config.json`` and
        ``config.json`` give the defaults of `generate` and the task of adapters, ``tokenizer.json`` the tokenizer.

        Parameters
        ----------
        folder : path
            The folder.
        loss
            As of `from_model`; by default cross entropy that ignores the label -100.
        file : str, optional
            The path of the graph in the folder.
        bits : {4, 8}, optional
            Quantize the weights first, as `trainweb.quantize` does; for adapters on a frozen model.
        tokenizer : optional
            The tokenizer, in the place of the one of the folder.
        **options
            The other arguments of `from_model`.

        Raises
        ------
        ModelError
            The folder has no graph, or a file of it cannot be read; as `from_model`.
        """
        files = Pretrained(folder, file)
        generation = files.generation()
        words = files.tokenizer() if tokenizer is None else tokenizer
        model: Graph | bytes = files.model(options.get("limits"))
        if bits is not None:
            model = quantize(model, bits)
        lora = options.get("lora")
        if isinstance(lora, Mapping) and "adapter_config" not in lora:
            options["lora"] = {**files.task(), **lora}
        session = cls.from_model(model, loss=loss, **options)
        session.generation_config, session.tokenizer = generation, words
        return session

    def fit(self, data: Any, **options: Unpack[FitOptions]) -> History:
        """Train on all rows of the data, `epochs` times.

        Parameters
        ----------
        data : Dataset, mapping of names to arrays, tuple of arrays, rows or batches, or function that returns them
            As `trainweb.data.Dataset` takes it; names are those of the training model's inputs, and tuples have their
            order. Values are converted to the types of the inputs.
        epochs : int, default 1
            Number of passes over all rows.
        batch_size : int, optional
            Rows of a batch; 32 unless the data comes in batches.
        steps_per_epoch : int, optional
            Batches of an epoch, for streams. The next epoch goes on in the stream, which begins anew behind its end. By
            default an epoch is the whole stream.
        batched : bool, optional
            Whether the items of a stream are whole batches; by default the shape of the first item decides.
        remainder : {"keep", "drop", "pad"}
            What to do with the last, smaller batch: keep it, which compiles a second plan; drop it; or pad it with the
            first rows of the epoch.
        shuffle : bool
            Train on the rows in a new order in each epoch: the default for arrays, lists of rows and images. Shuffle
            other streams themselves.
        seed : int, default 0
            Seed of the order of rows, from 0 to 2^53 - 1.
        validation_data : like data, optional
            Evaluated after each epoch.
        validation_split : float, optional
            Share of the rows, taken from the end, to evaluate after each epoch instead of training on them.
        stratify : bool or str, default False
            Take the share of the split from each class. The last input has the classes, or the one that is named.
        learning_rate : float, optional
            Learning rate of each optimizer step of this fit, which the session keeps. By default it stays as it is,
            0.001 for a fresh session. With a schedule it is the schedule's setting of that name.
        schedule : str, dict, function of the optimizer step, or Schedule, optional
            Learning rate of each optimizer step of this fit, from 0 on; by default it stays what it is. Its ``total``
            is by default the number of optimizer steps of the fit, the warm-up among them.
        accumulate : int or dict, default 1
            Batches for one optimizer step. Their gradient is that of one large batch: each counts by what its loss was
            divided by, such as rows, tokens or weights of classes. ``{"steps": 4, "reduction": "sum"}`` adds the
            gradients of the batches as they are.
        clip_grad_norm : float, optional
            Largest joint L2 norm of the gradients in an optimizer step of this fit. The optimizer model's own limit
            applies afterwards.
        clip_grad_value : float, optional
            Largest magnitude of each element of the gradients in an optimizer step of this fit; it is applied before
            the norm.
        ema : bool, default False
            Evaluate the validation data with the averages of the parameters that the session keeps; early stopping
            then restores the averages of the best epoch.
        proximal : float, default 0
            mu of FedProx (https://arxiv.org/abs/1812.06127): mu times the distance from the parameters at the start of
            the fit is added to the gradients before each optimizer step, and is clipped with them.
        on_nan : {"stop", "skip", "restore"}, optional
            Reaction to NaN or infinity in loss, gradients, parameters or moments. 'stop' undoes the batch and ends the
            fit. 'skip' undoes the batch and continues with the next one. 'restore' returns to the start of the epoch,
            or to the last checkpoint in it, and continues with the next batch, up to 3 times. By default the fit fails
            if the loss is NaN or infinite.
        metrics : str, dict, or list of them
            Metrics of the validation data: names, settings with "type", or ``{"name": function}``. A function gets the
            predictions and targets of all rows as arrays, and returns a number.
        train_metrics : bool, default False
            Also evaluate the training data after each epoch, with the same metrics. It needs arrays.
        predictions, targets : str, optional
            The output and input of the eval model that metrics compare: by default the model's output and the input
            that the loss compares with it. One of them is enough where the loss compares several pairs.
        checkpoint : dict, optional
            ``store`` (a `CheckpointStore` or its folder), ``name``, and ``every`` (optimizer steps between two
            checkpoints within an epoch; one is written after each epoch anyway). A fit with an existing checkpoint
            continues from it, and ends with the same bytes as a fit without interruption.
        early_stopping : dict, optional
            See `trainweb.fit.options.EarlyStopping`; "metric" names "loss" or one of the metrics.
        callbacks : function or list of functions
            Called with each event (`Progress`, at most 60 a second, and `Epoch`) and the `Run`, which can stop.
        progress : bool
            Show a bar of tqdm, if that is installed; True.

        Returns
        -------
        History

        Raises
        ------
        ModelError
            An option is wrong, or differs from the checkpoint's fit.
        StorageError
            There is no room for the checkpoint, or another process has it.
        CheckpointError
            The checkpoint is damaged, or of another session.
        FeedError
            The data is empty, or does not fit the model.
        SessionError
            There is no optimizer model, no eval model for validation data, or the session is being fitted.
        NumericsError
            The loss is NaN or infinite; the parameters are as before that step.
        """
        return Trainer(self).fit(data, **options)

    async def fit_async(self, data: Any, **options: Unpack[FitOptions]) -> History:
        """Run `fit` while other tasks, and in Pyodide the page, continue.

        Parameters
        ----------
        data, **options
            As `fit` takes them.
        """
        return await Trainer(self).fit_async(data, **options)

    def evaluate(
        self,
        data: Any,
        *,
        metrics: Sequence[str | Mapping[str, Any]] | Mapping[str, Any] | str = (),
        batch_size: int | None = None,
        ema: bool = False,
        predictions: str | None = None,
        targets: str | None = None,
        batched: bool | None = None,
    ) -> dict[str, Value]:
        """Compute the loss and metrics of data, as `fit` does for validation data. Nothing changes.

        Parameters
        ----------
        data : Dataset, or what one is made of
            With labels.
        metrics : str, dict, or list of them
            As of `fit`.
        batch_size : int, optional
            Rows of a batch; 32, unless the data comes in batches.
        ema : bool
            Use averages of the parameters, which the session must keep.
        predictions, targets : str, optional
            The output and the input of the eval model that metrics compare.
        batched : bool, optional
            As of `predict`.

        Returns
        -------
        dict
            "loss" and each metric by its name.

        Raises
        ------
        SessionError
            There is no eval model, or no averages.
        FeedError
            The data does not fit the model, or has no rows.
        ModelError
            A metric or another option is wrong.
        """
        options = {"batch_size": batch_size, "batched": batched}
        return evaluate(self._core, data, metrics, options, (predictions, targets), ema=ema)

    def predict(
        self,
        data: Any,
        *,
        outputs: Sequence[str] | str | None = None,
        ema: bool = False,
        batch_size: int | None = None,
        batched: bool | None = None,
    ) -> dict[str, np.ndarray]:
        """Compute the outputs of the model for data without labels, with the current parameters. Nothing changes.

        Parameters
        ----------
        data : dict of str to array_like, ndarray, Dataset, or what one is made of
            The inputs of the model, an array for the first; labels that are there are left out.
        outputs : sequence of str, optional
            Tensors of the eval model; by default the outputs of the model.
        ema : bool
            Use averages of the parameters, which the session must keep.
        batch_size : int, optional
            Rows of a batch; 32, unless the data comes in batches. The last batch is padded, and the results of the
            padding are left out.
        batched : bool, optional
            Whether the items of a stream are whole batches; by default the shape of the first item decides.

        Returns
        -------
        dict of str to ndarray
            Each output for all rows.

        Raises
        ------
        SessionError
            There is no eval model, or no averages; an output has no axis of rows, and there are several batches.
        FeedError
            The data does not fit the model, or has no rows.
        ModelError
            There is no such output.
        """
        options = {"batch_size": batch_size, "batched": batched}
        return predict(self._core, data, outputs, options, ema=ema)

    def generate(
        self,
        prompt: Any,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Any = None,
        tokenizer: Any = None,
        adapter: bool = True,
    ) -> Iterator[GeneratedToken]:
        """Write tokens after a prompt with a causal language model and the current parameters, one by one.

        Keys and values of earlier tokens are cached. Training between two tokens is allowed; all tokens are then
        computed again with the new parameters. Arguments that are not given come from `generation_config` and
        `tokenizer` of the session, which `from_pretrained` sets.

        Parameters
        ----------
        prompt : str or array_like of int
            Text, which needs a tokenizer, token ids, or a tokenizer's inputs, whose padding is left out.
        max_tokens : int, default 100
            Maximum number of tokens to write.
        temperature : float, default 0
            Divisor of the logits; 0 takes the most likely token.
        top_k : int, optional
            Sample from this many of the most likely tokens.
        top_p : float, optional
            Sample from the most likely tokens whose probabilities add up to at least this.
        seed : int, optional
            Seed of the random numbers, 0 by default. The same seed gives the same tokens in Python and in a page.
        stop : int, str or sequence of them
            Token ids and texts that end it. A stop token is given as the last one, without its text.
        tokenizer : optional
            An object with `encode` and `decode`: of tokenizers or transformers.
        adapter : bool
            False ignores adapters.

        Yields
        ------
        GeneratedToken
            `token` and the `text` that it completes.

        Raises
        ------
        SessionError
            There is no eval model, or logits are NaN.
        ModelError
            The model is not a causal language model, or does not take so many tokens.
        UnsupportedError
            The model mixes tokens in a way that needs all of them at once.
        FeedError
            The prompt is empty.
        """
        settings = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        settings |= {"stop": stop, "tokenizer": tokenizer, "adapter": adapter}
        request = request_of(prompt, settings, {"tokenizer": self.tokenizer, **self.generation_config})
        self._core.check_step("eval")
        return generate(self._core, logits_of(self._core.models.own_outputs()), request)

    def find_learning_rate(
        self,
        data: Any,
        *,
        steps: int = 100,
        least: float = 1e-7,
        most: float = 10.0,
        batch_size: int | None = None,
        batched: bool | None = None,
        seed: int = 0,
    ) -> LearningRates:
        """Train with a growing learning rate, and suggest a rate. Afterwards the session is as before.

        It is fastai's finder: rates grow by a factor, losses are smoothed, and the suggestion lies in their valley.

        Parameters
        ----------
        data : Dataset, or what one is made of
            As of `fit`.
        steps : int
            Batches to train on, at least 10; they repeat if the data has fewer.
        least : float
            The first rate.
        most : float
            The last rate.
        batch_size, batched
            As of `fit`.
        seed : int
            Seed of the order of arrays.

        Raises
        ------
        SessionError
            There is no optimizer model.
        FeedError
            The data does not fit the model, or has no rows.
        """
        return find_learning_rate(self._core, data, steps, least, most, batch_size, batched, seed)

    def save(self, path: str | Path | None = None, *, include_optimizer_state: bool = True) -> bytes | None:
        """Save a checkpoint: `CheckpointState.save_checkpoint` with the state of the optimizer.

        Parameters
        ----------
        path : path, optional
            Where to write it; None returns its bytes.
        include_optimizer_state : bool
            Keep what exact resumption takes.
        """
        with_state = flag("include_optimizer_state", include_optimizer_state)
        return written("path", path, self._core.save_checkpoint(with_state))

    def load_checkpoint(self, checkpoint: bytes | str | Path) -> None:
        """Continue from a file of `save`, or from the contents that `CheckpointStore.read` returned.

        Parameters
        ----------
        checkpoint : bytes or path
            The file. Without the state of an optimizer, moments and step count start at 0.

        Raises
        ------
        CheckpointError
            It is damaged, or of a session with other parameters, optimizer, constants or scaling; nothing was changed.
        """
        load_checkpoint(self._core, checkpoint)

    def export(
        self, path: str | Path | None = None, *, outputs: Sequence[str] | str | None = None, ema: bool = False
    ) -> bytes | None:
        """Export the model with the current parameters: `export_model_for_inferencing` of the model's outputs.

        Parameters
        ----------
        path : path, optional
            Where to write the .onnx; None returns its bytes.
        outputs : sequence of str, optional
            Tensors of the eval model; by default the outputs of the model.
        ema : bool
            Export averages in place of the trainable parameters.
        """
        if outputs is None:
            self._core.check_step("eval")
            outputs = self._core.models.own_outputs()
        names = [outputs] if isinstance(outputs, str) else outputs
        if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
            raise TypeError(f"'outputs' must be a list of at least one str, got {outputs!r:.80}.")
        return written("path", path, self._core.export_model_for_inferencing(names, flag("ema", ema)))
