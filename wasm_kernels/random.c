/* Random numbers by Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Each is a
   function of (element index, salt of the node, offset of the step + draw) under the key `seed`. So any thread can make
   any element, and the backward pass makes the same numbers again.

   Four counters go through the rounds side by side; block b uses counters 4b .. 4b+3 and has 16 words, word 4j + i being
   word j of counter i. Fills take a word an element; dropout half a word, low half first. */
#include "random.h"

#include "math.h"
#include "parallel.h"
#include "state.h"

static random_stream make_stream(const int32_t *state, int32_t salt, int32_t draw) {
    uint64_t offset = (uint64_t)state_i64(state, STATE_RANDOM_OFFSET) + (uint64_t)draw;
    return (random_stream){{(uint32_t)state[STATE_SEED], (uint32_t)state[STATE_SEED + 1]},
                           (uint32_t)salt,
                           {(uint32_t)offset, (uint32_t)(offset >> 32)}};
}

/* Low and high halves of x * m. */
TW_INLINE void multiply(v128_t x, uint32_t m, v128_t *low, v128_t *high) {
    v128_t factor = wasm_i32x4_splat((int32_t)m);
    v128_t a = wasm_u64x2_extmul_low_u32x4(x, factor), b = wasm_u64x2_extmul_high_u32x4(x, factor);
    *low = wasm_i32x4_shuffle(a, b, 0, 2, 4, 6);
    *high = wasm_i32x4_shuffle(a, b, 1, 3, 5, 7);
}

