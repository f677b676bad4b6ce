"""`onNaN` in a page: the numbers and bytes of Python."""

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.conformance.models import make_model, normal

import trainweb
from trainweb.artifacts import LossType, OptimType, build_artifacts
from trainweb.errors import NumericsError
from trainweb.fit import Trainer
from trainweb.spelling import camel_case

from .js_session import JsPage, to_json
from .server import Site

OPEN = """
const open = () => TrainingSession.createFromModel("/units.onnx", { loss: "MSELoss", optimizer: "AdamW" }, options);
const options = { reproducible: true };
const feeds = Object.fromEntries(Object.entries(batch).map(([name, value]) => [name, toTensor(value)]));
"""


def net() -> Any:
    """x[b, 1, 3, 3] -> BatchNormalization -> Conv -> Relu -> mean over places -> MatMul; two channels never fire."""
    nodes = [
        helper.make_node("BatchNormalization", ["x", "s", "z", "m", "s"], ["n"]),
        helper.make_node("Conv", ["n", "w", "bias"], ["c"], kernel_shape=[1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["p"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    one = np.ones(1, np.float32)
    constants = {"w": normal(4, 1, 1, 1), "bias": np.array([3, -50, 3, -50], np.float32), "v": normal(4, 2)}
    constants |= {"s": one, "z": 0 * one, "m": 0 * one}
    return make_model(nodes, {"x": ["b", 1, 3, 3]}, {"y": ["b", 2]}, constants)


@pytest.fixture(scope="module", autouse=True)
def _files(plain_site: Site) -> None:
    plain_site.add("/units.onnx", net().SerializeToString())


def opened() -> trainweb.TrainingSession:
    made = build_artifacts(net(), loss=LossType.MSELoss, optimizer=OptimType.AdamW)
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    files = made.training_model, made.eval_model, made.optimizer_model
    return trainweb.TrainingSession(state, *files, {"reproducible": True})


def rows(batches: int, bad: tuple[int, ...] = (), value: float = np.nan) -> dict[str, np.ndarray]:
    x, target = normal(4 * batches, 1, 3, 3, seed=1), normal(4 * batches, 2, seed=2)
    for k in bad:
        x[4 * k] = value
    return {"x": x, "target": target}


CASES: dict[str, tuple[dict[str, np.ndarray], dict[str, Any], dict[str, Any]]] = {
    "skip": (rows(6, (0, 3)), {"onNaN": "skip"}, {"on_nan": "skip"}),
    "skip of several": (rows(6, (1,)), {"onNaN": "skip", "accumulate": 2}, {"on_nan": "skip", "accumulate": 2}),
    "skip though the loss is finite": (rows(6, (3,), 1e25), {"onNaN": "skip"}, {"on_nan": "skip"}),
    "stop": (rows(6, (3,)), {"onNaN": "stop", "epochs": 2}, {"on_nan": "stop", "epochs": 2}),
    "restore": (rows(6, (3,)), {"onNaN": "restore", "epochs": 2}, {"on_nan": "restore", "epochs": 2}),
}


@pytest.mark.parametrize("what", list(CASES))
def test_a_fit_ends_with_the_bytes_of_python(js: JsPage, what: str) -> None:
    data, in_page, native = CASES[what]
    found = js.run(
        OPEN
        + """
        const schedule = (step) => 0.01 / (1 + step);
        const run = async (data) => {
          const s = await open();
          const { losses, optimizerSteps, ended, epochs } = await s.fit(data, { ...given, schedule });
          const { data: all } = await s.getContiguousParameters(false);
          const told = epochs.map(({ steps, loss }) => [steps, loss]);
          return [[...all], losses.map((loss) => (Number.isNaN(loss) ? null : loss)), optimizerSteps, ended, told];
        };
        const stream = () => (async function* () {
          for (let k = 0; k < 24; k++) {
            const x = new Tensor("float32", feeds.x.data.slice(9 * k, 9 * k + 9), [1, 3, 3]);
            yield { x, target: new Tensor("float32", feeds.target.data.slice(2 * k, 2 * k + 2), [2]) };
          }
        })();
        const { shuffle, ...streamed } = given;
        const rows = await run(feeds);
        given = streamed;
        return [rows, await run(Dataset.of(stream))];
        """,
        batch={name: to_json(array) for name, array in data.items()},
        given={"batchSize": 4, "shuffle": False, **in_page},
    )
    with opened() as s:
        history = Trainer(s).fit(
            data, batch_size=4, shuffle=False, progress=False, schedule=lambda step: 0.01 / (1 + step), **native
        )
        parameters = s.get_contiguous_parameters(False)
    expected = [
        parameters.tolist(),
        [None if np.isnan(loss) else loss for loss in history.losses],
        history.optimizer_steps,
        history.ended,
        [[e.steps, pytest.approx(e.loss, rel=1e-12)] for e in history.epochs],
    ]
    assert found[0] == expected
    assert found[1] == expected


def test_a_fit_does_not_go_on_for_ever(js: JsPage) -> None:
    data = {name: to_json(array) for name, array in rows(6, (1,)).items()}
    messages = js.run(
        OPEN
        + """
        const failure = async (data, given) => {
          const s = await open();
          const options = { batchSize: 4, shuffle: false, ...given };
          const { name, message } = await s.fit(data, options).catch((error) => error);
          return [name, message, [...(await s.getContiguousParameters(false)).data]];
        };
        // The first batch alone; the other data has its bad one second.
        const first = Object.fromEntries(
          Object.entries(feeds).map(([name, { data, dims }]) => {
            const size = data.length / 6;
            return [name, new Tensor("float32", data.slice(0, size), [4, ...dims.slice(1)])];
          }),
        );
        first.x.data[0] = NaN;
        return [await failure(feeds, { onNaN: "restore", epochs: 9 }), await failure(first, { onNaN: "skip" })];
        """,
        batch=data,
    )
    found = []
    for given, options in ((rows(6, (1,)), {"on_nan": "restore", "epochs": 9}), (rows(1, (0,)), {"on_nan": "skip"})):
        with opened() as s:
            with pytest.raises(NumericsError) as caught:
                Trainer(s).fit(given, batch_size=4, shuffle=False, progress=False, **options)
            text = str(caught.value)
            for name in ("check_numerics", "fill_median", "sample_weight"):
                text = text.replace(name, camel_case(name))
            found.append((text, s.get_contiguous_parameters(False).tolist()))
    assert [tuple(m[1:]) for m in messages] == found
    assert {m[0] for m in messages} == {"NumericsError"}
