/* Generated functions declare their accesses in a custom section of their module. The verifier trusts the section as it
   trusts the code itself, and checks the words of each call against it. A plan cannot make a function leave its
   operands.

   Unless the function is flat, words follow a call's pointers: the elements of a row, and the dims outside it but for the
   first. For each input its strides along all of them follow. If it reduces, the words of `reduction` come next. */
#include "generated.h"

#include "alloc.h"
#include "executor.h"
#include "parallel.h"

/* Loops look this many elements ahead of an index; the sum must fit an int32. */
#define MAX_ROW (INT32_MAX - 64)
#define MAX_OUTER 64

static const char SECTION[] = "trainweb.access";

static tw_code *codes;
static uint32_t generation = 1;

const tw_code *tw_code_at(uint32_t slot, uint32_t n) {
    for (const tw_code *code = codes; code; code = code->next)
        if (code->slot == slot && code->n == n) return code;
    return NULL;
}

uint32_t tw_code_generation(void) { return generation; }

/* ---- what a module says ---- */

typedef struct {
    const uint8_t *at, *end;
} reader;

/* An unsigned LEB128 number of up to 32 bits; beyond the end, or too large: UINT32_MAX, which nothing here takes. */
static uint32_t read_number(reader *r) {
    uint64_t value = 0;
    for (int32_t shift = 0; shift < 35 && r->at < r->end; shift += 7) {
        uint8_t byte = *r->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
    }
    return UINT32_MAX;
}

/* True if `nbytes` bytes follow: `part` is then these bytes, and `r` the rest. */
static int32_t take(reader *r, uint32_t nbytes, reader *part) {
    if (nbytes > (size_t)(r->end - r->at)) return 0;
    *part = (reader){r->at, r->at + nbytes};
    r->at += nbytes;
    return 1;
}

static int32_t find_section(reader module, reader *found) {
    reader header, section, name;
    if (!take(&module, 8, &header)) return 0;
    while (module.at < module.end) {
        uint8_t id = *module.at++;
        if (!take(&module, read_number(&module), &section)) return 0;
        if (id || !take(&section, read_number(&section), &name)) continue;
        size_t n = sizeof(SECTION) - 1, same = 0;
        while (name.at + same < name.end && same < n && name.at[same] == (uint8_t)SECTION[same]) same++;
        if (same == n && name.at + n == name.end) {
            *found = section;
            return 1;
        }
    }
    return 0;
}

static int32_t is_item(uint8_t size) { return size == 1 || size == 2 || size == 4 || size == 8; }

static int32_t read_function(reader *r, tw_function *f) {
    reader in, out;
    f->n_in = read_number(r);
    if (f->n_in > INT32_MAX / 2 || !take(r, 2 * f->n_in, &in)) return 0;
    f->n_out = read_number(r);
    if (!f->n_out || !take(r, f->n_out, &out)) return 0;
    f->in = in.at, f->out = out.at;
    f->n_outer = read_number(r);
    f->reduces = read_number(r);
    f->stored = read_number(r);
    f->scratch = read_number(r);
    for (uint32_t k = 0; k < f->n_in; k++)
        if (!is_item(f->in[2 * k]) || f->in[2 * k + 1] > 1) return 0;
    for (uint32_t k = 0; k < f->n_out; k++)
        if (!is_item(f->out[k])) return 0;
    if (f->reduces > 1 || f->stored > 1 || (!f->stored && !f->reduces)) return 0;
    return f->n_outer <= MAX_OUTER && f->scratch <= THREAD_SCRATCH_BYTES && (!f->reduces || f->out[f->n_out - 1] == 4);
}

static tw_code *read_code(reader section, uint32_t n) {
    size_t size = (size_t)(section.end - section.at);
    if (n > size) return NULL;
    size_t head = sizeof(tw_code) + n * sizeof(tw_function);
    tw_code *code = (tw_code *)(uintptr_t)tw_alloc((uint32_t)(head + size));
    if (!code) return NULL;
    uint8_t *copy = (uint8_t *)code + head;
    tw_copy(copy, section.at, size);
    reader r = {copy, copy + size};
    code->n = n;
    uint32_t k = 0;
    while (k < n && read_function(&r, &code->functions[k])) k++;
    if (k == n && r.at == r.end) return code;
    tw_free((uint32_t)(uintptr_t)code);
    return NULL;
}

