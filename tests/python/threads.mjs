// Drives the threads build under Node as web/src does in the page: reads a JSON job from stdin, answers with JSON.
//
// job: {wasm, threads: [number], blocks: [base64], one for each segment, plan: base64, code?: base64, functions, repeat}
//      -> for each number of threads, one after the other: {statuses, digests: [hex sha256], ready, seconds}
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";

function instantiate(module, memory) {
  return new WebAssembly.Instance(module, { env: { memory, now: () => performance.now() } }).exports;
}

function place(kernels, memory, bytes, slot) {
  const imports = { env: { memory }, kernels };
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(bytes), imports);
  const table = kernels.__indirect_function_table;
  const functions = Object.keys(exports).map((_, k) => exports[`f${k}`]);
  if (table.length < slot + functions.length) table.grow(slot + functions.length - table.length);
  functions.forEach((fn, k) => table.set(slot + k, fn));
}

function serve({ module, memory, index }) {
  const kernels = instantiate(module, memory);
  try {
    kernels.__stack_pointer.value = kernels.tw_thread_stack(index);
    while (kernels.tw_worker_loop(index) === 1) {
      const ptr = kernels.tw_load_ptr() >>> 0;
      const bytes = new Uint8Array(memory.buffer, ptr, kernels.tw_load_size()).slice();
      place(kernels, memory, bytes, kernels.tw_load_slot());
    }
  } catch {
    kernels.tw_worker_failed(index);
  }
  parentPort.close();
}

async function drive(job, module, threads) {
  const memory = new WebAssembly.Memory({ initial: 64, maximum: 65536, shared: true });
  const kernels = instantiate(module, memory);
  const allocate = (bytes) => {
    const ptr = kernels.tw_alloc(bytes.length) >>> 0;
    new Uint8Array(memory.buffer, ptr, bytes.length).set(bytes);
    return ptr;
  };
  if (kernels.tw_set_threads(threads) !== 0) throw new Error("no memory for threads");
  const workers = [];
  for (let index = 1; index < threads; index++) {
    workers.push(new Worker(new URL(import.meta.url), { workerData: { module, memory, index } }));
  }
  while (kernels.tw_threads_ready() < workers.length) await new Promise((done) => setTimeout(done, 1));

  let slot = 0;
  if (job.code) {
    const bytes = Buffer.from(job.code, "base64");
    slot = kernels.__indirect_function_table.length;
    place(kernels, memory, bytes, slot);
    const ptr = allocate(bytes);
    const status = kernels.tw_register_code(ptr, bytes.length, slot, job.functions);
    if (status !== 0) throw new Error(`tw_register_code: ${status}`);
    kernels.tw_free(ptr);
  }
  const contents = job.blocks.map((text) => Buffer.from(text, "base64"));
  const blocks = contents.map(allocate);
  const plan = Buffer.from(job.plan, "base64");
  const address = allocate(plan);
  const table = blocks.flatMap((base, k) => [base, contents[k].length]);
  new Uint32Array(memory.buffer, kernels.tw_place_table(blocks.length), table.length).set(table);
  const placed = kernels.tw_place(address, blocks.length, slot);
  if (placed !== 0) throw new Error(`tw_place: ${placed}`);
  const statuses = new Set();
  const digests = new Set();
  const start = performance.now();
  for (let k = 0; k < job.repeat; k++) {
    contents.forEach((bytes, i) => new Uint8Array(memory.buffer, blocks[i], bytes.length).set(bytes));
    // As a page does when work is about to come: workers wake in vain now and then.
    Atomics.notify(new Int32Array(memory.buffer), kernels.tw_wake_word() / 4);
    statuses.add(kernels.tw_run(address));
    const hash = createHash("sha256");
    contents.forEach((bytes, i) => hash.update(new Uint8Array(memory.buffer, blocks[i], bytes.length).slice()));
    digests.add(hash.digest("hex"));
  }
  const seconds = (performance.now() - start) / 1e3;
  const ready = kernels.tw_threads_ready();
  kernels.tw_stop_threads();
  await Promise.all(workers.map((worker) => new Promise((done) => worker.once("exit", done))));
  return { statuses: [...statuses], digests: [...digests], ready, seconds };
}

if (isMainThread) {
  const job = JSON.parse(readFileSync(0, "utf8"));
  const module = new WebAssembly.Module(readFileSync(job.wasm));
  const results = [];
  for (const threads of job.threads) results.push(await drive(job, module, threads));
  process.stdout.write(JSON.stringify(results));
} else {
  serve(workerData);
}
