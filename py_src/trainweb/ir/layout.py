"""Words of plans, segments and state.

Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead.
"""

from __future__ import annotations

from typing import Final

FINGERPRINT: Final = 56009597
"""Of the kernels that this package compiles for."""

# "TWPL"
PLAN_MAGIC: Final = 1280333652

PLAN_VERSION: Final = 1

# Instead of the index of a buffer: null.
PLAN_NO_BUFFER: Final = 4294967295

# A bit of a segment's flags.
PLAN_WRITABLE: Final = 1

MOST_RESTORES: Final = 3

# Threads at most, the one that calls among them.
MAX_THREADS: Final = 64

# Workspace of a plan without feeds that lies apart from the arena, at most.
APART_BYTES: Final = 4096

# Dims of a strided view.
KERNEL_RANK: Final = 8

# Keys that attention works on at a time.
ATTENTION_KEYS: Final = 64

# Elements of a head at most.
ATTENTION_WIDTH: Final = 256

# Rows and classes of a block of the scores of a head, and parts of the classes at most.
HEAD_ROWS: Final = 256

HEAD_CLASSES: Final = 512

HEAD_PARTS: Final = 16

# Labels of a target at most: rows of its states fit into the scratch of a thread.
CTC_LABELS: Final = 16384

# Iterations of a loop at most.
LOOP_TRIPS: Final = 65536

# Iterations of loops within each other at most, all multiplied, and how deep they may be.
LOOP_NEST_TRIPS: Final = 2097152

LOOP_DEPTH: Final = 8

# Statuses: results of a run, and kinds of failure.
TW_OK: Final = 0
TW_BAD_PLAN: Final = 1
TW_BAD_HEADER: Final = 2
TW_BAD_SEGMENT: Final = 3
TW_BAD_BUFFER: Final = 4
TW_BAD_OPCODE: Final = 5
TW_BAD_ARGUMENT: Final = 6
TW_BAD_EXTENT: Final = 7
TW_BAD_CONDITION: Final = 8
TW_READ_ONLY: Final = 9
TW_BAD_FUNCTION: Final = 10
TW_BAD_POINTER: Final = 11
TW_OVERLAP: Final = 12
TW_NO_MEMORY: Final = 13
TW_BAD_INDEX: Final = 20
TW_BAD_LABEL: Final = 21
TW_BAD_VALUE: Final = 22
TW_LOOP_LIMIT: Final = 23
TW_TRAPPED: Final = 30

# Segments of kernel memory, in the order of a plan's segment table. Only plans with large constants have the last one.
ARENA: Final = 0
CONSTANTS: Final = 1
PARAMETERS: Final = 2
GRADIENTS: Final = 3
MOMENTUM0: Final = 4
MOMENTUM1: Final = 5
STATE: Final = 6
PREPARED: Final = 7
LARGE_CONSTANTS: Final = 8

# Copies of segments that a session may have at a time: of before a batch of `fit`, a checked step, a step under way; of
# the last good state of a fit, and of one that is gone back to after a trial.
COPY_BATCH: Final = 0
COPY_CHECK: Final = 1
COPY_STEP: Final = 2
COPY_GOOD: Final = 3
COPY_TRIAL: Final = 4

# Reaction of a fit (session/fit.c) to a batch that makes NaN or infinity, and most restores of the last good state.
ON_NAN_FAIL: Final = 0
ON_NAN_STOP: Final = 1
ON_NAN_SKIP: Final = 2
ON_NAN_RESTORE: Final = 3
ON_NAN_IGNORE: Final = 4

# The next action of a fit: the next batch; the optimizer step; to undo the batch, or to fail, because of `fault`; the
# end.
NEXT_BATCH: Final = 0
NEXT_UPDATE: Final = 1
NEXT_UNDO: Final = 2
NEXT_FAIL: Final = 3
NEXT_END: Final = 4

# Kinds of plans that a session loads: steps are evicted, and plans without feeds have little workspace apart.
LOAD_NO_FEEDS: Final = 0
LOAD_STEP: Final = 1
LOAD_FEEDS: Final = 2

# float16 or bfloat16, as their bits, to float32 and back, rounded to nearest even; exact but for the payload of a NaN
HALF_TO_FLOAT: Final = 0
BFLOAT_TO_FLOAT: Final = 1
FLOAT_TO_HALF: Final = 2
FLOAT_TO_BFLOAT: Final = 3

