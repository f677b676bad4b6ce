/* The segments of a session, copies of them, and what happens to whole segments. */
#include "session.h"

#include "state.h"

static uint32_t missing;

/* Bytes that the last call which returned TW_NO_MEMORY (or no address) had no room for. */
TW_EXPORT(tw_missing) uint32_t tw_missing(void) { return missing; }

static uint32_t address_of(const void *ptr) { return (uint32_t)(uintptr_t)ptr; }
static uint8_t *bytes_at(uint32_t address) { return (uint8_t *)(uintptr_t)address; }

uint32_t tw_take(const tw_session *session, uint32_t nbytes, bool zeroed) {
    uint32_t ptr = zeroed ? tw_alloc_zeroed(nbytes) : tw_alloc(nbytes);
    if (ptr) tw_block_at(ptr)->owner = address_of(session);
    else missing = nbytes;
    return ptr;
}

void tw_give_back(uint32_t ptr) {
    if (!ptr) return;
    tw_block_at(ptr)->owner = 0;
    tw_free(ptr);
}

tw_block *tw_block_of_host(uint32_t ptr) {
    tw_block *block = tw_block_at(ptr);
    return block && !block->owner ? block : NULL;
}

tw_session *tw_session_at(uint32_t session) {
    const tw_block *block = tw_block_at(session);
    return block && block->is_session ? (tw_session *)(uintptr_t)session : NULL;
}

/* A session without segments; 0 without memory. */
TW_EXPORT(tw_session_open) uint32_t tw_session_open(void) {
    uint32_t session = tw_take(NULL, sizeof(tw_session), true);
    tw_block *block = tw_block_at(session);
    if (block) {
        block->is_session = 1;
        block->owner = session;
    }
    return session;
}

/* Free a session, its segments, copies and plans. The functions of its plans stay in the table, which is the host's. */
TW_EXPORT(tw_session_close) int32_t tw_session_close(uint32_t session) {
    tw_session *s = tw_session_at(session);
    if (!s) return TW_BAD_POINTER;
    tw_unload_all(s);
    for (uint32_t i = 0; i < N_SEGMENTS; i++) tw_give_back(s->segments[i].base);
    for (uint32_t i = 0; i < N_COPIES; i++) tw_give_back(s->copies[i]);
    tw_give_back(s->runs);
    tw_give_back(s->start);
    tw_give_back(session);
    return TW_OK;
}

/* ---- segments */

/* True for segments whose contents outlast a run. */
static bool is_lasting(uint32_t segment) { return segment >= PARAMETERS && segment < PREPARED; }

/* Give a segment at least `nbytes`, zeros unless it is the arena. A segment that outlasts a run gets its size once.
   Without memory the session has its old segments, in other places and without contents that a run prepared. */
TW_EXPORT(tw_session_reserve) int32_t tw_session_reserve(uint32_t session, uint32_t segment, uint32_t nbytes) {
    tw_session *s = tw_session_at(session);
    if (!s) return TW_BAD_POINTER;
    if (segment >= N_SEGMENTS || segment == CONSTANTS) return TW_BAD_SEGMENT;
    uint32_t old = s->segments[segment].nbytes;
    if (nbytes <= old) return TW_OK;
    if (old && is_lasting(segment)) return TW_BAD_SEGMENT;
    bool zeroed = segment != ARENA;
    tw_give_back(s->segments[segment].base); /* first: memory may not hold both */
    uint32_t base = tw_take(s, nbytes, zeroed);
    int32_t status = base ? TW_OK : TW_NO_MEMORY;
    if (!base && old) base = tw_take(s, old, zeroed); /* what was freed is there again */
    s->segments[segment].base = base;
    s->segments[segment].nbytes = status ? old : nbytes;
    s->generation++;
    for (const tw_loaded *loaded = s->loaded; loaded; loaded = loaded->next) tw_place_loaded(s, loaded);
    return status;
}

