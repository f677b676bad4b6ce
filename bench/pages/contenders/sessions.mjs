/** The interface that trainweb and onnxruntime-web share. */

/** A contender around a TrainingSession. */
export function contenderOf(session, Tensor, env, info) {
  const feeds = env.feeds(Tensor, session.trainingInputNames);
  const lossName = session.trainingOutputNames[0];
  const { nb } = env.manifest;
  return {
    info,
    async step(i) {
      const results = await session.runTrainStep(feeds[i % nb]);
      await session.runOptimizerStep();
      await session.lazyResetGrad();
      return results[lossName].data[0];
    },
    /** An answer that comes behind all calls so far. */
    settled: () => session.getParametersSize(),
    /** Milliseconds of runTrainStep, runOptimizerStep and lazyResetGrad. */
    async parts(i) {
      const times = [performance.now()];
      for (const part of [
        () => session.runTrainStep(feeds[i % nb]),
        () => session.runOptimizerStep(),
        () => session.lazyResetGrad(),
      ]) {
        await part();
        times.push(performance.now());
      }
      return times.slice(1).map((t, k) => t - times[k]);
    },
  };
}