REDUCE_SUM: Final = 0
REDUCE_MEAN: Final = 1
REDUCE_MAX: Final = 2
REDUCE_MIN: Final = 3
REDUCE_PROD: Final = 4
REDUCE_SUM_SQUARES: Final = 5
REDUCE_SUM_ABS: Final = 6
REDUCE_LOG_SUM_EXP: Final = 7
REDUCE_NORM: Final = 8
REDUCE_LOG_SUM: Final = 9

LOSS_EACH: Final = 0
LOSS_MEAN: Final = 1
LOSS_SUM: Final = 2

SCATTER_SET: Final = 0
SCATTER_ADD: Final = 1
SCATTER_MUL: Final = 2
SCATTER_MAX: Final = 3
SCATTER_MIN: Final = 4

SCATTER_F32: Final = 0
SCATTER_I32: Final = 1
SCATTER_I64: Final = 2

ACTIVATION_NONE: Final = 0
ACTIVATION_RELU: Final = 1

# How numbers are stored: of 4 bits, the first in the lower half of a byte; of 8, 16 and 32 bits; float16 and bfloat16.
PACKED_4: Final = 0
PACKED_8: Final = 1
PACKED_16: Final = 2
PACKED_32: Final = 3
PACKED_HALF: Final = 4
PACKED_BFLOAT: Final = 5

# Weights [gates*hidden, hidden], gates as ONNX orders them: z r h of a GRU, i o f c of an LSTM. Linear: the reset gate
# is applied to the product (linear_before_reset).
CELL_RNN_TANH: Final = 0
CELL_RNN_RELU: Final = 1
CELL_LSTM: Final = 2
CELL_GRU: Final = 3
CELL_GRU_LINEAR: Final = 4

# Right ones and all; of each class right ones, targets and predictions; or how often each class (columns) was predicted
# for each target (rows).
COUNT_RIGHT: Final = 0
COUNT_PARTS: Final = 1
COUNT_MATRIX: Final = 2

# Of each column: rows, the first target, the mean of the targets less that, their squared distances from the mean,
# squared errors, magnitudes of errors.
ERROR_ROWS: Final = 0
ERROR_SHIFT: Final = 1
ERROR_MEAN: Final = 2
ERROR_SQUARES: Final = 3
ERROR_ERRORS: Final = 4
ERROR_MAGNITUDES: Final = 5
ERROR_SUMS: Final = 6

# The head of a plan. `code_base`: first slot of its generated functions; `failed`: the instruction that failed, `value`
# what was wrong at which `position`. The host places a plan: that writes `code_base` and the base and size of each
# segment.
HEADER_MAGIC: Final = 0
HEADER_VERSION: Final = 1
HEADER_TOTAL_WORDS: Final = 2
HEADER_FINGERPRINT: Final = 3
HEADER_N_SEGMENTS: Final = 5
HEADER_N_BUFFERS: Final = 6
HEADER_N_CODE: Final = 7
HEADER_N_INSTRUCTIONS: Final = 8
HEADER_CODE_BASE: Final = 9
HEADER_N_FUNCTIONS: Final = 10
HEADER_STATUS: Final = 11
HEADER_FAILED: Final = 12
HEADER_VALUE: Final = 13
HEADER_POSITION: Final = 15
HEADER_WORDS: Final = 20

SEGMENT_BASE: Final = 0
SEGMENT_NBYTES: Final = 1
SEGMENT_FLAGS: Final = 2
SEGMENT_WORDS: Final = 3

BUFFER_SEGMENT: Final = 0
BUFFER_OFFSET: Final = 1
BUFFER_NBYTES: Final = 2
BUFFER_WORDS: Final = 3

# The first arguments of opcode 0, a generated function over [0, n) in chunks of `grain`; then pointers and words.
GENERATED_FUNCTION: Final = 0
GENERATED_N: Final = 1
GENERATED_GRAIN: Final = 2
GENERATED_N_POINTERS: Final = 3
GENERATED_N_WORDS: Final = 4
GENERATED_WORDS: Final = 5

POINTER_BUFFER: Final = 0
POINTER_NBYTES: Final = 1
POINTER_WRITES: Final = 2
POINTER_WORDS: Final = 3

