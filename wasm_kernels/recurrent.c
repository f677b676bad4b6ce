/* Recurrent layers: all steps in one call. Items of a batch do not depend on each other. So a chunk takes some of them through
   all steps, and no thread waits for another between steps. The recurrent weights are packed once, in panels of eight columns
   that stay in the first-level cache while the rows of a chunk go by. A row's sums do not depend on the rows beside it. */
#include <stdbool.h>

#include "math.h"
#include "parallel.h"
#include "tile.h"

/* Rows of a chunk: at most, and where threads share the batch. */
enum { MOST_ROWS = 64, SHARED_ROWS = 8, SHARED_ROWS_LARGE = 16, LARGE_BATCH = 64 };
enum { MOST_GATES = 4 };

static int32_t rows_per_chunk(int32_t batch) {
    if (parallel_alone()) return min_i32(batch, MOST_ROWS);
    return min_i32(batch, batch >= LARGE_BATCH ? SHARED_ROWS_LARGE : SHARED_ROWS);
}

static int32_t gates_of(int32_t cell) { return cell == CELL_LSTM ? 4 : cell >= CELL_GRU ? 3 : 1; }

/* x (1 - x) and 1 - x^2: slopes of the sigmoid and of tanh by their values. */
TW_INLINE f32x4 sigmoid_slope(f32x4 y) { return mul4(y, sub4(splat(1), y)); }
TW_INLINE f32x4 tanh_slope(f32x4 y) { return sub4(splat(1), mul4(y, y)); }

/* ---- products ---- */

/* out[i][8 panels] = a[i][k] times panels [k][8] that follow each other. */
typedef struct {
    int32_t k, panels;
    const float *a;
    int32_t a_row;
    const float *b;
    float *out;
    int32_t out_row;
} product;

TW_INLINE void panel_rows(const int32_t rows, const product *p, int32_t first) {
    const float *line[TILE_ROWS], *b = p->b;
    UNROLL for (int32_t i = 0; i < rows; i++) line[i] = p->a + (first + i) * p->a_row;
    float *out = p->out + first * p->out_row;
    for (int32_t j = 0; j < p->panels; j++, b += p->k * TILE_COLS, out += TILE_COLS) {
        f32x4 acc[TILE_ROWS][2];
        tile_product(rows, 2, false, p->k, line, 0, b, TILE_COLS, acc);
        UNROLL for (int32_t i = 0; i < rows; i++) {
            store4(out + i * p->out_row, acc[i][0]);
            store4(out + i * p->out_row + 4, acc[i][1]);
        }
    }
}

static void multiply(const product *p, int32_t rows) {
    const row_split split = split_rows(rows);
    for (int32_t block = 0; block < split.count; block++) {
        const int32_t first = split_start(&split, block);
        switch (split_height(&split, block)) {
        case 1: panel_rows(1, p, first); break;
        case 2: panel_rows(2, p, first); break;
        case 3: panel_rows(3, p, first); break;
        case 4: panel_rows(4, p, first); break;
#ifdef TW_RELAXED
        case 5: panel_rows(5, p, first); break;
        case 6: panel_rows(6, p, first); break;
#endif
        }
    }
}

/* Packs `r` [gates * hidden, hidden]: forward, for each eight states a panel [hidden][8] of each gate; backward, a panel
   [gates * hidden][8] for each eight states. Columns that are not there are zeros. */
typedef struct {
    const float *r;
    float *packed;
    int32_t hidden, gates;
} packing;

static void pack_forward(const void *args, int32_t block) {
    const packing *p = args;
    const int32_t hidden = p->hidden, first = block * TILE_COLS, n = min_i32(TILE_COLS, hidden - first);
    float *out = p->packed + block * p->gates * hidden * TILE_COLS;
    for (int32_t gate = 0; gate < p->gates; gate++) {
        const float *from = p->r + (gate * hidden + first) * hidden;
        for (int32_t k = 0; k < hidden; k++, out += TILE_COLS) {
            for (int32_t j = 0; j < n; j++) out[j] = from[j * hidden + k];
            for (int32_t j = n; j < TILE_COLS; j++) out[j] = 0;
        }
    }
}

