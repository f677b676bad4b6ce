"""What errors of a session say, for Python and the page: `scripts/session_description.py` gives them to TypeScript.

A text is a template of `str.format`; `{x!r}` is a value as Python shows it, also in the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainweb import errors


@dataclass(frozen=True, slots=True)
class Message:
    """An error of a session: its class and its text.

    `page` is the text in the page, where it gives advice on JavaScript.
    """

    error: type[Exception]
    text: str
    page: str | None = None

    def __call__(self, **values: Any) -> Exception:
        """The error with these values in its text."""
        return self.error(self.text.format(**values))


RELEASED = Message(errors.ReleasedError, "This session was released; create a new one.")

# Feeds and fetches.

MISSING_FEED = Message(errors.FeedError, "input '{name}' is missing in 'feeds'.")
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

# What a session lacks.

NO_EVAL_MODEL = Message(errors.SessionError, "This TrainingSession has no EvalModel loaded.")
NO_OPTIMIZER_MODEL = Message(errors.SessionError, "This TrainingSession has no OptimizerModel loaded.")
NO_SCHEDULER = Message(
    errors.SessionError, "No learning rate scheduler was registered. Please register a valid learning rate scheduler"
)
NO_EVAL_MODEL_TO_EXPORT = Message(
    errors.SessionError, "Eval model was not provided. Cannot export a model for inferencing."
)
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
STATE_IN_USE = Message(
    errors.SessionError, "This checkpoint state is in use by another session; release that session first."
)
ARENA_LIMIT = Message(
    errors.LimitError,
    "This model needs {nbytes} bytes of workspace for these shapes; the limit arena_bytes is {limit}.",
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


def table() -> dict[str, Message]:
    """All messages by name."""
    return {name: value for name, value in globals().items() if isinstance(value, Message)}
