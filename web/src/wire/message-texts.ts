/** Made by scripts/session_description.py of what Python declares: edit that. */

/** Errors of a session: their class, and a template of their text; `{x!r}` is a value as Python shows it. */
export const MESSAGES = {
  RELEASED: {
    error: "ReleasedError",
    text: "This session was released; create a new one.",
  },
  NO_EFFECT: {
    error: "UnsupportedError",
    text: "These options have no effect here: {options}.",
  },
  NOISE_WITHOUT_CLIP: {
    error: "ModelError",
    text: "Noise is scaled by the clip norm: give 'clipNorm' with 'noiseMultiplier'.",
  },
  NOISE_AND_WEIGHTS: {
    error: "ModelError",
    text: "Updates with noise need equal weights, as the accounting of privacy assumes: give 'equal'.",
  },
  UPDATE_SIZE: {
    error: "BufferSizeError",
    text: "{name} has {actual} numbers, expected {expected}.",
  },
  UPDATE_NOT_FINITE: {
    error: "ModelError",
    text: "{name} has numbers that are not finite.",
  },
  UNCOUNTED_ROWS: {
    error: "FeedError",
    text: "A client needs arrays, because its number of rows is its weight. Give arrays by the names of the inputs, not rows one by one.",
  },
  PROXIMAL_CHECKPOINT: {
    error: "ModelError",
    text: "A fit with 'proximal' cannot continue from a checkpoint, which lacks the parameters at its start.",
  },
  BEYOND_BOUND: {
    error: "ModelError",
    text: "The update has an element of magnitude {value}, beyond the bound {bound}: clip it, or give all members a larger bound.",
  },
  MASKED_TWICE: {
    error: "SessionError",
    text: "This member has already masked an update: begin a round with new keys for another one.",
  },
  NO_MEMBER: {
    error: "ModelError",
    text: "The keys of the members do not contain the key of {name!r}: give the public key that this member sent.",
  },
  SAME_KEY: {
    error: "ModelError",
    text: "Two members have the same public key.",
  },
  MEMBER_LOST: {
    error: "SessionError",
    text: "No masked update arrived from {names}: the masks of a lost member stay in the sum. Begin a round with new keys and only the other members.",
  },
  OTHER_MASKS: {
    error: "ModelError",
    text: "The masks do not cancel: all members need the same keys and round.",
  },
  NO_BRIDGE: {
    error: "SessionError",
    text: "No connection to {url}: does `python -m trainweb.flower` run there, and may pages of this site connect?",
  },
  BRIDGE_CLOSED: {
    error: "SessionError",
    text: "The connection to the bridge ended (code {code}): {reason}.",
  },
  BAD_BRIDGE: {
    error: "SessionError",
    text: "The bridge sent an unexpected message: {fault}.",
  },
  MISSING_FEED: {
    error: "FeedError",
    text: "input '{name}' is missing in 'feeds'.",
  },
  MISNAMED_FEED: {
    error: "FeedError",
    text: "input '{name}' is missing in 'feeds', which has '{other}': the model's inputs are {names}.",
  },
  UNKNOWN_FEED: {
    error: "FeedError",
    text: "invalid input '{name}': the model's inputs are {names}.",
  },
  FEED_DTYPE: {
    error: "FeedError",
    text: "Unexpected input data type of {name!r}. Actual: ({actual}), expected: ({expected}). Make the tensor with new Tensor({expected!r}, {conversion}, dims).",
  },
  FEED_RANK: {
    error: "FeedError",
    text: "Invalid rank for input: {name} Got: {actual} Expected: {expected} (shape {shape!r} for {declared!r}).",
  },
  FEED_DIM: {
    error: "FeedError",
    text: "Got invalid dimensions for input: {name} for the following indices index: {index} Got: {actual} Expected: {expected}",
  },
  FEED_SYMBOL: {
    error: "FeedError",
    text: "Feeds disagree on the dimension {symbol!r}: {first} in {where!r}, {size} in {name!r}.",
  },
  EMPTY_BATCH: {
    error: "FeedError",
    text: "Feed {name!r} has shape {shape!r}: an empty batch cannot be trained on.",
  },
  NOT_A_SHAPE: {
    error: "FeedError",
    text: "The shape of {name!r} must be a list of integers >= 0, got {given!r}.",
  },
  DECIDING_SHAPE: {
    error: "SessionError",
    text: "The values of {name!r} determine shapes, so only a step with values can compile the plan.",
  },
  UNKNOWN_FETCH: {
    error: "FeedError",
    text: "'fetches' contains invalid output name: {name}; the outputs are {names}.",
  },
  FETCH_TYPE: {
    error: "FeedError",
    text: "the tensor given for output '{name}' is {given}, the result is {dtype} of dims {shape!r}.",
  },
  BAD_LABEL: {
    error: "FeedError",
    text: "{node}: the label {value} at position {position} is out of range.",
  },
  PADDED_LABEL: {
    error: "FeedError",
    text: "{node}: the label {value} at position {position} is out of range. To ignore such labels, give the loss ignoreIndex: {value}.",
  },
  BAD_INDEX: {
    error: "FeedError",
    text: "{node}: the index {value} at position {position} is out of range.",
  },
  BAD_VALUE: {
    error: "FeedError",
    text: "{node}: the value {value} at position {position} is not allowed.",
  },
  LOOP_LIMIT: {
    error: "LimitError",
    text: "{node}: the loop exceeds the limit of {value} iterations. Shorten it, or raise limits.loopIterations where you read its model (createFromModel, InferenceSession.create).",
  },
  PLAN_FAILED: {
    error: "EngineError",
    text: "{status} (status {code}) in instruction {instruction} of {node}: value {value}, position {position}. {line}",
  },
  TERMINATED: {
    error: "SessionError",
    text: "Exiting due to terminate flag being set to true.",
  },
  NUMERICS: {
    error: "NumericsError",
    text: "{node} makes {bad} among the {count} values of {tensor!r}, in the {kind} step after {step} optimizer steps; the session is as before the step.{inputs}",
  },
  NO_BATCHES: {
    error: "FeedError",
    text: "There are no batches: give at least one.",
  },
  NO_EVAL_MODEL: {
    error: "SessionError",
    text: "This TrainingSession has no EvalModel loaded.",
  },
  NO_OPTIMIZER_MODEL: {
    error: "SessionError",
    text: "This TrainingSession has no OptimizerModel loaded.",
  },
  NO_SCHEDULER: {
    error: "SessionError",
    text: "No learning rate scheduler was registered. Please register a valid learning rate scheduler",
  },
  NO_EVAL_MODEL_TO_EXPORT: {
    error: "SessionError",
    text: "Eval model was not provided. Cannot export a model for inferencing.",
  },
  NOT_BUILT: {
    error: "SessionError",
    text: "The gradient graph is not built yet: call build().",
  },
  NO_ARTIFACTS: {
    error: "SessionError",
    text: "This session has no artifacts: only sessions from createFromModel have them.",
  },
  NO_ADAPTERS: {
    error: "SessionError",
    text: "This session has no adapters: give 'lora' or 'promptTuning' in the config of createFromModel.",
  },
  NOT_IN_BUNDLE: {
    error: "SessionError",
    text: "The bundle was not compiled for {what}, and it contains no models to compile from. Make the bundle with `trainweb compile`, which includes the models, or create the session from its artifacts.",
  },
  ARENA_LIMIT: {
    error: "LimitError",
    text: "This model needs {nbytes} bytes of workspace for these shapes; the limit arena_bytes is {limit}.",
  },
  NOT_A_COUNT: {
    error: "SessionError",
    text: "{name!r} must be an integer >= {least}, got {value!r}.",
  },
  NOT_A_NUMBER: {
    error: "TypeError",
    text: "{name!r} must be a number, got {given}.",
  },
  NOT_A_RATE: {
    error: "SessionError",
    text: "{name!r} must be a float32 from 0 to 3.4e38, got {value!r}.",
  },
  WARMUP_BEYOND_TOTAL: {
    error: "SessionError",
    text: "{name!r} must be at most the total number of steps, {total}, got {value!r}.",
  },
  NOT_A_DATASET: {
    error: "FeedError",
    text: "Data must be an object of input names and tensors, rows, or a function that returns rows; got {given}.",
  },
  NO_COLUMNS: {
    error: "FeedError",
    text: "The data has no arrays: give one for each input of the model, by its name.",
  },
  EMPTY_DATASET: {
    error: "FeedError",
    text: "The data has no rows.",
  },
  ENDED_DATASET: {
    error: "FeedError",
    text: "The data has no rows in epoch {epoch}: a generator can be read only once. Give the function that creates it.",
  },
  FILE_WITHOUT_CLASS: {
    error: "FeedError",
    text: "The file {file!r} lies outside of the class folders: move it into the folder of its class.",
  },
  FOLDER_WITHOUT_CLASS: {
    error: "FeedError",
    text: "The folder {folder!r} is not one of the classes: {names}.",
  },
  CLASS_WITHOUT_FILES: {
    error: "FeedError",
    text: "The class {name!r} has no files; there are folders {names}.",
  },
  COLUMN_ROWS: {
    error: "FeedError",
    text: "{name!r} has {rows} rows, but {first!r} has {expected}: each row needs a value of each input.",
  },
  NOT_A_COLUMN: {
    error: "FeedError",
    text: "{name!r} is {given}; its first axis must count rows.",
  },
  INEXACT_NUMBER: {
    error: "FeedError",
    text: "{name!r} has {value}, which float32 cannot hold: give bigints or a typed array.",
  },
  NOT_NUMBERS: {
    error: "FeedError",
    text: "{name!r} has {given} among its values: give only numbers, only bigints or only booleans.",
  },
  DATA_SHAPE: {
    error: "FeedError",
    text: "{name!r} has shape {given!r} in {where}. The model takes {batch} for a batch, so {row} for a row.",
  },
  LOST_VALUE: {
    error: "FeedError",
    text: "{name!r} has {value!r} in {where}; the model takes {dtype}.",
  },
  TOO_MANY_VALUES: {
    error: "FeedError",
    text: "{where} has {count} values, and the model has {inputs} inputs: {names}.",
  },
  BATCHED_ARRAYS: {
    error: "ModelError",
    text: "'batched' is for data that comes in batches; this data is arrays: leave it out.",
  },
  RAGGED_COLUMN: {
    error: "FeedError",
    text: "The rows of {name!r} have different shapes: {reason}.",
  },
  NOT_A_ROW: {
    error: "FeedError",
    text: "Row {position} of the data is {given}; it must map input names to arrays, or be an array of arrays.",
  },
  NOT_A_BATCH: {
    error: "FeedError",
    text: "Batch {position} of the data is {given}; it must map input names to arrays, or be an array of arrays.",
  },
  ROW_NAMES: {
    error: "FeedError",
    text: "Row {position} of the data has {names}; the first row of its batch has {expected}.",
  },
  ROW_TYPE: {
    error: "FeedError",
    text: "Row {position} of the data has {given} as {name!r}; the first row of its batch has {expected}.",
  },
  DISPOSED_VALUE: {
    error: "FeedError",
    text: "Row {position} of the data has a disposed tensor as {name!r}: keep tensors until the fit ends.",
  },
  IN_ROW: {
    error: "FeedError",
    text: "{reason} It is in {name!r} of row {row} of the {data} (batch {batch} of epoch {epoch}).",
  },
  BATCHED_TWICE: {
    error: "FeedError",
    text: "The data is already batched.",
  },
  PADDED_VALIDATION: {
    error: "FeedError",
    text: "The last batch of the validation data is padded with rows that would count twice: batch it with 'keep' or 'drop'.",
  },
  BEYOND_BUCKETS: {
    error: "FeedError",
    text: "A row has length {length}, and the last bucket holds {most}.",
  },
  NOT_PADDED: {
    error: "FeedError",
    text: "{name!r} of a row of length {length} is {given}: the first axis of a padded input must have the row's length.",
  },
  STREAM_SPLIT: {
    error: "FeedError",
    text: "A stream of rows cannot be split: give arrays, or two datasets.",
  },
  EMPTY_SPLIT: {
    error: "FeedError",
    text: "A share of {share} of {rows} rows is less than one row.",
  },
  BATCH_BEYOND_DATA: {
    error: "FeedError",
    text: "A batch of {size} rows is larger than the data, which has {rows}, and 'drop' leaves the last rows out: use a smaller batch.",
  },
  CSV_INPUT: {
    error: "FeedError",
    text: "{name!r} is not one of the inputs read from the file: {names}.",
  },
  CSV_DTYPE: {
    error: "FeedError",
    text: "{name!r} cannot be read as {dtype}; the types are {names}.",
  },
  CSV_COLUMN: {
    error: "FeedError",
    text: "The file has no column {column!r}; it has {names}.",
  },
  CSV_COLUMN_TWICE: {
    error: "FeedError",
    text: "The file has more than one column {column!r}.",
  },
  CSV_QUOTES: {
    error: "FeedError",
    text: "Line {line}: a value between quotes does not end where the next value or line begins.",
  },
  CSV_RAGGED: {
    error: "FeedError",
    text: "Line {line} has {given} values; the header has {expected}.",
  },
  CSV_MISSING: {
    error: "FeedError",
    text: "Line {line}, column {column!r}: the value is missing ({value!r}). Set 'missing' to \"drop\" to leave such rows out, or to a value for each column that may lack one. For floats, \"keep\" gives NaN.",
  },
  CSV_FILL: {
    error: "FeedError",
    text: "'missing' has a value for the column {column!r}, which no input takes; they take {names}.",
  },
  CSV_VALUE: {
    error: "FeedError",
    text: "Line {line}, column {column!r}: {value!r} is not a valid {dtype}.",
  },
  CSV_CLASS: {
    error: "FeedError",
    text: "Line {line}, column {column!r}: {value!r} is not one of {names}.",
  },
  TABLE_STREAM: {
    error: "FeedError",
    text: "A stream of rows cannot be preprocessed: preprocess arrays, before 'map' and 'filter'.",
  },
  TABLE_INPUT: {
    error: "FeedError",
    text: "The data has no input {name!r}; the names of its inputs are {names}.",
  },
  TABLE_TYPE: {
    error: "FeedError",
    text: "{name!r} is {given}; the step {step!r} takes {expected}.",
  },
  TABLE_MOMENTS: {
    error: "FeedError",
    text: "{name!r} has NaN, infinity, or a number too large to square, so its deviation is not finite. Fill NaN with 'fill_mean' or 'fill_median' ('fillMean' and 'fillMedian' in a page), or drop such rows.",
  },
  TABLE_CENTRE: {
    error: "FeedError",
    text: "{name!r} has infinity or numbers too large to add up in column {column}: there is no finite mean.",
  },
  TABLE_EMPTY: {
    error: "FeedError",
    text: "{name!r} has no number in column {column}, only NaN: there is no value to fill in. Leave the column out.",
  },
  TABLE_WIDTH: {
    error: "FeedError",
    text: "{name!r} has {given} values in a row; the preprocessing was fitted on {expected}.",
  },
  TABLE_CATEGORY: {
    error: "FeedError",
    text: "Row {row} has {value!r} as {name!r}, and the fitted rows have only {names}. Fit categories before you split the data, or leave such rows out.",
  },
  TABLE_CONCAT: {
    error: "FeedError",
    text: "{name!r} is {given} and {first!r} is {expected}: inputs of one type can be concatenated.",
  },
  FIT_RUNNING: {
    error: "SessionError",
    text: "A fit of this session is running: wait until it ends, or stop it.",
  },
  NON_FINITE_LOSS: {
    error: "TrainwebError",
    text: "The loss is {value!r} at step {step} of epoch {epoch}; the parameters are those before the step. Try a lower learning rate, clipGradNorm, or look for NaN or infinity in the data.",
  },
  NOT_A_NUMBER_IN_FIT: {
    error: "NumericsError",
    text: "{what} is NaN or infinite after step {step} of epoch {epoch}.",
  },
  RESTORED_TOO_OFTEN: {
    error: "NumericsError",
    text: "The fit went back to its last good state {most} times and failed again at step {step} of epoch {epoch}. The session is in that state. {reason}",
  },
  ALL_SKIPPED: {
    error: "NumericsError",
    text: "All batches of epoch {epoch} were skipped: each produced NaN or infinity. The session's option debug.checkNumerics shows where.",
  },
  SCALAR_LOSS: {
    error: "SessionError",
    text: "fit needs a loss that is one number; {name!r} has shape {shape!r}. Set its reduction.",
  },
  BATCH_OF_BATCHES: {
    error: "ModelError",
    text: "The data is already batched: leave out {name!r}.",
  },
  SHUFFLED_STREAM: {
    error: "ModelError",
    text: "A stream can only be shuffled in a buffer: call data.shuffle(options), and leave out 'shuffle'.",
  },
  STRATIFIED_NOTHING: {
    error: "ModelError",
    text: "'stratify' needs 'validationSplit': give the share of the rows to evaluate.",
  },
  NO_CLASSES: {
    error: "FeedError",
    text: "'stratify' reads the classes from {name!r}, the last input: give one integer for each row.",
  },
  MISSING_CLASSES: {
    error: "FeedError",
    text: "The {part} data has no row with {classes} as {name!r}: the split takes the last rows. Give stratify: true, or shuffle the rows before.",
  },
  TWO_VALIDATIONS: {
    error: "ModelError",
    text: "Give validation data, or a share to split off, but not both.",
  },
  METRICS_WITHOUT_DATA: {
    error: "ModelError",
    text: "Metrics need validation data: give validationData or validationSplit. trainMetrics: true evaluates the training data.",
  },
  NO_OWN_OUTPUTS: {
    error: "ModelError",
    text: "The eval model gives {names}, and its loss does not compare one tensor. Name the outputs to predict as 'outputs'.",
  },
  NO_LOGITS: {
    error: "ModelError",
    text: "generate reads the output 'logits', or the only output of the model; it has {names}. Name the output 'logits'.",
  },
  NOT_CAUSAL: {
    error: "ModelError",
    text: "Output {name!r} of a token changes with the tokens after it: the model is not causal. generate takes models that predict the next token. Export the model with its causal mask.",
  },
  SEQUENCE_TOO_LONG: {
    error: "ModelError",
    text: "The model does not take {length} tokens, prompt and new ones together: {fault} Shorten the prompt, or give fewer 'maxTokens'.",
  },
  LOGITS_NOT_FINITE: {
    error: "SessionError",
    text: "Token {position} has a logit that is NaN or infinite, so no next token can be chosen. Check the parameters: training may have diverged.",
  },
  EMPTY_PROMPT: {
    error: "FeedError",
    text: "The prompt has no tokens; give at least one.",
  },
  TEXT_WITHOUT_TOKENIZER: {
    error: "ModelError",
    text: "{name!r} is text, which needs a tokenizer: give 'tokenizer', or token ids.",
  },
  NO_GRAPH_FILE: {
    error: "ModelError",
    text: "{folder!r} has no {names}. Export the model to ONNX into this folder, or name the path of its graph with 'file'.",
  },
  NOT_JSON: {
    error: "ModelError",
    text: "{name} cannot be read as JSON: {fault}.",
  },
  BAD_SHARDS: {
    error: "ModelError",
    text: "'weight_map' of {name} must map weights to names of files beside it.",
  },
  NOT_A_TOKENIZER: {
    error: "ModelError",
    text: "'tokenizer' is {given}, which has no function encode. Give one whose encode returns the token ids of a text.",
  },
  NOT_TOKEN_IDS: {
    error: "ModelError",
    text: "The tokenizer's encode returned {given}; it must return a list of token ids, or an object with 'ids'.",
  },
  NOT_TEXTS: {
    error: "FeedError",
    text: "'texts' is {given}; it must be a list of texts, or of pairs with 'prompt' and 'completion'.",
  },
  NO_CHAT_TEMPLATE: {
    error: "ModelError",
    text: "Text {position} is a chat, and the tokenizer has no function apply_chat_template. Give the tokenizer of @huggingface/transformers.",
  },
  NOT_A_PAIR: {
    error: "FeedError",
    text: "Pair {position} of 'pairs' must have the texts 'prompt', 'chosen' and 'rejected' and nothing else.",
  },
  NO_ANSWER: {
    error: "FeedError",
    text: "Text {position} is a chat whose last message does not have the role 'assistant': there is nothing to learn.",
  },
  NOT_A_TEXT: {
    error: "FeedError",
    text: "Text {position} is {given}; it must be a text, or have the texts 'prompt' and 'completion' and nothing else.",
  },
  EMPTY_TEXT: {
    error: "FeedError",
    text: "Text {position} is empty, or has an empty completion: leave it out.",
  },
  NO_PROMPT: {
    error: "FeedError",
    text: "Text {position} has no prompt that 'maskPrompt' could mask: give 'prompt' and 'completion'.",
  },
  NO_END_TOKEN: {
    error: "ModelError",
    text: "The tokenizer has no 'eos_token_id', so nothing separates two texts: give 'endToken'.",
  },
  NO_FULL_ROW: {
    error: "FeedError",
    text: "The {count} tokens of the texts fill no row of length {length} that has a token to learn. Give more text, a smaller 'length', or pack: false.",
  },
  TEXT_TOO_LONG: {
    error: "FeedError",
    text: "Text {position} has {count} tokens; a row of length {length} has room for {most}. Give a larger 'length', cut the text, or pack the texts.",
  },
  TEXT_TOO_SHORT: {
    error: "FeedError",
    text: "Text {position} has {count} tokens and no token to learn: each is predicted from those before it. Leave it out.",
  },
  GREEDY_SETTING: {
    error: "ModelError",
    text: "{name!r} changes nothing at temperature 0. Give a temperature above 0.",
  },
  NO_ROWS_IN_OUTPUT: {
    error: "SessionError",
    text: "Output {name!r} has shape {shape!r} for {rows} rows; its first axis must count rows. Leave it out, or give all rows in one batch.",
  },
  UNLIKE_OUTPUTS: {
    error: "SessionError",
    text: "Output {name!r} has the shapes {shapes} in different batches, which cannot be joined. Leave it out, or give all rows in one batch.",
  },
  TWO_RATES: {
    error: "ModelError",
    text: "The learning rate is {first} and, in '{where}', {second}. Give it once.",
  },
  RATE_AND_SCHEDULE: {
    error: "ModelError",
    text: "'learningRate' is given beside a schedule that already has rates. Leave out one of them.",
  },
  RATE_WITHOUT_OPTIMIZER: {
    error: "ModelError",
    text: "A learning rate needs an optimizer: give 'optimizer', or leave out the rate.",
  },
  METRIC_TWICE: {
    error: "ModelError",
    text: "The metric {name!r} is given twice.",
  },
  TRAIN_METRICS_STREAM: {
    error: "ModelError",
    text: "'trainMetrics' evaluates the training data again after each epoch, which needs arrays; this data is a stream. Give rows of it as validationData.",
  },
  METRIC_FAILED: {
    error: "TrainwebError",
    text: "The metric {name!r} failed: {error}",
  },
  METRIC_VALUE: {
    error: "TrainwebError",
    text: "The metric {name!r} returned {found}; it must return one number that is not NaN.",
  },
  NO_PREDICTIONS: {
    error: "ModelError",
    text: "Metrics compare an output of the eval model with a target; it has {names}. Name the output among additionalOutputNames in the config of createFromModel, and as 'predictions' if there are several.",
  },
  METRIC_TYPE: {
    error: "FeedError",
    text: "A metric cannot compare values of type {dtype}: give float32, int64 or int32.",
  },
  AUC_SHAPE: {
    error: "FeedError",
    text: "{name} compares predictions [rows, classes] or [rows] with targets [rows]; it got {scores!r} and {targets!r}.",
  },
  METRIC_CLASS: {
    error: "FeedError",
    text: "{name}: the target {value} is not one of the {count} classes; 'ignoreIndex' leaves one out.",
  },
  OVERFIT_NAN: {
    error: "NumericsError",
    text: "Loss or gradients are NaN or infinite at step {step}: the session's option debug.checkNumerics shows where.",
  },
  OVERFIT_NO_GRADIENT: {
    error: "TrainwebError",
    text: "No parameter has a gradient. The loss does not depend on the parameters, the gradient is lost on the way (rounding, dead units), or the loss is at its minimum.",
  },
  OVERFIT_ZERO_GRADIENTS: {
    error: "TrainwebError",
    text: "The gradients of {names} are zero. They are lost on the way (dead units, a branch that is not taken), or the loss does not depend on these parameters.",
  },
  OVERFIT_UNCHANGED: {
    error: "TrainwebError",
    text: "{names} have gradients and do not change: the learning rate {rate} is too low for float32.",
  },
  OVERFIT_EXPLODES: {
    error: "TrainwebError",
    text: "The norm of the gradients grows from {first} to {most}: use a lower learning rate, or clipGradNorm.",
  },
  OVERFIT_RISES: {
    error: "TrainwebError",
    text: "The loss rises: the learning rate {rate} is too high, or the loss must be maximized: negate it.",
  },
  OVERFIT_SLOW: {
    error: "TrainwebError",
    text: "A step hardly changes the parameters: the learning rate {rate} is too low.",
  },
  OVERFIT_STUCK: {
    error: "TrainwebError",
    text: "The loss is still high after {steps} steps. Equal rows may have different targets, dropout or label smoothing may keep the loss up, or it may need more steps.",
  },
  BAD_CHECKPOINT_NAME: {
    error: "StorageError",
    text: "The name of a checkpoint must be a text of 1 to {most} bytes, got {given!r}.",
  },
  NO_CHECKPOINT: {
    error: "StorageError",
    text: "There is no checkpoint {name!r} in {folder!r}.",
  },
  CHECKPOINT_EXISTS: {
    error: "StorageError",
    text: "There is a checkpoint {name!r} in {folder!r} already: delete it first.",
  },
  CHECKPOINT_IN_USE: {
    error: "StorageError",
    text: "The checkpoint {name!r} is in use by a fit, or by another tab: end it first.",
  },
  CHECKPOINT_DAMAGED: {
    error: "CheckpointError",
    text: "The checkpoint {name!r} in {folder!r} is damaged.",
  },
  NO_ROOM: {
    error: "StorageError",
    text: "There is no room for the checkpoint {name!r} of {needed} bytes in {folder!r}: {reason}. The old one is intact.",
  },
  NO_STORAGE: {
    error: "StorageError",
    text: "There is no storage for checkpoints here, neither a private file system nor IndexedDB ({reason}). Keep the bytes that saveCheckpoint returns.",
  },
  NO_BACKEND: {
    error: "StorageError",
    text: "There is no storage for checkpoints of backend {backend!r} here ({reason}). Leave out the backend to use another, or keep the bytes that saveCheckpoint returns.",
  },
  NO_SNAPSHOT: {
    error: "CheckpointError",
    text: "This is not a checkpoint of a store: its format is {given!r}, expected {expected!r}.",
  },
  OTHER_SNAPSHOT: {
    error: "CheckpointError",
    text: "The checkpoint belongs to a session with other {what}.",
  },
  BAD_FIELD: {
    error: "CheckpointError",
    text: "The checkpoint has {given} as {field}, expected {expected}. The file was changed after it was written. The session is as it was; load another checkpoint.",
  },
  OTHER_FIT: {
    error: "ModelError",
    text: "The checkpoint {name!r} belongs to a fit with {option} {stored!r}, and this one has {given!r}. Give the same value, choose another name, or delete the checkpoint.",
  },
  UNWATCHED_EPOCH: {
    error: "ModelError",
    text: "The checkpoint {name!r} has no value of {metric!r} for epoch {epoch}, which early stopping or the schedule needs. Give the metrics that the fit began with, choose another name, or delete the checkpoint.",
  },
  NO_FIT: {
    error: "CheckpointError",
    text: "The checkpoint {name!r} was not written by fit: load it with the store, and give fit another name.",
  },
  NOMINAL_STEP: {
    error: "CheckpointError",
    text: "Cannot perform {step} with a nominal state. Please load the model parameters first.",
  },
  NOMINAL_OPTIMIZER: {
    error: "CheckpointError",
    text: "The optimizer state cannot be constructed. Please load the model parameters first.",
  },
  NOMINAL_SAVE: {
    error: "CheckpointError",
    text: "Cannot save a nominal state. Please load the model parameters first.",
  },
  NOMINAL_EXPORT: {
    error: "CheckpointError",
    text: "Cannot export the model with a nominal state. Please load the model parameters first.",
  },
  NOMINAL_GET_ALL: {
    error: "CheckpointError",
    text: "Cannot copy parameters from a nominal checkpoint state. Please load the model parameters first.",
  },
  NOMINAL_LOAD: {
    error: "CheckpointError",
    text: "For nominal checkpoint state, all parameters need to be loaded into the model (trainable_only = false).",
  },
  NOMINAL_GET: {
    error: "CheckpointError",
    text: "Cannot get parameter from a nominal state. Please load the parameter states first",
  },
  NOMINAL_SET: {
    error: "CheckpointError",
    text: "Cannot copy parameter to a nominal state. Please load all the parameter states first",
  },
  UNKNOWN_PARAMETER: {
    error: "CheckpointError",
    text: "The model has no parameter {name!r}; it has {names}.",
  },
  FROZEN_GRADIENT: {
    error: "CheckpointError",
    text: "Parameter {name!r} is frozen: it has no gradient.",
  },
  PARAMETER_DTYPE: {
    error: "CheckpointError",
    text: "Parameter {name!r} data type mismatch. Expected: {expected}, Got: {actual}",
  },
  PARAMETER_SHAPE: {
    error: "CheckpointError",
    text: "Parameter {name!r} data shape mismatch. Expected: {expected!r}, Got: {actual!r}",
  },
  BUFFER_SIZE: {
    error: "BufferSizeError",
    text: "Size of the buffer passed into loadParametersBuffer must match the number of parameters in the model. Please use getParametersSize method to check. Expected: {expected} bytes, Actual: {actual} bytes.",
  },
  PROPERTY_RANGE: {
    error: "RangeError",
    text: "A property may be an integer of at most 64 bits; this one has {bits}. Keep it as a text or as a float.",
  },
  UNKNOWN_PROPERTY: {
    error: "CheckpointError",
    text: "Property {name!r} not found.",
  },
  BAD_SETTING: {
    error: "ModelError",
    text: "{name} is {value!r}; it must be {expected}.",
  },
  UNKNOWN_SETTING: {
    error: "TypeError",
    text: "{what} has no setting {name!r}; did you mean {nearest!r}? It has {names}.",
  },
  SETTING_TWICE: {
    error: "TypeError",
    text: "{what} takes {name!r} and {other!r} for the same setting: give one of them.",
  },
  MISSING_SETTING: {
    error: "ModelError",
    text: "{what} needs the setting {name!r}: {expected}.",
  },
  UNKNOWN_TYPE: {
    error: "TypeError",
    text: "There is no {what} {name!r}; did you mean {nearest!r}? There are {names}.",
  },
  CLIP_WITHOUT_OPTIMIZER: {
    error: "ModelError",
    text: "Gradients are clipped in the optimizer step: 'clipGradNorm' and 'clipGradValue' need an 'optimizer'.",
  },
  EMA_WITHOUT_OPTIMIZER: {
    error: "ModelError",
    text: "Averages of the parameters are kept in the optimizer step: 'ema' needs an 'optimizer'.",
  },
  OTHER_OPTIMIZER: {
    error: "CheckpointError",
    text: "The checkpoint has the optimizer state of {stored}, and this session's optimizer is {own}. Load it into a session with that optimizer, or use a checkpoint without optimizer state.",
  },
  EMA_IN_TRAINING: {
    error: "SessionError",
    text: "Only eval steps of a training session can read averages of the parameters: leave out 'ema'.",
  },
  NO_AVERAGES: {
    error: "SessionError",
    text: "The session keeps no averages of its parameters: create it, or its artifacts, with the setting 'ema'.",
  },
} as const;
