#include "parallel.h"

#include "alloc.h"

/* Workspace of the coordinator; workers have theirs in their thread block. */
static _Alignas(64) uint8_t coordinator_scratch[THREAD_SCRATCH_BYTES];

typedef struct {
    range_fn fn;
    const void *args;
    int64_t n, grain;
} range_task;

static void run_range(const void *args, int32_t chunk) {
    const range_task *t = args;
    t->fn(t->args, chunk * t->grain, min_i64((chunk + 1) * t->grain, t->n));
}

void parallel_ranges(range_fn fn, const void *args, int64_t n, int64_t grain) {
    parallel_for(run_range, &(range_task){fn, args, n, grain}, chunk_count(n, grain));
}

#ifndef TW_THREADS

void parallel_for(task_fn fn, const void *args, int32_t n_chunks) {
    for (int32_t i = 0; i < n_chunks; i++) fn(args, i);
}

int32_t parallel_alone(void) { return 1; }

float *thread_scratch(void) { return (float *)coordinator_scratch; }

int32_t parallel_failed(void) { return 0; }

int32_t parallel_load(uint32_t ptr, uint32_t size, uint32_t slot) {
    (void)ptr, (void)size, (void)slot;
    return TW_OK;
}

#else

/* Loads before a waiting thread goes to sleep: some 50 us. A message from the page takes as long; instructions of a plan on
   one thread take less. To wake takes half of that time. Longer spinning hurts on busy machines. */
enum { SPINS = 40000 };
/* Longest wait of the coordinator for its workers to compile generated code. */
#define LOAD_TIMEOUT_NS 10000000000ll

/* Chunks still to take, below the number of the job. A thread takes a chunk by compare-and-swap, which fails when the
   job has changed. A worker that wakes late does no harm, and nobody waits for it. While chunks remain, `fn`, `args`
   and `n_chunks` belong to the job. */
static _Alignas(64) struct {
    uint64_t ticket;
    task_fn fn;
    const void *args;
    int32_t n_chunks;
    int32_t done;
    int32_t sleepers;
    int32_t waiting;
    int32_t failed;
    int32_t exit;
} pool;

/* Generation of the generated code above the number of workers: who comes after the first code is turned away. */
static uint64_t roster;
static struct {
    uint32_t ptr, size, slot;
    int32_t loaded;
} load;

typedef struct {
    uint32_t block;
    uint32_t generation;
    int32_t joined, loading;
} thread_state;
static thread_state threads[MAX_THREADS];

static _Thread_local int32_t in_task;
static _Thread_local uint8_t *worker_scratch;

extern void __wasm_init_tls(void *block);

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, value) __atomic_store_n(&(x), value, __ATOMIC_SEQ_CST)
#define ADD(x, value) __atomic_fetch_add(&(x), value, __ATOMIC_SEQ_CST)

static uint32_t tls_size(void) { return (uint32_t)__builtin_wasm_tls_size(); }

float *thread_scratch(void) { return (float *)(worker_scratch ? worker_scratch : coordinator_scratch); }

int32_t parallel_failed(void) { return LOAD(pool.failed); }

static void wake_workers(int32_t n) {
    if (LOAD(pool.sleepers)) __builtin_wasm_memory_atomic_notify((int *)&pool.ticket + 1, (unsigned)n);
}

