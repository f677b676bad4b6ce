/* Included by every kernel source: argument structs, statuses, failure reports and block operations. */
#ifndef GUARD_H
#define GUARD_H

#include <stddef.h>
#include <stdint.h>

#include "kernels_gen.h"

#define TW_EXPORT(name) __attribute__((export_name(#name), visibility("default")))
#define TW_INLINE static inline __attribute__((always_inline, unused))

/* Report why a kernel failed: `return tw_fail(TW_BAD_INDEX, value, position);`. Not inside a parallel task. */
int32_t tw_fail(int32_t status, int64_t value, int64_t position);
int32_t tw_fail_label(int64_t label, int64_t position, int32_t classes);

/* memory.copy and memory.fill; `tw_move` may overlap. */
TW_INLINE void tw_copy(void *dst, const void *src, size_t nbytes) { __builtin_memcpy(dst, src, nbytes); }
TW_INLINE void tw_move(void *dst, const void *src, size_t nbytes) { __builtin_memmove(dst, src, nbytes); }
TW_INLINE void tw_zero(void *dst, size_t nbytes) { __builtin_memset(dst, 0, nbytes); }

TW_INLINE int32_t min_i32(int32_t a, int32_t b) { return a < b ? a : b; }
TW_INLINE int32_t max_i32(int32_t a, int32_t b) { return a > b ? a : b; }
TW_INLINE int32_t ceil_div(int32_t a, int32_t b) { return a / b + (a % b != 0); }
TW_INLINE int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* An index or label of 4 or 8 bytes. */
TW_INLINE int64_t load_index(const uint8_t *indices, int64_t i, int32_t index_size) {
    return index_size == 8 ? ((const int64_t *)indices)[i] : ((const int32_t *)indices)[i];
}

#endif
