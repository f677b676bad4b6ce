/* Random numbers that any thread can make, and make again: a function of the element, the node and the step (random.c). */
#ifndef RANDOM_H
#define RANDOM_H

#include "simd.h"

typedef struct {
    uint32_t seed[2], salt, offset[2];
} random_stream;

/* The elements that a Dropout keeps, and by what it multiplies them. */
typedef struct {
    random_stream stream;
    float scale;
    v128_t threshold; /* eight numbers of 16 bits: keep where the random one is not below */
} dropout_numbers;

/* A status: TW_BAD_VALUE where the ratio is not in [0, 1). */
int32_t start_dropout(dropout_numbers *d, const int32_t *state, int32_t salt, int32_t draw, float ratio);

/* Floats more than the factors take. */
enum { DROPOUT_SLACK = 64 };
/* The factors of a Dropout for n elements from `first` on: a pointer into `space` [n + DROPOUT_SLACK]. */
const float *dropout_factors(const dropout_numbers *d, int64_t first, int32_t n, float *space);

#endif
