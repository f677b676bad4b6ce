"""Feeds whose values decide about shapes, in a page: with shared memory and without, from Python and from the cache."""

from base64 import b64encode

import numpy as np
import pytest
from tests.python.test_deciding_feeds import WEIGHTS, windowed

from .js_session import JsPage

X = np.sin(np.arange(18)).astype(np.float32).reshape(6, 3)
COUNTS = [2, 5, 2, 1, 6, 2]
OPEN = f"""
    const bytes = Uint8Array.from(atob("{b64encode(windowed().SerializeToString()).decode()}"), (c) => c.charCodeAt(0));
    const x = new Tensor("float32", Float32Array.from({{ length: 18 }}, (_, i) => Math.sin(i)), [6, 3]);
    const count = (n) => new Tensor("int64", [BigInt(n)], [1]);
    const config = {{ loss: null, requiresGrad: ["w"], optimizer: "SGD" }};
    const open = (more) => TrainingSession.createFromModel(bytes, config, more);
    const losses = async (s) => {{
      const found = [];
      for (const n of {COUNTS}) {{
        found.push((await s.runTrainStep({{ x, count: count(n) }})).loss.data[0]);
      }}
      return found;
    }};
"""
EXPECTED = [float(((X[:n].astype(np.float64) @ WEIGHTS) ** 2).mean()) for n in COUNTS]


def test_training_follows_the_value(either: JsPage) -> None:
    found, again = either.run(
        f"""{OPEN}
        const s = await open({{ maxPlans: 2 }});
        const found = [await losses(s), await losses(s)];
        await s.release();
        return found;"""
    )
    assert found == pytest.approx(EXPECTED, rel=1e-5)
    assert again == pytest.approx(EXPECTED, rel=1e-5)


def test_inference_follows_the_value(either: JsPage) -> None:
    found = either.run(
        f"""{OPEN}
        const s = await InferenceSession.create(bytes);
        const found = [];
        for (const n of {COUNTS}) {{
          found.push((await s.run({{ x, count: count(n) }})).loss.data[0]);
        }}
        await s.release();
        return found;"""
    )
    assert found == pytest.approx(EXPECTED, rel=1e-5)


def test_a_kept_session_knows_its_values(either: JsPage) -> None:
    found = either.run(
        f"""{OPEN}
        const found = [];
        for (let visit = 0; visit < 2; visit++) {{
          const s = await open({{ cache: true }});
          found.push(await losses(s));
          await s.release();
        }}
        return found;"""
    )
    for visit in found:
        assert visit == pytest.approx(EXPECTED, rel=1e-5)
