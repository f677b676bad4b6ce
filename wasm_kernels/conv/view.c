/* How outputs of a convolution reach its sources, and how a workspace holds a box of these. */
#include "view.h"

static int32_t gcd(int32_t a, int32_t b) {
    while (b) {
        int32_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

conv_reach reach_of(const conv_axis *a) {
    int32_t width = a->taps > 1 ? (a->taps - 1) * a->shift_step : 0, step = a->shift_step < 0 ? -a->shift_step : a->shift_step;
    conv_reach r = {a->shift_first + min_i32(width, 0), width < 0 ? -width : width, a->step, a->step, a->source};
    if (a->taps > 1) r.grid = gcd(a->step, step);
    return r;
}

void widen_reach(conv_reach *r, int32_t *taps, const conv_axis *axis) {
    if (!axis->taps) return;
    conv_reach other = reach_of(axis);
    int32_t end = other.min + other.span;
    if (*taps) end = max_i32(end, r->min + r->span), other.min = min_i32(r->min, other.min);
    r->min = other.min;
    r->span = end - other.min;
    *taps = max_i32(*taps, axis->taps);
}

conv_layout layout_box(const conv_reach reach[3], int32_t rows, int32_t cols) {
    conv_layout l = {.reach = {reach[0], reach[1], reach[2]}};
    l.slices = reach[0].span + 1;
    l.row_step = reach[1].span ? 1 : reach[1].step;
    l.rows = (rows - 1) * (reach[1].step / l.row_step) + reach[1].span + 1;
    l.slots = reach[2].step / reach[2].grid;
    l.line = ((cols + 3) & ~3) + reach[2].span / reach[2].step;
    l.row_stride = l.slots * l.line;
    l.out_stride = reach[1].step / l.row_step * l.row_stride;
    l.slice_stride = l.rows * l.row_stride;
    l.channel_stride = l.slices * l.slice_stride;
    return l;
}

double box_floats(const conv_reach reach[3], int32_t channels, int32_t rows, int32_t cols) {
    double lines = reach[1].span ? (rows - 1.0) * reach[1].step + reach[1].span + 1 : rows;
    double line = (cols + 3.0 + reach[2].span / reach[2].step) * (reach[2].step / reach[2].grid);
    return channels * lines * line * (reach[0].span + 1.0);
}

/* out[i] = line[i * step] for lo <= i < hi, zero elsewhere below n. */
TW_INLINE void gather_line(const float *line, const int32_t step, float *out, int32_t lo, int32_t hi, int32_t n) {
    for (int32_t i = 0; i < lo; i++) out[i] = 0;
    copy_line(line, step, out, lo, hi);
    for (int32_t i = hi; i < n; i++) out[i] = 0;
}

/* The lines of one slot. */
TW_INLINE void gather_slot(const conv_layout *l, const conv_box *box, const float *x, const int32_t step, int32_t slot,
                           float *out) {
    const conv_reach *z = &l->reach[0], *y = &l->reach[1], *w = &l->reach[2];
    int32_t depth0 = box->depth * z->step + z->min, row0 = box->row0 * y->step + y->min;
    int32_t first = box->col0 * step + w->min + slot * w->grid, n = l->line;
    int32_t lo = first < 0 ? min_i32(n, ceil_div(-first, step)) : 0;
    int32_t hi = first >= w->source ? lo : max_i32(lo, min_i32(n, ceil_div(w->source - first, step)));
    out += slot * l->line;
    for (int32_t c = box->channel0; c < box->channel0 + box->channels; c++) {
        for (int32_t depth = depth0; depth < depth0 + l->slices; depth++) {
            const float *slice = x + (c * z->source + depth) * y->source * w->source + first;
            for (int32_t i = 0, r = row0; i < l->rows; i++, r += l->row_step, out += l->row_stride) {
                bool outside = depth < 0 || depth >= z->source || r < 0 || r >= y->source;
                if (outside) zero_floats(out, n);
                else gather_line(slice + r * w->source, step, out, lo, hi, n);
            }
        }
    }
}

/* The lines of both slots of a stride of 2. */
static void gather_apart(const conv_layout *l, const conv_box *box, const float *x, float *out) {
    const conv_reach *z = &l->reach[0], *y = &l->reach[1], *w = &l->reach[2];
    int32_t depth0 = box->depth * z->step + z->min, row0 = box->row0 * y->step + y->min;
    int32_t first = box->col0 * 2 + w->min, line = l->line, n = 2 * line;
    int32_t lo = min_i32(n, max_i32(0, -first)), hi = max_i32(lo, min_i32(n, w->source - first)), end = hi - lo;
    float *even = out + place_of(l, lo), *odd = out + place_of(l, lo + 1);
    for (int32_t c = box->channel0; c < box->channel0 + box->channels; c++) {
        for (int32_t depth = depth0; depth < depth0 + l->slices; depth++) {
            const float *slice = x + (c * z->source + depth) * y->source * w->source + first + lo;
            for (int32_t i = 0, r = row0; i < l->rows; i++, r += l->row_step) {
                bool outside = depth < 0 || depth >= z->source || r < 0 || r >= y->source;
                if (outside) {
                    zero_floats(out, n);
                } else {
                    copy_apart(slice + r * w->source, end, even, odd);
                    for (int32_t q = 0; q < lo; q++) out[(q & 1) * line + (q >> 1)] = 0;
                    for (int32_t q = hi; q < n; q++) out[(q & 1) * line + (q >> 1)] = 0;
                }
                out += l->row_stride, even += l->row_stride, odd += l->row_stride;
            }
        }
    }
}

void gather_box(const conv_layout *l, const conv_box *box, const float *x, float *out) {
    int32_t step = l->reach[2].step;
    if (step == 2 && l->slots == 2) {
        gather_apart(l, box, x, out);
        return;
    }
    for (int32_t s = 0; s < l->slots; s++) {
        if (step == 1) gather_slot(l, box, x, 1, s, out);
        else if (step == 2) gather_slot(l, box, x, 2, s, out);
        else gather_slot(l, box, x, step, s, out);
    }
}

void tap_offsets(const conv_axis axis[3], const conv_layout *l, int32_t channels, int32_t *offsets) {
    for (int32_t c = 0; c < channels; c++) {
        for (int32_t tz = 0; tz < axis[0].taps; tz++) {
            int32_t slice = axis[0].shift_first + tz * axis[0].shift_step - l->reach[0].min;
            for (int32_t ty = 0; ty < axis[1].taps; ty++) {
                int32_t row = axis[1].shift_first + ty * axis[1].shift_step - l->reach[1].min;
                int32_t base = c * l->channel_stride + slice * l->slice_stride + row * l->row_stride;
                for (int32_t tx = 0; tx < axis[2].taps; tx++) {
                    int32_t col = axis[2].shift_first + tx * axis[2].shift_step - l->reach[2].min;
                    int32_t slot = col % axis[2].step / l->reach[2].grid;
                    *offsets++ = 4 * (base + slot * l->line + col / axis[2].step);
                }
            }
        }
    }
}

/* The data gradient has outputs i = first + q * stride. They meet the taps k with i + pad - k * dilation divisible by
   the stride. These are every (stride / gcd(stride, dilation))-th one. */
conv_axis gradient_axis(int32_t first, int32_t size, int32_t out, int32_t kernel, int32_t stride, int32_t dilation,
                        int32_t pad) {
    conv_axis a = {.count = first < size ? ceil_div(size - first, stride) : 0, .step = 1, .out_first = first,
                   .out_step = stride, .source = out, .out = size, .w_step = stride / gcd(stride, dilation)};
    while (a.w_first < a.w_step && (first + pad - (int64_t)a.w_first * dilation) % stride) a.w_first++;
    if (a.w_first < a.w_step && a.w_first < kernel) a.taps = ceil_div(kernel - a.w_first, a.w_step);
    a.shift_first = (int32_t)((first + pad - (int64_t)a.w_first * dilation) / stride);
    a.shift_step = (int32_t)(-(int64_t)a.w_step * dilation / stride);
    return a;
}

void merge_pointwise_axes(conv_axis axis[3]) {
    for (int32_t i = 0; i < 3; i++) {
        conv_axis *a = &axis[i];
        if (a->taps != 1 || a->step != 1 || a->shift_first || a->out_step != 1 || a->count != a->source || a->count != a->out)
            return;
    }
    int32_t total = axis[0].count * axis[1].count * axis[2].count;
    axis[2].count = axis[2].source = axis[2].out = total;
    axis[0].count = axis[0].source = axis[0].out = axis[1].count = axis[1].source = axis[1].out = 1;
}