static void pack_backward(const void *args, int32_t block) {
    const packing *p = args;
    const int32_t hidden = p->hidden, first = block * TILE_COLS, n = min_i32(TILE_COLS, hidden - first);
    float *out = p->packed + block * p->gates * hidden * TILE_COLS;
    for (int32_t k = 0; k < p->gates * hidden; k++, out += TILE_COLS) {
        for (int32_t j = 0; j < n; j++) out[j] = p->r[k * hidden + first + j];
        for (int32_t j = n; j < TILE_COLS; j++) out[j] = 0;
    }
}

/* ---- forward ---- */

typedef struct {
    const recurrence_f32_args *a;
    int32_t rows, gates;
} forward_task;

/* One step of the rows of a chunk. */
typedef struct {
    const recurrence_f32_args *a;
    int32_t gates, first, rows, t; /* t: the step in the order of time */
    const float *old;              /* states before the step, by rows of the chunk */
    float *new, *cell, *reset;     /* after it; cell states; reset gate times state */
} forward_step;

/* Data of a step for eight states of a row. */
typedef struct {
    const float *x, *sums, *bias, *old; /* inputs of the gates; products; their bias or null */
    float *new, *cell, *reset, *gates;  /* gates: null or where they are kept */
    int32_t hidden, n;                  /* states that are left */
} columns;

TW_INLINE f32x4 biased(const columns *c, int32_t gate, int32_t v) {
    f32x4 sum = load4(c->sums + gate * TILE_COLS + v);
    return c->bias ? add4(sum, load_some(c->bias + gate * c->hidden + v, c->n - v)) : sum;
}

TW_INLINE f32x4 gate_input(const columns *c, int32_t gate, int32_t v) {
    return add4(load_some(c->x + gate * c->hidden + v, c->n - v), biased(c, gate, v));
}

TW_INLINE void keep(const columns *c, int32_t gate, int32_t v, f32x4 value) {
    if (c->gates) store_some(c->gates + gate * c->hidden + v, value, c->n - v);
}

TW_INLINE void rnn_columns(const columns *c, int32_t v, bool relu) {
    f32x4 x = gate_input(c, 0, v), y = relu ? wasm_f32x4_max(x, splat(0)) : tanh4(x);
    keep(c, 0, v, y);
    store_some(c->new + v, y, c->n - v);
}

TW_INLINE void lstm_columns(const columns *c, int32_t v) {
    f32x4 i = sigmoid4(gate_input(c, 0, v)), o = sigmoid4(gate_input(c, 1, v));
    f32x4 f = sigmoid4(gate_input(c, 2, v)), g = tanh4(gate_input(c, 3, v));
    f32x4 cell = add4(mul4(f, load_some(c->cell + v, c->n - v)), mul4(i, g));
    keep(c, 0, v, i);
    keep(c, 1, v, o);
    keep(c, 2, v, f);
    keep(c, 3, v, g);
    store_some(c->cell + v, cell, c->n - v);
    store_some(c->new + v, mul4(o, tanh4(cell)), c->n - v);
}

/* z new-state gate, r reset gate. The candidate is made of the product times r, or of that of r times the state. */
TW_INLINE f32x4 gru_update(f32x4 z, f32x4 candidate, f32x4 old) {
    return add4(mul4(sub4(splat(1), z), candidate), mul4(z, old));
}

TW_INLINE void gru_linear_columns(const columns *c, int32_t v) {
    f32x4 z = sigmoid4(gate_input(c, 0, v)), r = sigmoid4(gate_input(c, 1, v)), memory = biased(c, 2, v);
    f32x4 candidate = tanh4(add4(load_some(c->x + 2 * c->hidden + v, c->n - v), mul4(r, memory)));
    keep(c, 0, v, z);
    keep(c, 1, v, r);
    keep(c, 2, v, candidate);
    keep(c, 3, v, memory);
    store_some(c->new + v, gru_update(z, candidate, load_some(c->old + v, c->n - v)), c->n - v);
}

