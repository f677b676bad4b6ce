/* The plans of a session. */
#include "session.h"

#include "executor.h"

static void set_block(uint32_t *entry, uint32_t ptr) {
    entry[0] = ptr;
    entry[1] = ptr ? tw_block_at(ptr)->requested : 0;
}

/* Bytes of workspace that a plan asks for, before it is placed. */
static uint32_t arena_of(const tw_block *block, uint32_t plan) {
    const uint32_t *segment = (const uint32_t *)(uintptr_t)plan + HEADER_WORDS + SEGMENT_WORDS * ARENA;
    return block->size < 4 * (HEADER_WORDS + SEGMENT_WORDS * (ARENA + 1)) ? 0 : segment[SEGMENT_NBYTES];
}

int32_t tw_place_loaded(const tw_session *session, const tw_loaded *loaded) {
    uint32_t table[2 * (LARGE_CONSTANTS + 1)];
    tw_copy(table, session->segments, sizeof session->segments);
    set_block(table + 2 * CONSTANTS, loaded->constants);
    set_block(table + 2 * LARGE_CONSTANTS, loaded->large);
    if (loaded->apart) set_block(table + 2 * ARENA, loaded->apart);
    return tw_place_at(loaded->plan, table, loaded->large ? LARGE_CONSTANTS + 1 : N_SEGMENTS, loaded->code_base);
}

static bool has_constants(const tw_session *s, uint32_t constants) {
    for (const tw_loaded *loaded = s->loaded; loaded; loaded = loaded->next)
        if (loaded->constants == constants || loaded->large == constants) return true;
    return false;
}

/* Take over a plan, written to a block, and its constants and large constants, each in another block, or 0. Plans may have
   the same blocks of constants. The host has given the segments the room that the plan needs. `code_base` is the first
   table slot of its functions. If a plan without feeds needs little workspace, it gets a block apart from the arena. A host
   may write the feeds of the next step while it runs. */
TW_EXPORT(tw_session_load)
int32_t tw_session_load(uint32_t session, uint32_t plan, uint32_t constants, uint32_t large, uint32_t code_base,
                        uint32_t kind) {
    tw_session *s = tw_session_at(session);
    tw_block *block = tw_block_of_host(plan), *numbers = tw_block_of_host(constants), *tables = tw_block_of_host(large);
    if (!s || !block || block == numbers || block == tables) return TW_BAD_POINTER;
    if (constants && !numbers && !has_constants(s, constants)) return TW_BAD_POINTER;
    if (large && !tables && !has_constants(s, large)) return TW_BAD_POINTER;
    tw_loaded *loaded = (tw_loaded *)(uintptr_t)tw_take(s, sizeof(tw_loaded), true);
    if (!loaded) return TW_NO_MEMORY;
    *loaded = (tw_loaded){s->loaded, plan, constants, large, code_base, 0, kind == LOAD_STEP};
    uint32_t need = kind == LOAD_NO_FEEDS ? arena_of(block, plan) : 0;
    if (need && need <= APART_BYTES) loaded->apart = tw_take(s, need, false);
    int32_t status = need && need <= APART_BYTES && !loaded->apart ? TW_NO_MEMORY : tw_place_loaded(s, loaded);
    if (status) {
        tw_give_back(loaded->apart);
        tw_give_back((uint32_t)(uintptr_t)loaded);
        return status;
    }
    block->used = tw_tick();
    block->owner = session;
    if (numbers) numbers->owner = session;
    if (tables) tables->owner = session;
    s->loaded = loaded;
    return TW_OK;
}

/* Free a plan, and the blocks of its constants that no other plan has. */
TW_EXPORT(tw_session_unload) int32_t tw_session_unload(uint32_t session, uint32_t plan) {
    tw_session *s = tw_session_at(session);
    if (!s) return TW_BAD_POINTER;
    tw_loaded **at = &s->loaded;
    while (*at && (*at)->plan != plan) at = &(*at)->next;
    tw_loaded *gone = *at;
    if (!gone) return TW_BAD_POINTER;
    *at = gone->next;
    tw_give_back(plan);
    if (!has_constants(s, gone->constants)) tw_give_back(gone->constants);
    if (gone->large != gone->constants && !has_constants(s, gone->large)) tw_give_back(gone->large);
    tw_give_back(gone->apart);
    tw_give_back((uint32_t)(uintptr_t)gone);
    return TW_OK;
}

void tw_unload_all(tw_session *session) {
    while (session->loaded) tw_session_unload((uint32_t)(uintptr_t)session, session->loaded->plan);
}

/* The plan of a step that was used least recently, if there are at least `most` of them; else 0. */
TW_EXPORT(tw_session_excess) uint32_t tw_session_excess(uint32_t session, uint32_t most) {
    const tw_session *s = tw_session_at(session);
    const tw_block *oldest = NULL;
    uint32_t plan = 0, count = 0;
    for (const tw_loaded *loaded = s ? s->loaded : NULL; loaded; loaded = loaded->next) {
        if (!loaded->is_step) continue;
        const tw_block *block = tw_block_at(loaded->plan);
        count++;
        if (oldest && block->used > oldest->used) continue;
        oldest = block;
        plan = loaded->plan;
    }
    return count >= most ? plan : 0;
}
