"""Models of hundreds of MB in a page: what is handed out is right to the last byte.

Weights are found in the files by searching for their first bytes, with no reader of trainweb's.
"""

import json
import os
import time
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from onnx import TensorProto, helper
from playwright.sync_api import Browser

from .conftest import require_built
from .js_session import NEEDED, JsPage, open_js_page
from .renderer_memory import Memory, Renderer, unwatched_page
from .server import Reply, Site

CLASSES = 1024
NEEDED_GIB = {140: 4, 700: 12}
"""Memory by MiB of weights: the page holds several copies of them to compare, and the session four times as much."""

LARGEST_FILE_MIB = 2047
TWO_GIB_MIB, TWO_GIB_NEEDS = 680, 14
"""MiB of weights whose checkpoint with the optimizer's state has nearly 2 GiB, and the GiB that its test takes."""

CALLS = {
    "saveCheckpoint": "[await s.saveCheckpoint()]",
    "saveCheckpoint with optimizer state": "[await s.saveCheckpoint({ includeOptimizerState: true })]",
    "exportModelForInferencing": '[await s.exportModelForInferencing(["logits"])]',
    "artifacts": "await s.artifacts().then((a) => [a.checkpoint, a.trainModel])",
}

LARGE = """
    const [head, tail] = await Promise.all(["/large/head", "/large/tail"].map(async (path) =>
      new Uint8Array(await (await fetch(path)).arrayBuffer())));
    // Small positive floats with no pattern in their lower bits.
    const weights = new Uint32Array(nbytes / 4);
    for (let k = 0, x = 1; k < weights.length; k++) {
      x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
      weights[k] = 0x3c000000 | (x >>> 9);
    }
    const bytes = new Uint8Array(weights.buffer);
    const model = new Uint8Array(head.length + nbytes + tail.length);
    model.set(head);
    model.set(bytes, head.length);
    model.set(tail, head.length + nbytes);

    const offsetOf = (file) => {
      const marker = bytes.subarray(0, 64);
      for (let at = file.indexOf(marker[0]); at >= 0; at = file.indexOf(marker[0], at + 1)) {
        if (marker.every((byte, k) => file[at + k] === byte)) return at;
      }
      return -1;
    };
    const nonzero = (part) => {
      const ahead = Math.min(part.length, -part.byteOffset & 3);
      const count = (part.length - ahead) >> 2;
      const words = count > 0 ? new Uint32Array(part.buffer, part.byteOffset + ahead, count) : [];
      let found = 0;
      for (const k of [...Array(ahead).keys()]) found += part[k] === 0 ? 0 : 1;
      for (let k = 0; k < words.length; k++) found += words[k] === 0 ? 0 : 4;
      for (let k = ahead + 4 * words.length; k < part.length; k++) found += part[k] === 0 ? 0 : 1;
      return found;
    };
    /** What is wrong with a file: it has the weights in one piece, and no more than `rest` zeros besides. */
    const faults = (file, hasWeights, magic, zeros) => {
      const found = [];
      const start = String.fromCharCode(...file.subarray(0, 16));
      const isRight = magic !== null ? start.slice(4, 8) === magic : file[0] === 8;
      if (!isRight) found.push(`starts with ${[...file.subarray(0, 16)]}`);
      const at = hasWeights ? offsetOf(file) : file.length;
      if (at < 0) return [...found, "no weights"];
      const kept = file.slice(at, at + bytes.length);
      const words = new Uint32Array(kept.buffer, 0, kept.length >> 2);
      if (hasWeights) {
        let wrong = words.length === weights.length ? 0 : Infinity;
        for (let k = 0; k < words.length; k++) wrong += words[k] === weights[k] ? 0 : 1;
        if (wrong > 0) found.push(`${wrong} weights are wrong`);
      }
      // Four bytes at a time, where they lie in a word of the buffer.
      const others = nonzero(file.subarray(0, at)) + nonzero(file.subarray(at + bytes.length));
      const extra = file.length - (hasWeights ? bytes.length : 0) - zeros;
      if (extra < 0 || extra > 16384) found.push(`${extra} bytes more than there should be`);
      if (others > 16384) found.push(`${others} bytes that are not zero besides the weights`);
      return found;
    };
    const options = { threads: 1, reproducible: true };
    const feeds = {
      x: new Tensor("float32", new Float32Array(rows).fill(1 / 64), [1, rows]),
      labels: new Tensor("int64", BigInt64Array.of(3n), [1]),
    };
"""

SMALL = """
    const small = async () => {
      env.seed = 7;
      const s = await TrainingSession.createFromModel("/golden/mlp/base.onnx",
        { loss: "CrossEntropyLoss", optimizer: "AdamW" }, { threads: 1, reproducible: true });
      const x = new Tensor("float32", Float32Array.from({ length: 80 }, (_, i) => Math.sin(i)), [8, 10]);
      const labels = new Tensor("int64", BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i % 3)), [8]);
      for (let k = 0; k < 5; k++) {
        await s.runTrainStep({ x, labels });
        await s.runOptimizerStep();
        await s.lazyResetGrad();
      }
      const saved = await s.saveCheckpoint({ includeOptimizerState: true });
      await s.release();
      return [...saved];
    };
"""


