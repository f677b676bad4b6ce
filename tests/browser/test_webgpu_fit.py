"""Fits on the GPU run ahead of their losses, and end as if each loss were read before the next batch."""

from itertools import chain
from math import isfinite
from typing import Any

import pytest
from playwright.sync_api import Browser

from .js_session import JsPage, open_js_page
from .server import Site
from .webgpu import OPEN, close, count, counted

FIT = """
    const data = (wrong, value) => {
      const all = rows(96);
      all.x.data[10 * 8 * (wrong - 1)] = value ?? all.x.data[10 * 8 * (wrong - 1)];
      return all;
    };
    const fitted = async (options, given, more) => {
      const s = await open(options, more.config);
      const { config, ...fit } = more;
      const schedule = { type: "Cosine", learningRate: 0.02 };
      const run = s.fit(given, { epochs: 2, batchSize: 8, shuffle: false, schedule, ...fit });
      const ended = await run.then(
        ({ epochs }) => epochs.map(({ loss, steps, terms }) => [loss, steps, ...Object.values(terms)]),
        ({ name, message, epoch, batch }) => [name, message, epoch, batch]);
      const all = [Array.from((await s.getContiguousParameters(false)).data)];
      const gradients = [];
      for (const name of await s.parameterNames({ trainableOnly: true })) {
        gradients.push(Array.from((await s.getGradient(name)).data));
        for (const moment of Object.values(await s.getMoments(name))) all.push(Array.from(moment.data));
      }
      const numbers = [ended, await s.stepCount(), await s.getLearningRate(), all];
      const after = [await train(s, 2)];
      await s.release();
      return [numbers, after, gradients];
    };
"""
STILL = "() => { performance.now = () => 0; }"
"""Batches never take time: 1, 2, 4 and then 8 run at once."""
REAL = "() => { delete performance.now; }"
SLOW = "() => { let now = 0; performance.now = () => (now += 1000); }"
"""Batches take a second: each runs alone."""


def fit(page: JsPage, clock: str, body: str) -> Any:
    """Run fits under a clock; the results, and the reads of the GPU."""
    page.run(f"{OPEN} window.warm ??= await open();")
    page.worker.evaluate(clock)
    count(page)
    result = page.run(f"{OPEN} {FIT} {body}")
    return result, counted(page).get("mapAsync", 0)


@pytest.mark.parametrize("wrong", [1, 3, 4, 5, 7, 8])
def test_nan_leaves_what_it_leaves_if_each_loss_is_read(gpu: JsPage, wrong: int) -> None:
    """1: the first batch of all. 2 and 3 run at once, as do 4 to 7."""
    sums = f"accumulate: {{ steps: {1 + wrong % 2}, reduction: 'sum' }}"
    body = f"return fitted(gpu, data({wrong}, NaN), {{ {sums}, clipGradNorm: 1 }});"
    (ahead, _), (each, _) = fit(gpu, STILL, body), fit(gpu, SLOW, body)
    assert ahead == each
    assert ahead[0][0][0] == "NumericsError" and ahead[0][0][2:] == [1, wrong]
    ((first, second),) = ahead[1]
    assert isfinite(first) and isfinite(second) and first != second


def test_a_fit_reads_losses_seldom_and_has_the_same_bytes(gpu: JsPage) -> None:
    body = "return fitted(gpu, data(1), { epochs: 3, accumulate: { steps: 3, reduction: 'sum' }, clipGradNorm: 1 });"
    (ahead, few), (each, many) = fit(gpu, STILL, body), fit(gpu, SLOW, body)
    assert ahead == each and few < many - 20
    kernels, _ = fit(gpu, STILL, body.replace("fitted(gpu,", "fitted({},"))
    close([loss for loss, _ in ahead[0][0]], [loss for loss, _ in kernels[0][0]])
    close(ahead[0][1:3], kernels[0][1:3])


def test_a_wrong_label_leaves_what_it_leaves_if_each_loss_is_read(gpu: JsPage) -> None:
    body = "const all = data(1); all.labels.data[8 * 5 + 3] = 7n; return fitted(gpu, all, { epochs: 1 });"
    (ahead, _), (each, _) = fit(gpu, STILL, body), fit(gpu, SLOW, body)
    assert ahead == each
    name, message, *_ = ahead[0][0]
    assert name == "FeedError" and "row 43" in message


@pytest.mark.parametrize("on_nan", ["skip", "stop", "restore"])
@pytest.mark.parametrize(("wrong", "value"), [(1, "NaN"), (3, "NaN"), (4, "NaN"), (4, "1e25"), (5, "NaN"), (7, "1e25")])
def test_nan_is_undone_as_if_each_batch_were_looked_at(gpu: JsPage, on_nan: str, wrong: int, value: str) -> None:
    """Batches 2 and 3 run at once, as do 4 to 7. Squares of large gradients are infinite."""
    body = f"return fitted(gpu, data({wrong}, {value}), {{ onNaN: '{on_nan}', accumulate: {1 + wrong % 2} }});"
    (ahead, few), (each, many) = fit(gpu, STILL, body), fit(gpu, SLOW, body)
    assert ahead == each
    assert few < many or wrong == 1
    same_as_the_kernels(ahead, fit(gpu, STILL, body.replace("fitted(gpu,", "fitted({},"))[0])


