"""The calls of a training session besides its steps, with their documentation: the one list of both languages.

`scripts/session_description.py` writes from it the methods of the public classes (`training/session_methods.py`,
`web/src/page/session-methods.ts`) and what the page's session core must have (`SessionCalls`); it checks Python's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from trainweb.ir.layout import GRADIENTS, MOMENTUM0, MOMENTUM1, PARAMETERS, STATE

MOMENTS = (MOMENTUM0, MOMENTUM1)
REQUIRED: Any = object()
"""The default of an argument that has none."""


class Public(Enum):
    """The form of a call in the public class of a language."""

    FORWARD = "a generated method that passes it on"
    BY_HAND = "a method that does more than pass it on"
    NO = "not at all: other code of this language calls the core"
    NO_CORE = "not at all, and neither has the core of this language"


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A kind of value: its types, and the expressions that convert it, in which `$` is the value."""

    python: str
    page: str
    """Types in the public classes; `python` is None for nothing."""
    core: str = ""
    wire: str = ""
    """Types in the cores: Python's, and TypeScript's. As in the public class where empty."""
    documented: str = ""
    """The type in a numpy docstring; `python` where empty."""
    to_core: str = "$"
    from_core: str = "$"
    to_wire: str = "$"
    from_wire: str = "$"
    """Between the public class and the core."""
    check: str = ""
    """A statement of the page that refuses a wrong argument; `$name` is its name."""


NOTHING = ValueKind("None", "void", wire="null")
FLAG = ValueKind("bool", "boolean", to_core='flag("$name", $)', check='checkFlag("$name", $)')
TRAINABLE = ValueKind(
    "bool", "boolean | TrainableOnly", "bool", "boolean", to_core='flag("$name", $)', to_wire="trainableOnlyOf($)"
)
STRICT = ValueKind("bool", "boolean | Strict", "bool", "boolean", to_core='flag("$name", $)', to_wire="strictOf($)")
NAME = ValueKind("str", "string")
NAMES = ValueKind("list[str]", "readonly string[]")
NUMBER = ValueKind("float", "number", check='checkNumber("$name", $)')
COUNT = ValueKind("int", "number", check='checkNumber("$name", $)')
SEED = ValueKind("int", "bigint")
TENSOR = ValueKind("np.ndarray", "Tensor", "Tensor", "WireTensor", from_core="to_numpy($)", from_wire="unpackTensor($)")
STEP_KIND = ValueKind("str", '"train" | "eval"')
FEEDS = ValueKind("Mapping[str, Any]", "FeedsType", "Mapping[str, TensorType]", "readonly Feed[]")
SHAPES = ValueKind(
    "Mapping[str, Sequence[int]]",
    "Readonly<Record<string, readonly number[]>>",
    documented="dict of str to sequence of int",
)
TEXT = ValueKind("str", "string")
NAMED_TENSOR = ValueKind("Any", "Tensor", "Tensor", "NamedTensor")
NORMS = ValueKind("dict[str, float]", "Readonly<Record<string, number>>")
BATCHES = ValueKind(
    "Sequence[Mapping[str, Any]]",
    "readonly FeedsType[]",
    "Sequence[Mapping[str, Tensor]]",
    "readonly (readonly Feed[])[]",
)
DEAD_UNITS = ValueKind("list[DeadUnits]", "readonly DeadUnits[]")
TENSORS = ValueKind(
    "dict[str, np.ndarray]",
    "Readonly<Record<string, Tensor>>",
    "dict[str, Tensor]",
    "readonly NamedTensor[]",
    from_core="{n: to_numpy(t) for n, t in $.items()}",
    from_wire="unpackNamed($)",
)
PARAMETER_BUFFER = ValueKind(
    "Any",
    "Uint8Array | Float32Array",
    "bytes | bytearray | memoryview",
    "Uint8Array",
    "ndarray or bytes",
    to_core="parameter_bytes($)",
    to_wire="copyBytes($)",
    check="checkBuffer($)",
)
TYPE_AND_SHAPE = ValueKind(
    "tuple[str, tuple[int, ...]]", "ParameterTypeAndShape", wire="TensorType", from_wire="typeAndShape($)"
)
METADATA = ValueKind("list[NodeArg]", "readonly ValueMetadata[]", "list[Value]", from_core="[NodeArg.of(v) for v in $]")
PROPERTY = ValueKind("PropertyValue", "PropertyValue")
PROPERTY_KIND = ValueKind("", "PropertyKind | null", check="checkKind(value, $)")
MEMORY = ValueKind("SessionMemory", "SessionMemory")
FORM = ValueKind("", "Form", wire="FileForm", to_wire="checkForm($)")
FILE = ValueKind("bytes", "FileOf<Form>", wire="FileBytes", from_wire="($).data as FileOf<Form>")
OUTPUT_NAMES = ValueKind("Sequence[str] | None", "readonly string[]", check='checkNames("$name", $)')
ARTIFACT_NAME = ValueKind("", "ArtifactName")
WEIGHTS_FORMAT = ValueKind("str", '"safetensors" | "npz"')
WEIGHTS = ValueKind("bytes", "Uint8Array", to_wire="copyBytes($)", check="checkBytes($)")
ADAPTER = ValueKind("", "AdapterFiles", to_wire="checkAdapter($)")
FILE_OR_NULL = ValueKind("", "FileBytes | null")


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call."""

    name: str
    """As Python spells it; a page has it in camelCase, or as `page_name`."""
    kind: ValueKind
    does: str = ""
    """What it is, for the documentation: numbers with their units and limits."""
    default: Any = REQUIRED
    """In the public classes; the cores are given all arguments."""
    page_name: str = ""
    in_options: bool = False
    """Whether the public class of the page has it in an object of options."""
    page_only: bool = False
    """Whether Python does not have it."""


@dataclass(frozen=True, slots=True)
class Held:
    """Segments of which a call reads or changes bytes in the host's memory, where their contents must be before.

    Copies that the session's host makes and restores by itself are not among them. An exchange of parameters and
    averages that ends as it began changes nothing. To change parameters is to count it in the state.
    """

    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


NOT_HELD = Held()


@dataclass(frozen=True, slots=True)
class Call:
    """A call.

    In texts, names in backticks are as Python spells them; the page's documentation has them in camelCase.
    """

    name: str
    """As Python spells it; a page has it in camelCase, or as `page_name` in its public class."""
    does: str
    """Its effect, in a sentence of one line, and further facts after an empty line."""
    arguments: tuple[Argument, ...] = ()
    result: ValueKind = NOTHING
    held: Held = field(kw_only=True)
    """What it needs in the host's memory."""
    returns: str = ""
    """The result, if `does` does not say enough: shapes and units."""
    raises: dict[str, str] = field(default_factory=dict)
    """Reasons by the name of the error."""
    needs_optimizer: bool = False
    """True if a session without an optimizer model refuses it. `raises` need not say so."""
    python: Public = Public.FORWARD
    page: Public = Public.FORWARD
    """How the public classes have it."""
    page_name: str = ""


