#include "gemm_tiles.h"

/* ---- packing ---- */

/* out[k][width] from `lines` <= width lines of stride `line`, elements of stride `step`; missing lines are zeros. */
static void pack_any(float *out, int32_t width, const float *src, int32_t lines, int32_t line, int32_t step, int32_t k) {
    for (int32_t p = 0; p < k; p++, out += width) {
        for (int32_t i = 0; i < lines; i++) out[i] = src[i * line + p * step];
        for (int32_t i = lines; i < width; i++) out[i] = 0;
    }
}

/* The same where all lines are there and contiguous along k: transpose. */
TW_INLINE void pack_transposed(const int32_t width, float *out, const float *src, int32_t line, int32_t k) {
    int32_t p = 0;
    for (; p + 4 <= k; p += 4, out += 4 * width) {
        UNROLL for (int32_t i = 0; i < width; i += 4) {
            f32x4 x[4];
            UNROLL for (int32_t j = 0; j < 4; j++) x[j] = load4(src + (i + j) * line + p);
            transpose4(&x[0], &x[1], &x[2], &x[3]);
            UNROLL for (int32_t j = 0; j < 4; j++) store4(out + j * width + i, x[j]);
        }
    }
    pack_any(out, width, src + p, width, line, 1, k - p);
}

/* Panels of b that are next to each other, step by step: lines of memory are read once. */
TW_INLINE void pack_columns(const int32_t panels, float *out, const float *src, int32_t step, int32_t k) {
    for (int32_t p = 0; p < k; p++, src += step, out += TILE_COLS) {
        f32x4 x[8];
        UNROLL for (int32_t i = 0; i < 2 * panels; i++) x[i] = load4(src + 4 * i);
        UNROLL for (int32_t i = 0; i < 2 * panels; i++) store4(out + i / 2 * TILE_COLS * k + i % 2 * 4, x[i]);
    }
}

/* Any panel of b: eight columns, or four where there are no more. */
static void pack_panel(float *out, const float *src, int32_t lines, int32_t line, int32_t step, int32_t k) {
    int32_t width = lines > 4 ? 8 : 4;
    if (lines == 8 && step == 1) {
        pack_transposed(8, out, src, line, k);
    } else if (lines == 4 && step == 1) {
        pack_transposed(4, out, src, line, k);
    } else {
        pack_any(out, width, src, lines, line, step, k);
    }
}

void pack_panels(float *out, const float *src, int32_t panels, int32_t lines, int32_t line, int32_t step, int32_t k) {
    const bool adjacent = line == 1 && lines == TILE_COLS;
    for (int32_t n; panels; panels -= n, src += n * TILE_COLS * line, out += n * TILE_COLS * k) {
        n = !adjacent || panels == 1 ? 1 : panels < 4 ? 2 : 4;
        if (!adjacent) pack_panel(out, src, lines, line, step, k);
        else if (n == 4) pack_columns(4, out, src, step, k);
        else if (n == 2) pack_columns(2, out, src, step, k);
        else pack_columns(1, out, src, step, k);
    }
}

/* Eight elements are copied at a time; the next step overwrites the surplus. */
void pack_block(float *out, const float *src, int32_t rows, int32_t a_row, int32_t a_col, int32_t k) {
    if (a_row == 1 && a_col >= 8) {
        for (; rows * k >= 8; k--, src += a_col, out += rows) {
            f32x4 x = load4(src), y = load4(src + 4);
            store4(out, x);
            store4(out + 4, y);
        }
    }
    pack_any(out, rows, src, rows, a_row, a_col, k);
}

/* ---- tiles ---- */

void finish_row(const float *t, float *c, int32_t n, const tile_out *o, const float *bias, int32_t bias_col) {
    int32_t j = 0;
    if (!bias || bias_col <= 1) {
        for (; j + 4 <= n; j += 4) {
            f32x4 v = load4(t + j);
            if (o->add) v = add4(v, load4(c + j));
            if (bias) v = add4(v, mul4(splat(o->beta), bias_col ? load4(bias + j) : splat(*bias)));
            if (o->relu) v = wasm_f32x4_pmax(v, splat(0));
            store4(c + j, v);
        }
    }
    for (; j < n; j++) {
        float v = t[j];
        if (o->add) v += c[j];
        if (bias) v += o->beta * bias[j * bias_col];
        c[j] = o->relu && v < 0 ? 0 : v;
    }
}

