/* A session's memory: its segments, the plans on them, and copies that a step can be undone from.

   Hosts name a session by its address. No plan can reach the block of the struct, and its header
   marks it. All calls check what hosts give them; a call that fails changes nothing. */
#ifndef SESSION_H
#define SESSION_H

#include <stdbool.h>

#include "alloc.h"

enum { N_SEGMENTS = PREPARED + 1, N_COPIES = COPY_TRIAL + 1 };

/* A plan that a session owns. Plans may share blocks of constants, each of which may be 0. */
typedef struct tw_loaded {
    struct tw_loaded *next;
    uint32_t plan, constants, large, code_base;
    uint32_t apart; /* a block in the place of the arena, or 0 */
    bool is_step;
} tw_loaded;

/* The steps of a fit. Hosts read the first fields: `layout fit` of kernels.def. */
typedef struct {
    uint32_t next, fault, is_batch, waiting, epoch, step, kept, optimizer_steps;
    double loss_sum, rows;
    uint32_t accumulate, on_nan, sums; /* accumulate is 0 while no fit runs */
    uint32_t has_begun;                /* a batch has changed the session */
    uint32_t restores;
    bool is_elsewhere; /* the segments but the state lie elsewhere */
    double mu, loss, weight;
    double unit, total; /* of the batches whose gradients wait: the divisor that counts as 1, and the sum of divisors */
    double former;      /* `total` before the batch */
    uint32_t lazy_reset; /* of the session before the fit */
    float learning_rate;
} tw_fit;

typedef struct {
    struct {
        uint32_t base, nbytes;
    } segments[N_SEGMENTS];
    /* Blocks with copies of segments, one after the other: of those whose bit is set in `copied`. */
    uint32_t copies[N_COPIES], copied[N_COPIES];
    uint32_t runs;  /* a block with the first byte and the bytes of each run of trained parameters, or 0 */
    uint32_t start; /* a block with trained parameters, or 0 */
    uint32_t generation;
    uint32_t usual[N_SEGMENTS]; /* numbers that are not finite on purpose */
    tw_loaded *loaded;
    tw_fit fit;
} tw_session;

/* The session at an address, or null. */
tw_session *tw_session_at(uint32_t session);

/* The words of the state, or null. */
int32_t *tw_state_of(const tw_session *session);

/* Functions of session.c for fits. */
int32_t tw_session_save(uint32_t session, uint32_t copy, uint32_t segments);
int32_t tw_session_put_back(uint32_t session, uint32_t copy);
int32_t tw_session_go_back(uint32_t session, uint32_t copy);
int32_t tw_session_forget(uint32_t session, uint32_t copy);

/* Note the trained parameters, which tw_pull draws back to. */
int32_t tw_note_start(tw_session *session);

/* Add `mu` times the way from their start to the gradients of the trained parameters; each sum is rounded once. */
int32_t tw_pull(const tw_session *session, double mu);

/* Multiply the gradients. */
void tw_scale_gradients(const tw_session *session, double factor);

/* Count the NaN and infinite elements of parameters and moments: a mask of minus infinity, say, is so on purpose. */
void tw_count_usual(tw_session *session);

/* The first segment of parameters, gradients and moments that has more such elements than usual; 0: there is none. */
uint32_t tw_worse(const tw_session *session);

/* A block of the session, or 0, and then tw_missing gives its size. */
uint32_t tw_take(const tw_session *session, uint32_t nbytes, bool zeroed);

/* Free a block of the session, or do nothing for 0. */
void tw_give_back(uint32_t ptr);

/* The block at an address that belongs to the host, or null. */
tw_block *tw_block_of_host(uint32_t ptr);

/* Place a plan of the session again, for its segments have moved. */
int32_t tw_place_loaded(const tw_session *session, const tw_loaded *loaded);

/* Free all plans of a session. */
void tw_unload_all(tw_session *session);

#endif
