/* The plan executor and its verifier. kernels.def lays a plan out word by word.

   The verifier is total: it trusts nothing in the plan. Once it has passed a plan, no instruction of the plan can touch
   memory outside the buffers it names, nor the plan itself. A plan is the whole of one allocated block. The block's
   header, which the plan cannot reach, notes that the plan was verified. */
#include <stdbool.h>

#include "executor.h"

#include "alloc.h"
#include "parallel.h"

#define NO_INSTRUCTION 0xFFFFFFFFu
#define MAX_SEGMENTS 128
#define TW_MORE (-1) /* no status: the run was not finished */
#define FOREVER __builtin_inf()

typedef int32_t (*tw_kernel_fn)(const void *args);
typedef int32_t (*tw_check_fn)(const tw_binder *binder, const uint32_t *words, uint32_t *relocated);
typedef void (*tw_generated_fn)(const uint32_t *args, int32_t lo, int32_t hi);

typedef struct {
    tw_kernel_fn run;
    tw_check_fn check;
    uint32_t n_words;
} tw_entry;

__attribute__((import_module("env"), import_name("now"))) double tw_now(void); /* milliseconds */

static struct {
    int64_t value, position;
    int32_t classes;
} fault;

int32_t tw_fail(int32_t status, int64_t value, int64_t position) {
    fault.value = value;
    fault.position = position;
    return status;
}

int32_t tw_fail_label(int64_t label, int64_t position, int32_t classes) {
    fault.classes = classes;
    return tw_fail(TW_BAD_LABEL, label, position);
}

#define TW_SHARED static TW_ONCE __attribute__((unused))

/* ---- what the generated verifiers call; expressions are in double, which cannot overflow ---- */

TW_INLINE double tw_max(double a, double b) { return a > b ? a : b; }
TW_INLINE double tw_min(double a, double b) { return a < b ? a : b; }
TW_INLINE double tw_div(double a, double b) { return __builtin_floor(a / b); }
TW_INLINE double tw_ceil4(double a) { return __builtin_ceil(a / 4) * 4; }

TW_SHARED double tw_prod(const int32_t *dims, int32_t n) {
    double product = 1;
    for (int32_t i = 0; i < n; i++) product *= dims[i];
    return product;
}

/* Reach of a strided view above its start. */
TW_SHARED double tw_reach_up(const int32_t *dims, const int32_t *strides, int32_t n) {
    double reach = 0;
    for (int32_t i = 0; i < n; i++) reach += (dims[i] - 1.0) * tw_max(strides[i], 0);
    return reach;
}

/* Reach of a strided view below its start, as a number >= 0. */
TW_SHARED double tw_reach_down(const int32_t *dims, const int32_t *strides, int32_t n) {
    double reach = 0;
    for (int32_t i = 0; i < n; i++) reach -= (dims[i] - 1.0) * tw_min(strides[i], 0);
    return reach;
}

int32_t tw_check_sign(const uint32_t *words, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if ((int32_t)words[i] < 0) return tw_fail(TW_BAD_ARGUMENT, (int32_t)words[i], i);
    return TW_OK;
}

int32_t tw_bind(const tw_binder *binder, uint32_t index, double extent, int32_t size, int32_t flags, uint32_t *address) {
    if (index == PLAN_NO_BUFFER && (flags & TW_NULLABLE)) {
        *address = 0;
        return TW_OK;
    }
    if (index >= binder->n_buffers) return tw_fail(TW_BAD_ARGUMENT, index, binder->n_buffers);
    const uint32_t *buffer = binder->buffers + BUFFER_WORDS * index;
    const uint32_t *segment = binder->segments + SEGMENT_WORDS * buffer[BUFFER_SEGMENT];
    if ((flags & TW_WRITES) && !(segment[SEGMENT_FLAGS] & PLAN_WRITABLE))
        return tw_fail(TW_READ_ONLY, index, buffer[BUFFER_SEGMENT]);
    if (!(extent >= 0 && extent * size <= buffer[BUFFER_NBYTES]))
        return tw_fail(TW_BAD_EXTENT, index, buffer[BUFFER_NBYTES]);
    *address = segment[SEGMENT_BASE] + buffer[BUFFER_OFFSET];
    if (*address & (size >= 4 ? 3u : 0u)) return tw_fail(TW_BAD_ARGUMENT, index, *address);
    if (flags & TW_WRITES && buffer[BUFFER_SEGMENT] < 32) *binder->written |= 1u << buffer[BUFFER_SEGMENT];
    return TW_OK;
}

