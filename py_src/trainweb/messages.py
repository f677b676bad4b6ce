"""What errors of a session say, for Python and the page: `scripts/session_description.py` gives them to TypeScript.

A text is a template of `str.format`; `{x!r}` is a value as Python shows it, also in the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter
from typing import Any

from trainweb import errors


@dataclass(frozen=True, slots=True)
class Message:
    """An error of a session: its class and its text.

    `page` is the text in the page, where it gives advice on JavaScript. Python in a page keeps it with the error.
    """

    error: type[Exception]
    text: str
    page: str | None = None

    def __call__(self, **values: Any) -> Exception:
        """The error with these values in its text."""
        error = self.error(self.text.format(**values))
        # A page that finds the fault itself may know more to say of it.
        if self.page is not None and {name for _, name, _, _ in Formatter().parse(self.page) if name} <= values.keys():
            vars(error)[PAGE_TEXT] = self.page.format(**values)
        return error


PAGE_TEXT = "_page_text"
"""Attribute of errors that a page words otherwise."""


RELEASED = Message(errors.ReleasedError, "This session was released; create a new one.")

# Feeds and fetches.

MISSING_FEED = Message(errors.FeedError, "input '{name}' is missing in 'feeds'.")
MISNAMED_FEED = Message(
    errors.FeedError, "input '{name}' is missing in 'feeds', which has '{other}': the model's inputs are {names}."
)
UNKNOWN_FEED = Message(errors.FeedError, "invalid input '{name}': the model's inputs are {names}.")
FEED_DTYPE = Message(
    errors.FeedError,
    "Unexpected input data type of {name!r}. Actual: ({actual}), expected: ({expected}). "
    "Convert it with .astype({expected!r}).",
    "Unexpected input data type of {name!r}. Actual: ({actual}), expected: ({expected}). "
    "Make the tensor with new Tensor({expected!r}, {conversion}, dims).",
)
FEED_RANK = Message(
    errors.FeedError,
    "Invalid rank for input: {name} Got: {actual} Expected: {expected} (shape {shape!r} for {declared!r}).",
)
FEED_DIM = Message(
    errors.FeedError,
    "Got invalid dimensions for input: {name} for the following indices index: {index} Got: {actual} "
    "Expected: {expected}",
)
FEED_SYMBOL = Message(
    errors.FeedError, "Feeds disagree on the dimension {symbol!r}: {first} in {where!r}, {size} in {name!r}."
)
EMPTY_BATCH = Message(errors.FeedError, "Feed {name!r} has shape {shape!r}: an empty batch cannot be trained on.")
UNKNOWN_FETCH = Message(errors.FeedError, "'fetches' contains invalid output name: {name}; the outputs are {names}.")
FETCH_TYPE = Message(
    errors.FeedError,
    "Fetch {name!r} is {dtype}{shape!r}; its array is {given}.",
    "the tensor given for output '{name}' is {given}, the result is {dtype} of dims {shape!r}.",
)
BAD_LABEL = Message(errors.FeedError, "{node}: the label {value} at position {position} is out of range.")
BAD_INDEX = Message(errors.FeedError, "{node}: the index {value} at position {position} is out of range.")
BAD_VALUE = Message(errors.FeedError, "{node}: the value {value} at position {position} is not allowed.")
PLAN_FAILED = Message(
    errors.EngineError,
    "{status} (status {code}) in instruction {instruction} of {node}: value {value}, position {position}. {line}",
)

TERMINATED = Message(errors.SessionError, "Exiting due to terminate flag being set to true.")

# What a session lacks.

NO_EVAL_MODEL = Message(errors.SessionError, "This TrainingSession has no EvalModel loaded.")
NO_OPTIMIZER_MODEL = Message(errors.SessionError, "This TrainingSession has no OptimizerModel loaded.")
NO_SCHEDULER = Message(
    errors.SessionError, "No learning rate scheduler was registered. Please register a valid learning rate scheduler"
)
NO_EVAL_MODEL_TO_EXPORT = Message(
    errors.SessionError, "Eval model was not provided. Cannot export a model for inferencing."
)
NOT_BUILT = Message(errors.SessionError, "The gradient graph is not built yet: call build().")
NO_ARTIFACTS = Message(
    errors.SessionError, "This session was not made by createFromModel: it has no artifacts of its own."
)
NOT_IN_BUNDLE = Message(
    errors.SessionError,
    "{what} is not among what the bundle was compiled for, and it carries no models to do it with.",
)
OTHER_PARAMETERS = Message(
    errors.ModelError, "The models have other parameters than the plans that were compiled from them."
)
ARENA_LIMIT = Message(
    errors.LimitError,
    "This model needs {nbytes} bytes of workspace for these shapes; the limit arena_bytes is {limit}.",
)
SESSION_TOO_LARGE = Message(
    errors.LimitError,
    "The weights of this session take {nbytes} bytes with their gradients and the optimizer's moments; the kernels' "
    "memory has {limit} at most. Freeze parameters, or take an optimizer with fewer moments.",
)
NOT_A_COUNT = Message(errors.SessionError, "{name!r} must be an integer >= {least}, got {value!r}.")
NOT_A_NUMBER = Message(TypeError, "{name!r} must be a number, got {given}.")
NOT_A_RATE = Message(errors.SessionError, "{name!r} must be a float32 from 0 to 3.4e38, got {value!r}.")
WARMUP_BEYOND_TOTAL = Message(
    errors.SessionError, "{name!r} must be at most the number of all steps, {total}, got {value!r}."
)

# Nominal states: only the names of the parameters are there.

NOMINAL_STEP = Message(
    errors.CheckpointError, "Cannot perform {step} with a nominal state. Please load the model parameters first."
)
NOMINAL_OPTIMIZER = Message(
    errors.CheckpointError, "The optimizer state cannot be constructed. Please load the model parameters first."
)
NOMINAL_SAVE = Message(errors.CheckpointError, "Cannot save a nominal state. Please load the model parameters first.")
NOMINAL_EXPORT = Message(
    errors.CheckpointError, "Cannot export the model with a nominal state. Please load the model parameters first."
)
NOMINAL_GET_ALL = Message(
    errors.CheckpointError,
    "Cannot copy parameters from a nominal checkpoint state. Please load the model parameters first.",
)
NOMINAL_LOAD = Message(
    errors.CheckpointError,
    "For nominal checkpoint state, all parameters need to be loaded into the model (trainable_only = false).",
)
NOMINAL_GET = Message(
    errors.CheckpointError, "Cannot get parameter from a nominal state. Please load the parameter states first"
)
NOMINAL_SET = Message(
    errors.CheckpointError, "Cannot copy parameter to a nominal state. Please load all the parameter states first"
)

# Parameters and properties.

UNKNOWN_PARAMETER = Message(errors.CheckpointError, "The model has no parameter {name!r}; it has {names}.")
FROZEN_GRADIENT = Message(errors.CheckpointError, "Parameter {name!r} is frozen: it has no gradient.")
PARAMETER_DTYPE = Message(
    errors.CheckpointError, "Parameter {name!r} data type mismatch. Expected: {expected}, Got: {actual}"
)
PARAMETER_SHAPE = Message(
    errors.CheckpointError, "Parameter {name!r} data shape mismatch. Expected: {expected!r}, Got: {actual!r}"
)
BUFFER_SIZE = Message(
    errors.BufferSizeError,
    "Size of the buffer passed into loadParametersBuffer must match the number of parameters in the model. "
    "Please use getParametersSize method to check. Expected: {expected} bytes, Actual: {actual} bytes.",
)
UNKNOWN_PROPERTY = Message(errors.CheckpointError, "Property {name!r} not found.")

# Settings of optimizers and losses.

BAD_SETTING = Message(errors.ModelError, "{name} is {value!r}; it must be {expected}.")
UNKNOWN_SETTING = Message(errors.ModelError, "{what} has no setting {name!r}; it has {names}.")
MISSING_SETTING = Message(errors.ModelError, "{what} needs the setting {name!r}: {expected}.")
UNKNOWN_TYPE = Message(errors.ModelError, "There is no {what} {name!r}; there are {names}.")
CLIP_WITHOUT_OPTIMIZER = Message(
    errors.ModelError,
    "Gradients are clipped in the optimizer step: clip_grad_norm and clip_grad_value need an optimizer.",
    "Gradients are clipped in the optimizer step: 'clipGradNorm' and 'clipGradValue' need an 'optimizer'.",
)
UNKNOWN_IN_GROUP = Message(
    errors.ModelError, "A group names {name!r}, which no trained parameter is; they are {names}."
)
LOSS_INPUTS = Message(
    errors.ModelError,
    "{loss} takes {n} of the model's outputs, but these are given: {names}. "
    "Choose with loss_input_names, or give a Block.",
    "{loss} takes {n} of the model's outputs, but these are given: {names}. Choose with 'lossInputNames'.",
)


def table() -> dict[str, Message]:
    """All messages by name."""
    return {name: value for name, value in globals().items() if isinstance(value, Message)}
