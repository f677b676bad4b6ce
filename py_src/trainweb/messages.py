"""Texts of a session's errors, for Python and the page: `scripts/session_description.py` gives them to TypeScript.

A text is a template of `str.format`; `{x!r}` is a value as Python shows it, also in the page, where None is null.
"""

from __future__ import annotations

from trainweb import web_messages
from trainweb.errors import (
    BufferSizeError,
    CheckpointError,
    EngineError,
    FeedError,
    InvalidValueError,
    LimitError,
    ModelError,
    NumericsError,
    ReleasedError,
    SessionError,
    StorageError,
    UnsupportedError,
)
from trainweb.message import Message

RELEASED = Message(ReleasedError, "This session was released; create a new one.")

# Warnings of both languages. Others are ABSENT_CLASSES, COPIED_LABELS, FURTHER_COLUMNS, MISSING_CLASSES, NAN_METRIC,
# NO_PROBABILITIES, PADDED_CLASSES, PROMPT_DIFFERS and UNPREPARED_VALIDATION.

DONE_FIT = Message(
    ModelError,
    "The fit of the checkpoint {name!r} ended before, after {epochs} epochs: nothing was trained. To train on, raise "
    "'epochs' or the patience of early stopping. To start anew, delete the checkpoint, or give another name.",
)
NO_EFFECT = Message(UnsupportedError, "These options have no effect here: {options}.")
LOCAL_STATISTICS = Message(
    UnsupportedError,
    "Training moves {count} untrained tensors, such as {name!r}. Rounds average them if 'statistics' is 'average'.",
)
LOCAL_MOMENTS = Message(
    UnsupportedError, "Moments of {optimizer} stay with each client, and do not fit averaged parameters. Use plain SGD."
)
NOT_PICTURES = Message(FeedError, "Files not named as pictures are left out; there are {count}, such as {names}.")
EMPTY_FOLDERS = Message(FeedError, "Folders without pictures are no classes: {names}.")
EMPTY_CLASSES = Message(FeedError, "These classes have no pictures in the folder: {names}.")
DROPPED_ROWS = Message(FeedError, "The file fixes batches of {rows} rows: each epoch leaves out {count} of its rows.")

# Federated rounds.

NOISE_WITHOUT_CLIP = Message(
    ModelError, "Noise is scaled by the clip norm: give '{argument.clip_norm}' with '{argument.noise_multiplier}'."
)
NOISE_AND_STATISTICS = Message(
    ModelError, "Noise can make a running variance negative: with noise, 'statistics' must be 'local'."
)
NOISE_AND_WEIGHTS = Message(
    ModelError, "Updates with noise need equal weights, as the accounting of privacy assumes: give the weights 'equal'."
)
UPDATE_SIZE = Message(BufferSizeError, "{name} has {actual} numbers, expected {expected}.")
UPDATE_NOT_FINITE = Message(ModelError, "{name} has numbers that are not finite.")
UNCOUNTED_ROWS = Message(
    FeedError,
    "A client needs arrays, because its number of rows is its weight. "
    "Give arrays by the names of the inputs, not rows one by one.",
)
PROXIMAL_CHECKPOINT = Message(
    ModelError, "A fit with 'proximal' cannot continue from a checkpoint, which lacks the parameters at its start."
)
NEEDS_EXTRA = Message(UnsupportedError, "{what} is not installed: pip install 'trainweb[{extra}]', in CPython.")
BEYOND_BOUND = Message(
    ModelError,
    "The update has an element of magnitude {value}, beyond the bound {bound}: clip it, or give all a larger.",
)
MASKED_TWICE = Message(SessionError, "This member has already masked an update: begin a new round with new keys.")
NO_MEMBER = Message(
    ModelError, "The keys of the members do not contain the key of {name!r}: give the public key that this member sent."
)
SAME_KEY = Message(ModelError, "Two members have the same public key.")
MEMBER_LOST = Message(
    SessionError,
    "No masked update arrived from {names}: the masks of a lost member stay in the sum. Begin a round with new keys "
    "and only the other members.",
)
OTHER_MASKS = Message(ModelError, "The masks do not cancel: all members need the same keys and round.")

# Feeds and fetches.