# The last words of a generated call that reduces: rows in a chunk, elements of a row, values that a chunk is reduced
# to. Then the reduction: `op` over the middle axis of [-1, n, inner], or of the chunk as [1, -1, inner] if n is 0.
REDUCTION_GRAIN: Final = 0
REDUCTION_UNIT: Final = 1
REDUCTION_RESULTS: Final = 2
REDUCTION_N: Final = 3
REDUCTION_INNER: Final = 4
REDUCTION_OP: Final = 5
REDUCTION_WORDS: Final = 6

# `lazy_reset`: the next step overwrites gradients; `scheduler`: one is registered, over `warmup` of `total` steps;
# `random_offset`: random numbers drawn; `loads`: how often parameters were loaded, `updates`: how often plans changed
# them.
STATE_LAZY_RESET: Final = 0
STATE_LEARNING_RATE: Final = 1
STATE_STEP: Final = 2
STATE_INITIAL_LR: Final = 4
STATE_SCHEDULER: Final = 5
STATE_WARMUP: Final = 6
STATE_TOTAL: Final = 8
STATE_SEED: Final = 10
STATE_RANDOM_OFFSET: Final = 12
STATE_LOADS: Final = 14
STATE_UPDATES: Final = 15
STATE_WORDS: Final = 16

# Loads and updates, one more each, at which a group of instructions ran last.
SEEN_LOADS: Final = 0
SEEN_UPDATES: Final = 1
SEEN_WORDS: Final = 2

# Results of tw_range: the range of some numbers; `squares` is the sum of their squares.
RANGE_LEAST: Final = 0
RANGE_MOST: Final = 1
RANGE_NAN: Final = 2
RANGE_INFINITE: Final = 3
RANGE_SQUARES: Final = 4
RANGE_WORDS: Final = 6

# The position of a fit. `fault`: the segment with NaN or infinity, 0: the loss; `is_batch`: a batch is under way, no
# update of an epoch's end; `waiting`: batches whose gradients no optimizer step has used; `step`, `kept`: batches,
# without undone ones.
FIT_NEXT: Final = 0
FIT_FAULT: Final = 1
FIT_IS_BATCH: Final = 2
FIT_WAITING: Final = 3
FIT_EPOCH: Final = 4
FIT_STEP: Final = 5
FIT_KEPT: Final = 6
FIT_OPTIMIZER_STEPS: Final = 7
FIT_LOSS_SUM: Final = 8
FIT_ROWS: Final = 10
FIT_WORDS: Final = 12

# Batches: the train step that overwrites gradients and the one that adds to them, each with the addresses of its loss
# and the divisor of that (0: `rows`); the plan that `clip`s (0: none); the place of rates in the block (0: none); the
# last plan `ran`. Inputs follow, and limits if there is `clip` (place in the block, bytes, places in the arena of the
# two), then the losses.
BATCHES_TRAIN: Final = 0
BATCHES_LOSS: Final = 1
BATCHES_COUNT: Final = 2
BATCHES_ADDING: Final = 3
BATCHES_ADDING_LOSS: Final = 4
BATCHES_ADDING_COUNT: Final = 5
BATCHES_UPDATE: Final = 6
BATCHES_CLIP: Final = 7
BATCHES_ROWS: Final = 8
BATCHES_RATES: Final = 9
BATCHES_N_INPUTS: Final = 10
BATCHES_RAN: Final = 11
BATCHES_WORDS: Final = 12

SEGMENT_NAMES: Final = (
    "arena",
    "constants",
    "parameters",
    "gradients",
    "momentum0",
    "momentum1",
    "state",
    "prepared",
    "large_constants",
)

# Types of the words, as `struct` calls them.
STATE_TYPES: Final = {0: "I", 1: "f", 2: "q", 4: "f", 5: "I", 6: "q", 8: "q", 10: "Q", 12: "Q", 14: "I", 15: "I"}

# Types of the words, as `struct` calls them.
RANGE_TYPES: Final = {0: "f", 1: "f", 2: "I", 3: "I", 4: "d"}

# Types of the words, as `struct` calls them.
FIT_TYPES: Final = {0: "I", 1: "I", 2: "I", 3: "I", 4: "I", 5: "I", 6: "I", 7: "I", 8: "d", 10: "d"}
