"""A page replaces the head of a model; losses are those of PyTorch with a replaced layer."""

import numpy as np
from tests.python.test_heads import SETTINGS, TRUTH, model_of

from .js_session import JsPage

CONFIG = "{ loss: 'CrossEntropyLoss', optimizer: { type: 'SGD', learningRate: 0.1 }, ...more }"


def test_losses_are_those_of_pytorch_with_a_replaced_layer(either: JsPage) -> None:
    truth = TRUTH["convolution"]
    url = either.site.add("/heads/model.onnx", model_of("convolution"))
    losses, frozen, dims = either.run(
        f"""
        const feeds = {{
          x: new Tensor("float32", truth.x[1], truth.x[0]),
          labels: new Tensor("int64", truth.labels[1].map(BigInt), truth.labels[0]),
        }};
        const losses = [];
        let more = {{ head }};
        const session = await TrainingSession.createFromModel(url, {CONFIG});
        for (let k = 0; k < truth.losses.length; k++) {{
          const results = await session.runTrainStep(feeds);
          losses.push(Object.values(results)[0].data[0]);
          await session.runOptimizerStep();
          await session.lazyResetGrad();
        }}
        more = {{ head, frozenParams: "all but head" }};
        const other = await TrainingSession.createFromModel(url, {CONFIG});
        const [frozen, dims] = [await other.getParametersSize(true), (await other.predict({{ x: feeds.x }})).y.dims];
        return [losses, frozen, [...dims]];
        """,
        url=url,
        truth=truth,
        head=SETTINGS,
    )
    np.testing.assert_allclose(losses, truth["losses"], rtol=1e-5)
    assert frozen == 8 * 5 + 5
    assert dims == [4, 5]


REFUSED = {
    "{ head: { classes: 0 } }": "head.classes",
    "{ head: { clases: 5 } }": "did you mean 'classes'",
    "{ head: { classes: 5, layer: 3 } }": "head.layer",
    "{ head: [5] }": "an object with 'classes'",
    "{ head: { classes: 5, layer: 'body' } }": "'body' cannot be the head",
    "{ frozenParams: 'all but head' }": "used with 'head'",
}


def test_wrong_settings_are_refused(either: JsPage) -> None:
    url = either.site.add("/heads/model.onnx", model_of("convolution"))
    messages = either.run(
        f"""
        const messages = [];
        for (const more of [{", ".join(REFUSED)}]) {{
          const refused = TrainingSession.createFromModel(url, {CONFIG});
          messages.push(await refused.then(() => "", (error) => error.message));
        }}
        return messages;
        """,
        url=url,
    )
    for (config, text), message in zip(REFUSED.items(), messages, strict=True):
        assert text in message, config