MISSING_FEED = Message(FeedError, "input '{name}' is missing in 'feeds'.")
MISNAMED_FEED = Message(
    FeedError, "input '{name}' is missing in 'feeds', which has '{other}': the model's inputs are {names}."
)
UNKNOWN_FEED = Message(FeedError, "invalid input '{name}': the model's inputs are {names}.")
FEED_DTYPE = Message(
    FeedError,
    "Unexpected input data type of {name!r}. Actual: ({actual}), expected: ({expected}). "
    "Convert it with .astype({expected!r}).",
    "Unexpected input data type of {name!r}. Actual: ({actual}), expected: ({expected}). "
    "Make the tensor with new Tensor({expected!r}, {conversion}, dims).",
)
FEED_RANK = Message(
    FeedError, "Invalid rank for input: {name} Got: {actual} Expected: {expected} (shape {shape!r} for {declared!r})."
)
FEED_DIM = Message(
    FeedError,
    "Got invalid dimensions for input: {name} for the following indices index: {index} Got: {actual} "
    "Expected: {expected}",
)
FEED_SYMBOL = Message(
    FeedError,
    "Feeds disagree on dimension {symbol!r}: {first} in {where!r}, {size} in {name!r}. If 'bucket' pads the rows, name "
    "both in its 'padded', with the number to add, such as 0 of weights.",
)
EMPTY_BATCH = Message(FeedError, "Feed {name!r} has shape {shape!r}: an empty batch cannot be trained on.")
NOT_A_SHAPE = Message(FeedError, "The shape of {name!r} must be a list of integers >= 0, got {actual!r}.")
DECIDING_SHAPE = Message(
    SessionError, "The values of {name!r} determine shapes, so only a step with values can compile the plan."
)
UNKNOWN_FETCH = Message(FeedError, "'fetches' contains invalid output name: {name}; the outputs are {names}.")
FETCH_TYPE = Message(
    FeedError,
    "Fetch {name!r} is {dtype}{shape!r}; its array is {actual}.",
    "the tensor given for output '{name}' is {actual}, the result is {dtype} of dims {shape!r}.",
)
BAD_LABEL = Message(
    FeedError, "{node}: the label {value} at position {position} is out of range: labels must be 0 to {last}."
)
PADDED_LABEL = Message(
    FeedError,
    "{node}: the label {value} at position {position} is out of range 0 to {last}. To ignore such labels, give the "
    "loss '{argument.ignore_index}' {value}.",
)
BAD_INDEX = Message(FeedError, "{node}: the index {value} at position {position} is out of range.")
BAD_VALUE = Message(FeedError, "{node}: the value {value} at position {position} is not allowed.")
LOOP_LIMIT = Message(
    LimitError,
    "{node}: the loop exceeds the limit of {value} iterations. Shorten it, or raise limits.{argument.loop_iterations} "
    "where you read its model.",
)
PLAN_FAILED = Message(
    EngineError,
    "{status} (status {code}) in instruction {instruction} of {node}: value {value}, position {position}. {line}",
)

TERMINATED = Message(SessionError, "Exiting due to terminate flag being set to true.")

NUMERICS = Message(
    NumericsError,
    "{node} makes {bad} among the {count} values of {tensor!r}, in the {kind} step after {step} optimizer steps; the "
    "session is as before the step.{inputs}",
)

NO_BATCHES = Message(FeedError, "There are no batches: give at least one.")

# Missing parts of a session.

NO_EVAL_MODEL = Message(SessionError, "This TrainingSession has no EvalModel loaded.")
NO_OPTIMIZER_MODEL = Message(SessionError, "This TrainingSession has no OptimizerModel loaded.")
NO_SCHEDULER = Message(
    SessionError, "No learning rate scheduler was registered. Please register a valid learning rate scheduler"
)
NO_EVAL_MODEL_TO_EXPORT = Message(SessionError, "Eval model was not provided. Cannot export a model for inferencing.")
NOT_BUILT = Message(SessionError, "The gradient graph is not built yet: call build().")
NO_ARTIFACTS = Message(SessionError, "This session has no artifacts: only sessions from createFromModel have them.")
NO_ADAPTERS = Message(
    SessionError,
    "This session has no adapters: artifacts have none. Make it of a model with 'lora', then call "
    "{argument.load_checkpoint}.",
)
CHECKPOINT_TOO_LARGE = Message(
    LimitError,
    "The checkpoint would have {nbytes} bytes; one file holds at most {limit}. Save it to a path: a larger checkpoint "
    "gets a second file.",
    "The checkpoint would have {nbytes} bytes; one file holds at most {limit}. Get the parameters with "
    "getContiguousParameters() or exportWeights().",
)
OTHER_PARAMETERS = Message(ModelError, "The parameters of the models differ from the parameters of the compiled plans.")
NO_GPU_KERNEL = Message(
    UnsupportedError,
    "This step cannot run on the GPU: {node} needs {what}, for which there is no GPU kernel. Device 'wasm' runs it.",
)
ARENA_LIMIT = Message(
    LimitError,
    "This model needs {nbytes} bytes of workspace for these shapes; the limit arena_bytes is {limit}. Take a smaller "
    "batch (in fit with '{argument.accumulate}'), or give the session '{argument.memory_budget}'.",
)
SESSION_TOO_LARGE = Message(
    LimitError,
    "The weights of this session take {nbytes} bytes with their gradients and the optimizer's moments; the kernels' "
    "memory holds at most {limit}. Freeze parameters, or choose an optimizer with fewer moments.",
)
NOT_A_COUNT = Message(SessionError, "{name!r} must be an integer >= {least}, got {value!r}.")
NOT_A_NUMBER = Message(TypeError, "{name!r} must be a number, got {actual}.")
NOT_A_RATE = Message(SessionError, "{name!r} must be a float32 from 0 to 3.4e38, got {value!r}.")
WARMUP_BEYOND_TOTAL = Message(SessionError, "{name!r} must be at most the number of steps, {total}, got {value!r}.")

# Data.

