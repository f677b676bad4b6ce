/* The steps of a fit: accumulation, counts, the mean loss, and batches that make NaN or infinity.

   tw_fit_run runs batches as they are. Hosts with work between the plans run them one by one, and report each. The field
   `next` of `layout fit` is the next action. */
#include <stddef.h>

#include "executor.h"
#include "session.h"
#include "state.h"

_Static_assert(offsetof(tw_fit, optimizer_steps) == 4 * FIT_OPTIMIZER_STEPS, "layout fit of kernels.def");
_Static_assert(offsetof(tw_fit, rows) == 4 * FIT_ROWS, "layout fit of kernels.def");
_Static_assert(offsetof(tw_fit, accumulate) == 4 * FIT_WORDS, "layout fit of kernels.def");

#define ALL_SEGMENTS ((1u << N_SEGMENTS) - 1)

/* Bits of the segments that are copied here. */
static uint32_t segments_here(const tw_fit *f) { return f->is_elsewhere ? 1u << STATE : ALL_SEGMENTS; }

/* NaN and infinity are looked for in all that a batch writes, and undone. */
static bool undoes(uint32_t on_nan) { return on_nan != ON_NAN_FAIL && on_nan != ON_NAN_IGNORE; }

/* The session that is fitted, or null. */
static tw_session *fitted(uint32_t session) {
    tw_session *s = tw_session_at(session);
    return s && s->fit.accumulate ? s : NULL;
}

/* The next train step overwrites gradients that no optimizer step waits for, or adds its share to them. */
static void note_waiting(const tw_session *s) {
    const tw_fit *f = &s->fit;
    tw_state_of(s)[STATE_LAZY_RESET] = f->waiting == 0;
    set_state_f32(tw_state_of(s), STATE_SHARE, f->waiting && !f->sums ? (float)(1 / f->unit) : 0);
}

/* Begin a fit.

   accumulate: batches for an optimizer step; on_nan: what follows NaN and infinity; sums: bits of `sums`; mu: of the
   proximal term, 0: there is none. */
TW_EXPORT(tw_fit_start)
int32_t tw_fit_start(uint32_t session, uint32_t accumulate, uint32_t on_nan, uint32_t sums, double mu) {
    tw_session *s = tw_session_at(session);
    const int32_t *state = s ? tw_state_of(s) : NULL;
    if (!state) return TW_BAD_POINTER;
    if (!accumulate || on_nan > ON_NAN_IGNORE) return TW_BAD_ARGUMENT;
    int32_t status = mu != 0 ? tw_note_start(s) : TW_OK;
    if (status) return status;
    if (undoes(on_nan)) tw_count_usual(s);
    s->fit = (tw_fit){
        .accumulate = accumulate,
        .on_nan = on_nan,
        .sums = sums,
        .mu = mu,
        .lazy_reset = (uint32_t)state[STATE_LAZY_RESET],
        .learning_rate = state_f32(state, STATE_LEARNING_RATE),
    };
    return TW_OK;
}

/* Address of the position: FIT_WORDS words; 0: there is no fit. */
TW_EXPORT(tw_fit_at) uint32_t tw_fit_at(uint32_t session) {
    tw_session *s = fitted(session);
    return s ? (uint32_t)(uintptr_t)&s->fit : 0;
}

static void set_position(tw_fit *f, uint32_t epoch, uint32_t step, uint32_t kept, double loss_sum, double rows) {
    f->epoch = epoch;
    f->step = step;
    f->kept = kept;
    f->loss_sum = loss_sum;
    f->rows = rows;
}

/* Go on from the position of a checkpoint. */
TW_EXPORT(tw_fit_resume)
int32_t tw_fit_resume(uint32_t session, uint32_t epoch, uint32_t step, uint32_t kept, uint32_t optimizer_steps, double loss_sum,
                      double rows) {
    tw_session *s = fitted(session);
    if (!s) return TW_BAD_POINTER;
    if (kept > step) return TW_BAD_ARGUMENT;
    s->fit.has_begun = 1;
    s->fit.optimizer_steps = optimizer_steps;
    set_position(&s->fit, epoch, step, kept, loss_sum, rows);
    return TW_OK;
}