/* The gates alone; z waits in `new` for the candidate. */
TW_INLINE void gru_gates_columns(const columns *c, int32_t v) {
    f32x4 z = sigmoid4(gate_input(c, 0, v)), r = sigmoid4(gate_input(c, 1, v));
    f32x4 reset = mul4(r, load_some(c->old + v, c->n - v));
    keep(c, 0, v, z);
    keep(c, 1, v, r);
    keep(c, 3, v, reset);
    store_some(c->reset + v, reset, c->n - v);
    store_some(c->new + v, z, c->n - v);
}

TW_INLINE void gru_candidate_columns(const columns *c, int32_t v) {
    f32x4 memory = load4(c->sums + v);
    if (c->bias) memory = add4(memory, load_some(c->bias + 2 * c->hidden + v, c->n - v));
    f32x4 candidate = tanh4(add4(load_some(c->x + 2 * c->hidden + v, c->n - v), memory));
    keep(c, 2, v, candidate);
    store_some(c->new + v, gru_update(load_some(c->new + v, c->n - v), candidate, load_some(c->old + v, c->n - v)), c->n - v);
}

typedef void (*columns_fn)(const columns *c);
#define COLUMNS(name, call)                                        \
    static void name(const columns *c) {                           \
        for (int32_t v = 0; v < TILE_COLS && v < c->n; v += 4) {   \
            call;                                                  \
        }                                                          \
    }
COLUMNS(rnn_tanh, rnn_columns(c, v, false))
COLUMNS(rnn_relu, rnn_columns(c, v, true))
COLUMNS(lstm, lstm_columns(c, v))
COLUMNS(gru_gates, gru_gates_columns(c, v))
COLUMNS(gru_candidate, gru_candidate_columns(c, v))
COLUMNS(gru_linear, gru_linear_columns(c, v))
static const columns_fn CELLS[] = {rnn_tanh, rnn_relu, lstm, gru_gates, gru_linear};

/* Products of `from` with the panels [at, at + panels) of every eight states, and what `fn` makes of them. */
static void forward_columns(const forward_step *s, const float *from, int32_t at, int32_t panels, columns_fn fn) {
    const recurrence_f32_args *a = s->a;
    const int32_t hidden = a->hidden, panel = hidden * TILE_COLS;
    float *sums = thread_scratch();
    product p = {.k = hidden, .panels = panels, .a = from, .a_row = hidden, .out = sums, .out_row = panels * TILE_COLS};
    for (int32_t col = 0, block = 0; col < hidden; col += TILE_COLS, block++) {
        p.b = a->packed + (block * s->gates + at) * panel;
        multiply(&p, s->rows);
        for (int32_t i = 0; i < s->rows; i++) {
            const int32_t item = s->t * a->batch + s->first + i, own = i * hidden + col;
            const columns c = {.x = a->x + item * s->gates * hidden + col, .sums = sums + i * p.out_row,
                               .bias = a->bias ? a->bias + col : 0, .old = s->old + own, .new = s->new + own,
                               .cell = s->cell + own, .reset = s->reset + own,
                               .gates = a->gates ? a->gates + item * (s->gates == 1 ? 1 : MOST_GATES) * hidden + col : 0,
                               .hidden = hidden, .n = hidden - col};
            fn(&c);
        }
    }
}

/* Rows that are over keep their states, and their results are zeros. */
static void finish_rows(const forward_step *s, const float *cells_before) {
    const recurrence_f32_args *a = s->a;
    const size_t row_bytes = 4 * (size_t)a->hidden;
    for (int32_t i = 0; i < s->rows; i++) {
        float *y = a->y + (s->t * a->batch + s->first + i) * a->hidden;
        if (!a->lengths || s->t < a->lengths[s->first + i]) {
            tw_copy(y, s->new + i * a->hidden, row_bytes);
            continue;
        }
        tw_copy(s->new + i * a->hidden, s->old + i * a->hidden, row_bytes);
        if (cells_before) tw_copy(s->cell + i * a->hidden, cells_before + i * a->hidden, row_bytes);
        tw_zero(y, row_bytes);
    }
}

static void copy_or_zero(float *to, const float *from, size_t nbytes) {
    if (from) tw_copy(to, from, nbytes);
    else tw_zero(to, nbytes);
}