static uint64_t buffer_start(const tw_binder *binder, const uint32_t *buffer) {
    return (uint64_t)binder->segments[SEGMENT_WORDS * buffer[BUFFER_SEGMENT] + SEGMENT_BASE] + buffer[BUFFER_OFFSET];
}

/* Buffers `index` and `result`, which were bound, must not overlap. */
TW_SHARED int32_t tw_check_apart(const tw_binder *binder, uint32_t index, uint32_t result) {
    if (index == PLAN_NO_BUFFER || result == PLAN_NO_BUFFER) return TW_OK;
    const uint32_t *a = binder->buffers + BUFFER_WORDS * index, *b = binder->buffers + BUFFER_WORDS * result;
    uint64_t at = buffer_start(binder, a), to = buffer_start(binder, b);
    uint32_t n = a[BUFFER_NBYTES], m = b[BUFFER_NBYTES];
    if (n && m && at < to + m && to < at + n) return tw_fail(TW_OVERLAP, index, result);
    return TW_OK;
}

#include "kernels_tables.h"

/* ---- verifier ---- */

static int32_t check_header(const uint32_t *header, uint32_t block_size) {
    if (header[HEADER_MAGIC] != PLAN_MAGIC || header[HEADER_VERSION] != PLAN_VERSION)
        return tw_fail(TW_BAD_PLAN, header[HEADER_MAGIC], header[HEADER_VERSION]);
    if (header[HEADER_FINGERPRINT] != TW_FINGERPRINT) return tw_fail(TW_BAD_PLAN, header[HEADER_FINGERPRINT], TW_FINGERPRINT);
    uint64_t total = HEADER_WORDS + (uint64_t)SEGMENT_WORDS * header[HEADER_N_SEGMENTS] +
                     (uint64_t)BUFFER_WORDS * header[HEADER_N_BUFFERS] + 2ull * header[HEADER_N_CODE];
    if (total != header[HEADER_TOTAL_WORDS] || 4 * total > block_size) return tw_fail(TW_BAD_HEADER, (int64_t)total, block_size / 4);
    return TW_OK;
}

/* Segments in live blocks that are not the plan's; buffers inside their segments. */
static int32_t check_memory(const tw_binder *binder, uint32_t plan) {
    for (uint32_t i = 0; i < binder->n_segments; i++) {
        const uint32_t *segment = binder->segments + SEGMENT_WORDS * i;
        uint32_t base = segment[SEGMENT_BASE], nbytes = segment[SEGMENT_NBYTES];
        if (!nbytes) continue;
        uint64_t end = (uint64_t)base + nbytes;
        uint64_t plan_end = (uint64_t)plan + tw_block_at(plan)->size;
        if ((base < plan_end && end > plan) || !tw_range_is_live(base, nbytes)) return tw_fail(TW_BAD_SEGMENT, i, base);
    }
    for (uint32_t i = 0; i < binder->n_buffers; i++) {
        const uint32_t *buffer = binder->buffers + BUFFER_WORDS * i;
        uint32_t segment = buffer[BUFFER_SEGMENT];
        if (segment >= binder->n_segments) return tw_fail(TW_BAD_BUFFER, i, segment);
        uint32_t nbytes = binder->segments[SEGMENT_WORDS * segment + SEGMENT_NBYTES];
        if ((uint64_t)buffer[BUFFER_OFFSET] + buffer[BUFFER_NBYTES] > nbytes)
            return tw_fail(TW_BAD_BUFFER, i, buffer[BUFFER_OFFSET]);
    }
    return TW_OK;
}

/* Loops that have begun where the verifier is: where their bodies begin, and their iterations, all multiplied. */
typedef struct {
    uint32_t depth;
    struct {
        uint32_t word, instruction;
        double trips;
    } open[LOOP_DEPTH];
} tw_loops;

/* After instruction `count`, which ends at word `end`: which loop_end goes back to which loop_begin, in the relocated words.
   One without a beginning goes nowhere. `left` are the iterations that were left in a loop whose run goes on. */