NOT_A_DATASET = Message(
    FeedError, "Data must map input names to arrays, or be rows, or a function that returns rows; got {actual}."
)
NO_COLUMNS = Message(FeedError, "The data has no arrays: give one for each input of the model, by its name.")
EMPTY_DATASET = Message(FeedError, "The data has no rows.")
ENDED_DATASET = Message(
    FeedError,
    "The {source} has no rows in epoch {epoch}: a generator or stream can be read only once. "
    "Give the function that creates it.",
)
READ_AGAIN = Message(
    FeedError,
    "The {source} is a {kind}, which can be read only once. Further epochs and checkpoints read it again: give the "
    "function that creates it.",
)
FILE_WITHOUT_CLASS = Message(
    FeedError, "The file {file!r} lies outside of the class folders: move it into the folder of its class."
)
FOLDER_WITHOUT_CLASS = Message(FeedError, "The folder {folder!r} is not one of the classes: {names}.")
NO_PICTURES = Message(FeedError, "There are no pictures: the folder or list has no file that is named as one.")
PARTS_OF_DATA = Message(
    FeedError,
    "Folders named as parts of the data are no classes: {names}. The classes are the folders in them, such as {deeper}."
    " List each by itself, the second with the 'classes' of the first. If parts are classes, name all in 'classes'.",
)
COLUMN_ROWS = Message(
    FeedError, "{name!r} has {rows} rows, but {first!r} has {expected}: each row needs a value of each input."
)
MISSING_DATE = Message(
    FeedError,
    "{name!r} has {value!r} in row {row}, which numpy makes of a missing date. Give datetime64: it becomes NaN.",
)
DATE_OBJECTS = Message(
    FeedError,
    "{name!r} has Python objects of type {kinds}. Row {row} has {value!r}. Give dates as datetime64. pandas has "
    ".dt.tz_convert(None) for dates with a time zone and .dt.to_timestamp() for periods; for others "
    "np.asarray(dates, 'M8[us]'), of durations 'm8[us]'.",
)
SEVERAL_SETS = Message(FeedError, "{name!r} is a data set of its own: give only one of them, as data[{name!r}].")
NOT_A_COLUMN = Message(FeedError, "{name!r} is {actual}; its first axis must count rows: one row is a list of one.")
OBJECTS_IN_COLUMN = Message(
    FeedError,
    "{name!r} has Python objects of type {kinds}. Row {row} has {value!r}. A column has only numbers or only texts. "
    "Drop rows without a label: df.dropna(subset=[{name!r}]). Fill other missing texts, as "
    "astype(object).fillna('none') of pandas and fill_null('none') of polars do, or convert numbers to float32.",
)
TEXT_VALUES = Message(
    FeedError,
    "{what} has texts, and the model takes numbers. Make them of digits (float, Number), by 'categories' or "
    "'{argument.one_hot}' of a Dataset of names, by a tokenizer of sentences, and for a language model by "
    "Dataset.{argument.from_text}. Leave out a column that the model does not read.",
)
TIME_FIRST = Message(
    FeedError,
    "{name!r} has the shape {shape!r} in the file, and {other!r} counts rows by {symbol!r}: rows must be the first "
    "axis of each input. Export the model so, as batch_first=True of PyTorch's recurrent layers does.",
)
NO_INPUT = Message(FeedError, "The {source} has no {name!r}; it has {names}, and the model takes {inputs}. Give it.")
OTHER_NAME = Message(FeedError, NO_INPUT.text.replace("Give it.", "Rename {other!r} to {name!r}."))
NOT_PREPARED = Message(
    FeedError,
    f"{NO_INPUT.text[:-1]}, or apply the steps of the training rows that make it: 'concat', 'map', 'preprocess' with "
    "'preprocessing', 'inputs' of {argument.from_text}.",
)
UNPREPARED_VALIDATION = Message(
    FeedError,
    "The training rows have steps that the {source} lack: {steps}. Give 'preprocess' of the {source} the "
    "'preprocessing' of the training data.",
)
OTHER_CLASSES = Message(
    FeedError,
    "{place} is {actual!r} in {name!r} of the {source}, and {expected!r} in the training rows. List a folder with the "
    "'classes' of the training folder, and give 'preprocess' of a table the 'preprocessing' of the training rows.",
)
DATA_SHAPE = Message(
    FeedError,
    "{name!r} has shape {actual!r} in {where}. The model takes {batch} for a batch, so {row} for a row.",
)
WEIGHT_SHAPE = Message(
    FeedError,
    f"{DATA_SHAPE.text} For weights of {{of}}, make the session with 'of': {{of!r}} in {{argument.sample_weight}}.",
)
DATA_SIZE = Message(
    FeedError, f"{DATA_SHAPE.text} If these sizes are of an export's example, export the model with dynamic axes."
)
SHAPE_OF_SCORES = Message(
    FeedError,
    "{name!r} has shape {actual!r} in {where}, and the model takes {batch}: indices of classes. For one-hot rows or "
    "other probabilities, CrossEntropyLoss has the setting 'probabilities'.",
)
LOST_VALUE = Message(FeedError, "{name!r} has {value!r} in {where}; the model takes {dtype}. Round it or drop the row.")
ONE_ROW = Message(FeedError, "{name!r} has the shape {actual!r} of one row in {where}: reshape it to {batch!r}.")
TOO_MANY_VALUES = Message(FeedError, "{where} has {count} values, and the model has {inputs} inputs: {names}.")
BATCHED_ARRAYS = Message(ModelError, "'batched' is for data that comes in batches; this data is arrays: leave it out.")
RAGGED_COLUMN = Message(FeedError, "The rows of {name!r} have different shapes: {reason}. Pad them, or use 'bucket'.")
NOT_A_ROW = Message(
    FeedError,
    "Row {position} of the data is {actual}; it must map input names to arrays, or be a tuple of arrays. A list is "
    "one of rows: give whole arrays as a tuple (x, y).",
    "Row {position} of the data is {actual}; it must map input names to arrays, or be an array of arrays.",
)
NOT_A_BATCH = Message(
    FeedError,
    "Batch {position} of the data is {actual}; it must map input names to arrays, or be a tuple (or an array) of them.",
)
ROW_NAMES = Message(FeedError, "Row {position} of the data has {names}; the first row of its batch has {expected}.")
ROW_TYPE = Message(
    FeedError,
    "Row {position} of the data has {actual} as {name!r}; the first row of its batch has {expected}. "
    "'bucket' of a Dataset pads rows of different lengths: name {name!r} in its 'padded', with the number to add (0 of "
    "weights, -100 of labels).",
)
RAGGED_VALUE = Message(FeedError, "Row {position} of the data has no array as {name!r}: {reason}")
IN_ROW = Message(FeedError, "{name!r} of row {row} of the {data} is out of range ({place}). {reason}")
NAN_IN_ROW = Message(
    NumericsError,
    "{reason} {name!r} has {value!r} in row {row} of the {data}. Fill NaN of features by {argument.fill_median}, even "
    "at weight 0. Drop rows without label or weight, or give those without label weight 0: '{argument.sample_weight}'.",
)
BATCHED_TWICE = Message(FeedError, "The data is already batched.")
PADDED_VALIDATION = Message(
    FeedError,
    "The last batch of the validation data is padded with rows that would count twice: batch it with 'keep' or 'drop'.",
)
BEYOND_BUCKETS = Message(
    FeedError, "Row {position} of the data has length {length}, and the last bucket holds {most}: give a larger bound."
)
PADDED_CLASSES = Message(
    FeedError,
    "'bucket' pads {name!r} with 0, which counts as a class. Give another number for it in 'padded', such as -100, and "
    "the loss '{argument.ignore_index}' -100; or 0, to keep it.",
)
NOT_PADDED = Message(
    FeedError,
    "{name!r} of a row of length {length} is {actual}: the first axis of a padded input must have the row's length.",
)
STREAM_SPLIT = Message(
    FeedError,
    "A stream of rows cannot be split: give arrays, a list of rows, or two datasets, as torch.utils.data.random_split "
    "makes them. Split before steps such as 'map' and 'bucket'. Of texts in batches, split the texts.",
    "A stream of rows cannot be split: give arrays, a list of rows, or two datasets, and split before steps such as "
    "'map' and 'bucket'. Of texts in batches, split the texts.",
)
EMPTY_SPLIT = Message(FeedError, "A share of {share} of {rows} rows is less than one row.")
BATCH_BEYOND_DATA = Message(
    FeedError,
    "A batch of {size} rows is larger than the data, which has {rows}, and rows that fill no batch are left out: use a "
    "smaller batch, or more rows.",
)
CSV_INPUT = Message(FeedError, "{name!r} is not one of the inputs read from the file: {names}.")
CSV_DTYPE = Message(FeedError, "{name!r} cannot be read as {dtype}; the types are {names}.")
CSV_COLUMN = Message(FeedError, "The file has no column {column!r}; it has {names}.")
CSV_DELIMITER = Message(
    FeedError, "The file has no column {column!r}; it has only {names}. Is {delimiter!r} the 'delimiter' of its values?"
)
CSV_COLUMN_TWICE = Message(FeedError, "The file has more than one column {column!r}.")
CSV_QUOTES = Message(FeedError, "Line {line}: a value between quotes does not end where the next value or line begins.")
CSV_RAGGED = Message(FeedError, "Line {line} has {actual} values; the header has {expected}.")
CSV_MISSING = Message(
    FeedError,
    "Line {line}, column {column!r}: the value is missing ({value!r}). Set 'missing' to \"drop\" to leave such rows "
    'out, to "keep" for NaN of floats, or to a value by column: {column!r}: "none", and "*": "keep" for all others.',
)
CSV_MISSING_TEXT = Message(
    FeedError,
    "Line {line}, column {column!r}: a missing text needs a value. Set 'missing' to {column!r}: \"none\", of dates "
    '"NaT", and "*": "keep" for all others.',
)
CSV_FILL = Message(FeedError, "'missing' names the column {column!r}, but 'columns' has only {names}. Leave it out.")
CSV_VALUE = Message(FeedError, "Line {line}, column {column!r}: {value!r} is not a valid {dtype}.")
CSV_TEXT = Message(
    FeedError,
    "Line {line}, column {column!r}: {value!r} is no number. Give a column of text or dates the type "
    "{name!r}: 'string' in 'dtypes', and one of true and false 'bool'. Make numbers of names by 'categories' or "
    "'{argument.one_hot}', of dates, money and signs as docs/data.md#dates-and-units shows. Labels may have 'classes'. "
    "Numbers are like 1234.5, or like 1234,5 with the option 'decimal'.",
)
CSV_UNIT = Message(
    FeedError,
    "Line {line}, column {column!r}: {value!r} is a number with a unit. Take it out of the file, or read the type "
    "{name!r}: 'string' in 'dtypes' and make numbers of the texts.",
)
CSV_CLASS = Message(FeedError, "Line {line}, column {column!r}: {value!r} is not one of {names}.")
TABLE_STREAM = Message(FeedError, "A stream of rows cannot be preprocessed: give arrays, or a list of rows with names.")
TABLE_INPUT = Message(FeedError, "The data has no input {name!r}; the names of its inputs are {names}.")
TABLE_TYPE = Message(
    FeedError,
    "{name!r} is {actual}; the step {step!r} takes {expected}. Make numbers of digits (float, Number), float32 of "
    "other numbers, and columns of names by 'one_hot' ('oneHot' in a page). Whole numbers are labels already.",
)
TABLE_WHOLE = Message(
    FeedError, "Row {row} has {value!r} as {name!r}; the step 'one_hot' takes whole numbers: fill missing ones before."
)
TABLE_TEXT = Message(FeedError, "{name!r} is {actual}; {step!r} takes texts. For a missing one, give its fill value.")
TABLE_MOMENTS = Message(
    FeedError,
    "{name!r} has NaN, infinity, or a number too large to square, so its deviation is not finite. Fill NaN with "
    "'{argument.fill_mean}' or '{argument.fill_median}', or drop such rows.",
)
TABLE_CENTRE = Message(FeedError, "{name!r} has infinity or numbers too large to add up in column {column}.")
TABLE_EMPTY = Message(FeedError, "{name!r} has no number in column {column}, only NaN: leave the column out.")
TABLE_WIDTH = Message(FeedError, "{name!r} has {actual} values in a row; the preprocessing was fitted on {expected}.")
TABLE_CATEGORY = Message(
    FeedError,
    "Row {row} has {value!r} as {name!r}, and the fitted rows have only {names}. Fit categories before you split the "
    "data, or give '{argument.one_hot}' the option unknown: 'zeros'.",
)
TABLE_CONCAT = Message(
    FeedError, "{name!r} is {actual} and {first!r} is {expected}: numbers and text cannot be concatenated."
)