static void forward_chunk(const void *args, int32_t chunk) {
    const forward_task *f = args;
    const recurrence_f32_args *a = f->a;
    const int32_t hidden = a->hidden, first = chunk * f->rows, rows = min_i32(f->rows, a->batch - first);
    const size_t nbytes = 4 * (size_t)rows * hidden;
    const int32_t part = a->batch * hidden, at = first * hidden;
    float *old = a->states + at, *new = old + part, *before = old + 4 * part;
    forward_step s = {.a = a, .gates = f->gates, .first = first, .rows = rows, .cell = old + 2 * part, .reset = old + 3 * part};
    copy_or_zero(old, a->h0 ? a->h0 + at : 0, nbytes);
    copy_or_zero(s.cell, a->c0 ? a->c0 + at : 0, nbytes);
    for (int32_t step = 0; step < a->steps; step++) {
        s.t = a->reverse ? a->steps - 1 - step : step;
        s.old = old;
        s.new = new;
        if (a->before) tw_copy(a->before + s.t * part + at, old, nbytes);
        if (a->cells) tw_copy(a->cells + s.t * part + at, s.cell, nbytes);
        const bool keeps = a->lengths && a->cell == CELL_LSTM;
        if (keeps) tw_copy(before, s.cell, nbytes);
        forward_columns(&s, old, 0, a->cell == CELL_GRU ? 2 : f->gates, CELLS[a->cell]);
        if (a->cell == CELL_GRU) forward_columns(&s, s.reset, 2, 1, gru_candidate);
        finish_rows(&s, keeps ? before : 0);
        float *spare = old;
        old = new;
        new = spare;
    }
    if (a->h) tw_copy(a->h + at, old, nbytes);
    if (a->c) tw_copy(a->c + at, s.cell, nbytes);
}

int32_t kernel_recurrence_f32(const recurrence_f32_args *a) {
    const int32_t gates = gates_of(a->cell), rows = rows_per_chunk(a->batch);
    const packing p = {a->r, a->packed, a->hidden, gates};
    parallel_for(pack_forward, &p, ceil_div(a->hidden, TILE_COLS));
    const forward_task f = {a, rows, gates};
    parallel_for(forward_chunk, &f, ceil_div(a->batch, rows));
    return TW_OK;
}

/* ---- backward ---- */

typedef struct {
    const recurrence_gradient_f32_args *a;
    int32_t rows, gates;
} backward_task;

typedef struct {
    const recurrence_gradient_f32_args *a;
    int32_t gates, first, rows, t;
    float *state, *cell, *direct; /* gradients of the states after the step; what goes past the products */
} backward_step;

/* A row of a step. */
typedef struct {
    const float *dy, *gates, *before, *cells; /* dy may be null */
    float *dx, *dproduct, *state, *cell, *direct;
    int32_t hidden;
} row_gradient;

/* The gradient of four states, which `dy` is added to. */
TW_INLINE f32x4 state_gradient(const row_gradient *r, int32_t k, int32_t n) {
    f32x4 dh = load_some(r->state + k, n);
    return r->dy ? add4(dh, load_some(r->dy + k, n)) : dh;
}

static void rnn_row(const row_gradient *r, bool relu) {
    for (int32_t k = 0; k < r->hidden; k += 4) {
        const int32_t n = r->hidden - k;
        f32x4 dh = state_gradient(r, k, n), y = load_some(r->gates + k, n);
        f32x4 dx = relu ? wasm_v128_and(dh, wasm_f32x4_gt(y, splat(0))) : mul4(dh, tanh_slope(y));
        store_some(r->dx + k, dx, n);
        store_some(r->direct + k, splat(0), n);
    }
}

static void lstm_row(const row_gradient *r) {
    const int32_t hidden = r->hidden;
    for (int32_t k = 0; k < hidden; k += 4) {
        const int32_t n = hidden - k;
        f32x4 dh = state_gradient(r, k, n), before = load_some(r->cells + k, n);
        f32x4 i = load_some(r->gates + k, n), o = load_some(r->gates + hidden + k, n);
        f32x4 f = load_some(r->gates + 2 * hidden + k, n), g = load_some(r->gates + 3 * hidden + k, n);
        f32x4 y = tanh4(add4(mul4(f, before), mul4(i, g)));
        f32x4 dc = add4(load_some(r->cell + k, n), mul4(mul4(dh, o), tanh_slope(y)));
        store_some(r->dx + k, mul4(mul4(dc, g), sigmoid_slope(i)), n);
        store_some(r->dx + hidden + k, mul4(mul4(dh, y), sigmoid_slope(o)), n);
        store_some(r->dx + 2 * hidden + k, mul4(mul4(dc, before), sigmoid_slope(f)), n);
        store_some(r->dx + 3 * hidden + k, mul4(mul4(dc, i), tanh_slope(g)), n);
        store_some(r->cell + k, mul4(dc, f), n);
        store_some(r->direct + k, splat(0), n);
    }
}

