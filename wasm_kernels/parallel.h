/* Fork and join over shared memory, and the protocol between the kernels and the worker scripts.

   A kernel cuts its work in chunks whose number and bounds depend on shapes only:

       parallel_for(task, &args, n_chunks);      runs task(args, 0) ... task(args, n_chunks - 1), in any order
       parallel_ranges(task, &args, n, grain);   runs task(args, lo, hi) for ranges of `grain` of n units

   Builds without threads run the chunks one after the other; so does a parallel_for inside a task.

   The host's side, threads builds only. The thread that calls tw_run is the coordinator (thread 0; it must be allowed
   to block, so not a page's main thread); the others are workers 1 .. n-1, each with an instance of the same module on
   the same memory. All instances grow their tables alike, so that a function has the same slot everywhere.

       coordinator                                      worker k
       tw_set_threads(n) -> 0, or 1: no memory
       starts n-1 workers: (module, memory, k) ------>  instantiate; __stack_pointer.value = tw_thread_stack(k)
       waits until tw_threads_ready() == n-1            code = tw_worker_loop(k)     blocks; returns a code:
         (poll; a worker that never comes is no harm)       1 TW_WORKER_LOAD  copy bytes [tw_load_ptr(), + tw_load_size()),
       load_code(bytes):                                      compile synchronously, instantiate with the imports of
         instantiate, append f0.. to the own table;           section 6 (env.memory, kernels.*), put f0, f1, ... into the
         put the bytes in a tw_alloc block;                   own table from slot tw_load_slot() on (grow it first),
         tw_register_code(ptr, size, slot, n)  ------>        then call tw_worker_loop(k) again (same stack pointer)
           blocks until every worker has them;             2 TW_WORKER_EXIT  close()
           tw_free(ptr)                                  if anything throws: tw_worker_failed(k), then report the error
       tw_stop_threads()  --------------------------->  (code 2)

   A host that expects work notifies the word at tw_wake_word(), from any thread: workers wake, stay awake for some 50 us,
   and sleep again.

   Workers that enter tw_worker_loop for the first time after code was registered are turned away with code 2: start
   all workers first. tw_register_code must be called in builds without threads, too. There it reads the declarations of the
   functions (generated.h): plans may only use registered functions. It returns 0, or TW_BAD_FUNCTION (no declarations,
   or their slots are taken). TW_TRAPPED says that a worker failed or did not answer within 10 s: the engine is lost. A
   host that takes functions out of the table calls tw_unregister_code(slot). After a trap in any instance, and when
   tw_run returns TW_TRAPPED, the engine must be thrown away. */
#ifndef PARALLEL_H
#define PARALLEL_H

#include "guard.h"

typedef void (*task_fn)(const void *args, int32_t chunk);
typedef void (*range_fn)(const void *args, int64_t lo, int64_t hi);

enum { TW_WORKER_LOAD = 1, TW_WORKER_EXIT = 2 };
enum { TW_THREAD_STACK_BYTES = 256 << 10 };

void parallel_for(task_fn fn, const void *args, int32_t n_chunks);
void parallel_ranges(range_fn fn, const void *args, int64_t n, int64_t grain);

/* True where parallel_for runs all chunks on this thread. Cutting less then saves work; it must not change results. */
int32_t parallel_alone(void);

/* Private workspace of the calling thread, THREAD_SCRATCH_BYTES, 64-byte aligned; contents do not survive a task. */
float *thread_scratch(void);

/* True once a worker trapped: results are incomplete. */
int32_t parallel_failed(void);

/* Tell the workers about new generated code and wait for them; a status. */
int32_t parallel_load(uint32_t ptr, uint32_t size, uint32_t slot);

/* Chunks of `grain` units each (the last may be smaller); depends on the shape only. */
TW_INLINE int32_t chunk_count(int64_t total, int64_t grain) { return (int32_t)((total + grain - 1) / grain); }

/* Number of units in a chunk, each of `cost` elements. */
TW_INLINE int32_t units_per_chunk(int64_t cost) { return (int32_t)(cost >= GRAIN ? 1 : GRAIN / (cost > 0 ? cost : 1)); }

#endif
