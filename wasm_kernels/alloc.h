/* The heap that plans, segments and thread stacks live in. */
#ifndef ALLOC_H
#define ALLOC_H

#include "guard.h"

/* The position at which a run continues. */
typedef struct {
    uint32_t instruction, word;
    int32_t left_out; /* below 0: as many instructions more are left out */
} tw_place_in_plan;

/* A 64-byte header before each payload. */
typedef struct tw_block {
    uint32_t magic;
    uint32_t size;           /* payload bytes, a multiple of 64 */
    uint32_t requested;      /* what the caller asked for; 0 and unused when free */
    uint32_t verified;       /* tw_code_generation() when the plan in the payload passed the verifier */
    struct tw_block *before; /* neighbour at the lower address */
    struct tw_block *next_free, *previous_free;
    uint8_t in_use;
    uint8_t placed;          /* 1: the payload is a plan that tw_place has seen */
    uint8_t paused;          /* 1: a run of the plan goes on from `at` */
    uint8_t is_session;      /* 1: the payload is a session */
    uint32_t profile;        /* where the plan's runs add up times, or 0 */
    uint32_t written;        /* the segments that the plan writes, one bit each, once it was verified */
    tw_place_in_plan at;
    uint32_t used;           /* tw_tick() when the plan in the payload was loaded or ran last */
    uint32_t owner;          /* the session that the payload belongs to, which alone frees it, or 0 */
    uint32_t reserved[1];
} tw_block;

uint32_t tw_alloc(uint32_t nbytes);
uint32_t tw_alloc_zeroed(uint32_t nbytes);
int32_t tw_free(uint32_t ptr);

/* The live block whose payload starts at `ptr`, or null. */
tw_block *tw_block_at(uint32_t ptr);

/* True if [base, base + nbytes) lies in one live block. */
int32_t tw_range_is_live(uint32_t base, uint64_t nbytes);

#endif