# Fit.

FIT_RUNNING = Message(SessionError, "A fit of this session is running: wait until it ends, or stop it.")
NON_FINITE_LOSS = Message(
    NumericsError,
    "The loss is {value!r} at step {step} of epoch {epoch}; the parameters are those before the step. "
    "Try a lower learning rate, {argument.clip_grad_norm}, or look for NaN or infinity in the data.",
)
NOT_A_NUMBER_IN_FIT = Message(NumericsError, "{what} is NaN or infinite after step {step} of epoch {epoch}.")
RESTORED_TOO_OFTEN = Message(
    NumericsError,
    "The fit went back to its last good state {most} times and failed again at step {step} of epoch {epoch}. The "
    "session is in that state. {reason}",
)
ALL_SKIPPED = Message(
    NumericsError,
    "All batches of epoch {epoch} were skipped: each produced NaN or infinity. The session's option "
    "debug.{argument.check_numerics} shows where.",
)
SCALAR_LOSS = Message(SessionError, "fit needs a loss of one number; {name!r} has shape {shape!r}. Set its reduction.")
BATCH_OF_BATCHES = Message(ModelError, "The data is already batched: leave out {name!r}.")
TOTAL_OF_STREAM = Message(
    ModelError,
    "{name} needs 'total', the number of optimizer steps, because a stream does not tell its batches: give it, or "
    "'{argument.steps_per_epoch}' of the fit.",
)
SHUFFLED_STREAM = Message(ModelError, "Leave out 'shuffle', and call data.shuffle: it shuffles a stream in a buffer.")
STEPS_OF_ARRAYS = Message(
    ModelError, "'{argument.steps_per_epoch}' is for streams; an epoch of arrays has all of their rows. Leave it out."
)
STRATIFIED_NOTHING = Message(
    ModelError, "'stratify' needs '{argument.validation_split}': give the share of the rows to evaluate."
)
NO_CLASSES = Message(
    FeedError,
    "'stratify' needs one whole number a row in {name!r}; 'categories' makes such of text. The split of a Dataset "
    "names another input.",
)
ABSENT_CLASSES = Message(
    FeedError, "The {part} data has no row with {classes} as {name!r}. Number classes alike, and split with 'stratify'."
)
MISSING_CLASSES = Message(
    FeedError,
    "The {part} data has no row with {classes} as {name!r}: the split takes the last rows. Give the option 'stratify', "
    "or shuffle the rows before.",
)
COPIED_LABELS = Message(
    FeedError,
    "The labels {name!r} are equal to {other!r}, so the model learns to copy. Shift them: the label of a token is the "
    "next token. '{argument.from_text}' of Dataset makes such rows.",
)
NO_PROBABILITIES = Message(
    FeedError,
    "The first rows of {name!r} are no probabilities: some are negative, or the sum is not 1. Give the softmax of "
    "scores. Weights of rows belong in '{argument.sample_weight}'.",
)
TWO_VALIDATIONS = Message(ModelError, "Give validation data, or a share to split off, but not both.")
METRICS_WITHOUT_DATA = Message(
    ModelError,
    "Metrics need validation data: give {argument.validation_data} or {argument.validation_split}. With "
    "{argument.train_metrics} the training data is evaluated.",
)
NO_OWN_OUTPUTS = Message(
    ModelError,
    "The loss does not compare one tensor. Say what to predict: 'outputs' is a list of tensors, such as {names}.",
)
NO_LOGITS = Message(
    ModelError,
    "generate reads the output 'logits', or the only output of the model; it has {names}. Name the output 'logits'.",
)
NO_IDS = Message(
    ModelError,
    "A language model takes tokens by the input 'input_ids', or by its only input of integers; it has {names}. "
    "Name the input 'input_ids'.",
)
NO_ADAPTER = Message(ModelError, "'adapter' leaves out adapters, and the model has none. Leave the option out.")
NO_BASE_OF_DORA = Message(
    UnsupportedError,
    "Adapters of DoRA cannot be left out: their magnitudes replace norms of the weights ({name!r}). Generate with a "
    "session of the base model.",
)
NOT_CAUSAL = Message(
    ModelError,
    "Output {name!r} of a token changes with the tokens after it: the model is not causal. generate takes models that "
    "predict the next token. Export the model with its causal mask.",
)
SEQUENCE_TOO_LONG = Message(
    ModelError,
    "The model does not take {length} tokens, prompt and new ones together: {fault} Shorten the prompt, or give fewer "
    "'{argument.max_tokens}'.",
)
FIXED_TEXT = Message(
    ModelError,
    "Input {name!r} has the fixed shape {shape!r}, and generate feeds one text that grows. "
    "Export the model with dynamic axes for batch and sequence (dynamic_shapes of torch.onnx.export).",
)
LOGITS_NOT_FINITE = Message(
    SessionError,
    "Token {position} has a logit that is NaN or infinite, so no next token can be chosen. Check the parameters: "
    "training may have diverged.",
)
EMPTY_PROMPT = Message(FeedError, "The prompt has no tokens; give at least one.")
TEXT_WITHOUT_TOKENIZER = Message(
    ModelError, "{name!r} is text, which needs a tokenizer: give 'tokenizer', or token ids."
)
NO_GRAPH_FILE = Message(
    ModelError,
    "{folder!r} has no {names}. Export the model to ONNX into this folder, or name the path of its graph with 'file'.",
)
BAD_TOKENIZER = Message(ModelError, "{name} cannot be used: {fault}.")
NO_SHARD = Message(ModelError, "{name} lists the file {file!r}, which is not beside it.")
NOT_JSON = Message(ModelError, "{name} cannot be read as JSON: {fault}.")
BAD_SHARDS = Message(ModelError, "'weight_map' of {name} must map weights to names of files beside it.")
NOT_A_TOKENIZER = Message(
    ModelError,
    "'tokenizer' is {actual}, which has no function encode. Give one whose encode returns the token ids of a text.",
)
NOT_TOKEN_IDS = Message(
    ModelError, "The tokenizer's encode returned {actual}; it must return a list of token ids, or an object with 'ids'."
)
NOT_TEXTS = Message(
    FeedError,
    "'texts' is {actual}; it must be a list of texts, of pairs with 'prompt' and 'completion', or of chats with "
    "'messages'.",
)
NO_CHAT_TEMPLATE = Message(
    ModelError,
    "Text {position} is a chat, and the tokenizer has no function apply_chat_template. Give the tokenizer of "
    "transformers, in a page of @huggingface/transformers.",
)
NOT_A_PAIR = Message(
    FeedError,
    "Pair {position} of 'pairs' has no column {column!r}: each has 'prompt', 'chosen' and 'rejected', which are texts, "
    "or turns of a chat.",
)
NO_REFERENCE = Message(ModelError, "The session of 'reference' needs the loss 'DPOLoss': give it when you create it.")
NO_ANSWER = Message(FeedError, "Text {position} is a chat whose last message is not of the role 'assistant'.")
NOT_A_TEXT = Message(
    FeedError,
    "Text {position} is {actual}; each of 'texts' is a text, or has the column 'text', the columns 'prompt' and "
    "'completion', or the column 'messages'.",
)
FURTHER_COLUMNS = Message(FeedError, "These columns of the {source} are not read: {names}.")
PROMPT_DIFFERS = Message(
    FeedError,
    "The prompt of text {position} is not the beginning of the whole text, which lacks the end of the prompt: {end!r}. "
    "All tokens from there on are learned, perhaps in other texts, too. Either the chat template writes a prompt "
    "otherwise when an answer follows, or a token has letters of both. End the prompt where a token ends.",
)
ROWS_TOO_LARGE = Message(
    LimitError,
    "{count} rows of length {length} take {nbytes} bytes for each input; at most {most} are possible. Give a smaller "
    "'length'.",
)
EMPTY_TEXT = Message(FeedError, "Text {position} is empty, or has an empty completion: leave it out.")
NO_PROMPT = Message(
    FeedError, "Text {position} has no prompt that '{argument.mask_prompt}' could mask: give 'prompt' and 'completion'."
)
NO_END_TOKEN = Message(
    ModelError, "The tokenizer has no 'eos_token_id', so nothing separates two texts: give '{argument.end_token}'."
)
NO_FULL_ROW = Message(
    FeedError,
    "The {count} tokens of the texts fill no row of length {length} that has a token to learn. Give more text or "
    "a smaller 'length', or turn 'pack' off.",
)
TEXT_TOO_LONG = Message(
    FeedError,
    "Text {position} has {count} tokens; a row of length {length} has room for {most}. Give a larger 'length', cut the "
    "text, or pack the texts.",
)
TEXT_TOO_SHORT = Message(
    FeedError,
    "Text {position} has {count} tokens and no token to learn: each is predicted from those before it. Leave it out.",
)
GREEDY_SETTING = Message(ModelError, "{name!r} changes nothing at temperature 0. Give a temperature above 0.")
UNKNOWN_COMPANION = Message(
    ModelError,
    "generate does not know what to give the input {name!r} ({dtype}, {shape!r}). Export the model with the inputs "
    "input_ids, and if needed attention_mask, position_ids and past_key_values.*.",
)
NOT_INCREMENTAL = Message(
    UnsupportedError,
    "{node}: generate cannot compute only the new tokens here, as {why}. It takes models whose tokens depend on "
    "each other only through causal attention.",
)
NO_ROWS_TO_DECODE = Message(
    ModelError,
    "Output {name!r} does not have a row for each token of {ids!r}. Export the model with the logits of all tokens.",
)
NO_ROWS_IN_OUTPUT = Message(
    SessionError,
    "Output {name!r} has shape {shape!r} for {rows} rows; its first axis must count rows. "
    "Leave it out, or give all rows in one batch; buckets of one bound pad all rows alike.",
)
UNLIKE_OUTPUTS = Message(
    SessionError,
    "Output {name!r} has the shapes {shapes} in different batches, which cannot be joined. "
    "Pad all rows alike by one bound, as 'bucket' with [64] does, or leave the output out.",
)
TWO_RATES = Message(ModelError, "The learning rate is {first} and, in '{where}', {second}. Give it once.")
RATE_AND_SCHEDULE = Message(ModelError, "Leave out '{argument.learning_rate}', or the schedule, which has rates, too.")
UNWEIGHED_BATCHES = Message(
    ModelError, "This training model cannot weight batches by rows. Give '{argument.accumulate}' the reduction 'sum'."
)
UNEVEN_TERMS = Message(
    ModelError,
    "'{argument.accumulate}' weights batches by rows, which do not divide these terms of the loss: {names}. Raise "
    "'{argument.batch_size}' instead, or give it the reduction 'sum', which adds the gradients as they are.",
)
NO_SAMPLE_WEIGHT = Message(
    ModelError, "The loss {name!r} is neither a mean nor a sum over rows. Leave out {argument.sample_weight}."
)
UNWEIGHTED_METRIC = Message(
    ModelError,
    "A metric of your own ({name}) gets no weights of rows, which this session has. Compute it of the results of "
    "predict, or leave it out.",
)
NO_PERPLEXITY = Message(
    ModelError,
    "Perplexity is the exponential of a mean cross entropy without weights of rows; {name} is something else. Ask for "
    "the perplexity of an output whose only loss is such a mean, or take the exponential of the loss yourself.",
)
METRIC_TWICE = Message(ModelError, "The metric {name!r} is given twice: evaluate takes one of them a call.")
FUNCTION_OF_OUTPUT = Message(
    ModelError, "A function cannot be one of an output's metrics. Give it alone, with the output as 'predictions'."
)
TRAIN_METRICS_STREAM = Message(
    ModelError,
    "'{argument.train_metrics}' evaluates the training data again after each epoch, which needs arrays; this data is a "
    "stream. Give rows of it as {argument.validation_data}.",
)
METRIC_FAILED = Message(ModelError, "The metric {name!r} failed: {error}")
METRIC_VALUE = Message(ModelError, "The metric {name!r} returned {found}; it must return one number that is not NaN.")
NO_PREDICTIONS = Message(
    ModelError,
    "Metrics compare one output with one input, and the loss does not tell which. Give metrics by output, or "
    "'predictions' (one of {names}) and 'targets' (one of {inputs}) of each.",
)
METRIC_OF_GRADIENT = Message(
    ModelError,
    "Metrics compare an output with labels, and {targets!r} is the gradient of {predictions!r}. Compute the metric "
    "yourself, of the results of predict.",
)
NAN_METRIC = Message(
    FeedError,
    "The metric {name!r} of the {source} is NaN. It needs finite predictions, targets that are not ignored, of two "
    "classes for 'auc', and two rows for 'r2'.",
)
TOP_OF_ALL = Message(
    FeedError, "'topK' with k = {k} is always 1 for {count} classes: give it a 'k' less than {count}, or 'accuracy'."
)
METRIC_SHAPES = Message(
    FeedError, "{name!r} cannot compare predictions of shape {predicted!r} with targets of shape {target!r}."
)
AUC_SHAPE = Message(
    FeedError,
    "{name} compares predictions [rows, classes] or [rows] with targets [rows]; it got {scores!r} and {targets!r}.",
)
METRIC_CLASS = Message(
    FeedError, "{name}: the target {value} is not one of the {count} classes; '{argument.ignore_index}' leaves one out."
)

