/* Values that depend only on parameters are computed when the parameters have changed. The state counts changes: LOADS by
   code that writes parameters, UPDATES by plans that do. `seen` holds both counts, plus one, of the last computation. */
#include <stdbool.h>

#include "state.h"

/* Below 0: the executor leaves out that many instructions. */
int32_t kernel_skip_if_current(const skip_if_current_args *a) {
    bool current = a->seen[SEEN_LOADS] == a->state[STATE_LOADS] + 1 && (!a->trained || a->seen[SEEN_UPDATES] == a->state[STATE_UPDATES] + 1);
    return current ? -a->instructions : TW_OK;
}

int32_t kernel_note_current(const note_current_args *a) {
    a->seen[SEEN_LOADS] = a->state[STATE_LOADS] + 1;
    a->seen[SEEN_UPDATES] = a->state[STATE_UPDATES] + 1;
    return TW_OK;
}

int32_t kernel_note_change(const note_change_args *a) {
    a->state[STATE_UPDATES]++;
    return TW_OK;
}