/* 16 random words for block `block`. */
static void philox(const random_stream *s, uint32_t block, v128_t out[4]) {
    v128_t c0 = wasm_i32x4_add(wasm_i32x4_splat((int32_t)(block << 2)), wasm_i32x4_const(0, 1, 2, 3));
    v128_t c1 = wasm_i32x4_splat((int32_t)s->salt);
    v128_t c2 = wasm_i32x4_splat((int32_t)s->offset[0]), c3 = wasm_i32x4_splat((int32_t)s->offset[1]);
    uint32_t key0 = s->seed[0], key1 = s->seed[1];
    for (int32_t round = 0; round < 10; round++) {
        v128_t low0, high0, low1, high1;
        multiply(c0, 0xD2511F53u, &low0, &high0);
        multiply(c2, 0xCD9E8D57u, &low1, &high1);
        c0 = wasm_v128_xor(wasm_v128_xor(high1, c1), wasm_i32x4_splat((int32_t)key0));
        c2 = wasm_v128_xor(wasm_v128_xor(high0, c3), wasm_i32x4_splat((int32_t)key1));
        c1 = low1;
        c3 = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* [0, 1) in steps of 2^-24, exact. */
TW_INLINE f32x4 uniform(v128_t bits) {
    return mul4(wasm_f32x4_convert_i32x4(wasm_u32x4_shr(bits, 8)), splat(0x1p-24f));
}

/* Elements per block. */
enum { BLOCK = 16, DROPOUT_BLOCK = 32 };

/* ---- dropout ---- */

/* The ratio is rounded to a multiple of 2^-16, the scale is not: the mean of the output is off by at most 2^-17. */
int32_t start_dropout(dropout_numbers *d, const int32_t *state, int32_t salt, int32_t draw, float ratio) {
    if (!(ratio >= 0.0f && ratio < 1.0f)) return tw_fail(TW_BAD_VALUE, (int64_t)(100 * ratio), 0);
    int32_t threshold = min_i32(65535, (int32_t)(ratio * 65536.0f + 0.5f));
    *d = (dropout_numbers){make_stream(state, salt, draw), 1.0f / (1.0f - ratio), wasm_i16x8_splat((int16_t)threshold)};
    return TW_OK;
}

const float *dropout_factors(const dropout_numbers *d, int64_t first, int32_t n, float *space) {
    int64_t block = first / DROPOUT_BLOCK;
    int32_t skipped = (int32_t)(first - block * DROPOUT_BLOCK);
    f32x4 scale = splat(d->scale);
    for (float *y = space; y < space + skipped + n; y += DROPOUT_BLOCK) {
        v128_t bits[4];
        philox(&d->stream, (uint32_t)block++, bits);
        for (int32_t k = 0; k < 4; k++) {
            v128_t keep = wasm_u16x8_ge(bits[k], d->threshold);
            store4(y + 8 * k, wasm_v128_and(wasm_i32x4_extend_low_i16x8(keep), scale));
            store4(y + 8 * k + 4, wasm_v128_and(wasm_i32x4_extend_high_i16x8(keep), scale));
        }
    }
    return space + skipped;
}

typedef struct {
    const dropout_f32_args *a;
    dropout_numbers numbers;
} dropout_task;

/* Eight elements; returns the mask as 16-bit lanes. */
TW_INLINE v128_t dropout8(const dropout_numbers *d, const float *x, float *y, v128_t bits) {
    v128_t keep = wasm_u16x8_ge(bits, d->threshold);
    f32x4 scale = splat(d->scale);
    store4(y, wasm_v128_and(wasm_i32x4_extend_low_i16x8(keep), mul4(load4(x), scale)));
    store4(y + 4, wasm_v128_and(wasm_i32x4_extend_high_i16x8(keep), mul4(load4(x + 4), scale)));
    return keep;
}

static void dropout_block(const dropout_numbers *d, uint32_t block, const float *x, float *y, uint8_t *mask) {
    v128_t bits[4], one = wasm_i8x16_splat(1);
    philox(&d->stream, block, bits);
    v128_t k0 = dropout8(d, x, y, bits[0]), k1 = dropout8(d, x + 8, y + 8, bits[1]);
    wasm_v128_store(mask, wasm_v128_and(wasm_i8x16_narrow_i16x8(k0, k1), one));
    v128_t k2 = dropout8(d, x + 16, y + 16, bits[2]), k3 = dropout8(d, x + 24, y + 24, bits[3]);
    wasm_v128_store(mask + 16, wasm_v128_and(wasm_i8x16_narrow_i16x8(k2, k3), one));
}

static void dropout_chunk(const void *args, int64_t lo, int64_t hi) {
    const dropout_task *t = args;
    const dropout_f32_args *a = t->a;
    int32_t i = (int32_t)lo, end = (int32_t)hi;
    uint8_t unused[DROPOUT_BLOCK];
    for (; i + DROPOUT_BLOCK <= end; i += DROPOUT_BLOCK)
        dropout_block(&t->numbers, (uint32_t)i / DROPOUT_BLOCK, a->x + i, a->y + i, a->mask ? a->mask + i : unused);
    if (i < end) {
        float x[DROPOUT_BLOCK] = {0}, y[DROPOUT_BLOCK];
        for (int32_t k = i; k < end; k++) x[k - i] = a->x[k];
        dropout_block(&t->numbers, (uint32_t)i / DROPOUT_BLOCK, x, y, unused);
        for (int32_t k = i; k < end; k++) a->y[k] = y[k - i];
        for (int32_t k = i; k < end && a->mask; k++) a->mask[k] = unused[k - i];
    }
}

int32_t kernel_dropout_f32(const dropout_f32_args *a) {
    dropout_task task = {.a = a};
    int32_t status = start_dropout(&task.numbers, a->state, a->salt, a->draw, a->ratio);
    if (status != TW_OK) return status;
    parallel_ranges(dropout_chunk, &task, a->n, GRAIN);
    return TW_OK;
}

/* ---- fills ---- */

typedef struct {
    const random_f32_args *a;
    random_stream stream;
} random_task;

/* Box and Muller: two uniform numbers make two normal ones. The first is moved to (0, 1]. */
TW_INLINE void normal_pair(v128_t *first, v128_t *second) {
    f32x4 radius = wasm_f32x4_sqrt(mul4(splat(-2.0f), log4(add4(uniform(*first), splat(0x1p-24f)))));
    f32x4 angle = mul4(uniform(*second), splat(6.2831853f));
    *first = mul4(radius, cos4(angle));
    *second = mul4(radius, sin4(angle));
}

static void random_block(const random_task *t, uint32_t block, float *y) {
    const random_f32_args *a = t->a;
    v128_t x[4];
    philox(&t->stream, block, x);
    if (a->normal) {
        normal_pair(x, x + 1);
        normal_pair(x + 2, x + 3);
    }
    for (int32_t k = 0; k < 4; k++) {
        f32x4 v = a->normal ? madd(x[k], splat(a->b), splat(a->a)) : madd(uniform(x[k]), splat(a->b - a->a), splat(a->a));
        store4(y + 4 * k, v);
    }
}

static void random_chunk(const void *args, int64_t lo, int64_t hi) {
    const random_task *t = args;
    const random_f32_args *a = t->a;
    int32_t i = (int32_t)lo, end = (int32_t)hi;
    for (; i + BLOCK <= end; i += BLOCK) random_block(t, (uint32_t)i / BLOCK, a->y + i);
    if (i < end) {
        float y[BLOCK];
        random_block(t, (uint32_t)i / BLOCK, y);
        for (int32_t k = i; k < end; k++) a->y[k] = y[k - i];
    }
}

int32_t kernel_random_f32(const random_f32_args *a) {
    random_task task = {a, make_stream(a->state, a->salt, a->draw)};
    parallel_ranges(random_chunk, &task, a->n, GRAIN);
    return TW_OK;
}

int32_t kernel_random_advance(const random_advance_args *a) {
    set_state_i64(a->state, STATE_RANDOM_OFFSET, state_i64(a->state, STATE_RANDOM_OFFSET) + a->n);
    return TW_OK;
}
