/**
 * Words of plans, segments and state.
 * Generated from wasm_kernels/kernels.def by wasm_kernels/build.py: edit that instead.
 */

// "TWPL"
export const PLAN_MAGIC = 1280333652;

export const PLAN_VERSION = 1;

// Instead of the index of a buffer: null.
export const PLAN_NO_BUFFER = 4294967295;

export const MOST_RESTORES = 3;

// Threads at most, the one that calls among them.
export const MAX_THREADS = 64;

// Workspace of a plan without feeds that lies apart from the arena, at most.
export const APART_BYTES = 4096;

// Statuses: results of a run, and kinds of failure.
export const TW_OK = 0;
export const TW_BAD_PLAN = 1;
export const TW_BAD_HEADER = 2;
export const TW_BAD_SEGMENT = 3;
export const TW_BAD_BUFFER = 4;
export const TW_BAD_OPCODE = 5;
export const TW_BAD_ARGUMENT = 6;
export const TW_BAD_EXTENT = 7;
export const TW_BAD_CONDITION = 8;
export const TW_READ_ONLY = 9;
export const TW_BAD_FUNCTION = 10;
export const TW_BAD_POINTER = 11;
export const TW_OVERLAP = 12;
export const TW_NO_MEMORY = 13;
export const TW_BAD_INDEX = 20;
export const TW_BAD_LABEL = 21;
export const TW_BAD_VALUE = 22;
export const TW_LOOP_LIMIT = 23;
export const TW_TRAPPED = 30;

// Segments of kernel memory, in the order of a plan's segment table. Only plans with large
// constants have the last one.
export const ARENA = 0;
export const CONSTANTS = 1;
export const PARAMETERS = 2;
export const GRADIENTS = 3;
export const MOMENTUM0 = 4;
export const MOMENTUM1 = 5;
export const STATE = 6;
export const PREPARED = 7;
export const LARGE_CONSTANTS = 8;

// Copies of segments that a session may have at a time: of before a batch of `fit`, a checked step,
// a step under way; of the last good state of a fit, and of one that is gone back to after a trial.
export const COPY_BATCH = 0;
export const COPY_CHECK = 1;
export const COPY_STEP = 2;
export const COPY_GOOD = 3;
export const COPY_TRIAL = 4;

// Reaction of a fit (session/fit.c) to a batch that makes NaN or infinity, and most restores of the
// last good state.
export const ON_NAN_FAIL = 0;
export const ON_NAN_STOP = 1;
export const ON_NAN_SKIP = 2;
export const ON_NAN_RESTORE = 3;
export const ON_NAN_IGNORE = 4;

// The next action of a fit: the next batch; the optimizer step; to undo the batch, or to fail,
// because of `fault`; the end.
export const NEXT_BATCH = 0;
export const NEXT_UPDATE = 1;
export const NEXT_UNDO = 2;
export const NEXT_FAIL = 3;
export const NEXT_END = 4;

// Kinds of plans that a session loads: steps are evicted, and plans without feeds have little
// workspace apart.
export const LOAD_NO_FEEDS = 0;
export const LOAD_STEP = 1;
export const LOAD_FEEDS = 2;

// The head of a plan. `code_base`: first slot of its generated functions; `failed`: the instruction
// that failed, `value` what was wrong at which `position`. The host places a plan: that writes
// `code_base` and the base and size of each segment.
export const HEADER_MAGIC = 0;
export const HEADER_VERSION = 1;
export const HEADER_TOTAL_WORDS = 2;
export const HEADER_FINGERPRINT = 3;
export const HEADER_N_SEGMENTS = 5;
export const HEADER_N_BUFFERS = 6;
export const HEADER_N_CODE = 7;
export const HEADER_N_INSTRUCTIONS = 8;
export const HEADER_CODE_BASE = 9;
export const HEADER_N_FUNCTIONS = 10;
export const HEADER_STATUS = 11;
export const HEADER_FAILED = 12;
export const HEADER_VALUE = 13;
export const HEADER_POSITION = 15;
export const HEADER_WORDS = 20;

export const SEGMENT_BASE = 0;
export const SEGMENT_NBYTES = 1;
export const SEGMENT_FLAGS = 2;
export const SEGMENT_WORDS = 3;

export const BUFFER_SEGMENT = 0;
export const BUFFER_OFFSET = 1;
export const BUFFER_NBYTES = 2;
export const BUFFER_WORDS = 3;

// `lazy_reset`: the next step overwrites gradients; `scheduler`: one is registered, over `warmup`
// of `total` steps; `random_offset`: random numbers drawn; `loads`: how often parameters were
// loaded, `updates`: how often plans changed them.
export const STATE_LAZY_RESET = 0;
export const STATE_LEARNING_RATE = 1;
export const STATE_STEP = 2;
export const STATE_INITIAL_LR = 4;
export const STATE_SCHEDULER = 5;
export const STATE_WARMUP = 6;
export const STATE_TOTAL = 8;
export const STATE_SEED = 10;
export const STATE_RANDOM_OFFSET = 12;
export const STATE_LOADS = 14;
export const STATE_UPDATES = 15;
export const STATE_WORDS = 16;

// Results of tw_range: the range of some numbers; `squares` is the sum of their squares.
export const RANGE_LEAST = 0;
export const RANGE_MOST = 1;
export const RANGE_NAN = 2;
export const RANGE_INFINITE = 3;
export const RANGE_SQUARES = 4;
export const RANGE_WORDS = 6;

// The position of a fit. `fault`: the segment with NaN or infinity, 0: the loss; `is_batch`: a
// batch is under way, no update of an epoch's end; `waiting`: batches whose gradients no optimizer
// step has used; `step`, `kept`: batches, without undone ones.
export const FIT_NEXT = 0;
export const FIT_FAULT = 1;
export const FIT_IS_BATCH = 2;
export const FIT_WAITING = 3;
export const FIT_EPOCH = 4;
export const FIT_STEP = 5;
export const FIT_KEPT = 6;
export const FIT_OPTIMIZER_STEPS = 7;
export const FIT_LOSS_SUM = 8;
export const FIT_ROWS = 10;
export const FIT_WORDS = 12;

// Batches: the train step that overwrites gradients and the one that adds to them, each with the
// addresses of its loss and the divisor of that (0: `rows`); the plan that `clip`s (0: none); the
// place of rates in the block (0: none); the last plan `ran`. Inputs follow, and limits if there is
// `clip` (place in the block, bytes, places in the arena of the two), then the losses.
export const BATCHES_TRAIN = 0;
export const BATCHES_LOSS = 1;
export const BATCHES_COUNT = 2;
export const BATCHES_ADDING = 3;
export const BATCHES_ADDING_LOSS = 4;
export const BATCHES_ADDING_COUNT = 5;
export const BATCHES_UPDATE = 6;
export const BATCHES_CLIP = 7;
export const BATCHES_ROWS = 8;
export const BATCHES_RATES = 9;
export const BATCHES_N_INPUTS = 10;
export const BATCHES_RAN = 11;
export const BATCHES_WORDS = 12;

export const SEGMENT_NAMES: readonly string[] = ["arena", "constants", "parameters", "gradients", "momentum0", "momentum1", "state", "prepared", "large_constants"];
