"""The table of behaviours in Python and in the page: the same values, the same errors in class and text."""

from typing import Any

import pytest
from playwright.sync_api import Browser
from tests.conformance.behaviours import BEHAVIOURS, CALLED, ELSEWHERE, NOMINAL, SESSIONS, common, nominal, run_python

from trainweb.training.calls import CALLS

from .js_session import open_js_page
from .server import ROOT, Site

MLP = ROOT / "tests" / "golden" / "mlp"
NAMES = [name for name, _, _ in BEHAVIOURS]

PAGE = """
    const arrays = { float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array };
    const tensor = ([dtype, dims, special]) => {
      const size = dims.reduce((a, b) => a * b, 1);
      const values = Array.from({ length: size }, (_, k) => dtype[0] === "f" ? Math.sin(k) : k % 3);
      for (const [k, value] of Object.entries(special)) values[k] = value;
      const data = dtype === "int64" ? values.map(BigInt) : values;
      return new Tensor(dtype, arrays[dtype].from(data), dims);
    };
    const feeds = (given) => Object.fromEntries(Object.entries(given).map(([n, spec]) => [n, tensor(spec)]));
    const rounded = ({ data }) => Array.from(data, (value) => Number(value.toPrecision(3)));
    const first = (results) => rounded(Object.values(results)[0]);
    const nothing = async (promise) => { await promise; return null; };
    const digits = (number) => Number.isNaN(number) ? null : Number(number.toPrecision(3));
    const eachDigits = (numbers) =>
      Object.entries(numbers).map(([name, value]) => [name, digits(value)]);
    const foundRates = async (s, given, steps) => {
      const { rates, losses } = await s.findLearningRate(feeds(given), { steps, batchSize: 8 });
      return [Array.from(rates, digits), Array.from(losses, digits)];
    };
    const fitted = async (s, given, onNaN) => {
      const history = await s.fit(feeds(given), { epochs: 2, batchSize: 8, shuffle: false, onNaN });
      return [history.ended, Array.from(history.losses, digits), history.epochs.map(({ steps }) => steps)];
    };
    const reload = async (s, form) => {
      const weights = await s.exportWeights(form);
      await s.loadParametersBuffer(new Float32Array(await s.getParametersSize(false)), false);
      await s.loadWeights(weights);
      return rounded(await s.getContiguousParameters(false));
    };
    const metadata = (found) => found.map(({ name, type, shape }) => [name, type, shape]);
    const perform = (s, [name, ...args]) => ({
      parameter_names: (trainableOnly) => s.parameterNames({ trainableOnly }),
      input_metadata: async (training) => metadata(await s.inputMetadata({ training })),
      output_metadata: async (training) => metadata(await s.outputMetadata({ training })),
      property_names: () => s.propertyNames(),
      delete_property: (name) => nothing(s.deleteProperty(name)),
      get_gradient: async (name) => rounded(await s.getGradient(name)),
      get_moments: async (name) =>
        Object.entries(await s.getMoments(name)).sort().map(([n, found]) => [n, rounded(found)]),
      step_count: () => s.stepCount(),
      memory: async (names) => { const found = await s.memory(); return names.map((name) => found[name]); },
      export_weights: async (form, ema) => (await s.exportWeights(form, { ema })).length,
      load_weights: (data) => nothing(s.loadWeights(Uint8Array.from(data))),
      reload_weights: (form) => reload(s, form),
      train: async (given) => first(await s.runTrainStep(feeds(given))),
      eval: async (given) => first(await s.runEvalStep(feeds(given))),
      profile: async (isEval, given, runs) =>
        (await s.profile(feeds(given), { runs, training: !isEval })).entries.length,
      norms: async () => eachDigits(await s.gradientNorms()),
      dead: async (batches) =>
        (await s.deadUnits(batches.map(feeds)))
          .map(({ tensor: name, node, axis, units, dead }) => [name, node, axis, units, dead]),
      rates: (...given) => foundRates(s, ...given),
      fit: (...given) => fitted(s, ...given),
      prepare: (shapes) => nothing(s.prepare(shapes)),
      explain: (isEval, given) => s.explain(feeds(given), { training: !isEval }),
      seed: () => Number(s.seed),
      optimizer: () => nothing(s.runOptimizerStep()),
      scheduler: () => nothing(s.schedulerStep()),
      reset: () => nothing(s.lazyResetGrad()),
      rate: async () => Number((await s.getLearningRate()).toPrecision(5)),
      set_rate: (rate) => nothing(s.setLearningRate(rate)),
      schedule: (warmup, total, rate) => nothing(s.registerLinearLRScheduler(warmup, total, rate)),
      size: (only) => s.getParametersSize(only),
      get_all: async (only, ema = false) => rounded(await s.getContiguousParameters(only, { ema })),
      load: (n, only) => nothing(s.loadParametersBuffer(new Float32Array(n), only)),
      get: async (name) => rounded(await s.getParameter(name)),
      set: (name, spec) => nothing(s.updateParameter(name, tensor(spec))),
      type: async (name) => { const { type, dims } = await s.getParameterTypeAndShape(name); return [type, dims]; },
      add_property: (name, value) => nothing(s.addProperty(name, value)),
      add_power: (name, sign, power) => nothing(s.addProperty(name, BigInt(sign) * 2n ** BigInt(power))),
      kind: (name) => s.getPropertyKind(name),
      get_property: (name) => s.getProperty(name),
      save: async (include) => (await s.saveCheckpoint({ includeOptimizerState: include })).length,
      export: async (names, ema = false) => (await s.exportModelForInferencing(names, { ema })).length,
      release: () => nothing(s.release()),
    })[name](...args);
    const files = ([trainModel, checkpointState, evalModel, optimizerModel]) => {
      const url = (name) => name === null ? undefined : `/golden/mlp/${name}`;
      return { trainModel: url(trainModel), checkpointState: url(checkpointState), evalModel: url(evalModel),
               optimizerModel: url(optimizerModel) };
    };
    const found = [];
    for (const [, kind, calls] of behaviours) {
      const exact = { reproducible: true, debug: { checkNumerics: kind === "checked" } };
      const s = await TrainingSession.create(files(sessions[kind]), device === "wasm" ? exact : { device });
      const outcomes = [];
      for (const call of calls) {
        try {
          outcomes.push(await perform(s, call));
        } catch (error) {
          outcomes.push({ error: error.name, message: error.message });
        }
      }
      await s.release();
      found.push(outcomes);
    }
    return found;
"""