static int32_t note_loop(tw_loops *loops, uint32_t opcode, uint32_t *args, uint32_t end, uint32_t count, int32_t left) {
    if (opcode == OPCODE_LOOP_BEGIN) {
        loop_begin_args *begin = (loop_begin_args *)args;
        double trips = begin->trips * (loops->depth ? loops->open[loops->depth - 1].trips : 1);
        if (loops->depth == LOOP_DEPTH || trips > LOOP_NEST_TRIPS) return tw_fail(TW_BAD_CONDITION, begin->trips, loops->depth);
        begin->left = left < 0 ? 0 : left > begin->trips ? begin->trips : left;
        loops->open[loops->depth].word = end;
        loops->open[loops->depth].instruction = count + 1;
        loops->open[loops->depth++].trips = trips;
    } else if (opcode == OPCODE_LOOP_END) {
        loop_end_args *last = (loop_end_args *)args;
        last->begin = last->instruction = 0;
        if (loops->depth) {
            last->begin = (int32_t)loops->open[--loops->depth].word;
            last->instruction = (int32_t)loops->open[loops->depth].instruction;
        }
    }
    return TW_OK;
}

static int32_t check_code(uint32_t *header, const tw_binder *binder, const uint32_t *code, uint32_t *relocated) {
    uint32_t at = 0, count = 0, n_code = header[HEADER_N_CODE];
    tw_loops loops = {0};
    while (at < n_code) {
        uint32_t opcode = code[at] & 0xFFFF, n_args = code[at] >> 16;
        header[HEADER_FAILED] = count;
        if (n_args >= n_code - at) return tw_fail(TW_BAD_ARGUMENT, n_args, at);
        if (opcode >= TW_N_OPCODES) return tw_fail(TW_BAD_OPCODE, opcode, at);
        int32_t left = 0; /* the plan is verified anew while a run of it waits, where functions have gone */
        if (opcode == OPCODE_LOOP_BEGIN && n_args == tw_table[opcode].n_words)
            left = ((const loop_begin_args *)(relocated + at + 1))->left;
        tw_copy(relocated + at, code + at, 4 * (size_t)(n_args + 1));
        int32_t status;
        if (opcode == 0) {
            status = tw_check_generated(binder, code + at + 1, n_args, relocated + at + 1);
        } else {
            if (n_args != tw_table[opcode].n_words) return tw_fail(TW_BAD_ARGUMENT, n_args, at);
            status = tw_table[opcode].check(binder, code + at + 1, relocated + at + 1);
            if (!status) status = note_loop(&loops, opcode, relocated + at + 1, at + n_args + 1, count, left);
        }
        if (status) return status;
        at += n_args + 1;
        count++;
    }
    header[HEADER_FAILED] = NO_INSTRUCTION;
    return count == header[HEADER_N_INSTRUCTIONS] ? TW_OK : tw_fail(TW_BAD_HEADER, count, header[HEADER_N_INSTRUCTIONS]);
}

static int32_t verify(uint32_t *header, tw_block *block) {
    int32_t status = check_header(header, block->size);
    if (status) return status;
    block->written = 0;
    tw_binder binder = {.segments = header + HEADER_WORDS, .n_segments = header[HEADER_N_SEGMENTS],
                        .n_buffers = header[HEADER_N_BUFFERS], .written = &block->written};
    binder.buffers = binder.segments + SEGMENT_WORDS * binder.n_segments;
    if (header[HEADER_N_FUNCTIONS]) {
        binder.code = tw_code_at(header[HEADER_CODE_BASE], header[HEADER_N_FUNCTIONS]);
        if (!binder.code) return tw_fail(TW_BAD_FUNCTION, header[HEADER_CODE_BASE], header[HEADER_N_FUNCTIONS]);
    }
    uint32_t *code = (uint32_t *)binder.buffers + BUFFER_WORDS * binder.n_buffers;
    if ((status = check_memory(&binder, (uint32_t)(uintptr_t)header))) return status;
    return check_code(header, &binder, code, code + header[HEADER_N_CODE]);
}

/* ---- execution ---- */

typedef struct {
    tw_generated_fn fn;
    const uint32_t *args;
    int32_t n, grain;
} generated_task;

static void run_chunk(const void *args, int32_t chunk) {
    const generated_task *task = args;
    int64_t lo = (int64_t)chunk * task->grain;
    task->fn(task->args, (int32_t)lo, (int32_t)min_i64(lo + task->grain, task->n));
}

static void run_generated(const uint32_t *words) {
    generated_task task = {(tw_generated_fn)(uintptr_t)words[GENERATED_FUNCTION], words + GENERATED_WORDS,
                           (int32_t)words[GENERATED_N], (int32_t)words[GENERATED_GRAIN]};
    parallel_for(run_chunk, &task, chunk_count(task.n, task.grain));
}