def large_model(rows: int) -> tuple[bytes, bytes]:
    """One Gemm of `rows` times CLASSES weights: the file before its weights and after them."""
    nbytes = 4 * rows * CLASSES
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, CLASSES], raw_data=bytes(nbytes))
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["logits"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, rows])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, CLASSES])],
        [weights],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    at = data.index(bytes(4096))
    # Dimensions and names before the weights have no such run of zeros.
    return data[:at], data[at + nbytes :]


def require_memory(needed: int) -> None:
    """Skip, saying why, where the system would run out of memory."""
    with open("/proc/meminfo") as lines:
        available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 2**20
    if available < needed:
        pytest.skip(f"needs {needed} GiB of memory, {available:.1f} GiB are available")


def serve_model(site: Site, mib: int) -> dict[str, int]:
    """Let the page have all but the weights of a model; returns variables of `LARGE`."""
    rows = mib * 2**20 // (4 * CLASSES)
    for path, data in zip(("/large/head", "/large/tail"), large_model(rows), strict=True):
        site.add(path, data)
    return {"nbytes": mib * 2**20, "rows": rows}


def outcomes(js: JsPage, variables: dict[str, Any]) -> dict[str, Any]:
    """The result of each call: [] for right, a list of faults, or an error."""
    tried = "".join(
        f"""results[{name!r}] = await tried(async () => {{
          const files = {call};
          const optimizer = {"true" if "optimizer" in name else "false"};
          return files.flatMap((file, k) => faults(
            file, k === 0, {"null" if "export" in name else "k === 0 ? 'ODTC' : null"}, optimizer ? 2 * nbytes : 0));
        }});
        """
        for name, call in CALLS.items()
    )
    found: dict[str, Any] = js.run(
        LARGE + """
        const tried = (action) => action().catch(({ name, message }) => ({ name, message }));
        const results = {};
        const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
        const s = await TrainingSession.createFromModel(model, config, options);
        """ + tried + """
        const loss = async () => (await s.runTrainStep(feeds))[s.trainingOutputNames[0]].data[0];
        results.losses = [await loss()];
        await s.runOptimizerStep();
        await s.lazyResetGrad();
        results.losses.push(await loss());
        const kept = (await s.getContiguousParameters()).data;
        results.parameters = kept.length;
        await s.release();
        return results;""",
        **variables,
    )  # fmt: skip
    return found


@pytest.mark.timeout(1200)
@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="the memory that is available cannot be told")
@pytest.mark.parametrize("mib", [140, pytest.param(700, marks=pytest.mark.large)])
def test_large_files_are_right(browser: Browser, plain_site: Site, mib: int) -> None:
    require_memory(NEEDED_GIB[mib])
    variables = serve_model(plain_site, mib)
    with open_js_page(browser, plain_site) as js:
        js.page.set_default_timeout(600_000)
        results = outcomes(js, variables)
        after = js.run(SMALL + "return small();")
    with open_js_page(browser, plain_site) as fresh:
        expected = fresh.run(SMALL + "return small();")
    for name in CALLS:
        if "optimizer" in name and 3 * mib > LARGEST_FILE_MIB:
            assert results[name]["name"] == "LimitError" and "2147483647" in results[name]["message"]
        else:
            assert results[name] == [], name
    assert results["losses"][1] < results["losses"][0]
    assert results["parameters"] == variables["rows"] * CLASSES
    assert after == expected


@pytest.mark.large
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="the memory that is available cannot be told")
def test_a_checkpoint_of_nearly_two_gib_is_written_and_read(browser: Browser, plain_site: Site) -> None:
    require_memory(TWO_GIB_NEEDS)
    variables = serve_model(plain_site, TWO_GIB_MIB)
    with open_js_page(browser, plain_site) as js:
        js.page.set_default_timeout(600_000)
        result = js.run(
            LARGE
            + """
            const same = (a, b) => {
              const left = new Uint32Array(a.buffer, a.byteOffset, a.byteLength >> 2);
              const right = new Uint32Array(b.buffer, b.byteOffset, b.byteLength >> 2);
              let wrong = a.byteLength === b.byteLength ? 0 : Infinity;
              for (let k = 0; k < left.length; k++) wrong += left[k] === right[k] ? 0 : 1;
              return wrong;
            };
            const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
            let s = await TrainingSession.createFromModel(model, config, options);
            const { trainModel, evalModel, optimizerModel } = await s.artifacts({ as: "blob" });
            await s.runTrainStep(feeds);
            await s.runOptimizerStep();
            await s.lazyResetGrad();  // gradients that are still to be used would be saved, too
            const kept = new Uint8Array((await s.getContiguousParameters()).data.buffer);
            const file = await s.saveCheckpoint({ includeOptimizerState: true });
            await s.release();
            // All of the weights are there, as they are after the step.
            let at = file.indexOf(kept[0]);
            while (at >= 0 && !kept.subarray(0, 64).every((byte, k) => file[at + k] === byte)) {
              at = file.indexOf(kept[0], at + 1);
            }
            const inFile = at < 0 ? Infinity : same(file.slice(at, at + nbytes), kept);
            s = await TrainingSession.create(
              { trainModel, evalModel, optimizerModel, checkpointState: file }, options);
            const loaded = same(new Uint8Array((await s.getContiguousParameters()).data.buffer), kept);
            const again = same(await s.saveCheckpoint({ includeOptimizerState: true }), file);
            const changed = same(kept, bytes);
            await s.release();
            return { size: file.length, inFile, loaded, again, changed };""",
            **variables,
        )
    assert 3 * TWO_GIB_MIB * 2**20 < result["size"] < 2**31
    assert (result["inFile"], result["loaded"], result["again"]) == (0, 0, 0)
    assert result["changed"] > 0


