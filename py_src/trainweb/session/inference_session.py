"""`InferenceSession`: as onnxruntime's, on arrays."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from trainweb.arguments import checks_keywords, texts
from trainweb.errors import UnsupportedError
from trainweb.generation.generate import GeneratedToken, generate, logits_of, request_of
from trainweb.model.dimensions import fix_dimensions
from trainweb.model.graph import Value
from trainweb.model.reader import read_model
from trainweb.training.arrays import as_feed, from_numpy, to_numpy
from trainweb.training.core import abandoned, free_abandoned
from trainweb.training.inference import InferenceCore
from trainweb.training.ort.interface import NodeArg, SessionBase, check_providers
from trainweb.training.ort.options import VERBOSE, Log, RunOptions, SessionOptions
from trainweb.training.ort.values import as_array
from trainweb.training.steps import check_feeds


@checks_keywords
class InferenceSession(SessionBase):
    """Runs a model.

    Parameters
    ----------
    path_or_bytes : bytes, path or onnx.ModelProto
    sess_options : dict or SessionOptions, optional
        See `SessionOptions`.
    providers, provider_options : optional
        Execution providers, among them the CPU's; others are warned of.
    external_data : dict of str to bytes, optional
        Contents of external data files for a model given as bytes, by location.
    integrity : str, optional
        The hash that the model must have, as in HTML: "sha256-" and Base64; sha384 and sha512, too.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | Mapping[str, Any] | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        external_data: dict[str, bytes] | None = None,
        integrity: str | None = None,
    ) -> None:
        super().__init__(path_or_bytes, SessionOptions._of(sess_options))
        if self._options._checks_numerics:
            raise UnsupportedError("debug.check_numerics is for steps of a TrainingSession; eval steps are checked.")
        check_providers(providers, provider_options)
        free_abandoned()
        settings = self._options._core_settings()
        graph = read_model(path_or_bytes, external_data=external_data, limits=settings["limits"], integrity=integrity)
        fix_dimensions([graph], self._options.free_dimension_overrides)
        self._values = {v.name: v for v in graph.outputs if isinstance(v, Value)}
        self._graph = graph
        self._open()
        self._log = Log(self._options)

    def _open(self) -> None:
        self._core = InferenceCore(self._graph, **self._options._core_settings())
        weakref.finalize(self, abandoned.append, self._core.host.release).atexit = False
        self._profile(self._core.host)

    def _open_again(self) -> None:
        self._core.host.release()
        self._open()

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, group)) for group in (self.get_inputs(), self.get_outputs()))
        return f"<InferenceSession: {inputs} to {outputs}>"

    def get_inputs(self) -> list[NodeArg]:
        return [NodeArg.of(v) for v in self._core.inputs.values()]

    def get_outputs(self) -> list[NodeArg]:
        return [NodeArg.of(self._values[name]) for name in self._core.outputs]

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[np.ndarray]:
        """Outputs in the order of `output_names` (None or empty: all).

        Parameters
        ----------
        output_names : sequence of str or None
            Outputs wanted.
        input_feed : dict of str to array_like
            Every input by name.
        run_options : dict or RunOptions, optional
            See `RunOptions`.

        Raises
        ------
        FeedError
            A feed is missing, unknown, or of the wrong dtype or shape.
        SessionError
            ``terminate`` is set in the run options.
        """
        options = RunOptions._of(run_options)
        options._refuse_ema()
        inputs = self._core.inputs
        feeds = {n: as_array(v) for n, v in check_feeds(input_feed).items()}
        converted = {n: as_feed(n, v, inputs[n].dtype) if n in inputs else from_numpy(n, v) for n, v in feeds.items()}
        names = texts("output_names", output_names) if output_names else self._core.outputs
        with options._noted():
            options._check_terminate()
            start = perf_counter()
            results = self._core.run(converted, names, options._stop)
            self._log(VERBOSE, options, f"run: {1e3 * (perf_counter() - start):.3f} ms")
            return [to_numpy(results[n]) for n in names]

    def generate(
        self,
        prompt: Any,
        *,
        max_tokens: int = 100,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Any = (),
        tokenizer: Any = None,
    ) -> Iterator[GeneratedToken]:
        """Tokens that a causal language model writes after a prompt: as `TrainingSession.generate`.

        Parameters
        ----------
        prompt, max_tokens, temperature, top_k, top_p, seed, stop, tokenizer
            As of `TrainingSession.generate`.
        """
        settings = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        request = request_of(prompt, {**settings, "stop": stop, "tokenizer": tokenizer}, {})
        self._core.host.check()
        return generate(self._core, logits_of(self._core.outputs), request)

    def release(self) -> None:
        """Give kernel memory back."""
        self._core.host.release()