/* Take and run chunks of job `job` until none remain. */
static void work(uint32_t job) {
    uint64_t ticket = LOAD(pool.ticket);
    while ((uint32_t)(ticket >> 32) == job && (uint32_t)ticket) {
        task_fn fn = __atomic_load_n(&pool.fn, __ATOMIC_RELAXED);
        const void *args = __atomic_load_n(&pool.args, __ATOMIC_RELAXED);
        int32_t n_chunks = __atomic_load_n(&pool.n_chunks, __ATOMIC_RELAXED);
        if (!__atomic_compare_exchange_n(&pool.ticket, &ticket, ticket - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            continue;
        fn(args, n_chunks - (int32_t)(uint32_t)ticket);
        if (ADD(pool.done, 1) + 1 == n_chunks && LOAD(pool.waiting))
            __builtin_wasm_memory_atomic_notify(&pool.done, 1);
        ticket = LOAD(pool.ticket);
    }
}

static void join(int32_t n_chunks) {
    for (int32_t i = 0; i < SPINS; i++)
        if (LOAD(pool.done) == n_chunks) return;
    STORE(pool.waiting, 1);
    for (int32_t done; (done = LOAD(pool.done)) != n_chunks && !LOAD(pool.failed);)
        __builtin_wasm_memory_atomic_wait32(&pool.done, done, -1);
    STORE(pool.waiting, 0);
}

int32_t parallel_alone(void) { return in_task || !(uint32_t)LOAD(roster) || LOAD(pool.failed); }

void parallel_for(task_fn fn, const void *args, int32_t n_chunks) {
    if (n_chunks <= 1 || parallel_alone()) {
        for (int32_t i = 0; i < n_chunks; i++) fn(args, i);
        return;
    }
    __atomic_store_n(&pool.fn, fn, __ATOMIC_RELAXED);
    __atomic_store_n(&pool.args, args, __ATOMIC_RELAXED);
    __atomic_store_n(&pool.n_chunks, n_chunks, __ATOMIC_RELAXED);
    STORE(pool.done, 0);
    uint32_t job = (uint32_t)(pool.ticket >> 32) + 1;
    STORE(pool.ticket, (uint64_t)job << 32 | (uint32_t)n_chunks);
    wake_workers(n_chunks - 1);
    in_task = 1;
    work(job);
    in_task = 0;
    join(n_chunks);
}

/* A job without chunks: workers wake and look around. */
static void publish_nothing(void) {
    uint32_t job = (uint32_t)(pool.ticket >> 32) + 1;
    STORE(pool.ticket, (uint64_t)job << 32);
    wake_workers(MAX_THREADS);
}

int32_t parallel_load(uint32_t ptr, uint32_t size, uint32_t slot) {
    load.ptr = ptr, load.size = size, load.slot = slot;
    STORE(load.loaded, 0);
    int32_t n_workers = (int32_t)(uint32_t)ADD(roster, (uint64_t)1 << 32);
    if (!n_workers || LOAD(pool.exit)) return TW_OK;
    publish_nothing();
    for (int32_t loaded; (loaded = LOAD(load.loaded)) < n_workers;) {
        if (LOAD(pool.failed)) return TW_TRAPPED;
        if (__builtin_wasm_memory_atomic_wait32(&load.loaded, loaded, LOAD_TIMEOUT_NS) == 2) return TW_TRAPPED;
    }
    return LOAD(pool.failed) ? TW_TRAPPED : TW_OK;
}

/* Thread blocks: scratch, stack (an overflow runs into the own scratch), thread-local variables. */
static uint32_t stack_top(uint32_t block) { return block + THREAD_SCRATCH_BYTES + TW_THREAD_STACK_BYTES; }

/* Make room for threads 1 .. n-1; 0, or 1 when memory is short. */
TW_EXPORT(tw_set_threads) int32_t tw_set_threads(int32_t n) {
    if (n > MAX_THREADS) n = MAX_THREADS;
    for (int32_t i = 1; i < n; i++) {
        if (threads[i].block) continue;
        threads[i].block = tw_alloc(THREAD_SCRATCH_BYTES + TW_THREAD_STACK_BYTES + tls_size());
        if (!threads[i].block) return 1;
    }
    return 0;
}

/* The stack of thread `index`; 0 for a thread that tw_set_threads did not announce. */
TW_EXPORT(tw_thread_stack) uint32_t tw_thread_stack(int32_t index) {
    if (index < 1 || index >= MAX_THREADS || !threads[index].block) return 0;
    return stack_top(threads[index].block);
}

/* Number of workers in their loop. */
TW_EXPORT(tw_threads_ready) int32_t tw_threads_ready(void) { return (int32_t)(uint32_t)LOAD(roster); }

TW_EXPORT(tw_load_ptr) uint32_t tw_load_ptr(void) { return load.ptr; }
TW_EXPORT(tw_load_size) uint32_t tw_load_size(void) { return load.size; }
TW_EXPORT(tw_load_slot) uint32_t tw_load_slot(void) { return load.slot; }

TW_EXPORT(tw_stop_threads) void tw_stop_threads(void) {
    STORE(pool.exit, 1);
    publish_nothing();
}

/* A notification of this word wakes the workers for work that is about to come; without work they sleep again. */
TW_EXPORT(tw_wake_word) uint32_t tw_wake_word(void) { return (uint32_t)(uintptr_t)((int *)&pool.ticket + 1); }

/* A worker's script calls this when anything threw. */
TW_EXPORT(tw_worker_failed) void tw_worker_failed(int32_t index) {
    (void)index;
    STORE(pool.failed, 1);
    __builtin_wasm_memory_atomic_notify(&pool.done, 1);
    ADD(load.loaded, 1);
    __builtin_wasm_memory_atomic_notify(&load.loaded, 1);
}

static int32_t enlist(thread_state *self) {
    uint64_t seen = LOAD(roster);
    do {
        if (seen >> 32) return 0;
    } while (!__atomic_compare_exchange_n(&roster, &seen, seen + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    self->joined = 1;
    return 1;
}

static void sleep_until_next(uint32_t job) {
    for (int32_t i = 0; i < SPINS; i++)
        if ((uint32_t)(LOAD(pool.ticket) >> 32) != job) return;
    ADD(pool.sleepers, 1);
    __builtin_wasm_memory_atomic_wait32((int *)&pool.ticket + 1, (int)job, -1);
    ADD(pool.sleepers, -1);
}

/* Apart from tw_worker_loop so that no thread-local address is computed before __wasm_init_tls. */
static __attribute__((noinline)) int32_t serve(int32_t index) {
    thread_state *self = &threads[index];
    worker_scratch = (uint8_t *)(uintptr_t)self->block;
    in_task = 1;
    if (!self->joined && !enlist(self)) return TW_WORKER_EXIT;
    if (self->loading) {
        self->loading = 0;
        self->generation++;
        ADD(load.loaded, 1);
        __builtin_wasm_memory_atomic_notify(&load.loaded, 1);
    }
    for (;;) {
        uint32_t job = (uint32_t)(LOAD(pool.ticket) >> 32);
        if (LOAD(pool.exit)) return TW_WORKER_EXIT;
        if ((uint32_t)(LOAD(roster) >> 32) != self->generation) {
            self->loading = 1;
            return TW_WORKER_LOAD;
        }
        work(job);
        sleep_until_next(job);
    }
}

TW_EXPORT(tw_worker_loop) int32_t tw_worker_loop(int32_t index) {
    if (!tw_thread_stack(index)) return TW_WORKER_EXIT;
    __wasm_init_tls((void *)(uintptr_t)stack_top(threads[index].block));
    return serve(index);
}

#endif
