/* Numbers of 4 to 32 bits become floats, eight at a time where they are few bits. The difference to the zero point is exact,
 * and the product with the scale is rounded once. The operators of ONNX, one by one, compute the same bytes. */
#include "unpack.h"

#include "index.h"
#include "parallel.h"
#include "simd.h"

/* ---- single numbers ---- */

static uint32_t number_at(const uint8_t *x, int64_t i, int32_t packing) {
    switch (packing) {
    case PACKED_4: return x[i >> 1] >> (i & 1) * 4 & 15;
    case PACKED_8: return x[i];
    case PACKED_16: return ((const uint16_t *)x)[i];
    default: return ((const uint32_t *)x)[i];
    }
}

static int32_t zero_at(const packed_matrix *m, int32_t row, int32_t block) {
    if (!m->zero) return m->center;
    const int64_t at = (int64_t)row / m->block_rows * m->zero_row + (int64_t)block * m->zero_col;
    return (int32_t)(number_at(m->zero, at, m->packing) ^ (uint32_t)m->flip);
}

static float scale_at(const packed_matrix *m, int32_t row, int32_t block) {
    return m->scale ? m->scale[(int64_t)row / m->block_rows * m->scale_row + (int64_t)block * m->scale_col] : 1;
}

/* Elements of one block from number `at` on, one by one; numbers of 32 bits wrap. */
static void unpack_slowly(const packed_matrix *m, int64_t at, int32_t count, int32_t zero, float scale, float *out) {
    for (int32_t i = 0; i < count; i++) {
        const uint32_t number = number_at(m->x, at + i, m->packing) ^ (uint32_t)m->flip;
        out[i] = (float)(int32_t)(number - (uint32_t)zero) * scale;
    }
}

/* ---- eight at a time ---- */

/* Numbers of 4 or 8 bits as 16 bits; the first of 4 bits is the lower half of its byte. */
TW_INLINE v128_t numbers8(const uint8_t *x, int64_t i, const bool is_byte, v128_t flip) {
    v128_t bytes;
    if (is_byte) {
        bytes = wasm_v128_load64_zero(x + i);
    } else {
        const v128_t pairs = wasm_v128_load32_zero(x + i / 2), low = wasm_v128_and(pairs, wasm_i8x16_splat(15));
        bytes = wasm_i8x16_shuffle(low, wasm_u8x16_shr(pairs, 4), 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    }
    return wasm_u16x8_extend_low_u8x16(wasm_v128_xor(bytes, flip));
}

TW_INLINE void store_scaled(v128_t difference, f32x4 low, f32x4 high, float *out) {
    store4(out, mul4(wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(difference)), low));
    store4(out + 4, mul4(wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(difference)), high));
}

/* Elements of one block. */
TW_INLINE void unpack_block(const packed_matrix *m, int64_t at, int32_t count, int32_t zero, float scale, const bool is_byte,
                            float *out) {
    const v128_t flip = wasm_i8x16_splat((int8_t)m->flip), center = wasm_i16x8_splat((int16_t)zero);
    const f32x4 factor = splat(scale);
    int32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        store_scaled(wasm_i16x8_sub(numbers8(m->x, at + i, is_byte, flip), center), factor, factor, out + i);
    }
    unpack_slowly(m, at + i, count - i, zero, scale, out + i);
}

/* Elements that have a scale each, the first of which is `scale`; zero points lie as the numbers do from `zero` on. */
TW_INLINE int32_t unpack_columns(const packed_matrix *m, int64_t at, int32_t count, const float *scale, int64_t zero,
                                 const bool is_byte, float *out) {
    const v128_t flip = wasm_i8x16_splat((int8_t)m->flip);
    v128_t center = wasm_i16x8_splat((int16_t)m->center);
    int32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        if (m->zero) center = numbers8(m->zero, zero + i, is_byte, flip);
        const v128_t difference = wasm_i16x8_sub(numbers8(m->x, at + i, is_byte, flip), center);
        store_scaled(difference, load4(scale + i), load4(scale + i + 4), out + i);
    }
    return i;
}

/* ---- floats of 16 bits ---- */

enum { EXPONENT = 112 << 23, LEAST_NORMAL = 0x0400, NORMALS = 0x7C00 - LEAST_NORMAL };

/* Four float16. Subnormals become normal by a difference; the exponent of infinity and NaN stays all ones. */
TW_INLINE f32x4 halves4(v128_t bits) {
    const v128_t rest = wasm_i32x4_shl(wasm_v128_and(bits, wasm_i32x4_splat(0x7FFF)), 13);
    const v128_t special = wasm_i32x4_gt(rest, wasm_i32x4_splat(0x0F7FFFFF));
    const v128_t sign = wasm_i32x4_shl(wasm_v128_and(bits, wasm_i32x4_splat(0x8000)), 16);
    const v128_t moved = wasm_i32x4_add(rest, wasm_i32x4_splat(EXPONENT));
    const v128_t normal = wasm_v128_or(moved, wasm_v128_and(special, wasm_i32x4_splat(0x7F800000)));
    const v128_t small = sub4(wasm_i32x4_add(moved, wasm_i32x4_splat(1 << 23)), splat(0x1p-14f));
    const v128_t is_small = wasm_i32x4_lt(rest, wasm_i32x4_splat(LEAST_NORMAL << 13));
    return wasm_v128_or(sign, wasm_v128_bitselect(small, normal, is_small));
}

