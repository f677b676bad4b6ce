"""The members of onnxruntime's Python sessions besides `run`: types, providers, bindings, profiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from trainweb.arguments import instance_of, mapping, texts, unknown, warn
from trainweb.errors import FeedError, InvalidValueError
from trainweb.model.graph import Value
from trainweb.model.reader import read_metadata
from trainweb.training.core import Uncopied
from trainweb.training.inert import ON_THE_CPU, warn_without_effect
from trainweb.training.ort.options import SessionOptions
from trainweb.training.ort.profile import Profile, Trace
from trainweb.training.ort.values import IOBinding, OrtValue, as_array, type_name

if TYPE_CHECKING:
    from trainweb.backend.base import Host, Stop
    from trainweb.backend.plan import LoadedPlan

CPU = "CPUExecutionProvider"
PROVIDERS = (
    *("TensorrtExecutionProvider", "CUDAExecutionProvider", "MIGraphXExecutionProvider", "ROCMExecutionProvider"),
    *("OpenVINOExecutionProvider", "DnnlExecutionProvider", "TvmExecutionProvider", "VitisAIExecutionProvider"),
    *("QNNExecutionProvider", "NnapiExecutionProvider", "VSINPUExecutionProvider", "JsExecutionProvider"),
    *("CoreMLExecutionProvider", "ArmNNExecutionProvider", "ACLExecutionProvider", "DmlExecutionProvider"),
    *("RknpuExecutionProvider", "WebNNExecutionProvider", "XnnpackExecutionProvider", "CANNExecutionProvider"),
    *("AzureExecutionProvider", CPU),
)
"""Providers that onnxruntime 1.19 knows; only the last one exists here."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a session: name, type such as ``tensor(float)``, and dims, symbols as their names.

    Attributes
    ----------
    name : str
        Of the input or output.
    type : str
        Such as ``tensor(float)``.
    shape : list of int or str
        Dims; a symbolic one is its name.
    """

    name: str
    type: str
    shape: list[Any]

    @classmethod
    def of(cls, value: Value) -> NodeArg:
        """Return the description of a graph's input or output.

        Parameters
        ----------
        value : Value
            An input or output of a graph.
        """
        return cls(value.name, type_name(value.dtype), list(value.shape or ()))

    def __str__(self) -> str:
        return f"{self.name} {self.type}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata of a model.

    Attributes
    ----------
    producer_name : str
        The program that wrote it.
    graph_name : str
        Name of its graph; empty in ORT format.
    domain : str
        The domain of its owner, such as "org.example".
    description : str
        A text about it.
    graph_description : str
        A text about its graph.
    version : int
        Version of the model; of a file without one 2^63 - 1 in a page.
    custom_metadata_map : dict of str to str
        Texts by name.
    """

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


def check_providers(providers: Any, provider_options: Any = None) -> None:
    """Check execution providers, given as onnxruntime takes them: names, or pairs of a name and options.

    Everything is computed on the CPU: others are warned of, and so are options, which change nothing.

    Raises
    ------
    InvalidValueError
        A name that onnxruntime does not know either (the text names the nearest), or options in both arguments.
    """
    listed = _listed("providers", providers)
    if provider_options is not None and any(not isinstance(p, str) for p in listed):
        raise InvalidValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
    pairs = [_provider(p) for p in listed]
    options = [o for _, o in pairs] + _listed("provider_options", provider_options)
    if provider_options is not None and len(provider_options) != len(pairs):
        raise InvalidValueError("'providers' and 'provider_options' should be the same length if both are given.")
    for option in options:
        mapping("provider_options", option)
    for name, _ in pairs:
        if name not in PROVIDERS:
            raise InvalidValueError(unknown("Execution provider", name, PROVIDERS))
    for name, _ in pairs:
        if name != CPU:
            text = f"Specified provider {name!r} is not in available provider names. Available providers: {CPU!r}"
            warn(text)
    warn_without_effect([f"provider_options={o!r} ({ON_THE_CPU})" for o in options if o])


def _listed(name: str, value: Any) -> list[Any]:
    if value is not None and (isinstance(value, (str, bytes)) or not isinstance(value, Iterable)):
        raise TypeError(f"'{name}' must be a list, got {value!r:.80}.")
    return list(value or ())


def _provider(provider: Any) -> tuple[str, Any]:
    """A provider's name, and its options."""
    if isinstance(provider, str):
        return provider, {}
    if not isinstance(provider, (tuple, list)) or len(provider) != 2 or not isinstance(provider[0], str):
        raise TypeError(f"'providers' has {provider!r:.80}, which is neither a name nor a name with options.")
    return provider[0], provider[1]