TRAINABLE_ONLY = Argument("trainable_only", TRAINABLE, "Leave out the frozen ones.", default=True)
PARAMETER = Argument("name", NAME, "The parameter's name.")
PROPERTY_NAME = Argument("name", NAME, "The property's name.")
TRAINING = Argument("training", FLAG, "False: of an eval step.", default=True, in_options=True)
OF_PARAMETER = {"CheckpointError": "There is no such parameter."}
FORM_ARGUMENT = Argument(
    "form",
    FORM,
    '"blob": a Blob, which the browser keeps elsewhere; "bytes": a Uint8Array in the page\'s memory.',
    default="bytes",
    page_name="as",
    in_options=True,
    page_only=True,
)
EMA = Argument(
    "ema", FLAG, "Use the averages of the parameters that the session keeps.", default=False, in_options=True
)
NO_EMA = {"SessionError": "`ema` is true, but the session keeps no averages."}
NO_RATE = "The rate is negative, infinite or NaN."

CALLS = (
    Call(
        "lazy_reset_grad",
        "Let the next train step overwrite the gradients instead of adding to them.",
        page=Public.BY_HAND,
        held=Held(writes=(STATE,)),
    ),
    Call(
        "get_learning_rate",
        "The current learning rate; 0.001 for a fresh session.",
        result=NUMBER,
        needs_optimizer=True,
        held=Held(reads=(STATE,)),
    ),
    Call(
        "set_learning_rate",
        "Set the current learning rate.",
        (Argument("lr", NUMBER, "A float32 >= 0.", page_name="learningRate"),),
        raises={"SessionError": NO_RATE},
        needs_optimizer=True,
        held=Held(writes=(STATE,)),
    ),
    Call(
        "register_linear_lr_scheduler",
        "Register a linear schedule: up from 0 to a rate, then down to 0.\n\n"
        "The rate becomes `initial_lr` now, and the schedule's at each `scheduler_step`.",
        (
            Argument("warmup_step_count", COUNT, "Optimizer steps of the warm-up."),
            Argument("total_step_count", COUNT, "Optimizer steps after which the rate is 0."),
            Argument("initial_lr", NUMBER, "The rate at the end of the warm-up, a float32 >= 0."),
        ),
        raises={
            "SessionError": "A count is not an integer >= 0, the warm-up is longer than the total, or `initial_lr` is "
            "not a float32 >= 0."
        },
        needs_optimizer=True,
        page_name="registerLinearLRScheduler",
        held=Held(writes=(STATE,)),
    ),
    Call(
        "get_parameters_size",
        "Number of elements of all (trainable) parameters.",
        (TRAINABLE_ONLY,),
        COUNT,
        held=NOT_HELD,
    ),
    Call(
        "get_contiguous_parameters",
        "All (trainable) parameters as one vector, a copy, in the order of the training model's inputs.",
        (TRAINABLE_ONLY, EMA),
        TENSOR,
        "Float32 of shape [n], where n is the result of `get_parameters_size`.",
        raises={"CheckpointError": "The session has a nominal checkpoint, which has no values yet.", **NO_EMA},
        python=Public.BY_HAND,
        page=Public.BY_HAND,
        held=Held(reads=(PARAMETERS, STATE, *MOMENTS)),
    ),
    Call(
        "load_parameters_buffer",
        "Overwrite all (trainable) parameters. Gradients and moments stay.",
        (
            Argument(
                "buffer",
                PARAMETER_BUFFER,
                "A float32 array of `get_parameters_size` elements, or its little-endian bytes.",
            ),
            TRAINABLE_ONLY,
        ),
        raises={"BufferSizeError": "Wrong number of elements."},
        held=Held(writes=(PARAMETERS, STATE)),
    ),
    Call(
        "get_parameter",
        "A copy of one parameter.",
        (PARAMETER,),
        TENSOR,
        "Float32 of the parameter's shape.",
        OF_PARAMETER,
        held=Held(reads=(PARAMETERS,)),
    ),
    Call(
        "update_parameter",
        "Overwrite one parameter.",
        (Argument("tensor", NAMED_TENSOR),),
        python=Public.BY_HAND,
        page=Public.BY_HAND,
        held=Held(writes=(PARAMETERS, STATE)),
    ),
    Call(
        "get_parameter_type_and_shape",
        "Element type and shape of one parameter.",
        (PARAMETER,),
        TYPE_AND_SHAPE,
        "float32, and the sizes of its axes; none for a scalar.",
        OF_PARAMETER,
        held=NOT_HELD,
    ),
    Call(
        "parameter_names",
        "Names of all (trainable) parameters, in the order of the training model's inputs.",
        (Argument("trainable_only", FLAG, "Leave out the frozen ones.", default=False, in_options=True),),
        NAMES,
        held=NOT_HELD,
    ),
    Call(
        "get_gradient",
        "A copy of one accumulated gradient: zeros before the first step.",
        (PARAMETER,),
        TENSOR,
        "Float32 of the parameter's shape.",
        {"CheckpointError": "There is no such parameter, or it is frozen."},
        held=Held(reads=(GRADIENTS,)),
    ),
    Call(
        "get_moments",
        "Copies of the optimizer's moments of one parameter, by the names that checkpoints have for them.\n\n"
        "A frozen parameter has none.",
        (PARAMETER,),
        TENSORS,
        "Float32, of the parameter's shape; Adafactor and Muon have smaller ones for matrices.",
        OF_PARAMETER,
        needs_optimizer=True,
        held=Held(reads=(STATE, *MOMENTS)),
    ),
    Call(
        "gradient_norms",
        "Euclidean norms of the accumulated gradients, by the names of the trainable parameters.\n\n"
        "Call it after train steps: before the first, all norms are 0. Clipping comes later, in the optimizer step.",
        result=NORMS,
        raises={"CheckpointError": "The session has a nominal checkpoint, which has no values yet."},
        held=Held(reads=(GRADIENTS,)),
    ),
    Call(
        "dead_units",
        "Units of ReLU, ThresholdedRelu, and Clip from 0 that are 0 for every row of some batches.",
        (Argument("batches", BATCHES),),
        DEAD_UNITS,
        python=Public.BY_HAND,
        page=Public.BY_HAND,
        held=Held(reads=(PARAMETERS, STATE), writes=(STATE,)),
    ),
    Call(
        "step_count",
        "Completed optimizer steps.",
        result=COUNT,
        needs_optimizer=True,
        held=Held(reads=(STATE,)),
    ),
    Call(
        "input_metadata",
        "Name, type and dims, with symbols, of the inputs of a train (or eval) step.",
        (TRAINING,),
        METADATA,
        held=NOT_HELD,
    ),
    Call(
        "output_metadata",
        "Name, type and dims, with symbols, of the outputs of a train (or eval) step.",
        (TRAINING,),
        METADATA,
        held=NOT_HELD,
    ),
    Call(
        "add_property",
        "Keep a value in the checkpoint: an int64 (an integer number or bigint), a float32, or a string.",
        (
            PROPERTY_NAME,
            Argument("value", PROPERTY, "The value."),
            Argument(
                "kind",
                PROPERTY_KIND,
                'The type to store, if the value leaves it open: 1 as "float" stays a float.',
                default=None,
                page_only=True,
            ),
        ),
        python=Public.NO,
        held=NOT_HELD,
    ),
    Call(
        "get_property",
        "A value that the checkpoint keeps; an integer that a number cannot hold is a bigint.",
        (PROPERTY_NAME,),
        PROPERTY,
        raises={"CheckpointError": "There is no such property."},
        python=Public.NO,
        held=NOT_HELD,
    ),
    Call(
        "get_property_kind",
        "The kind of a value in the checkpoint: 1 may be an integer or a float.",
        (PROPERTY_NAME,),
        ValueKind("str", "PropertyKind"),
        raises={"CheckpointError": "There is no such property."},
        python=Public.NO,
        held=NOT_HELD,
    ),
    Call(
        "property_names",
        "Names of the values that the checkpoint keeps.",
        result=NAMES,
        python=Public.NO,
        held=NOT_HELD,
    ),
    Call(
        "delete_property",
        "Remove a value from the checkpoint.",
        (PROPERTY_NAME,),
        raises={"CheckpointError": "There is no such property."},
        python=Public.NO,
        held=NOT_HELD,
    ),
    Call(
        "memory",
        "Bytes of kernel memory that the session takes, and the cost of `memory_budget`; call it after a step.",
        result=MEMORY,
        held=NOT_HELD,
    ),
    Call(
        "prepare",
        "Compile the plans of steps with feeds of these shapes ahead, for example while data load.\n\n"
        "These are the plans of the train step, the eval step and the optimizer step, if the session has their models. "
        "Nothing runs. The plan of the train step overwrites gradients, as the first step does, and each step after "
        "`lazy_reset_grad`. A train step that adds to gradients has another plan, which its first call compiles.",
        (Argument("shapes", SHAPES, "The sizes of the axes of every training input, by its name."),),
        raises={
            "FeedError": "A shape is missing, unknown, or does not fit the model.",
            "SessionError": "The values of an input decide about shapes: only a step has them.",
        },
        page=Public.BY_HAND,
        held=NOT_HELD,
    ),
    Call(
        "keep_state",
        "Copy the state that the session continues from.",
        python=Public.NO,
        page=Public.NO,
        held=NOT_HELD,
    ),
    Call(
        "go_back",
        "Restore the state that `keep_state` copied, once.",
        python=Public.NO,
        page=Public.NO,
        held=NOT_HELD,
    ),
    Call(
        "explain",
        "The compilation of a step for such feeds, as text; nothing runs, and no plan is kept.",
        (Argument("kind", STEP_KIND), Argument("feeds", FEEDS)),
        TEXT,
        python=Public.BY_HAND,
        page=Public.BY_HAND,
        held=Held(reads=(STATE,)),
    ),
    Call(
        "get_seed",
        "The seed of its random operators.",
        result=SEED,
        python=Public.NO,
        page=Public.NO,
        held=Held(reads=(STATE,)),
    ),
    Call(
        "set_seed",
        "Seed the session's random operators.",
        (Argument("value", SEED),),
        python=Public.NO,
        page=Public.NO,
        held=Held(writes=(STATE,)),
    ),
    Call(
        "save_checkpoint",
        "The checkpoint, for onnxruntime's training APIs too. It has at most 2 GiB.",
        (
            Argument(
                "include_optimizer_state",
                FLAG,
                "Also save what an exact resume needs: moments, step count, learning rate and schedule, accumulated "
                "gradients, and the seed and position of random numbers.",
                default=False,
                in_options=True,
            ),
            FORM_ARGUMENT,
        ),
        FILE,
        raises={"LimitError": "It would be larger, or the browser has no room for it."},
        python=Public.NO,
        held=Held(reads=(PARAMETERS, GRADIENTS, STATE, *MOMENTS)),
    ),
    Call(
        "load_checkpoint",
        "Continue from a checkpoint.",
        (Argument("checkpoint", WEIGHTS),),
        python=Public.BY_HAND,
        page=Public.BY_HAND,
        held=Held(writes=(PARAMETERS, GRADIENTS, STATE, *MOMENTS)),
    ),
    Call(
        "export_model_for_inferencing",
        "The eval model as an inference model, with the current parameters.",
        (Argument("output_names", OUTPUT_NAMES, "Tensors of the eval model to become outputs."), FORM_ARGUMENT, EMA),
        FILE,
        raises={**NO_EMA, "LimitError": "The file would be larger than 2 GiB, or the browser has no room for it."},
        python=Public.BY_HAND,
        held=Held(reads=(PARAMETERS, STATE, *MOMENTS)),
    ),
    Call(
        "export_weights",
        "All parameters by name, as a file that other programs read. It has no optimizer state.",
        (Argument("format", WEIGHTS_FORMAT, "safetensors or npz.", default="safetensors"), EMA),
        WEIGHTS,
        raises={"ModelError": "There is no such format.", **NO_EMA},
        held=Held(reads=(PARAMETERS, STATE, *MOMENTS)),
    ),
    Call(
        "load_weights",
        "Overwrite parameters with the contents of a safetensors or npz file. Gradients and moments stay.",
        (
            Argument("weights", WEIGHTS, "The contents of the file."),
            Argument("strict", STRICT, "Whether the file must have all parameters, and no others.", default=True),
        ),
        raises={
            "CheckpointError": "The file has neither format, other parameters though `strict`, or a wrong type or "
            "shape. Nothing was changed."
        },
        held=Held(writes=(PARAMETERS, STATE)),
    ),
    Call(
        "adapter",
        "The trained adapters of a session made with `lora`, as PEFT's two files.",
        result=ADAPTER,
        raises={"SessionError": "The session has no adapters."},
        python=Public.NO_CORE,
        held=Held(reads=(PARAMETERS,)),
    ),
    Call(
        "load_adapter",
        "Continue with another adapter of the same targets and rank, without compiling again. Moments stay.",
        (Argument("adapter", ADAPTER, "PEFT's two files, as `adapter` gives them."),),
        raises={
            "CheckpointError": "It has other modules, another rank or another scaling.",
            "SessionError": "The session has no adapters.",
        },
        python=Public.NO_CORE,
        held=Held(writes=(PARAMETERS, STATE)),
    ),
    Call(
        "merge_adapter",
        "The forward model with the adapters merged into its weights.",
        (FORM_ARGUMENT,),
        FILE,
        raises={"SessionError": "The session has no adapters.", "LimitError": "It would be larger than 2 GiB."},
        python=Public.NO_CORE,
        held=Held(reads=(PARAMETERS,)),
    ),
    Call(
        "artifact",
        "A file that `createFromModel` built.",
        (Argument("name", ARTIFACT_NAME), FORM_ARGUMENT),
        FILE_OR_NULL,
        python=Public.NO_CORE,
        page=Public.NO,
        held=Held(reads=(PARAMETERS,)),
    ),
)

OF_STATES = (
    *("parameter_names", "get_parameter_type_and_shape", "get_parameter", "update_parameter"),
    *("add_property", "get_property", "get_property_kind", "property_names", "delete_property", "save_checkpoint"),
)
"""The calls that the checkpoint state of a page has, too, apart from sessions."""