static int32_t is_taken(uint32_t slot, uint32_t n) {
    for (const tw_code *code = codes; code; code = code->next)
        if (slot < code->slot + code->n && code->slot < slot + n) return 1;
    return 0;
}

/* Announce that slots [slot, slot + n) of the function table hold the functions of the module at `ptr`, whose bytes may
   go afterwards; parallel.h has the protocol of the threads. Its functions must state what they access. */
TW_EXPORT(tw_register_code)
int32_t tw_register_code(uint32_t ptr, uint32_t size, uint32_t slot, uint32_t n) {
    reader module = {(const uint8_t *)(uintptr_t)ptr, (const uint8_t *)(uintptr_t)ptr + size}, section;
    if (slot < 1 || !n || (uint64_t)slot + n > UINT32_MAX || is_taken(slot, n)) return TW_BAD_FUNCTION;
    if (!tw_range_is_live(ptr, size)) return TW_BAD_POINTER;
    if (!find_section(module, &section)) return TW_BAD_FUNCTION;
    tw_code *code = read_code(section, n);
    if (!code) return TW_BAD_FUNCTION;
    int32_t status = parallel_load(ptr, size, slot);
    if (status) {
        tw_free((uint32_t)(uintptr_t)code);
        return status;
    }
    code->slot = slot;
    code->next = codes;
    codes = code;
    return TW_OK;
}

/* Announce that the functions that begin at `slot` are gone, or about to go, from the table. */
TW_EXPORT(tw_unregister_code) int32_t tw_unregister_code(uint32_t slot) {
    for (tw_code **link = &codes; *link; link = &(*link)->next) {
        tw_code *code = *link;
        if (code->slot != slot) continue;
        *link = code->next;
        if (!++generation) generation = 1;
        return tw_free((uint32_t)(uintptr_t)code);
    }
    return TW_BAD_FUNCTION;
}

/* ---- calls ---- */

typedef struct {
    const tw_function *f;
    const uint32_t *words; /* after the pointers */
    double n, row;         /* rows and their elements; of a flat function elements and 1 */
} call;

static double number(uint32_t word) { return (double)(int32_t)word; }

/* Elements from the first to the last that input k is read at. Rows count through the outer dims, the last one fastest;
   the first one goes as far as they lead. */
static double input_extent(const call *c, uint32_t k) {
    const tw_function *f = c->f;
    int32_t steps = f->in[2 * k + 1];
    if (!c->n) return 0;
    if (!f->n_outer) return steps ? c->n : 1;
    const uint32_t *dims = c->words, *strides = c->words + f->n_outer * (k + 1);
    double rows = 1, reach = 0;
    for (uint32_t d = f->n_outer; d-- > 1;) {
        reach += (number(dims[d]) - 1) * number(strides[d]);
        rows *= number(dims[d]);
    }
    reach += __builtin_floor((c->n - 1) / rows) * number(strides[0]);
    return reach + (steps ? c->row : 1);
}

/* Numbers that are not negative, rows that are not empty, dims that can be divided by, and nothing that overflows. */
static int32_t check_rows(const call *c) {
    const tw_function *f = c->f;
    int32_t status = tw_check_sign(c->words, (int32_t)(f->n_outer * (1 + f->n_in) + (f->reduces ? REDUCTION_WORDS : 0)));
    if (status) return status;
    if (c->n > MAX_ROW || c->row > MAX_ROW) return tw_fail(TW_BAD_ARGUMENT, (int64_t)c->n, (int64_t)c->row);
    for (uint32_t d = 0; c->n && d < f->n_outer; d++)
        if (!c->words[d]) return tw_fail(TW_BAD_ARGUMENT, 0, d);
    return TW_OK;
}

/* The chunks of a reduction must be whole planes. The result must have room for all of them, and a plane that is not stored
   must fit the scratch memory. Returns the elements of the result, or -1. */