@pytest.fixture(scope="module")
def in_python() -> list[list[Any]]:
    return run_python(str(MLP))


@pytest.fixture(scope="module")
def in_page(browser: Browser, plain_site: Site) -> list[list[Any]]:
    plain_site.add(f"/golden/mlp/{NOMINAL}", nominal((MLP / "checkpoint").read_bytes()))
    with open_js_page(browser, plain_site) as js:
        found: list[list[Any]] = js.run(PAGE, behaviours=BEHAVIOURS, sessions=SESSIONS, device="wasm")
        return found


@pytest.fixture(scope="module")
def on_gpu(gpu_browser: Browser, plain_site: Site) -> dict[str, list[Any]]:
    """Sessions on the GPU by the name of the behaviour. It refuses to check each number."""
    plain_site.add(f"/golden/mlp/{NOMINAL}", nominal((MLP / "checkpoint").read_bytes()))
    behaviours = [each for each in BEHAVIOURS if each[1] != "checked"]
    with open_js_page(gpu_browser, plain_site) as js:
        outcomes = js.run(PAGE, behaviours=behaviours, sessions=SESSIONS, device="webgpu")
    return {name: outcome for (name, *_), outcome in zip(behaviours, outcomes, strict=True)}


DEVICE_CALLS = ("explain", "profile", "memory")
"""Calls that say what a device does: tests/browser/test_webgpu_starts.py has these."""


@pytest.mark.parametrize("name", [name for name, kind, _ in BEHAVIOURS if kind != "checked"])
def test_behaves_on_the_gpu_as_in_python(in_python: list[list[Any]], on_gpu: dict[str, list[Any]], name: str) -> None:
    index = NAMES.index(name)
    for call, outcome, wanted in zip(BEHAVIOURS[index][2], on_gpu[name], in_python[index], strict=True):
        if call[0] not in DEVICE_CALLS:
            assert flat(common(outcome)) == [nearly(value) for value in flat(common(wanted))], call


def nearly(value: Any) -> Any:
    """A number up to the last of three digits; all else as it is."""
    return pytest.approx(value, rel=0.02, abs=2e-4, nan_ok=True) if isinstance(value, int | float) else value


def flat(outcome: Any) -> list[Any]:
    parts = [*outcome.items()] if isinstance(outcome, dict) else outcome
    return [value for part in parts for value in flat(part)] if isinstance(parts, list | tuple) else [parts]


@pytest.mark.parametrize("name", NAMES)
def test_behaves_as_in_python(in_python: list[list[Any]], in_page: list[list[Any]], name: str) -> None:
    check_behaviour(name, in_page, in_python)


def check_behaviour(name: str, elsewhere: list[list[Any]], in_python: list[list[Any]]) -> None:
    """The outcomes of one behaviour are those of Python; test_notebook.py asks the same of Pyodide."""
    index = NAMES.index(name)
    for call, outcome, wanted in zip(BEHAVIOURS[index][2], elsewhere[index], in_python[index], strict=True):
        assert common(outcome) == common(wanted), call


def test_every_session_call_has_a_behaviour() -> None:
    used = {CALLED.get(call[0], call[0]) for _, _, calls in BEHAVIOURS for call in calls}
    assert {call.name for call in CALLS} - used == ELSEWHERE.keys()


def test_the_table_has_faults_of_every_kind(in_python: list[list[Any]]) -> None:
    errors = {o["error"] for outcomes in in_python for o in outcomes if isinstance(o, dict)}
    assert errors >= {"FeedError", "SessionError", "CheckpointError", "BufferSizeError", "ModelError", "ReleasedError"}
