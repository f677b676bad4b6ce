/* The steps of a fit: accumulation, counts, the mean loss, and batches that make NaN or infinity.

   Hosts run the plans, and report each. The field `next` of `layout fit` is the next action. */
#include <stddef.h>

#include "session.h"
#include "state.h"

_Static_assert(offsetof(tw_fit, optimizer_steps) == 4 * FIT_OPTIMIZER_STEPS, "layout fit of kernels.def");
_Static_assert(offsetof(tw_fit, rows) == 4 * FIT_ROWS, "layout fit of kernels.def");
_Static_assert(offsetof(tw_fit, accumulate) == 4 * FIT_WORDS, "layout fit of kernels.def");

#define ALL_SEGMENTS ((1u << N_SEGMENTS) - 1)

/* The session that is fitted, or null. */
static tw_session *fitted(uint32_t session) {
    tw_session *s = tw_session_at(session);
    return s && s->fit.accumulate ? s : NULL;
}

/* The next train step overwrites gradients that no optimizer step waits for. */
static void note_waiting(const tw_session *s) { tw_state_of(s)[STATE_LAZY_RESET] = s->fit.waiting == 0; }

/* Begin a fit.

   accumulate: batches for an optimizer step; on_nan: what follows NaN and infinity; is_sum: the loss is not divided;
   mu: of the proximal term, 0: there is none. */
TW_EXPORT(tw_fit_start)
int32_t tw_fit_start(uint32_t session, uint32_t accumulate, uint32_t on_nan, uint32_t is_sum, double mu) {
    tw_session *s = tw_session_at(session);
    const int32_t *state = s ? tw_state_of(s) : NULL;
    if (!state) return TW_BAD_POINTER;
    if (!accumulate || on_nan > ON_NAN_RESTORE) return TW_BAD_ARGUMENT;
    int32_t status = mu != 0 ? tw_note_start(s) : TW_OK;
    if (status) return status;
    if (on_nan) tw_count_usual(s);
    s->fit = (tw_fit){
        .accumulate = accumulate,
        .on_nan = on_nan,
        .is_sum = is_sum,
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

/* Drop gradients that wait, and note a state that may be gone back to. */
TW_EXPORT(tw_fit_keep) int32_t tw_fit_keep(uint32_t session) {
    tw_session *s = fitted(session);
    if (!s) return TW_BAD_POINTER;
    s->fit.waiting = 0;
    note_waiting(s);
    return s->fit.on_nan == ON_NAN_RESTORE ? tw_session_save(session, COPY_GOOD, ALL_SEGMENTS) : TW_OK;
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
    int32_t status = s->fit.on_nan ? tw_session_save(session, COPY_BATCH, ALL_SEGMENTS) : TW_OK;
    if (status) return status;
    s->fit.is_batch = is_batch;
    return TW_OK;
}

/* The gradients are complete: add the proximal term, and have the host run the optimizer step. */
static int32_t complete(tw_session *s) {
    s->fit.next = NEXT_UPDATE;
    return s->fit.mu != 0 ? tw_pull(s, s->fit.mu) : TW_OK;
}

static void fail(tw_fit *f, uint32_t fault) {
    f->fault = fault;
    f->next = f->on_nan ? NEXT_UNDO : NEXT_FAIL;
}

static void note_batch(tw_fit *f) {
    f->step++;
    f->kept++;
    f->loss_sum += f->is_sum ? f->loss : f->loss * f->weight;
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
    uint32_t worse = f->on_nan ? tw_worse(s) : 0;
    if (worse || !(__builtin_fabs(loss) < __builtin_inf())) {
        fail(f, __builtin_fabs(loss) < __builtin_inf() ? worse : 0);
        return TW_OK;
    }
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
    uint32_t worse = f->on_nan ? tw_worse(s) : 0;
    if (worse) {
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
    if (!s->fit.has_begun) set_state_f32(state, STATE_LEARNING_RATE, s->fit.learning_rate);
    s->fit.accumulate = 0;
    tw_session_forget(session, COPY_BATCH);
    return tw_session_forget(session, COPY_GOOD);
}