# Checkpoints of a store.

BAD_CHECKPOINT_NAME = Message(StorageError, "A checkpoint's name must be a text of 1 to {most} bytes, got {actual!r}.")
NO_CHECKPOINT = Message(StorageError, "There is no checkpoint {name!r} in {folder!r}.")
CHECKPOINT_EXISTS = Message(StorageError, "There is a checkpoint {name!r} in {folder!r} already: delete it first.")
CHECKPOINT_IN_USE = Message(
    StorageError, "The checkpoint {name!r} is in use by a fit, perhaps of another process or tab: end it first."
)
CHECKPOINT_DAMAGED = Message(CheckpointError, "The checkpoint {name!r} in {folder!r} is damaged.")
NO_ROOM = Message(
    StorageError,
    "There is no room for the checkpoint {name!r} of {needed} bytes in {folder!r}: {reason}. The old one is intact.",
)
MODEL_AS_CHECKPOINT = Message(CheckpointError, "This is an ONNX model. Give the file that save() of a session made.")
NO_SNAPSHOT = Message(CheckpointError, "This is not a store's checkpoint: its format is {actual!r}, not {expected!r}.")
OTHER_SNAPSHOT = Message(CheckpointError, "The checkpoint belongs to a session with other {what}.")
OTHER_PARAMETER = Message(
    CheckpointError,
    "The checkpoint belongs to a session with other parameters: {name!r} is {stored} there, and {own} here. "
    "Make the session with the same settings, or of the export of the other session.",
)
OTHER_SCALING = Message(
    CheckpointError,
    "The checkpoint's adapters have the scaling {stored!r}, and this session's adapters have {own!r}. "
    "Make the session with the same 'lora': alpha, rank and {argument.use_rslora}.",
)
OTHER_CONSTANTS = Message(
    CheckpointError,
    "The checkpoint belongs to another model: the digest of its constants is {stored!r}, and this model's is {own!r}. "
    "No checkpoint has weights that are constants: make the session of the file that was trained.",
)
BAD_FIELD = Message(
    CheckpointError,
    "The checkpoint has {actual} as {field}, expected {expected}. The file was changed after it was written. "
    "The session is as it was; load another checkpoint.",
)
OTHER_FIT = Message(
    ModelError,
    "The checkpoint {name!r} belongs to a fit with {option} {stored!r}, and this one has {actual!r}. Give the same "
    "value, choose another name, or delete the checkpoint.",
)
UNWATCHED_EPOCH = Message(
    ModelError,
    "The checkpoint {name!r} has no value of {metric!r} for epoch {epoch}, which early stopping or the schedule needs. "
    "Give the metrics that the fit began with, choose another name, or delete the checkpoint.",
)
NO_FIT = Message(
    CheckpointError,
    "The checkpoint {name!r} was not written by fit: load it with the store, and give fit another name.",
)