/* The host copies, scales and looks at all segments but the state itself from now on, or does not. The call that follows fails
   with a `fault` that it tells: the segment with NaN or infinity, 0: there is none. */
TW_EXPORT(tw_fit_elsewhere) int32_t tw_fit_elsewhere(uint32_t session, uint32_t is_elsewhere, uint32_t fault) {
    tw_session *s = fitted(session);
    if (!s) return TW_BAD_POINTER;
    if (fault >= N_SEGMENTS) return TW_BAD_ARGUMENT;
    s->fit.is_elsewhere = is_elsewhere;
    s->fit.fault = fault;
    return TW_OK;
}

/* The segment that a batch has spoiled, or 0. */
static uint32_t worse_segment(const tw_session *s) {
    const tw_fit *f = &s->fit;
    return !undoes(f->on_nan) ? 0 : f->is_elsewhere ? f->fault : tw_worse(s);
}

/* Drop gradients that wait, and note a state that may be gone back to. */
TW_EXPORT(tw_fit_keep) int32_t tw_fit_keep(uint32_t session) {
    tw_session *s = fitted(session);
    if (!s) return TW_BAD_POINTER;
    s->fit.waiting = 0;
    note_waiting(s);
    return s->fit.on_nan == ON_NAN_RESTORE ? tw_session_save(session, COPY_GOOD, segments_here(&s->fit)) : TW_OK;
}

/* Be in an epoch, at its first batch unless the fit is in the epoch already, and note the state. */
TW_EXPORT(tw_fit_epoch) int32_t tw_fit_epoch(uint32_t session, uint32_t epoch) {
    tw_session *s = fitted(session);
    if (!s) return TW_BAD_POINTER;
    if (s->fit.epoch != epoch) set_position(&s->fit, epoch, 0, 0, 0, 0);
    return tw_fit_keep(session);
}

static int32_t begin(uint32_t session, bool is_batch) {
    tw_session *s = fitted(session);
    if (!s) return TW_BAD_POINTER;
    int32_t status = undoes(s->fit.on_nan) ? tw_session_save(session, COPY_BATCH, segments_here(&s->fit)) : TW_OK;
    if (status) return status;
    s->fit.is_batch = is_batch;
    return TW_OK;
}

/* The gradients are complete. Scale them to one batch, add the proximal term, and have the host run the optimizer step. */
static int32_t complete(tw_session *s) {
    tw_fit *f = &s->fit;
    f->next = NEXT_UPDATE;
    if (f->is_elsewhere) return TW_OK;
    if (!f->sums && f->total != 0 && f->total != f->unit) tw_scale_gradients(s, f->unit / f->total);
    return f->mu != 0 ? tw_pull(s, f->mu) : TW_OK;
}

/* Take note of the divisor of a batch's loss. One without labels that count has no gradients; any unit suits it. */
static void note_divisor(tw_fit *f) {
    if (!f->waiting) f->unit = f->weight != 0 ? f->weight : 1;
    f->former = f->waiting ? f->total : 0;
    f->total = f->former + f->weight;
}

static void fail(tw_fit *f, uint32_t fault) {
    f->fault = fault;
    f->next = undoes(f->on_nan) ? NEXT_UNDO : NEXT_FAIL;
}

static void note_batch(tw_fit *f) {
    f->step++;
    f->kept++;
    f->loss_sum += f->sums & SUMS_LOSS ? f->loss : f->loss * f->weight;
    f->rows += f->weight;
    f->is_batch = 0;
}

/* A batch begins: the host sets the learning rate if no gradients wait, and runs the train step. */
TW_EXPORT(tw_fit_batch) int32_t tw_fit_batch(uint32_t session) {
    int32_t status = begin(session, true);
    if (!status) note_waiting(tw_session_at(session));
    return status;
}

/* The train step of the batch is done. Its loss was divided by `weight`. */
TW_EXPORT(tw_fit_trained) int32_t tw_fit_trained(uint32_t session, double loss, double weight) {
    tw_session *s = fitted(session);
    if (!s) return TW_BAD_POINTER;
    tw_fit *f = &s->fit;
    if (!f->is_batch) return TW_BAD_ARGUMENT;
    f->has_begun = 1;
    f->loss = loss;
    f->weight = weight;
    uint32_t worse = worse_segment(s);
    const bool is_finite = __builtin_fabs(loss) < __builtin_inf();
    if (worse || !(is_finite || f->on_nan == ON_NAN_IGNORE)) {
        fail(f, is_finite ? worse : 0);
        return TW_OK;
    }
    note_divisor(f);
    if (f->waiting + 1 >= f->accumulate) return complete(s);
    f->waiting++;
    f->next = NEXT_BATCH;
    note_batch(f);
    note_waiting(s);
    return TW_OK;
}

