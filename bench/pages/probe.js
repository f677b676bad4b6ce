/** Counts calls of WebGPU in this thread, bytes of buffers, and the time in scripts from a step's first call to its submit. */
(() => {
  if (!globalThis.GPUDevice || globalThis.gpuProbe) {
    return;
  }
  const probe = (globalThis.gpuProbe = { calls: {}, liveBytes: 0, peakBytes: 0, encodeMs: 0 });
  /** When the task under way made its first call since the last submit. */
  let start = null;
  const begin = () => {
    if (start === null) {
      start = performance.now();
      queueMicrotask(() => {
        start = null;
      });
    }
  };
  const watch = (owner, name, after = () => {}) => {
    const original = owner.prototype[name];
    owner.prototype[name] = function (...args) {
      begin();
      probe.calls[name] = (probe.calls[name] ?? 0) + 1;
      const result = original.apply(this, args);
      after(result, this);
      return result;
    };
  };
  const sizes = new WeakMap();
  watch(GPUDevice, "createBuffer", (buffer) => {
    sizes.set(buffer, buffer.size);
    probe.liveBytes += buffer.size;
    probe.peakBytes = Math.max(probe.peakBytes, probe.liveBytes);
  });
  const { destroy } = GPUBuffer.prototype;
  GPUBuffer.prototype.destroy = function () {
    probe.liveBytes -= sizes.get(this) ?? 0;
    sizes.delete(this);
    return destroy.call(this);
  };
  for (const name of ["createBindGroup", "createCommandEncoder", "createComputePipeline", "createComputePipelineAsync"]) {
    watch(GPUDevice, name);
  }
  watch(GPUCommandEncoder, "beginComputePass");
  watch(GPUComputePassEncoder, "dispatchWorkgroups");
  watch(GPUBuffer, "mapAsync");
  watch(GPUQueue, "writeBuffer");
  watch(GPUQueue, "submit", () => {
    probe.encodeMs += performance.now() - start;
    start = performance.now();
  });
})();