def same_as_the_kernels(on_gpu: Any, on_kernels: Any) -> None:
    # Gradients that wait have another unit there.
    (ended, *counts, numbers), after, _ = on_gpu
    (expected, *others, tensors), later, _ = on_kernels
    close(counts, others)
    assert len(ended) == len(expected)
    close([*chain(*ended)], [*chain(*expected)])
    for mine, theirs in zip(numbers, tensors, strict=True):
        close(mine, theirs, 2e-3)
    close(after[0], later[0], 1e-3)


LOSSES = {
    "rows": "'CrossEntropyLoss'",
    "weights": "{ type: 'CrossEntropyLoss', weights: [0.5, 2, 3, 1] }",
    "ignored": "{ type: 'CrossEntropyLoss', ignoreIndex: 2, weights: [0.5, 2, 3, 1] }",
}
TERMS = "{ logits: ['CrossEntropyLoss', { name: 'FocalLoss', weight: 0.3 }] }"


@pytest.mark.parametrize("loss", LOSSES)
def test_weighted_gradients_run_ahead(gpu: JsPage, loss: str) -> None:
    """Each epoch ends with gradients of two batches, the last one smaller."""
    more = f"{{ config: {{ loss: {LOSSES[loss]} }}, accumulate: 5, clipGradNorm: 1, epochs: 3 }}"
    body = f"const all = rows(94); return fitted(gpu, all, {more});"
    (ahead, few), (each, many) = fit(gpu, STILL, body), fit(gpu, SLOW, body)
    assert ahead == each, ahead[0][0]
    assert few < many - 15, ahead[0][0]
    same_as_the_kernels(ahead, fit(gpu, STILL, body.replace("fitted(gpu,", "fitted({},"))[0])


@pytest.mark.parametrize("wrong", [1, 4, 5])
def test_terms_run_ahead(gpu: JsPage, wrong: int) -> None:
    more = f"{{ config: {{ loss: {TERMS} }}, onNaN: 'skip', accumulate: 2, clipGradNorm: 1, epochs: 3 }}"
    body = f"const {{ x, labels }} = data({wrong}, NaN); return fitted(gpu, {{ x, logits_labels: labels }}, {more});"
    (ahead, few), (each, many) = fit(gpu, STILL, body), fit(gpu, SLOW, body)
    assert ahead == each and few < many
    assert all(loss == pytest.approx(one + 0.3 * other, rel=1e-6) for loss, _, one, other in ahead[0][0])
    same_as_the_kernels(ahead, fit(gpu, STILL, body.replace("fitted(gpu,", "fitted({},"))[0])


@pytest.mark.parametrize(("on_nan", "wrong"), [("skip", 4), ("skip", 5), ("restore", 4)])
def test_batches_of_the_page_are_undone_and_weighted(gpu: JsPage, on_nan: str, wrong: int) -> None:
    """Gradients of batch 4 wait when batch 5 is undone."""
    more = f"{{ config: {{ loss: {LOSSES['ignored']} }}, onNaN: '{on_nan}', accumulate: 3, schedule: undefined }}"
    body = f"const all = new Dataset(data({wrong}, NaN)).map((row) => row); return fitted(gpu, all, {more});"
    same_as_the_kernels(*(fit(gpu, STILL, body.replace("gpu,", f"{device},"))[0] for device in ("gpu", "{}")))


def test_a_fit_with_a_proximal_term_looks_at_each_batch(gpu: JsPage) -> None:
    body = "return fitted(gpu, data(1), { proximal: 0.5, accumulate: 2, onNaN: 'skip' });"
    same_as_the_kernels(*(fit(gpu, STILL, body.replace("gpu,", f"{device},"))[0] for device in ("gpu", "{}")))


def test_a_fit_that_leaves_the_gpu_is_undone_and_weighted_by_the_kernels(
    gpu_browser: Browser, plain_site: Site
) -> None:
    with open_js_page(gpu_browser, plain_site) as page:
        page.run(f"{OPEN} await open({{}});")
        page.worker.evaluate("""() => {
            Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { value: false });
        }""")
        bodies = [
            f"return fitted({{ device: '{device}' }}, data(4, NaN), {more});"
            for more in ("{ config: { optimizer: 'Lamb' }, onNaN: 'restore', accumulate: 2 }",)
            for device in ("auto", "wasm")
        ]
        same_as_the_kernels(*(page.run(f"{OPEN} {FIT} {body}") for body in bodies))


def test_a_fit_that_is_stopped_has_the_bytes_of_its_steps(gpu: JsPage) -> None:
    body = """
        const s = await open();
        const all = rows(80);
        const run = s.fit(all, { epochs: 200, batchSize: 8, shuffle: false });
        for await (const event of run) {
          if (event.type === "progress" && event.epoch > 2) run.stop();
        }
        const steps = await s.stepCount();
        const t = await open();
        for (let k = 0; k < steps; k++) {
          const first = 8 * (k % 10);
          const batch = { x: new Tensor("float32", all.x.data.slice(10 * first, 10 * (first + 8)), [8, 10]),
            labels: new Tensor("int64", all.labels.data.slice(first, first + 8), [8]) };
          await t.runTrainStep(batch);
          await t.runOptimizerStep();
          await t.lazyResetGrad();
        }
        return [steps, String(await parameters(s)) === String(await parameters(t))];
    """
    (steps, same), _ = fit(gpu, REAL, body)
    assert 20 < steps < 2000 and same