/* After a loop_end: true if the loop goes on; its counter then has the number of the next iteration. A plan cannot send the
   executor anywhere: the verifier has written the beginning of each loop, and loops are nested. Each time that a loop
   begins, it goes back fewer times than it has iterations, so every run ends. */
static bool next_iteration(uint32_t *code, const loop_end_args *end) {
    if (!end->begin) return false;
    loop_begin_args *begin = (loop_begin_args *)(code + end->begin) - 1;
    if (begin->left <= 1) return false;
    begin->left--;
    *end->counter = begin->trips - begin->left;
    return true;
}

/* Run from instruction `block->at.instruction` on to the end, or to the first boundary of instructions after `until`. */
static int32_t run_code(uint32_t *header, tw_block *block, double *profile, double until) {
    uint32_t *code = header + header[HEADER_TOTAL_WORDS] - header[HEADER_N_CODE];
    const uint32_t *word = code + block->at.word;
    int32_t status = block->at.left_out;
    for (uint32_t i = block->at.instruction; i < header[HEADER_N_INSTRUCTIONS]; i++) {
        uint32_t opcode = *word & 0xFFFF, n_args = *word >> 16;
        if (status < 0) { /* an instruction that a kernel leaves out */
            status++;
            word += n_args + 1;
            continue;
        }
        double start = profile ? tw_now() : 0;
        header[HEADER_FAILED] = i; /* where a trap happened, too */
        if (opcode == 0) run_generated(word + 1);
        else status = tw_table[opcode].run(word + 1);
        if (profile) profile[i] += tw_now() - start;
        if (!status && parallel_failed()) status = tw_fail(TW_TRAPPED, 0, 0);
        if (status > 0) return status;
        word += n_args + 1;
        if (opcode == OPCODE_LOOP_BEGIN) {
            loop_begin_args *begin = (loop_begin_args *)(code + (word - code)) - 1;
            begin->left = begin->trips;
        } else if (opcode == OPCODE_LOOP_END) {
            const loop_end_args *end = (const loop_end_args *)word - 1;
            if (next_iteration(code, end)) {
                word = code + end->begin;
                i = (uint32_t)end->instruction - 1; /* one less than the next */
            }
        }
        if (until != FOREVER && i + 1 < header[HEADER_N_INSTRUCTIONS] && tw_now() >= until) {
            block->at = (tw_place_in_plan){i + 1, (uint32_t)(word - code), status};
            block->paused = 1;
            return TW_MORE;
        }
    }
    header[HEADER_FAILED] = NO_INSTRUCTION;
    return TW_OK;
}

/* Have the plan verified since it was placed and since functions have gone. */
static int32_t verify_once(uint32_t *header, tw_block *block) {
    if (!block->placed) return tw_fail(TW_BAD_PLAN, 0, 0);
    if (block->verified == tw_code_generation()) return TW_OK;
    block->verified = 0;
    int32_t status = verify(header, block);
    if (!status) block->verified = tw_code_generation();
    return status;
}

static int32_t run_plan(uint32_t *header, tw_block *block, double until) {
    int32_t status = verify_once(header, block);
    if (status) return status;
    uint32_t profile = block->profile;
    if (profile) {
        uint64_t nbytes = 8ull * header[HEADER_N_INSTRUCTIONS], plan = (uint32_t)(uintptr_t)header;
        if (profile % 8 || !tw_range_is_live(profile, nbytes) ||
            (profile < plan + block->size && profile + nbytes > plan))
            return tw_fail(TW_BAD_POINTER, profile, 0);
    }
    return run_code(header, block, (double *)(uintptr_t)profile, until);
}

uint32_t tw_tick(void) {
    static uint32_t ticks;
    return ++ticks;
}

static tw_block *plan_block(uint32_t plan) {
    tw_block *block = tw_block_at(plan);
    return block && block->size >= 4 * HEADER_WORDS ? block : NULL;
}

/* Address of the table for base and bytes of each segment of the next plan to place; 0 without room for n segments. */
static uint32_t given[2 * MAX_SEGMENTS];
TW_EXPORT(tw_place_table) uint32_t tw_place_table(uint32_t n) {
    return n <= MAX_SEGMENTS ? (uint32_t)(uintptr_t)given : 0;
}