/* Gradients of the update gate and of the candidate; `linear`: all of them. */
TW_INLINE void gru_row(const row_gradient *r, const bool linear) {
    const int32_t hidden = r->hidden;
    for (int32_t k = 0; k < hidden; k += 4) {
        const int32_t n = hidden - k;
        f32x4 dh = state_gradient(r, k, n), z = load_some(r->gates + k, n), candidate = load_some(r->gates + 2 * hidden + k, n);
        f32x4 dz = mul4(mul4(dh, sub4(load_some(r->before + k, n), candidate)), sigmoid_slope(z));
        f32x4 dn = mul4(mul4(dh, sub4(splat(1), z)), tanh_slope(candidate));
        store_some(r->dx + k, dz, n);
        store_some(r->dx + 2 * hidden + k, dn, n);
        store_some(r->direct + k, mul4(dh, z), n);
        if (!linear) continue;
        f32x4 reset = load_some(r->gates + hidden + k, n), memory = load_some(r->gates + 3 * hidden + k, n);
        f32x4 dr = mul4(mul4(dn, memory), sigmoid_slope(reset));
        store_some(r->dx + hidden + k, dr, n);
        store_some(r->dproduct + k, dz, n);
        store_some(r->dproduct + hidden + k, dr, n);
        store_some(r->dproduct + 2 * hidden + k, mul4(dn, reset), n);
    }
}

/* `state` holds the gradient of r times the state. Split it into the reset gate's gradient and the state's gradient. */
static void gru_reset_row(const row_gradient *r) {
    const int32_t hidden = r->hidden;
    for (int32_t k = 0; k < hidden; k += 4) {
        const int32_t n = hidden - k;
        f32x4 d = load_some(r->state + k, n), reset = load_some(r->gates + hidden + k, n);
        store_some(r->dx + hidden + k, mul4(mul4(d, load_some(r->before + k, n)), sigmoid_slope(reset)), n);
        store_some(r->direct + k, add4(load_some(r->direct + k, n), mul4(d, reset)), n);
    }
}

static bool is_over(const backward_step *s, int32_t i) {
    return s->a->lengths && s->t >= s->a->lengths[s->first + i];
}

static row_gradient row_of(const backward_step *s, int32_t i) {
    const recurrence_gradient_f32_args *a = s->a;
    const int32_t hidden = a->hidden, item = s->t * a->batch + s->first + i, own = i * hidden;
    return (row_gradient){.dy = a->dy ? a->dy + item * hidden : 0,
                          .gates = a->gates + item * (s->gates == 1 ? 1 : MOST_GATES) * hidden,
                          .before = a->before + item * hidden, .cells = a->cells ? a->cells + item * hidden : 0,
                          .dx = a->dx + item * s->gates * hidden,
                          .dproduct = a->cell == CELL_GRU_LINEAR ? a->dproduct + item * s->gates * hidden : 0,
                          .state = s->state + own, .cell = s->cell + own, .direct = s->direct + own, .hidden = hidden};
}

/* Gradients of the gates of all rows. Rows that are over get zeros, and the gradients of their states pass through. */
static void gate_gradients(const backward_step *s) {
    const size_t hidden_bytes = 4 * (size_t)s->a->hidden;
    for (int32_t i = 0; i < s->rows; i++) {
        const row_gradient r = row_of(s, i);
        if (is_over(s, i)) {
            tw_zero(r.dx, s->gates * hidden_bytes);
            if (r.dproduct) tw_zero(r.dproduct, s->gates * hidden_bytes);
            tw_copy(r.direct, r.state, hidden_bytes);
        } else if (s->a->cell <= CELL_RNN_RELU) {
            rnn_row(&r, s->a->cell == CELL_RNN_RELU);
        } else if (s->a->cell == CELL_LSTM) {
            lstm_row(&r);
        } else if (s->a->cell == CELL_GRU_LINEAR) {
            gru_row(&r, true);
        } else {
            gru_row(&r, false);
        }
    }
}

