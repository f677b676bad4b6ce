/* Parts of the plan verifier that are shared with the checks of single kinds of instructions. */
#ifndef EXECUTOR_H
#define EXECUTOR_H

#include "generated.h"

enum { TW_WRITES = 1, TW_NULLABLE = 2 };

/* The tables of the plan that is verified. */
typedef struct {
    const uint32_t *segments, *buffers;
    uint32_t n_segments, n_buffers;
    const tw_code *code; /* its generated functions, or null */
    uint32_t *written;   /* a bit for each segment that something writes */
} tw_binder;

/* Called from every verifier: once in the module, not once a kernel. */
#define TW_ONCE __attribute__((noinline))

/* Replace buffer index `index` by its address if the buffer holds `extent` elements of `size` bytes. */
TW_ONCE int32_t tw_bind(const tw_binder *binder, uint32_t index, double extent, int32_t size, int32_t flags,
                        uint32_t *address);

/* A failure where one of n words is negative. */
TW_ONCE int32_t tw_check_sign(const uint32_t *words, int32_t n);

/* Verify the arguments of a generated call, and write them with addresses in place of buffers to `relocated`. */
int32_t tw_check_generated(const tw_binder *binder, const uint32_t *words, uint32_t n_args, uint32_t *relocated);

/* A number that is larger each time. */
uint32_t tw_tick(void);

/* Run a plan; its status. */
int32_t tw_run(uint32_t plan);

/* Give the plan at the start of a block the base and bytes of its n segments, and the first slot of its functions. */
int32_t tw_place_at(uint32_t plan, const uint32_t *table, uint32_t n, uint32_t code_base);

#endif