/* The epoch or the fit ends: use the gradients that wait. */
TW_EXPORT(tw_fit_rest) int32_t tw_fit_rest(uint32_t session) {
    int32_t status = begin(session, false);
    if (status) return status;
    tw_session *s = tw_session_at(session);
    if (s->fit.waiting) return complete(s);
    s->fit.next = NEXT_BATCH;
    return TW_OK;
}

/* The optimizer step is done. */
TW_EXPORT(tw_fit_updated) int32_t tw_fit_updated(uint32_t session) {
    tw_session *s = fitted(session);
    if (!s) return TW_BAD_POINTER;
    tw_fit *f = &s->fit;
    if (f->next != NEXT_UPDATE) return TW_BAD_ARGUMENT;
    uint32_t worse = worse_segment(s);
    if (worse) {
        if (f->is_batch) f->total = f->former;
        fail(f, worse);
        return TW_OK;
    }
    f->waiting = 0;
    f->optimizer_steps++;
    f->next = NEXT_BATCH;
    if (f->is_batch) note_batch(f);
    note_waiting(s);
    return TW_OK;
}

/* ---- several batches ---- */

/* A train step: its plan, and addresses of its loss and the divisor of that. */
typedef struct {
    uint32_t plan, loss, count;
} train_step;

/* `layout batches` of kernels.def, at the start of a block. */
typedef struct {
    train_step steps[2];
    uint32_t update, clip, rows, rates, n_inputs, ran, numbers;
} tw_batches;
_Static_assert(sizeof(tw_batches) == 4 * BATCHES_WORDS, "layout batches of kernels.def");

typedef struct {
    uint32_t source, nbytes, targets[2];
} batch_input;

static bool has_room(uint64_t place, uint64_t nbytes, uint64_t size) { return place + nbytes <= size; }
static bool are_floats(uint32_t address, uint64_t count) { return address % 4 == 0 && tw_range_is_live(address, 4 * count); }

/* The limits of gradients follow the inputs, if there is a plan that clips. */
static uint64_t inputs_of(const tw_batches *b) { return (uint64_t)b->n_inputs + (b->clip != 0); }

/* True: all places are inside of the block and the arena. */
static bool fits(const tw_session *s, const tw_block *block, const tw_batches *b, uint64_t count) {
    const uint64_t size = block->requested, arena = s->segments[ARENA].nbytes;
    if (!b->numbers || !has_room(sizeof *b + inputs_of(b) * sizeof(batch_input), 4 * count * b->numbers, size)) return false;
    if (b->rates % 4 || (b->rates && !has_room(b->rates, 4 * (count + 1), size))) return false;
    const batch_input *input = (const batch_input *)(b + 1);
    for (int k = 0; k < 2; k++) {
        const train_step *step = b->steps + k;
        if (!are_floats(step->loss, b->numbers) || (step->count && !are_floats(step->count, 1))) return false;
        for (uint32_t i = 0; i < inputs_of(b); i++)
            if (!has_room(input[i].targets[k], input[i].nbytes, arena)) return false;
    }
    for (uint32_t i = 0; i < inputs_of(b); i++)
        if (!has_room(input[i].source, (i < b->n_inputs ? count : 1) * input[i].nbytes, size)) return false;
    return true;
}

static float float_at(uint32_t address) { return *(const float *)(uintptr_t)address; }

/* Copy the input of a batch to its place in the arena. */
static void feed(const tw_session *s, const tw_batches *b, const batch_input *input, uint32_t batch) {
    const uint8_t *source = (const uint8_t *)b + input->source + (size_t)batch * input->nbytes;
    tw_copy((void *)(uintptr_t)(s->segments[ARENA].base + input->targets[s->fit.waiting != 0]), source, input->nbytes);
}