/* state[i] = from[i][k] times the weights from row `at` on, plus `direct`, where there is one. */
static void state_product(const backward_step *s, const float *from, int32_t k, int32_t at, const float *direct) {
    const int32_t hidden = s->a->hidden, panel = s->gates * hidden * TILE_COLS;
    float *sums = thread_scratch();
    product p = {.k = k, .panels = 1, .a = from, .a_row = s->gates * hidden, .out = sums, .out_row = TILE_COLS};
    for (int32_t col = 0, block = 0; col < hidden; col += TILE_COLS, block++) {
        p.b = s->a->packed + block * panel + at * TILE_COLS;
        multiply(&p, s->rows);
        for (int32_t i = 0; i < s->rows; i++) {
            for (int32_t v = 0; v < TILE_COLS && col + v < hidden; v += 4) {
                const int32_t own = i * hidden + col + v, n = hidden - col - v;
                f32x4 sum = load4(sums + i * TILE_COLS + v);
                store_some(s->state + own, direct ? add4(load_some(direct + own, n), sum) : sum, n);
            }
        }
    }
}

static void backward_chunk(const void *args, int32_t chunk) {
    const backward_task *f = args;
    const recurrence_gradient_f32_args *a = f->a;
    const int32_t hidden = a->hidden, first = chunk * f->rows, rows = min_i32(f->rows, a->batch - first);
    const int32_t part = a->batch * hidden, at = first * hidden, wide = f->gates * hidden;
    const size_t nbytes = 4 * (size_t)rows * hidden;
    backward_step s = {.a = a, .gates = f->gates, .first = first, .rows = rows};
    s.state = a->states + at;
    s.cell = s.state + part;
    s.direct = s.state + 2 * part;
    copy_or_zero(s.state, a->dh ? a->dh + at : 0, nbytes);
    copy_or_zero(s.cell, a->dc ? a->dc + at : 0, nbytes);
    for (int32_t step = a->steps - 1; step >= 0; step--) {
        s.t = a->reverse ? a->steps - 1 - step : step;
        gate_gradients(&s);
        const float *from = (a->cell == CELL_GRU_LINEAR ? a->dproduct : a->dx) + (s.t * a->batch + first) * wide;
        if (a->cell == CELL_GRU) {
            state_product(&s, from + 2 * hidden, hidden, 2 * hidden, 0);
            for (int32_t i = 0; i < rows; i++) {
                const row_gradient r = row_of(&s, i);
                if (!is_over(&s, i)) gru_reset_row(&r);
            }
            state_product(&s, from, 2 * hidden, 0, s.direct);
        } else if (step > 0 || a->dh0) {
            state_product(&s, from, wide, 0, s.direct);
        }
    }
    if (a->dh0) tw_copy(a->dh0 + at, s.state, nbytes);
    if (a->dc0) tw_copy(a->dc0 + at, s.cell, nbytes);
}

int32_t kernel_recurrence_gradient_f32(const recurrence_gradient_f32_args *a) {
    if ((a->cell == CELL_LSTM && !a->cells) || (a->cell == CELL_GRU_LINEAR && !a->dproduct))
        return tw_fail(TW_BAD_ARGUMENT, a->cell, 0);
    const int32_t gates = gates_of(a->cell), rows = rows_per_chunk(a->batch);
    const packing p = {a->r, a->packed, a->hidden, gates};
    parallel_for(pack_backward, &p, ceil_div(a->hidden, TILE_COLS));
    const backward_task f = {a, rows, gates};
    parallel_for(backward_chunk, &f, ceil_div(a->batch, rows));
    if (a->dproduct && a->cell != CELL_GRU_LINEAR)
        tw_copy(a->dproduct, a->dx, 4 * (size_t)a->steps * a->batch * gates * a->hidden);
    return TW_OK;
}