class SessionBase(ABC, Uncopied):
    """A session that is run with names and feeds.

    Parameters
    ----------
    source : bytes, path or onnx.ModelProto
        The model, to say what it says of itself.
    options : SessionOptions
        Checked.
    """

    def __init__(self, source: Any, options: SessionOptions) -> None:
        self._source, self._options = source, options
        self._trace: Trace | None = None

    @abstractmethod
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[np.ndarray]:
        """Outputs in the order of `output_names` (None: all)."""

    @abstractmethod
    def get_inputs(self) -> list[NodeArg]:
        """The inputs of `run`."""

    @abstractmethod
    def get_outputs(self) -> list[NodeArg]:
        """The outputs of `run`."""

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return [v.name for v in self.get_inputs()]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return [v.name for v in self.get_outputs()]

    # What it is.

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the model."""
        return ModelMetadata(**read_metadata(self._source))

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: an initializer cannot be fed."""
        return []

    def get_session_options(self) -> SessionOptions:
        """The options in force."""
        return self._options

    def get_providers(self) -> list[str]:
        """The one place of computation."""
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return no options for the only provider."""
        return {CPU: {}}

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Check that the providers are what there is; see `check_providers`.

        Parameters
        ----------
        providers, provider_options : optional
            As `InferenceSession` takes them.
        """
        check_providers(providers, provider_options)

    def _create_inference_session(
        self, providers: Any = None, provider_options: Any = None, disabled_optimizers: Any = None
    ) -> None:
        """Open the session again, as onnxruntime's Python does under this name.

        Parameters
        ----------
        providers, provider_options : optional
            See `check_providers`.
        disabled_optimizers : list of str, optional
            Accepted with a warning: what the compiler does changes no number.
        """
        check_providers(providers, provider_options)
        if disabled_optimizers:
            warn_without_effect([f"disabled_optimizers={texts('disabled_optimizers', disabled_optimizers)}"])
        self._open_again()

    def _reset_session(self, providers: Any = None, provider_options: Any = None) -> None:
        """Give the session's kernel memory back and open it again, with the weights that it has.

        Parameters
        ----------
        providers, provider_options : optional
            See `check_providers`.
        """
        self._create_inference_session(providers, provider_options)

    @abstractmethod
    def _open_again(self) -> None:
        """Give the kernel memory back, and take new."""

    def enable_fallback(self) -> None:
        """Allow a fallback to the CPU, where everything runs anyway."""

    def disable_fallback(self) -> None:
        """Allow no fallback: everything runs on the CPU anyway."""

    # Runs.

    def io_binding(self) -> IOBinding:
        """A binding of inputs and outputs for `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run on what is bound.

        Parameters
        ----------
        iobinding : IOBinding
            Inputs and outputs of this session.
        run_options : dict or RunOptions, optional
            See `RunOptions`.

        Raises
        ------
        FeedError
            No output is bound, or as `run`.
        """
        if not instance_of(IOBinding, "iobinding", iobinding).outputs:
            raise FeedError("At least one output should be requested.")
        iobinding.take(self.run(list(iobinding.outputs), iobinding.feeds, run_options))

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """As `run`, on OrtValues.

        Parameters
        ----------
        output_names : sequence of str or None
            Outputs wanted; all by default.
        input_dict_ort_values : dict of str to OrtValue
            Every input by name.
        run_options : dict or RunOptions, optional
            See `RunOptions`.
        """
        feeds = {
            name: as_array(value) for name, value in mapping("input_dict_ort_values", input_dict_ort_values).items()
        }
        return [OrtValue(array) for array in self.run(output_names, feeds, run_options)]

    # Profiles.

    def _profile(self, host: Host) -> None:
        """Have the trace of every run of a host from now on, with ``enable_profiling``."""
        if not self._options.enable_profiling:
            return
        trace = self._trace = self._trace or Trace()

        def run(loaded: LoadedPlan, stop: Stop) -> None:
            start = perf_counter()
            times = host.timed(loaded, stop)
            trace.add(Profile(loaded.plan.text, loaded.plan.nodes, times), start, perf_counter())

        host.observer = run

    def get_profiling_start_time_ns(self) -> int:
        """Nanoseconds of `time.time_ns` at which profiling started; 0 without ``enable_profiling``."""
        return 0 if self._trace is None else self._trace.start_ns

    def end_profiling(self) -> str:
        """Write the times of all runs as a Chrome trace, once.

        Returns
        -------
        str
            Name of the file, which starts with ``profile_file_prefix``; empty without ``enable_profiling``.
        """
        if self._trace is None:
            return ""
        return self._trace.write(self._options.profile_file_prefix)
