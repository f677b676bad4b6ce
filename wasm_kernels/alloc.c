/* First-fit allocator with boundary tags: blocks lie side by side, neighbours merge when freed. */
#include "alloc.h"

enum { ALIGNMENT = 64, PAGE = 65536 };
#define BLOCK_MAGIC 0x574F4C42u
/* The last page stays out of reach so that an end address never wraps to 0. */
#define MAX_PAGES 65535u
/* Growing a little more than needed keeps hosts from renewing their views of the memory too often. */
#define GROWTH_PAGES 16u

_Static_assert(sizeof(tw_block) == ALIGNMENT, "the payload must stay aligned");

extern uint8_t __heap_base[];

static tw_block *first, *last, *free_list;
static uint32_t heap_end;
/* No payload reached so far yet: what is beyond it holds zeros, as all memory does at first, but for headers of blocks. */
static uint32_t fresh;
static uint32_t bytes_in_use;

static uint32_t magic_of(const tw_block *block) { return BLOCK_MAGIC ^ (uint32_t)(uintptr_t)block; }
static uint32_t payload(const tw_block *block) { return (uint32_t)(uintptr_t)block + ALIGNMENT; }

static tw_block *after(const tw_block *block) {
    return block == last ? NULL : (tw_block *)(uintptr_t)(payload(block) + block->size);
}

static void link_free(tw_block *block) {
    block->in_use = 0;
    block->requested = 0;
    block->previous_free = NULL;
    block->next_free = free_list;
    if (free_list) free_list->previous_free = block;
    free_list = block;
}

static void unlink_free(tw_block *block) {
    if (block->previous_free) block->previous_free->next_free = block->next_free;
    else free_list = block->next_free;
    if (block->next_free) block->next_free->previous_free = block->previous_free;
}

static tw_block *make_block(uint32_t address, uint32_t size, tw_block *before) {
    tw_block *block = (tw_block *)(uintptr_t)address;
    block->magic = magic_of(block);
    block->size = size;
    block->before = before;
    return block;
}

/* Merge a block that is not in the free list with the block after it, whose header becomes zeros again. */
static void absorb_after(tw_block *block) {
    tw_block *next = after(block);
    block->size += ALIGNMENT + next->size;
    if (next == last) last = block;
    else after(block)->before = block;
    tw_zero(next, sizeof(*next));
}

static void release(tw_block *block) {
    tw_block *next = after(block);
    if (next && !next->in_use) {
        unlink_free(next);
        absorb_after(block);
    }
    if (block->before && !block->before->in_use) {
        tw_block *before = block->before;
        unlink_free(before);
        absorb_after(before);
        block = before;
    }
    link_free(block);
}

/* Take all memory there is into the heap. */
static void claim(void) {
    uint32_t pages = (uint32_t)__builtin_wasm_memory_size(0);
    uint32_t end = (pages > MAX_PAGES ? MAX_PAGES : pages) * PAGE;
    uint32_t start = heap_end;
    if (!start) start = ((uint32_t)(uintptr_t)__heap_base + ALIGNMENT - 1) & ~(uint32_t)(ALIGNMENT - 1);
    if (end < start + 2 * ALIGNMENT) return;
    tw_block *block = make_block(start, end - start - ALIGNMENT, last);
    if (!first) first = block;
    last = block;
    heap_end = end;
    release(block);
}

static int32_t grow(uint32_t size) {
    uint32_t pages = (uint32_t)__builtin_wasm_memory_size(0);
    uint32_t tail = last && !last->in_use ? last->size : 0;
    uint32_t needed = (uint32_t)(((uint64_t)size + ALIGNMENT - tail + PAGE - 1) / PAGE);
    uint32_t room = pages < MAX_PAGES ? MAX_PAGES - pages : 0;
    if (needed > room) return 0;
    uint32_t generous = needed < GROWTH_PAGES ? GROWTH_PAGES : needed;
    if (generous > room) generous = room;
    if (__builtin_wasm_memory_grow(0, generous) == (size_t)-1 && __builtin_wasm_memory_grow(0, needed) == (size_t)-1)
        return 0;
    claim();
    return 1;
}

static tw_block *find_fit(uint32_t size) {
    for (tw_block *block = free_list; block; block = block->next_free)
        if (block->size >= size) return block;
    return NULL;
}

/* 64-byte aligned, contents undefined; 0 when memory cannot grow. */
TW_EXPORT(tw_alloc) uint32_t tw_alloc(uint32_t nbytes) {
    if (nbytes > MAX_PAGES * PAGE - ALIGNMENT) return 0;
    uint32_t size = nbytes ? (nbytes + ALIGNMENT - 1) & ~(uint32_t)(ALIGNMENT - 1) : ALIGNMENT;
    if (!first) claim();
    tw_block *block = find_fit(size);
    if (!block) {
        if (!grow(size)) return 0;
        block = find_fit(size);
        if (!block) return 0;
    }
    unlink_free(block);
    uint32_t rest = block->size - size;
    if (rest >= 2 * ALIGNMENT) {
        tw_block *next = after(block);
        block->size = size;
        tw_block *tail = make_block(payload(block) + size, rest - ALIGNMENT, block);
        if (next) next->before = tail;
        else last = tail;
        link_free(tail);
    }
    block->in_use = 1;
    block->requested = nbytes;
    block->placed = block->verified = block->profile = block->is_session = block->owner = 0;
    bytes_in_use += nbytes;
    uint32_t end = payload(block) + block->size;
    if (end > fresh) fresh = end;
    return payload(block);
}

/* As tw_alloc, but with zeros. Memory that was never written to is left alone: the system gives none for it until then. */
TW_EXPORT(tw_alloc_zeroed) uint32_t tw_alloc_zeroed(uint32_t nbytes) {
    uint32_t written = fresh;
    uint32_t ptr = tw_alloc(nbytes);
    if (ptr && ptr < written) tw_zero((void *)(uintptr_t)ptr, nbytes < written - ptr ? nbytes : written - ptr);
    return ptr;
}

tw_block *tw_block_at(uint32_t ptr) {
    if (!first || ptr % ALIGNMENT || ptr < payload(first) || ptr >= heap_end) return NULL;
    tw_block *block = (tw_block *)(uintptr_t)(ptr - ALIGNMENT);
    return block->magic == magic_of(block) && block->in_use ? block : NULL;
}

/* 0, or TW_BAD_POINTER for what tw_alloc did not give, what was freed before and what a session has. Null is fine. */
TW_EXPORT(tw_free) int32_t tw_free(uint32_t ptr) {
    if (!ptr) return TW_OK;
    tw_block *block = tw_block_at(ptr);
    if (!block || block->owner) return TW_BAD_POINTER;
    bytes_in_use -= block->requested;
    release(block);
    return TW_OK;
}

int32_t tw_range_is_live(uint32_t base, uint64_t nbytes) {
    for (const tw_block *block = first; block; block = after(block))
        if (base >= payload(block) && base - payload(block) <= block->size)
            return block->in_use && nbytes <= block->size - (base - payload(block));
    return 0;
}

/* Bytes asked for and not freed. */
TW_EXPORT(tw_bytes_in_use) uint32_t tw_bytes_in_use(void) { return bytes_in_use; }