TRAINED_MB, ALLOWED_MB, TRAINING_NEEDS = 300, 1300, 4
"""Millions of bytes of weights, and that the page's process may have; the GiB that the test takes."""

TRAINING_PAGE = """<!doctype html>
<script type="module">
  import { Tensor, TrainingSession } from "/dist/index.js";
  const say = (path) => fetch(path).then((answer) => answer.text());
  try {
    const feeds = {
      x: new Tensor("float32", new Float32Array(ROWS).fill(1 / 64), [1, ROWS]),
      labels: new Tensor("int64", BigInt64Array.of(3n), [1]),
    };
    const config = { loss: "CrossEntropyLoss", optimizer: "AdamW" };
    const s = await TrainingSession.createFromModel("/large/model", config, { threads: 1 });
    await say("/memory/created");
    const losses = [];
    for (let k = 0; k < 5; k++) {
      losses.push((await s.runTrainStep(feeds))[s.trainingOutputNames[0]].data[0]);
      await s.runOptimizerStep();
      await s.lazyResetGrad();
    }
    await say("/memory/trained");
    const saved = await s.saveCheckpoint({ includeOptimizerState: true, as: "blob" });
    await say("/memory/saved");
    await say(`/end/${JSON.stringify({ losses, saved: saved.size })}`);
  } catch (error) {
    await say(`/end/${encodeURIComponent(JSON.stringify(String(error)))}`);
  }
</script>
"""


@pytest.mark.timeout(600)
@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="the memory of a process cannot be told")
def test_300_mb_of_weights_train_in_1300_mb(chromium_path: str, plain_site: Site) -> None:
    """With AdamW: weights, gradients and two moments have 1200."""
    require_memory(TRAINING_NEEDS)
    require_built(*NEEDED)
    rows = -(-TRAINED_MB * 10**6 // (4 * CLASSES))
    head, tail = large_model(rows)
    weights = np.random.default_rng(5).standard_normal(rows * CLASSES, "f4") / 64
    plain_site.add("/large/model", head + weights.astype("<f4").tobytes() + tail)
    plain_site.add("/large/train.html", TRAINING_PAGE.replace("ROWS", str(rows)))
    found: dict[str, tuple[Memory, int]] = {}
    opened: list[Renderer] = []

    def measure(when: str) -> Reply:
        found[when] = opened[0].memory(), opened[0].peak
        return Reply(b"", "text/plain")

    for when in ("created", "trained", "saved"):
        plain_site.add_dynamic(f"/memory/{when}", partial(measure, when))
    plain_site.clear_log()
    with unwatched_page(chromium_path, plain_site.url("/large/train.html")) as renderer:
        opened.append(renderer)
        deadline = time.monotonic() + 500
        while not (ends := plain_site.requests("/end/")) and time.monotonic() < deadline:
            time.sleep(0.1)
    plain_site.remove("/large/model")
    assert ends, "the page did not come to its end"
    result = json.loads(unquote(ends[0].removeprefix("/end/")))
    print(f"\n{rows * CLASSES * 4 / 1e6:.1f} MB of weights, AdamW; the page's process, MB:")
    for when, (memory, peak) in found.items():
        print(f"  {when}: {memory.private / 1e6:.0f} and {memory.program / 1e6:.0f} of Chromium, peak {peak / 1e6:.0f}")
    assert isinstance(result, dict), result
    assert result["losses"][-1] < result["losses"][0] and result["saved"] > 3 * weights.nbytes
    memory, peak = found["trained"]
    # All four are there, and not much besides.
    assert 4 * weights.nbytes < memory.private
    # The browser's compilers and its collector of garbage have some MB for a moment, on a busy machine often.
    assert memory.private <= 1.01 * ALLOWED_MB * 10**6
    assert peak <= 1.02 * ALLOWED_MB * 10**6