/* Address and size of a segment; 0: it has no memory. */
TW_EXPORT(tw_session_base) uint32_t tw_session_base(uint32_t session, uint32_t segment) {
    const tw_session *s = tw_session_at(session);
    return s && segment < N_SEGMENTS ? s->segments[segment].base : 0;
}
TW_EXPORT(tw_session_bytes) uint32_t tw_session_bytes(uint32_t session, uint32_t segment) {
    const tw_session *s = tw_session_at(session);
    return s && segment < N_SEGMENTS ? s->segments[segment].nbytes : 0;
}

/* A number that changes when segments move: addresses given out before are void. */
TW_EXPORT(tw_session_generation) uint32_t tw_session_generation(uint32_t session) {
    const tw_session *s = tw_session_at(session);
    return s ? s->generation : 0;
}

int32_t *tw_state_of(const tw_session *s) {
    return s->segments[STATE].nbytes < STATE_WORDS * sizeof(int32_t) ? NULL : (int32_t *)bytes_at(s->segments[STATE].base);
}

/* Values that plans prepared of the parameters are void. */
static void note_load(const tw_session *s) {
    int32_t *state = tw_state_of(s);
    if (state) state[STATE_LOADS]++;
}

/* ---- copies */

static bool is_copied(const tw_session *s, uint32_t segments, uint32_t segment) {
    return is_lasting(segment) && s->segments[segment].nbytes && segments >> segment & 1;
}

/* Copy the segments whose bits are set and that outlast a run. They take the place of what copy number `copy` had. */
TW_EXPORT(tw_session_save) int32_t tw_session_save(uint32_t session, uint32_t copy, uint32_t segments) {
    tw_session *s = tw_session_at(session);
    if (!s) return TW_BAD_POINTER;
    if (copy >= N_COPIES) return TW_BAD_ARGUMENT;
    uint32_t total = 0; /* all segments lie in memory, so do not overflow it */
    for (uint32_t i = 0; i < N_SEGMENTS; i++) total += is_copied(s, segments, i) ? s->segments[i].nbytes : 0;
    const tw_block *held = tw_block_at(s->copies[copy]);
    if (!held || held->requested < total) {
        uint32_t room = tw_take(s, total, false);
        if (!room) return TW_NO_MEMORY;
        tw_give_back(s->copies[copy]);
        s->copies[copy] = room;
    }
    s->copied[copy] = 0;
    uint8_t *to = bytes_at(s->copies[copy]);
    for (uint32_t i = 0; i < N_SEGMENTS; i++) {
        if (!is_copied(s, segments, i)) continue;
        tw_copy(to, bytes_at(s->segments[i].base), s->segments[i].nbytes);
        to += s->segments[i].nbytes;
        s->copied[copy] |= 1u << i; /* a segment that gets its memory later is not in the copy */
    }
    return TW_OK;
}

/* Address of a segment's copy; 0: there is none. */
TW_EXPORT(tw_session_copy) uint32_t tw_session_copy(uint32_t session, uint32_t copy, uint32_t segment) {
    const tw_session *s = tw_session_at(session);
    if (!s || copy >= N_COPIES || segment >= N_SEGMENTS || !is_copied(s, s->copied[copy], segment)) return 0;
    uint32_t at = s->copies[copy];
    for (uint32_t i = 0; i < segment; i++) at += is_copied(s, s->copied[copy], i) ? s->segments[i].nbytes : 0;
    return at;
}

/* Have the segments as they were when they were copied. */
TW_EXPORT(tw_session_put_back) int32_t tw_session_put_back(uint32_t session, uint32_t copy) {
    const tw_session *s = tw_session_at(session);
    if (!s) return TW_BAD_POINTER;
    if (copy >= N_COPIES || !s->copies[copy]) return TW_BAD_ARGUMENT;
    for (uint32_t i = 0; i < N_SEGMENTS; i++) {
        uint32_t from = tw_session_copy(session, copy, i);
        if (from) tw_copy(bytes_at(s->segments[i].base), bytes_at(from), s->segments[i].nbytes);
    }
    return TW_OK;
}

