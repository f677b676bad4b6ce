"""Negative indices of an embedding count from the end in a page, too."""

import re

import numpy as np
from tests.python.test_negative_indices import IDS, OUTSIDE, RATE, TABLE, TARGET, learned, model

from .js_session import JsPage


def test_negative_indices_count_from_the_end(js: JsPage) -> None:
    y, table, error = js.run(
        """
        const config = { loss: "MSELoss", optimizer: "SGD", learningRate: rate };
        const session = await TrainingSession.createFromModel(model, config, { threads: 1 });
        const idsOf = (numbers) => new Tensor("int64", BigInt64Array.from(numbers, BigInt), [2, 2]);
        const target = new Tensor("float32", ones, [2, 2, 3]);
        const { y } = await session.predict({ ids: idsOf(ids) });
        await session.runTrainStep({ ids: idsOf(ids), target });
        await session.runOptimizerStep();
        const table = await session.getParameter("table");
        const error = await session.runTrainStep({ ids: idsOf([0, -6, 0, 0]), target }).catch((e) => e);
        await session.release();
        return [[...y.data], [...table.data], `${error.name}: ${error.message}`];""",
        model=js.site.add("/negative/model.onnx", model()),
        ids=IDS.ravel().tolist(),
        ones=TARGET.ravel().tolist(),
        rate=RATE,
    )
    np.testing.assert_array_equal(np.array(y, np.float32), TABLE[IDS].ravel())
    np.testing.assert_allclose(table, learned().ravel(), rtol=1e-6)
    assert re.match(f"FeedError: {OUTSIDE}", error)
