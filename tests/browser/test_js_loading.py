"""Events of loading for a page, and typed arrays as feeds."""

from collections.abc import Callable

from playwright.sync_api import Browser

from .js_session import open_js_page
from .server import MOUNTS, ROOT, Site

NPM = ROOT / "dist" / "npm"

SESSION = """
    const told = [], everywhere = [];
    env.onProgress = (progress) => everywhere.push(progress);
    const s = await TrainingSession.create(golden("mlp"), { onProgress: (progress) => told.push(progress) });
    env.onProgress = null;
    window.s = s;
    return [told, everywhere];
"""


def sizes_of(site: Site, folder: str) -> int:
    """Bytes of the files that were asked for, each once."""
    root = NPM if folder == "/dist/" else ROOT / "tests" / "golden"
    return sum((root / path.removeprefix(folder)).stat().st_size for path in set(site.requests(folder)))


def test_loading_is_told_in_bytes_and_percent(browser: Browser, make_site: Callable[..., Site]) -> None:
    site = make_site()
    with open_js_page(browser, site) as js:
        told, everywhere = js.run(SESSION)
        assert told == everywhere
        assert {report["stage"] for report in told} == {"script", "kernels", "python", "model", "compile"}
        percents = [report["percent"] for report in told]
        assert percents == sorted(percents)
        assert (percents[0], percents[-1]) == (0, 100)
        assert len({percent for percent in percents if 0 < percent < 100}) > 5
        last = told[-1]
        assert last["stage"] == "compile"
        files = sizes_of(site, "/dist/") - (NPM / "index.js").stat().st_size
        models = sum(js.run("return (await Promise.all(Object.values(golden('mlp')).map((url) =>"
                            "fetch(url).then((r) => r.arrayBuffer())))).map((b) => b.byteLength)"))  # fmt: skip
        assert last["loaded"] == last["total"] == files + models
        # The next session finds all but the models there.
        told, _ = js.run(SESSION)
        assert {report["stage"] for report in told} == {"model", "compile"}
        assert told[-1]["total"] == models


def test_a_model_that_comes_first_is_not_nearly_all(browser: Browser, make_site: Callable[..., Site]) -> None:
    """Python's files count before the worker, which asks for them, is there."""
    site = make_site()
    site.add("/dist/worker.js", (NPM / "worker.js").read_bytes(), delay_s=1)
    python = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm.gz", "snapshot.bin")
    size = sum((NPM / "python" / name).stat().st_size for name in python)
    with open_js_page(browser, site) as js:
        told, _ = js.run(SESSION)
    assert told[0]["percent"] == 0 and any(report["stage"] == "model" for report in told[:12])
    assert [report for report in told if report["percent"] > 0 and report["total"] < size] == []
    assert told[-1]["loaded"] == told[-1]["total"]


def test_what_listens_must_be_a_function_and_may_fail(browser: Browser, make_site: Callable[..., Site]) -> None:
    with open_js_page(browser, make_site(), ("onProgress failed: Error: mine",)) as js:
        error = js.failure("await TrainingSession.create(golden('mlp'), { onProgress: 1 })")
        assert (error["name"], error["message"]) == ("TypeError", "'onProgress' must be a function, got 1.")
        assert js.run("""
            const s = await TrainingSession.create(golden("mlp"), { onProgress: () => { throw new Error("mine"); } });
            await s.release();
            return true;
        """)


STEP = """
    const results = [];
    for (const feeds of [
      { x: new Tensor("float32", values, [4, 10]), labels: new Tensor("int64", classes, [4]) },
      { x: values, labels: classes },
    ]) {
      results.push((await s.runEvalStep(feeds))[s.evalOutputNames[0]].data[0]);
    }
    return results;
"""


def test_typed_arrays_are_feeds_where_one_dim_follows(browser: Browser, make_site: Callable[..., Site]) -> None:
    site = make_site(mounts={**MOUNTS, "/docs/": (ROOT / "docs",)})
    with open_js_page(browser, site) as js:
        one, other = js.run("""
            const s = await TrainingSession.create(golden("mlp"));
            const values = Float32Array.from({ length: 40 }, (_, i) => Math.sin(i));
            const classes = BigInt64Array.from([0n, 1n, 2n, 1n]);
        """ + STEP)  # fmt: skip
        assert one == other > 0
        assert js.run("""
            const images = await InferenceSession.create("/docs/first.onnx");
            const rows = await images.run({ points: new Float32Array(6) });
            return rows.logits.dims;
        """) == [3, 2]