/* The same for a copy from before other steps: values that plans have prepared since are void. */
TW_EXPORT(tw_session_go_back) int32_t tw_session_go_back(uint32_t session, uint32_t copy) {
    const tw_session *s = tw_session_at(session);
    if (!s) return TW_BAD_POINTER;
    int32_t *state = tw_state_of(s), loads = state ? state[STATE_LOADS] : 0;
    int32_t status = tw_session_put_back(session, copy);
    if (status || !state) return status;
    state[STATE_LOADS] = loads;
    note_load(s);
    return TW_OK;
}

/* Free a copy. */
TW_EXPORT(tw_session_forget) int32_t tw_session_forget(uint32_t session, uint32_t copy) {
    tw_session *s = tw_session_at(session);
    if (!s) return TW_BAD_POINTER;
    if (copy >= N_COPIES) return TW_BAD_ARGUMENT;
    tw_give_back(s->copies[copy]);
    s->copies[copy] = s->copied[copy] = 0;
    return TW_OK;
}

/* ---- trained parameters: gradients and averages of all of them lie one after the other */

typedef struct {
    uint32_t start, nbytes;
} tw_run_of_parameters;

static uint32_t n_runs(const tw_session *s) {
    const tw_block *block = s->runs ? tw_block_at(s->runs) : NULL;
    return block ? block->requested / sizeof(tw_run_of_parameters) : 0;
}

static uint32_t trained_bytes(const tw_session *s) {
    const tw_run_of_parameters *runs = (const tw_run_of_parameters *)bytes_at(s->runs);
    uint32_t total = 0;
    for (uint32_t i = 0; i < n_runs(s); i++) total += runs[i].nbytes;
    return total;
}

/* Take over the table of the trained parameters. It is a block with the first byte and the bytes of each run, in the order
   of their addresses. */
TW_EXPORT(tw_session_trained) int32_t tw_session_trained(uint32_t session, uint32_t table) {
    tw_session *s = tw_session_at(session);
    tw_block *block = tw_block_of_host(table);
    if (!s || !block || s->runs) return TW_BAD_POINTER;
    if (block->requested % sizeof(tw_run_of_parameters)) return TW_BAD_ARGUMENT;
    const tw_run_of_parameters *runs = (const tw_run_of_parameters *)bytes_at(table);
    uint64_t end = 0;
    for (uint32_t i = 0; i < block->requested / sizeof(tw_run_of_parameters); i++) {
        if (runs[i].start < end || (runs[i].start | runs[i].nbytes) % sizeof(float)) return TW_BAD_ARGUMENT;
        end = (uint64_t)runs[i].start + runs[i].nbytes;
    }
    if (end > s->segments[PARAMETERS].nbytes) return TW_BAD_SEGMENT;
    block->owner = session;
    s->runs = table;
    return TW_OK;
}

/* Let trained parameters and their averages, the last bytes of MOMENTUM1, change places. */
TW_EXPORT(tw_session_exchange) int32_t tw_session_exchange(uint32_t session) {
    const tw_session *s = tw_session_at(session);
    if (!s || !s->runs) return TW_BAD_POINTER;
    uint32_t total = trained_bytes(s), nbytes = s->segments[MOMENTUM1].nbytes;
    if (total > nbytes) return TW_BAD_SEGMENT;
    uint32_t *average = (uint32_t *)bytes_at(s->segments[MOMENTUM1].base + nbytes - total);
    const tw_run_of_parameters *runs = (const tw_run_of_parameters *)bytes_at(s->runs);
    for (uint32_t i = 0; i < n_runs(s); i++) {
        uint32_t *parameter = (uint32_t *)bytes_at(s->segments[PARAMETERS].base + runs[i].start);
        for (uint32_t k = 0; k < runs[i].nbytes / sizeof(float); k++) {
            uint32_t value = *parameter;
            *parameter++ = *average;
            *average++ = value;
        }
    }
    note_load(s);
    return TW_OK;
}