/* Place the plan at `plan`, the start of an allocated block. The table holds base and bytes of each of its n segments, and
   its generated functions begin at slot `code_base`. All addresses of a plan come from here and from tw_profile; the
   addresses in its bytes do not matter. A host that writes another plan into a block must place that plan, too. */
TW_EXPORT(tw_place) int32_t tw_place(uint32_t plan, uint32_t n, uint32_t code_base) {
    return n > MAX_SEGMENTS ? TW_BAD_POINTER : tw_place_at(plan, given, n, code_base);
}

int32_t tw_place_at(uint32_t plan, const uint32_t *table, uint32_t n, uint32_t code_base) {
    tw_block *block = plan_block(plan);
    if (!block) return TW_BAD_POINTER;
    uint32_t *header = (uint32_t *)(uintptr_t)plan;
    block->placed = block->verified = block->profile = block->paused = 0;
    if (header[HEADER_N_SEGMENTS] != n || 4 * (HEADER_WORDS + (uint64_t)SEGMENT_WORDS * n) > block->size)
        return TW_BAD_HEADER;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *segment = header + HEADER_WORDS + SEGMENT_WORDS * i;
        segment[SEGMENT_BASE] = table[2 * i];
        segment[SEGMENT_NBYTES] = table[2 * i + 1];
    }
    header[HEADER_CODE_BASE] = code_base;
    block->placed = 1;
    return TW_OK;
}

/* From now on runs of the plan add the milliseconds of each instruction to a float64 from `times` on; 0: no more. */
TW_EXPORT(tw_profile) int32_t tw_profile(uint32_t plan, uint32_t times) {
    tw_block *block = plan_block(plan);
    if (!block || !block->placed) return TW_BAD_POINTER;
    block->profile = times;
    return TW_OK;
}

static int32_t run_from(uint32_t plan, int32_t anew, double until) {
    tw_block *block = plan_block(plan);
    if (!block) return TW_BAD_POINTER;
    uint32_t *header = (uint32_t *)(uintptr_t)plan;
    fault.value = fault.position = 0;
    block->used = tw_tick();
    header[HEADER_FAILED] = NO_INSTRUCTION;
    if (anew) block->at = (tw_place_in_plan){0};
    int32_t status = anew || block->paused ? TW_OK : tw_fail(TW_BAD_PLAN, 0, 0);
    block->paused = 0;
    if (!status) status = run_plan(header, block, until);
    header[HEADER_STATUS] = (uint32_t)status;
    tw_copy(header + HEADER_VALUE, &fault.value, sizeof(int64_t));
    tw_copy(header + HEADER_POSITION, &fault.position, sizeof(int64_t));
    header[HEADER_CLASSES] = (uint32_t)fault.classes;
    return status;
}

/* Run a plan that was placed; verifies it the first time, and again when functions have gone. Returns a status, which
   the header keeps together with the instruction, the offending value and its position. */
TW_EXPORT(tw_run) int32_t tw_run(uint32_t plan) { return run_from(plan, 1, FOREVER); }

/* As tw_run, but for some milliseconds: it returns TW_MORE (-1) at the first boundary of instructions after them. A call
   with anew = 0 goes on from there. */
TW_EXPORT(tw_run_slice) int32_t tw_run_slice(uint32_t plan, int32_t anew, double milliseconds) {
    return run_from(plan, anew, tw_now() + milliseconds);
}

/* The segments that runs of a placed plan write, one bit each; 0 where it cannot run. */
TW_EXPORT(tw_written) uint32_t tw_written(uint32_t plan) {
    tw_block *block = plan_block(plan);
    return block && !verify_once((uint32_t *)(uintptr_t)plan, block) ? block->written : 0;
}

/* JSON: kernels with their opcodes and arguments, statuses, fingerprint. */
TW_EXPORT(tw_description) const char *tw_description(void) { return tw_description_text; }
TW_EXPORT(tw_description_size) uint32_t tw_description_size(void) { return sizeof(tw_description_text) - 1; }

/* The compiler may call these for struct copies; they must not be recursive, hence the intrinsics. */
void *memcpy(void *restrict dst, const void *restrict src, size_t n) { return __builtin_memcpy(dst, src, n); }
void *memmove(void *dst, const void *src, size_t n) { return __builtin_memmove(dst, src, n); }
void *memset(void *dst, int value, size_t n) { return __builtin_memset(dst, value, n); }