# Nominal states: only the names of the parameters are there.

NOMINAL = Message(CheckpointError, "Cannot {action} a nominal state. Please load the model parameters first.")
NOMINAL_LOAD = Message(
    CheckpointError,
    "For nominal checkpoint state, all parameters need to be loaded into the model (trainable_only = false).",
)

# Parameters and properties.

UNKNOWN_PARAMETER = Message(CheckpointError, "The model has no parameter {name!r}; it has {names}.")
FROZEN_GRADIENT = Message(CheckpointError, "Parameter {name!r} is frozen: it has no gradient.")
PARAMETER_DTYPE = Message(CheckpointError, "Parameter {name!r} data type mismatch. Expected: {expected}, Got: {actual}")
PARAMETER_SHAPE = Message(
    CheckpointError, "Parameter {name!r} data shape mismatch. Expected: {expected!r}, Got: {actual!r}"
)
BUFFER_SIZE = Message(
    BufferSizeError,
    "The buffer of {argument.load_parameters_buffer} must have as many numbers as the parameters, "
    "which {argument.get_parameters_size} counts. Expected: {expected} bytes, Actual: {actual} bytes.",
)
OTHER_WEIGHTS = Message(
    CheckpointError,
    "The file {said}. With strict false, only the parameters that the file and the model share are loaded.",
)
CHECKPOINT_AS_WEIGHTS = Message(CheckpointError, "The file is a checkpoint, not weights: open a session with it.")
PROPERTY_RANGE = Message(
    InvalidValueError,
    "A property may be an integer of at most 64 bits; this one has {bits}. Keep it as a text or as a float.",
)
UNKNOWN_PROPERTY = Message(CheckpointError, "Property {name!r} not found.")