int32_t tw_note_start(tw_session *s) {
    if (!s->runs) return TW_BAD_POINTER;
    if (!s->start && !(s->start = tw_take(s, trained_bytes(s), false))) return TW_NO_MEMORY;
    uint8_t *to = bytes_at(s->start);
    const tw_run_of_parameters *runs = (const tw_run_of_parameters *)bytes_at(s->runs);
    for (uint32_t i = 0; i < n_runs(s); to += runs[i++].nbytes)
        tw_copy(to, bytes_at(s->segments[PARAMETERS].base + runs[i].start), runs[i].nbytes);
    return TW_OK;
}

int32_t tw_pull(const tw_session *s, double mu) {
    if (!s->start) return TW_BAD_POINTER;
    if (trained_bytes(s) > s->segments[GRADIENTS].nbytes) return TW_BAD_SEGMENT;
    float *gradient = (float *)bytes_at(s->segments[GRADIENTS].base);
    const float *start = (const float *)bytes_at(s->start);
    const tw_run_of_parameters *runs = (const tw_run_of_parameters *)bytes_at(s->runs);
    for (uint32_t i = 0; i < n_runs(s); i++) {
        const float *parameter = (const float *)bytes_at(s->segments[PARAMETERS].base + runs[i].start);
        for (uint32_t k = 0; k < runs[i].nbytes / sizeof(float); k++, gradient++)
            *gradient = (float)(*gradient + mu * ((double)*parameter++ - (double)*start++));
    }
    return TW_OK;
}

void tw_scale_gradients(const tw_session *s, double factor) {
    float *gradient = (float *)bytes_at(s->segments[GRADIENTS].base);
    for (uint32_t k = 0; k < s->segments[GRADIENTS].nbytes / sizeof(float); k++) gradient[k] = (float)(gradient[k] * factor);
}

/* ---- numbers that are not finite */

#define EXPONENT 0x7F800000u

static uint32_t count_not_finite(const tw_session *s, uint32_t segment) {
    const uint32_t *bits = (const uint32_t *)bytes_at(s->segments[segment].base);
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->segments[segment].nbytes / sizeof(float); i++) count += (bits[i] & EXPONENT) == EXPONENT;
    return count;
}

void tw_count_usual(tw_session *s) {
    for (uint32_t i = PARAMETERS; i < STATE; i++) s->usual[i] = i == GRADIENTS ? 0 : count_not_finite(s, i);
}

uint32_t tw_worse(const tw_session *s) {
    for (uint32_t i = PARAMETERS; i < STATE; i++)
        if (count_not_finite(s, i) > s->usual[i]) return i;
    return 0;
}

/* The least and largest finite number of `n` float32 at `ptr`, how many are NaN and infinite, and the sum of all squares;
   null where they do not lie in a block. Without a finite number the least is infinite. */
TW_EXPORT(tw_range) const uint32_t *tw_range(uint32_t ptr, uint32_t n) {
    static uint32_t found[RANGE_WORDS];
    if (ptr % sizeof(float) || (n && !tw_range_is_live(ptr, (uint64_t)n * sizeof(float)))) return NULL;
    const float *x = (const float *)bytes_at(ptr);
    float least = __builtin_inff(), most = -least;
    double squares = 0;
    uint32_t nan = 0, finite = 0;
    for (uint32_t i = 0; i < n; i++) {
        squares += (double)x[i] * x[i];
        if (__builtin_fabsf(x[i]) < __builtin_inff()) {
            least = x[i] < least ? x[i] : least;
            most = x[i] > most ? x[i] : most;
            finite++;
        } else nan += x[i] != x[i];
    }
    tw_copy(found + RANGE_LEAST, &least, sizeof least);
    tw_copy(found + RANGE_MOST, &most, sizeof most);
    tw_copy(found + RANGE_SQUARES, &squares, sizeof squares);
    found[RANGE_NAN] = nan;
    found[RANGE_INFINITE] = n - finite - nan;
    return found;
}