__attribute__((noinline)) void finish_tile(const float *t, int32_t ldt, int32_t rows, int32_t cols, const tile_out *o, int32_t row,
                                           int32_t col) {
    float u[TILE_COLS * 8];
    int32_t c_row = o->c_row, bias_row = o->bias_row, bias_col = o->bias_col;
    float *c = o->c + row * c_row + col * o->c_col;
    const float *bias = o->bias ? o->bias + row * bias_row + col * bias_col : 0;
    if (o->c_col != 1) {
        for (int32_t i = 0; i < 8; i += 4) {
            for (int32_t j = 0; j < ldt; j += 4) {
                f32x4 x[4];
                for (int32_t r = 0; r < 4; r++) x[r] = load4(t + (i + r) * ldt + j);
                transpose4(&x[0], &x[1], &x[2], &x[3]);
                for (int32_t r = 0; r < 4; r++) store4(u + (j + r) * 8 + i, x[r]);
            }
        }
        t = u;
        ldt = 8;
        int32_t s = rows;
        rows = cols;
        cols = s;
        c_row = o->c_col;
        s = bias_row;
        bias_row = bias_col;
        bias_col = s;
    }
    for (int32_t i = 0; i < rows; i++) {
        finish_row(t + i * ldt, c + i * c_row, cols, o, bias ? bias + i * bias_row : 0, bias_col);
    }
}

/* Read one float of each cache line of rows. A processor then has many lines on their way at once; within a tile it waits
   for a few at a time. The sum is stored, or an engine could leave out the loads. */
static __attribute__((noinline)) void touch_rows(const float *a, int32_t rows, int32_t a_row, int32_t k, float *sum) {
    f32x4 x = splat(0);
    for (int32_t i = 0; i < rows; i++, a += a_row) {
        for (int32_t p = 0; p < k; p += LINE_FLOATS) x = wasm_v128_or(x, wasm_v128_load32_zero(a + p));
    }
    store4(sum, x);
}

/* A whole tile of c' (the operands were exchanged): 4 to 6 neighbouring floats for each of the tile's columns. */
TW_INLINE void store_transposed(const int32_t rows, const int32_t vecs, f32x4 acc[TILE_ROWS][2], const tile_out *o,
                                int32_t row, int32_t col) {
    const int32_t c_col = o->c_col;
    const bool add = o->add, relu = o->relu;
    f32x4 zero = splat(0);
    if (o->bias) {
        UNROLL for (int32_t i = 0; i < rows; i++) {
            f32x4 bias = splat(o->beta * o->bias[(row + i) * o->bias_row]);
            UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = add4(acc[i][j], bias);
        }
    }
    float *c = o->c + row + col * c_col;
    UNROLL for (int32_t j = 0; j < vecs; j++) {
        f32x4 head[4] = {acc[0][j], acc[1][j], acc[2][j], acc[3][j]}, tail[4];
        transpose4(&head[0], &head[1], &head[2], &head[3]);
        if (rows > 4) {
            f32x4 x = acc[rows > 4 ? 4 : 0][j], y = acc[rows - 1][j];
            tail[0] = wasm_i32x4_shuffle(x, y, 0, 4, 1, 5);
            tail[1] = wasm_i32x4_shuffle(x, y, 1, 5, 0, 4);
            tail[2] = wasm_i32x4_shuffle(x, y, 2, 6, 3, 7);
            tail[3] = wasm_i32x4_shuffle(x, y, 3, 7, 2, 6);
        }
        UNROLL for (int32_t i = 0; i < 4; i++, c += c_col) {
            if (add) head[i] = add4(head[i], load4(c));
            if (relu) head[i] = wasm_f32x4_pmax(head[i], zero);
            store4(c, head[i]);
            if (rows <= 4) continue;
            if (add) tail[i] = add4(tail[i], rows > 5 ? wasm_v128_load64_zero(c + 4) : wasm_v128_load32_zero(c + 4));
            if (relu) tail[i] = wasm_f32x4_pmax(tail[i], zero);
            if (rows > 5) wasm_v128_store64_lane(c + 4, tail[i], 0);
            else wasm_v128_store32_lane(c + 4, tail[i], 0);
        }
    }
}