static double reduced_extent(const call *c, uint32_t grain) {
    const tw_function *f = c->f;
    const uint32_t *r = c->words + f->n_outer * (1 + f->n_in);
    uint64_t row = (uint64_t)c->row, chunk = grain * row, total = (uint64_t)c->n * row;
    uint64_t n = r[REDUCTION_N], inner = r[REDUCTION_INNER], plane = n ? n * inner : inner;
    int32_t sums = r[REDUCTION_OP] <= REDUCE_MEAN || r[REDUCTION_OP] == REDUCE_SUM_SQUARES;
    if (r[REDUCTION_GRAIN] != grain || r[REDUCTION_UNIT] != row || !sums || !plane) return -1;
    if (chunk > INT32_MAX || chunk % plane || total % plane) return -1;
    if (!f->stored && f->scratch + 4 * chunk > THREAD_SCRATCH_BYTES) return -1;
    if (r[REDUCTION_RESULTS] != (n ? chunk / n : inner)) return -1;
    return (double)(n ? total / n : (total + chunk - 1) / chunk * inner);
}

/* Replace the k-th buffer by its address: it must hold `extent` elements of `size` bytes, and the plan must say so. */
static int32_t bind_operand(const tw_binder *binder, const call *c, uint32_t k, double extent, int32_t size,
                            uint32_t *relocated) {
    const tw_function *f = c->f;
    const uint32_t *pointer = c->words - POINTER_WORDS * (f->n_in + f->n_out - !f->stored + f->reduces - k);
    uint32_t writes = k >= f->n_in;
    if (pointer[POINTER_WRITES] != writes) return tw_fail(TW_BAD_ARGUMENT, pointer[POINTER_WRITES], k);
    if (!(extent >= 0 && extent * size <= pointer[POINTER_NBYTES])) return tw_fail(TW_BAD_EXTENT, pointer[POINTER_NBYTES], k);
    return tw_bind(binder, pointer[POINTER_BUFFER], pointer[POINTER_NBYTES], 1, writes ? TW_WRITES : 0, relocated + k);
}

int32_t tw_check_generated(const tw_binder *binder, const uint32_t *words, uint32_t n_args, uint32_t *relocated) {
    if (n_args < GENERATED_WORDS) return tw_fail(TW_BAD_ARGUMENT, n_args, 0);
    uint32_t number_ = words[GENERATED_FUNCTION], grain = words[GENERATED_GRAIN];
    if (!binder->code || number_ >= binder->code->n) return tw_fail(TW_BAD_FUNCTION, number_, 0);
    const tw_function *f = &binder->code->functions[number_];
    uint32_t n_pointers = f->n_in + f->n_out - !f->stored + f->reduces;
    uint64_t n_words = (uint64_t)f->n_outer * (1 + f->n_in) + (f->reduces ? REDUCTION_WORDS : 0);
    if (words[GENERATED_N_POINTERS] != n_pointers || words[GENERATED_N_WORDS] != n_words ||
        GENERATED_WORDS + (uint64_t)POINTER_WORDS * n_pointers + n_words != n_args)
        return tw_fail(TW_BAD_ARGUMENT, n_args, GENERATED_N_WORDS);
    if ((int32_t)words[GENERATED_N] < 0 || (int32_t)grain <= 0) return tw_fail(TW_BAD_ARGUMENT, grain, GENERATED_GRAIN);
    call c = {f, words + GENERATED_WORDS + POINTER_WORDS * n_pointers, number(words[GENERATED_N]), 1};
    if (f->n_outer) c.row = number(c.words[0]);
    int32_t status = check_rows(&c);
    relocated[GENERATED_FUNCTION] = binder->code->slot + number_;
    uint32_t *out = relocated + GENERATED_WORDS, k = 0;
    for (; !status && k < f->n_in; k++) status = bind_operand(binder, &c, k, input_extent(&c, k), f->in[2 * k], out);
    for (uint32_t i = 0; !status && i < f->n_out - !f->stored; i++, k++)
        status = bind_operand(binder, &c, k, c.n * c.row, f->out[i], out);
    if (!status && f->reduces) status = bind_operand(binder, &c, k++, reduced_extent(&c, grain), 4, out);
    for (uint32_t i = 0; !status && i < n_words; i++) out[k + i] = c.words[i];
    return status;
}