# Settings of optimizers and losses.

BAD_SETTING = Message(ModelError, "{name} is {value!r}; it must be {expected}.")
UNKNOWN_SETTING = Message(TypeError, "{what} has no setting {name!r}; {suggestion}")
SETTING_TWICE = Message(TypeError, "{what} takes {name!r} and {other!r} for the same setting: give one of them.")
NO_DECAY = Message(ModelError, "{what} has no setting 'weight_decay'; it has {names}.")
MISSING_SETTING = Message(ModelError, "{what} needs the setting {name!r}: {expected}.")
UNKNOWN_TYPE = Message(TypeError, "There is no {what} {name!r}; did you mean {nearest!r}? There are {names}.")
NEEDS_OPTIMIZER = Message(ModelError, "{name} needs an 'optimizer': give it, or leave {name} out.")
OTHER_OPTIMIZER = Message(
    CheckpointError,
    "The checkpoint has the optimizer state of {stored}, and this session's optimizer is {own}. "
    "Load it into a session with that optimizer, or use a checkpoint without optimizer state.",
)
EMA_IN_TRAINING = Message(SessionError, "Only eval steps of a training session can read averages: leave out 'ema'.")
NO_AVERAGES = Message(
    SessionError,
    "The session keeps no averages of its parameters: create it, or its artifacts, with the setting 'ema'.",
)
UNKNOWN_IN_GROUP = Message(ModelError, "A group names {name!r}, which is not a trained parameter; they are {names}.")
LOSS_INPUTS = Message(
    ModelError,
    "{loss} takes {n} of the model's outputs, but these are given: {names}. Give each output its loss, as "
    "{{{first!r}: 'MSELoss', ...}}, or choose with {argument.loss_input_names}.",
)
NOT_ON_GPU = Message(UnsupportedError, '{what} does not work with device: "webgpu" yet. device: "wasm" has it.')
GPU_OUTSIDE_PAGE = Message(
    UnsupportedError, 'The option device="webgpu" is for pages and Node. Here device="wasm" trains.'
)


def table() -> dict[str, Message]:
    """Return all messages by name."""
    return {name: value for name, value in (globals() | vars(web_messages)).items() if isinstance(value, Message)}
