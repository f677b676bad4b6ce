"""The calls of a training session besides its steps: the one list of them.

`SessionCore` has a method of each name with these arguments, which a test compares; the page's worker has an object
with a function for each, which the TypeScript compiler compares (`scripts/session_description.py` writes the types).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Call:
    """A call.

    Attributes
    ----------
    name : str
        As Python spells it.
    does : str
        What it does, for the generated types.
    arguments : dict of str to str
        TypeScript types of the arguments by their names.
    result : str
        TypeScript type of the result.
    in_python : bool
        Whether `SessionCore` has it; the others are of the page alone.
    in_page : dict of str to str
        Further arguments, which only the page has.
    """

    name: str
    does: str
    arguments: dict[str, str] = field(default_factory=dict)
    result: str = "null"
    in_python: bool = True
    in_page: dict[str, str] = field(default_factory=dict)


ONLY = {"trainable_only": "boolean"}
FORM = {"form": "FileForm"}

CALLS = (
    Call("lazy_reset_grad", "Let the next train step overwrite the gradients."),
    Call("get_learning_rate", "The current rate.", {}, "number"),
    Call("set_learning_rate", "Set the current rate.", {"lr": "number"}),
    Call(
        "register_linear_lr_scheduler",
        "Register a linear schedule with warm-up.",
        {"warmup": "number", "total": "number", "initial_lr": "number"},
    ),
    Call("get_parameters_size", "Number of elements of all (trainable) parameters.", ONLY, "number"),
    Call("get_contiguous_parameters", "All (trainable) parameters, one after the other.", ONLY, "WireTensor"),
    Call("load_parameters_buffer", "Overwrite all (trainable) parameters.", {"data": "Uint8Array", **ONLY}),
    Call("get_parameter", "A copy of one parameter.", {"name": "string"}, "WireTensor"),
    Call("update_parameter", "Overwrite one parameter.", {"tensor": "NamedTensor"}),
    Call("get_parameter_type_and_shape", "Type of one parameter.", {"name": "string"}, "TensorType"),
    Call("parameter_names", "Names of all (trainable) parameters, in their order.", ONLY, "readonly string[]"),
    Call("get_gradient", "A copy of one accumulated gradient.", {"name": "string"}, "WireTensor"),
    Call("get_step_count", "Completed optimizer steps.", {}, "number"),
    Call(
        "input_metadata",
        "Names, types and dims of the inputs of a step.",
        {"training": "boolean"},
        "readonly ValueMetadata[]",
    ),
    Call(
        "add_property",
        "Keep a value in the checkpoint.",
        {"name": "string", "value": "PropertyValue"},
        in_page={"kind": "PropertyKind | null"},
    ),
    Call("get_property", "A value that the checkpoint keeps.", {"name": "string"}, "PropertyValue"),
    Call("property_names", "Names of the values that the checkpoint keeps.", {}, "readonly string[]"),
    Call("delete_property", "Forget a value that the checkpoint keeps.", {"name": "string"}),
    Call("memory", "What the session takes of kernel memory.", {}, "SessionMemory"),
    Call("get_seed", "The seed of its random operators.", {}, "bigint"),
    Call("set_seed", "Seed the session's random operators.", {"value": "bigint"}),
    Call(
        "save_checkpoint",
        "A checkpoint file.",
        {"include_optimizer_state": "boolean"},
        "FileBytes",
        in_page=FORM,
    ),
    Call(
        "export_model_for_inferencing",
        "The eval model with the current parameters.",
        {"output_names": "readonly string[]"},
        "FileBytes",
        in_page=FORM,
    ),
    Call(
        "artifact",
        "A file that `createFromModel` built.",
        {"name": "ArtifactName"},
        "FileBytes | null",
        in_python=False,
        in_page=FORM,
    ),
)
