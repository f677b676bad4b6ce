/* Generated code: which slots of the function table hold it, and what each function reads and writes. */
#ifndef GENERATED_H
#define GENERATED_H

#include "guard.h"

/* The declaration of a function (backend/wasm/codegen/function_spec.py). Inputs, each with its bytes an element and
   whether it advances along a row; results, each with its bytes an element; dims outside a row; whether the last
   result is reduced, and stored; bytes of the thread's scratch memory that it takes besides. */
typedef struct {
    uint32_t n_in, n_out, n_outer, scratch;
    uint32_t reduces, stored;
    const uint8_t *in, *out;
} tw_function;

/* The functions of one module, in slots [slot, slot + n). */
typedef struct tw_code {
    struct tw_code *next;
    uint32_t slot, n;
    tw_function functions[];
} tw_code;

/* The module whose n functions begin at `slot`, or null. */
const tw_code *tw_code_at(uint32_t slot, uint32_t n);

/* A number that changes whenever functions go, and is never 0: plans verified before must be verified again. */
uint32_t tw_code_generation(void);

#endif