static int32_t run_plan(tw_batches *b, uint32_t plan) {
    b->ran = plan;
    return tw_run(plan);
}

/* Run a batch whose inputs are in the arena, and the optimizer step if it is due. */
static int32_t run_batch(uint32_t session, tw_batches *b, float *loss) {
    tw_session *s = tw_session_at(session);
    const train_step *step = b->steps + (s->fit.waiting != 0);
    int32_t status = run_plan(b, step->plan);
    if (status) return status;
    tw_copy(loss, (const void *)(uintptr_t)step->loss, 4 * b->numbers);
    status = tw_fit_trained(session, *loss, step->count ? float_at(step->count) : b->rows);
    if (status || s->fit.next != NEXT_UPDATE) return status;
    if (b->clip) {
        feed(s, b, (const batch_input *)(b + 1) + b->n_inputs, 0);
        status = run_plan(b, b->clip);
    }
    if (!status) status = run_plan(b, b->update);
    return status ? status : tw_fit_updated(session);
}

/* Train on so many batches of a block, until one makes NaN or infinity. Returns the status of the plan that `ran` last. */
TW_EXPORT(tw_fit_run) int32_t tw_fit_run(uint32_t session, uint32_t block, uint32_t batches) {
    tw_session *s = fitted(session);
    const tw_block *header = tw_block_of_host(block);
    if (!s || !header || header->requested < sizeof(tw_batches)) return TW_BAD_POINTER;
    tw_batches *b = (tw_batches *)(uintptr_t)block;
    if (!fits(s, header, b, batches)) return TW_BAD_ARGUMENT;
    const batch_input *input = (const batch_input *)(b + 1);
    float *losses = (float *)(input + inputs_of(b));
    const float *rates = (const float *)(uintptr_t)(block + b->rates);
    const uint32_t first = s->fit.optimizer_steps;
    s->fit.next = NEXT_BATCH;
    for (uint32_t k = 0; k < batches && s->fit.next == NEXT_BATCH; k++) {
        b->ran = 0;
        int32_t status = tw_fit_batch(session);
        if (status) return status;
        if (b->rates && !s->fit.waiting) set_state_f32(tw_state_of(s), STATE_LEARNING_RATE, rates[s->fit.optimizer_steps - first]);
        for (uint32_t i = 0; i < b->n_inputs; i++) feed(s, b, input + i, k);
        status = run_batch(session, b, losses + (size_t)k * b->numbers);
        if (status) return status;
    }
    return TW_OK;
}

/* ---- the end ---- */

/* Undo the batch, or the update that an epoch ends with, as `on_nan` has it. */
TW_EXPORT(tw_fit_undo) int32_t tw_fit_undo(uint32_t session) {
    tw_session *s = fitted(session);
    if (!s) return TW_BAD_POINTER;
    tw_fit *f = &s->fit;
    bool is_back = f->on_nan == ON_NAN_RESTORE;
    int32_t status = is_back ? tw_session_go_back(session, COPY_GOOD) : tw_session_put_back(session, COPY_BATCH);
    if (status) return status;
    f->restores += is_back;
    f->next = f->on_nan == ON_NAN_STOP ? NEXT_END : f->restores > MOST_RESTORES ? NEXT_FAIL : NEXT_BATCH;
    if (is_back || !f->is_batch || f->next == NEXT_END) f->waiting = 0;
    if (f->is_batch && f->next == NEXT_BATCH) f->step++;
    f->is_batch = 0;
    note_waiting(s);
    return TW_OK;
}

/* End a fit: gradients that no optimizer step has used are dropped. A fit that has not begun leaves the session as it was. */
TW_EXPORT(tw_fit_end) int32_t tw_fit_end(uint32_t session) {
    tw_session *s = fitted(session);
    if (!s) return TW_BAD_POINTER;
    int32_t *state = tw_state_of(s);
    state[STATE_LAZY_RESET] = s->fit.has_begun ? 1 : (int32_t)s->fit.lazy_reset;
    set_state_f32(state, STATE_SHARE, 0);
    if (!s->fit.has_begun) set_state_f32(state, STATE_LEARNING_RATE, s->fit.learning_rate);
    s->fit.accumulate = 0;
    tw_session_forget(session, COPY_BATCH);
    return tw_session_forget(session, COPY_GOOD);
}