TW_INLINE void store_tile(const int32_t rows, const int32_t vecs, f32x4 acc[TILE_ROWS][2], const tile_run *r, int32_t row,
                          int32_t col) {
    const tile_out *o = r->out;
    const bool whole = r->cols == 4 * vecs;
    const int32_t c_row = o->c_row;
    if (o->plain && whole) {
        float *c = o->c + row * c_row + col;
        UNROLL for (int32_t i = 0; i < rows; i++, c += c_row) {
            UNROLL for (int32_t j = 0; j < vecs; j++) store4(c + 4 * j, acc[i][j]);
        }
        return;
    }
    if (o->alpha != 1) {
        UNROLL for (int32_t i = 0; i < rows; i++) {
            UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = mul4(acc[i][j], splat(o->alpha));
        }
    }
    if (whole && o->c_col == 1 && (!o->bias || o->bias_col <= 1)) {
        float *c = o->c + row * c_row + col;
        if (o->add) {
            UNROLL for (int32_t i = 0; i < rows; i++) {
                UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = add4(acc[i][j], load4(c + i * c_row + 4 * j));
            }
        }
        if (o->bias && o->bias_col && o->bias_row) {
            const float *bias = o->bias + row * o->bias_row + col;
            UNROLL for (int32_t i = 0; i < rows; i++, bias += o->bias_row) {
                UNROLL for (int32_t j = 0; j < vecs; j++) {
                    acc[i][j] = add4(acc[i][j], mul4(splat(o->beta), load4(bias + 4 * j)));
                }
            }
        } else if (o->bias && o->bias_col) {
            UNROLL for (int32_t j = 0; j < vecs; j++) {
                f32x4 bias = mul4(splat(o->beta), load4(o->bias + col + 4 * j));
                UNROLL for (int32_t i = 0; i < rows; i++) acc[i][j] = add4(acc[i][j], bias);
            }
        } else if (o->bias) {
            UNROLL for (int32_t i = 0; i < rows; i++) {
                f32x4 bias = splat(o->beta * o->bias[(row + i) * o->bias_row]);
                UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = add4(acc[i][j], bias);
            }
        }
        if (o->relu) {
            UNROLL for (int32_t i = 0; i < rows; i++) {
                UNROLL for (int32_t j = 0; j < vecs; j++) acc[i][j] = wasm_f32x4_pmax(acc[i][j], splat(0));
            }
        }
        UNROLL for (int32_t i = 0; i < rows; i++, c += c_row) {
            UNROLL for (int32_t j = 0; j < vecs; j++) store4(c + 4 * j, acc[i][j]);
        }
        return;
    }
    if (rows >= 4 && whole && c_row == 1 && (!o->bias || o->bias_col == 0)) {
        store_transposed(rows, vecs, acc, o, row, col);
        return;
    }
    UNROLL for (int32_t i = 0; i < rows; i++) {
        UNROLL for (int32_t j = 0; j < vecs; j++) store4(r->spare + (i * vecs + j) * 4, acc[i][j]);
    }
    finish_tile(r->spare, 4 * vecs, rows, r->cols, o, row, col);
}

/* With `columns` the rows of a block are next to each other, otherwise the steps of a row are. */
TW_INLINE void tiles(const int32_t rows, const int32_t vecs, const bool columns, const bool packed, const tile_run *r) {
    const float *a = r->a;
    for (int32_t n = r->count, row = r->row; n; n--, row += rows, a += rows * r->a_row) {
        const float *line[TILE_ROWS], *b = r->b;
        UNROLL for (int32_t i = 0; i < rows; i++) line[i] = a + i * r->a_row;
        if (!columns && r->far) touch_rows(a, rows, r->a_row, r->k, r->spare);
        for (int32_t left = r->panels, col = r->col; left; left--, col += TILE_COLS, b += r->panel) {
            f32x4 acc[TILE_ROWS][2];
            tile_product(rows, vecs, columns, r->k, line, r->a_step, b, packed ? 4 * vecs : r->b_step, acc);
            store_tile(rows, vecs, acc, r, row, col);
        }
    }
}

#define TILE(rows, name, columns)                                                                                       \
    static void tiles_##rows##x8##name(const tile_run *r) { tiles(rows, 2, columns, true, r); }                         \
    static void tiles_##rows##x8_in_place##name(const tile_run *r) { tiles(rows, 2, columns, false, r); }               \
    static void tiles_##rows##x4##name(const tile_run *r) { tiles(rows, 1, columns, true, r); }
#define TILES(rows) TILE(rows, , false) TILE(rows, _columns, true)
#define TILE_ENTRY(rows, name) {tiles_##rows##x8##name, tiles_##rows##x8_in_place##name, tiles_##rows##x4##name}
#define TILE_ENTRIES(rows) {TILE_ENTRY(rows, ), TILE_ENTRY(rows, _columns)}

TILES(1)
TILES(2)
TILES(3)
TILES(4)
#ifdef TW_RELAXED
TILES(5)
TILES(6)
#endif

const tiles_fn tiles_of[TILE_ROWS][2][3] = {
    TILE_ENTRIES(1), TILE_ENTRIES(2), TILE_ENTRIES(3), TILE_ENTRIES(4),
#ifdef TW_RELAXED
    TILE_ENTRIES(5), TILE_ENTRIES(6),
#endif
};
