"""Ten models of the zoo train in the page as in PyTorch, from the file that the exporter wrote."""

import pytest
from tests.zoo.recording import RATES, STEPS, load
from tests.zoo.replay import hold

from .js_session import JsPage, from_json, to_json
from .server import Site

MODELS = (
    ("mobilenet_v2", "plain"),
    ("resnet", "script"),
    ("super_resolution", "plain"),
    ("diffusion", "script"),
    ("bert", "plain"),
    ("gpt2", "plain"),
    ("llama", "plain"),
    ("vit", "script"),
    ("swin", "plain"),
    ("recommender", "dynamo"),
)

TRAIN = """
    const s = await TrainingSession.createFromModel(url, { loss, optimizer: "SGD" });
    await s.setLearningRate(rate);
    const tensors = Object.fromEntries(s.trainingInputNames.map((name) => [name, toTensor(feeds[name] ?? target)]));
    const losses = [];
    for (let k = 0; k < steps; k++) {
      losses.push((await s.runTrainStep(tensors))[s.trainingOutputNames[0]].data[0]);
      await s.runOptimizerStep();
      await s.lazyResetGrad();
    }
    const found = {};
    for (const name of names) found[name] = fromTensor(await s.getParameter(name));
    await s.release();
    return [losses, found];
"""


@pytest.mark.parametrize(("name", "exporter"), MODELS, ids=["-".join(pair) for pair in MODELS])
def test_trains_in_the_page(js: JsPage, plain_site: Site, name: str, exporter: str) -> None:
    recording = load(name)
    plain_site.add(f"/zoo/{name}.onnx", recording.files[exporter])
    losses, found = js.run(
        TRAIN,
        url=f"/zoo/{name}.onnx",
        loss=recording.about["loss"],
        rate=RATES["SGD"],
        steps=STEPS,
        feeds={key: to_json(a) for key, a in recording.part("feed/").items()},
        target=to_json(recording.truth["target"]),
        names=list(recording.part("SGD/after/")),
    )
    hold(recording, "SGD", losses, {key: from_json(tensor) for key, tensor in found.items()})