/* Four normal float16, which were extended with their signs. */
TW_INLINE f32x4 normals4(v128_t bits) {
    const v128_t moved = wasm_v128_and(wasm_i32x4_shl(bits, 13), wasm_i32x4_splat((int32_t)0x8FFFE000));
    return wasm_i32x4_add(moved, wasm_i32x4_splat(EXPONENT));
}

/* Eight float16; nearly all weights are normal numbers. */
TW_INLINE void unpack_halves8(const uint16_t *x, float *out) {
    const v128_t bits = wasm_v128_load(x), size = wasm_v128_and(bits, wasm_i16x8_splat(0x7FFF));
    const v128_t place = wasm_i16x8_sub(size, wasm_i16x8_splat(LEAST_NORMAL));
    if (wasm_v128_any_true(wasm_u16x8_ge(place, wasm_i16x8_splat(NORMALS)))) {
        store4(out, halves4(wasm_u32x4_extend_low_u16x8(bits)));
        store4(out + 4, halves4(wasm_u32x4_extend_high_u16x8(bits)));
    } else {
        store4(out, normals4(wasm_i32x4_extend_low_i16x8(bits)));
        store4(out + 4, normals4(wasm_i32x4_extend_high_i16x8(bits)));
    }
}

/* All are packed alike. Numbers that remain are read and stored one by one. */
TW_INLINE void unpack_floats(const uint16_t *x, int32_t count, const bool is_half, float *out) {
    int32_t i = 0;
    for (; is_half && i + 8 <= count; i += 8) unpack_halves8(x + i, out + i);
    for (; i + 4 <= count; i += 4) {
        const v128_t bits = wasm_u32x4_load16x4(x + i);
        store4(out + i, is_half ? halves4(bits) : wasm_i32x4_shl(bits, 16));
    }
    for (; i < count; i++) {
        const v128_t bits = wasm_i32x4_splat(x[i]);
        wasm_v128_store32_lane(out + i, is_half ? halves4(bits) : wasm_i32x4_shl(bits, 16), 0);
    }
}

/* ---- rows ---- */

void unpack_row(const packed_matrix *m, int32_t row, int32_t first, int32_t count, float *out) {
    const int64_t start = (int64_t)row * m->pitch;
    if (m->packing >= PACKED_HALF) {
        const uint16_t *x = (const uint16_t *)m->x + start + first;
        if (m->packing == PACKED_HALF) unpack_floats(x, count, true, out);
        else unpack_floats(x, count, false, out);
        return;
    }
    const bool is_byte = m->packing == PACKED_8, is_nibble = m->packing == PACKED_4;
    int32_t i = 0;
    if (m->block_cols == 1 && m->scale && m->scale_col == 1 && (!m->zero || m->zero_col == 1) && (is_byte || is_nibble)) {
        const int64_t block = (int64_t)row / m->block_rows, zero = block * m->zero_row + first;
        const float *scale = m->scale + block * m->scale_row + first;
        if (is_byte) i = unpack_columns(m, start + first, count, scale, zero, true, out);
        else if (!((start + first) & 1) && !(m->zero && zero & 1)) i = unpack_columns(m, start + first, count, scale, zero, false, out);
    }
    while (i < count) {
        const int32_t block = (first + i) / m->block_cols;
        const int32_t n = (int32_t)min_i64(count, ((int64_t)block + 1) * m->block_cols - first) - i;
        const int64_t at = start + first + i;
        const int32_t zero = zero_at(m, row, block);
        const float scale = scale_at(m, row, block);
        if (is_byte) {
            unpack_block(m, at, n, zero, scale, true, out + i);
        } else if (is_nibble) {
            const int32_t odd = min_i32(n, (int32_t)(at & 1));
            unpack_slowly(m, at, odd, zero, scale, out + i);
            unpack_block(m, at + odd, n - odd, zero, scale, false, out + i + odd);
        } else {
            unpack_slowly(m, at, n, zero, scale, out + i);
        }
        i += n;
    }
}

/* ---- kernels ---- */

typedef struct {
    packed_matrix matrix;
    const uint8_t *indices; /* may be null: rows in order */
    float *y;
    int32_t count, rows, cols, index_size;
} rows_task;

static void unpack_chunk(const void *args, int64_t lo, int64_t hi) {
    const rows_task *t = args;
    for (int64_t i = lo; i < hi; i++) {
        const int64_t row = t->indices ? resolve(t->indices, i, t->index_size, t->rows) : i;
        unpack_row(&t->matrix, (int32_t)row, 0, t->cols, t->y + i * t->cols);
    }
}

static void unpack_rows(const rows_task *task) {
    parallel_ranges(unpack_chunk, task, task->count, units_per_chunk(task->cols));
}

int32_t kernel_dequantize_f32(const dequantize_f32_args *a) {
    rows_task task = {PACKED_MATRIX(a, x), 0, a->y, a->rows, a->rows, a->cols, 0};
    if (a->cols) unpack_rows(&task);
    return TW_OK;
}

int32_t kernel_gather_dequantized_f32(const gather_dequantized_f32_args *a) {
    const int32_t status = check_range(a->indices, a->n, a->index_size, a->rows);
    if (status || !a->cols) return status;
    rows_task task = {PACKED_MATRIX(a, x), a->indices, a->y, a->n, a->rows, a->cols, a->index_size};
    unpack_rows(&task);
    return TW_OK;
}
