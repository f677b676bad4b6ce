"""Workers that die, trap, have no session left; with locks (https) and without (http)."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from .bundles import open_page
from .js_session import JsPage
from .processes import PROC, processes, resident_bytes
from .server import ROOT, Site
from .test_faults_files import FAULTS, STALL_MS, WORDS
from .test_js_session import BUNDLED, OPEN, SPY

POLLS = 600
"""Tenths of a second that workers have to end."""
LEFT_BYTES = 30_000_000
"""What a page may keep of sessions that are released."""
IN_TIME = """
    const inTime = (promise) => Promise.race([
      promise.then((value) => value, (error) => ({ name: error.name, message: error.message })),
      new Promise((resolve) => setTimeout(() => resolve({ name: "nothing within 60 s" }), 60000)),
    ]);
"""


class HttpSite(Site):
    """Reached over http by a name: no secure context, as in a classroom or a LAN."""

    @property
    def origin(self) -> str:
        return super().origin.replace("127.0.0.1", "app.test")


def assert_workers(js: JsPage, count: int) -> None:
    """The page comes down to so many workers, and no less."""
    for _ in range(POLLS):
        if len(js.page.workers) <= count:
            break
        js.page.wait_for_timeout(100)
    assert len(js.page.workers) == count


@pytest.fixture(params=["https", "http"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[JsPage]:
    site = HttpSite() if request.param == "http" else Site()
    with open_page(browser, site, expected=(r".*",)) as js:
        assert js.run("return isSecureContext;") == (request.param == "https")
        assert js.run("return navigator.locks !== undefined;") == (request.param == "https")
        yield js
    site.close()


def test_a_worker_that_dies_is_noticed(page: JsPage) -> None:
    """One after the other, in one page. The time until the error is printed, for docs/security.md."""
    page.run(f"{SPY}{BUNDLED} window.s = await open({{ threads: 1 }}); await loss(s); window.loss = () => loss(s);")
    deaths_of = [("in a step", "terminate"), ("idle", "close")]
    if not page.run("return isSecureContext;"):  # signs of life come from a script
        deaths_of += [("in a step", "close"), ("idle", "terminate")]
    for deaths, (when, how) in enumerate(deaths_of, 1):
        if when == "in a step":
            page.run("window.pending = window.loss().then(() => null);")
        else:
            page.run("window.pending = Promise.resolve(null);")
        if how == "close":
            # On http a separate worker sends signs of life; those that died before may not have gone yet.
            worker = [w for w in page.page.workers if w.url.endswith("/worker.js")][-1]
            page.run("window.died = performance.now();")
            worker.evaluate("setTimeout(close)")
        else:
            page.run("workers.at(-1).terminate(); window.died = performance.now();")
        outcome = page.run(
            f"""{BUNDLED}{IN_TIME}
            const pending = await inTime(window.pending);
            const later = await inTime(window.loss());
            const seconds = (performance.now() - window.died) / 1000;
            window.s = await inTime(open({{ threads: 1 }}));
            return {{ pending, later, seconds, value: await inTime(window.loss()), started: workers.length }};"""
        )
        print(f"{page.page.url}, {when}, {how}: noticed after {outcome['seconds']:.2f} s")
        # A step that was under way may have been done.
        if outcome["pending"] is not None:
            assert outcome["pending"]["name"] == "EngineError", outcome
        assert outcome["later"]["name"] == "EngineError", outcome
        assert outcome["started"] == 1 + deaths and outcome["value"] > 0, outcome


@pytest.fixture
def http_page(browser: Browser) -> Iterator[JsPage]:
    site = HttpSite()
    with open_page(browser, site, expected=(r".*",)) as js:
        yield js
    site.close()


def test_a_worker_that_dies_at_once_is_noticed(http_page: JsPage) -> None:
    """On http its signs of life come from a script that may take its time: no session is there before."""
    script = (ROOT / "dist" / "npm" / "pool-worker.js").read_text()
    http_page.site.add("/dist/pool-worker.js", script, delay_s=2)
    outcome = http_page.run(
        f"""{SPY}{BUNDLED}{IN_TIME}
        const s = await open({{ threads: 1 }});
        workers[0].terminate();
        return inTime(loss(s));"""
    )
    assert outcome["name"] == "EngineError", outcome


@pytest.mark.parametrize("fault", ["missing", "html", "damaged", "silent", "stalled"])
def test_signs_of_life_are_no_condition(http_page: JsPage, fault: str) -> None:
    """Without their script the session trains, and a warning says what is lost, and why.

    Only a server that hangs is waited for. An answer has so much time that a busy machine does not count as hanging.
    """
    http_page.site.add_dynamic("/dist/pool-worker.js", lambda: FAULTS[fault]("pool-worker.js"))
    lines: list[str] = []
    http_page.page.on("console", lambda line: lines.append(line.text))
    limit = STALL_MS if fault in ("silent", "stalled") else 200_000
    assert http_page.run(f"env.timeouts.stall = {limit}; {BUNDLED} return loss(await open({{ threads: 1 }}));") > 0
    (warning,) = (line for line in lines if "Should the worker end in the middle of a call" in line)
    assert "/dist/pool-worker.js" in warning
    for word in WORDS.get(fault, lambda _: ("does not run",))("JavaScript"):
        assert word in warning, warning


@pytest.mark.skipif(not PROC.is_dir(), reason="the memory of processes is read from /proc")
def test_four_kinds_of_sessions_leave_nothing(browser: Browser, isolated_site: Site) -> None:
    """No worker, and no memory: the page is back at its start."""
    with open_page(browser, isolated_site) as js:
        js.page.request_gc()
        pids = processes()
        start = resident_bytes(pids)
        started = js.run(
            f"""{SPY}{OPEN}
            const sessions = [];
            for (const threads of [1, 3]) {{
              for (const reproducible of [false, true]) {{
                const s = await open({{ threads, reproducible }});
                await loss(s);
                sessions.push(s);
              }}
            }}
            await Promise.all(sessions.map((s) => s.release()));
            return workers.splice(0).length;"""
        )
        assert started == 4
        # The workers of the pools are workers of the workers.
        assert len(js.page.workers) >= 4
        assert resident_bytes(pids) - start > 4 * LEFT_BYTES
        js.run("await env.release();")
        assert_workers(js, 0)
        assert_memory(js, pids, start + LEFT_BYTES)
        assert js.run(f"{OPEN} return loss(await open());") > 0


def assert_memory(js: JsPage, pids: list[int], most: int) -> None:
    """The page comes down to so many bytes."""
    for _ in range(POLLS):
        js.page.request_gc()
        if resident_bytes(pids) <= most:
            break
        js.page.wait_for_timeout(100)
    assert resident_bytes(pids) <= most


def test_workers_end_when_they_had_no_session_for_a_while(browser: Browser, plain_site: Site) -> None:
    with open_page(browser, plain_site) as js:
        js.run(
            f"{BUNDLED} env.timeouts.idle = 100; window.s = await open(); window.t = await open(); await s.release();"
        )
        js.page.wait_for_timeout(400)
        assert len(js.page.workers) == 1
        js.run("await env.release(); await t.getContiguousParameters(); await t.release();")
        assert_workers(js, 0)


def test_a_session_that_comes_in_time_keeps_the_worker(browser: Browser, plain_site: Site) -> None:
    with open_page(browser, plain_site) as js:
        js.run(
            f"{SPY}{BUNDLED} env.timeouts.idle = 1500;"
            "const s = await open(); await s.release(); window.s = await open();"
        )
        js.page.wait_for_timeout(2500)
        assert js.run(f"{BUNDLED} return [workers.length, await loss(s) > 0];") == [1, True]


def test_what_is_stored_is_stored_before_the_worker_ends(browser: Browser, make_site: Callable[..., Site]) -> None:
    site = make_site()
    with open_page(browser, site) as js:
        first = js.run(
            f"{OPEN} const s = await open({{ cache: true }}); const value = await loss(s); await s.release();"
            "await env.release(); return value;"
        )
        site.clear_log()
        assert js.run(f"{OPEN} return loss(await open({{ cache: true }}));") == first
        assert not site.requests("/dist/python/")


@pytest.mark.parametrize("threads", [65, 2**31, 2**53 - 1])
def test_more_threads_than_the_kernels_take(browser: Browser, isolated_site: Site, threads: int) -> None:
    with open_page(browser, isolated_site) as js:
        outcome = js.run(
            f"""{SPY}{BUNDLED}
            const failure = (promise) => promise.then(() => null, (error) => `${{error.name}}: ${{error.message}}`);
            const asked = await failure(open({{ threads }}));
            env.wasm.numThreads = threads;
            return [asked, await failure(open()), workers.length];""",
            threads=threads,
        )
    assert outcome == [
        f"TypeError: 'threads' must be at most 64, got {threads}.",
        f"TypeError: 'env.wasm.numThreads' must be at most 64, got {threads}.",
        0,
    ]


SPY_POOL = """
globalThis.pool = [];
const RealWorker = Worker;
globalThis.Worker = class extends RealWorker {
  constructor(...given) { super(...given); pool.push(this); }
};
"""


def test_a_thread_of_the_pool_that_dies(browser: Browser, make_site: Callable[..., Site]) -> None:
    """Between steps and with one under way: the right result or an error of ours, and the next session is sound."""
    site = make_site(isolated=True)
    site.add("/dist/worker.js", SPY_POOL + (ROOT / "dist" / "npm" / "worker.js").read_text())
    with open_page(browser, site) as js:
        right = js.run(
            f"{BUNDLED} const s = await open(); const value = await loss(s); await s.release(); return value;"
        )
        for when in ("between", "under way"):
            js.run(
                f"{BUNDLED} await env.release(); window.s = await open({{ threads: 3 }}); window.loss = () => loss(s);"
            )
            # The one before may not have gone yet.
            worker = [w for w in js.page.workers if w.url.endswith("/worker.js")][-1]
            assert worker.evaluate("pool.length") == 2
            if when == "between":
                worker.evaluate("pool[0].terminate()")
                js.run("window.pending = window.loss();")
            else:
                js.run("window.pending = window.loss();")
                worker.evaluate("pool[1].terminate()")
            outcome = js.run(
                f"""{BUNDLED}{IN_TIME}
                const pending = await inTime(window.pending);
                await inTime(s.release());
                await env.release();
                return [pending, await inTime(open({{ threads: 3 }}).then(loss))];"""
            )
            assert outcome[0] == right or outcome[0]["name"] == "EngineError", (when, outcome)
            assert outcome[1] == right, (when, outcome)


def test_a_page_that_is_blocked_while_its_worker_starts_keeps_it(browser: Browser, plain_site: Site) -> None:
    """The worker has long started when the page hears of it."""
    with open_page(browser, plain_site) as js:
        value = js.run(
            f"""{BUNDLED}
            env.timeouts.start = 1000;
            const opening = open();
            opening.catch(() => {{}});
            await new Promise((resolve) => setTimeout(resolve, 20));
            for (const end = performance.now() + 2500; performance.now() < end;);
            const s = await opening;
            const value = await loss(s);
            await s.release();
            return value;"""
        )
    assert value > 0


def test_a_shared_worker_is_told_where_sessions_are_made(browser: Browser, plain_site: Site) -> None:
    """It cannot start workers."""
    plain_site.add(
        "/shared.js",
        """import { TrainingSession } from "/dist/index.js";
        onconnect = ({ ports: [port] }) => TrainingSession.createFromModel("first.onnx", { loss: "CrossEntropyLoss" })
          .catch(({ name, message }) => port.postMessage([name, message]));""",
    )
    with open_page(browser, plain_site) as js:
        name, message = js.run(
            """const { port } = new SharedWorker("/shared.js", { type: "module" });
            return new Promise((resolve) => { port.onmessage = ({ data }) => resolve(data); });"""
        )
    assert name == "EngineError" and "shared and service workers do not have: create them in a page" in message


REFUSE_MEMORY = """
WebAssembly.Memory = new Proxy(WebAssembly.Memory, {
  construct(Memory, [given]) {
    const isOfKernels = given.initial <= 64;
    const most = given.shared ? SHARED : OWN;
    if (isOfKernels && given.maximum > most) throw new RangeError("WebAssembly.Memory(): could not allocate memory");
    return new Memory(given);
  },
});
"""
"""The most pages that a device gives to the kernels, as Chromium says no."""

SMALL_DEVICES = {
    "shared memory of a page": (True, 1, 65536, "kernels.relaxed, 1 threads"),
    "shared memory of 256 MiB": (True, 4096, 65536, "kernels.relaxed, 1 threads"),
    "shared memory of 512 MiB": (True, 8192, 65536, "kernels.relaxed.threads, 2 threads"),
    "neither shared nor large memory": (True, 1, 4096, "kernels.relaxed, 1 threads"),
    "no large memory in a plain page": (False, 1, 8192, "kernels.relaxed, 1 threads"),
}


@pytest.mark.parametrize("device", SMALL_DEVICES)
def test_a_device_that_refuses_memory_trains(browser: Browser, make_site: Callable[..., Site], device: str) -> None:
    isolated, shared, own, build = SMALL_DEVICES[device]
    site = make_site(isolated=isolated)
    stub = REFUSE_MEMORY.replace("SHARED", str(shared)).replace("OWN", str(own))
    site.add("/dist/worker.js", stub + (ROOT / "dist" / "npm" / "worker.js").read_text())
    with open_page(browser, site) as js:
        lines: list[str] = []
        js.page.on("console", lambda line: lines.append(line.text))
        losses = js.run(
            f"""{BUNDLED}
            env.logLevel = "info";
            const s = await open({{ threads: 2 }});
            const losses = [await loss(s), await loss(s)];
            await s.release();
            return losses;"""
        )
        assert losses[0] == losses[1] > 0
    assert any(build in line for line in lines), lines
    notices = [line for line in lines if "The browser gives no shared memory to the kernels" in line]
    assert len(notices) == (isolated and "threads," not in build.replace("1 threads", "")) and all(
        "One thread computes" in line for line in notices
    )


def test_a_device_that_refuses_all_memory_says_so(browser: Browser, make_site: Callable[..., Site]) -> None:
    site = make_site()
    stub = REFUSE_MEMORY.replace("SHARED", "1").replace("OWN", "1")
    site.add("/dist/worker.js", stub + (ROOT / "dist" / "npm" / "worker.js").read_text())
    with open_page(browser, site) as js:
        error = js.failure(f"{BUNDLED} await open();")
    assert error["name"] == "EngineError"
    assert "The browser gives no memory to the kernels: WebAssembly.Memory(): could not" in error["message"]


# Kernels whose next run goes wrong when the worker's `globalThis.next` says so.
SABOTAGE = """
const Real = WebAssembly.Instance;
WebAssembly.Instance = class {
  constructor(module, imports) {
    const instance = new Real(module, imports);
    if (!instance.exports.tw_run) return instance;
    const run = (plan) => {
      const next = globalThis.next;
      globalThis.next = undefined;
      if (next === "trap") throw new WebAssembly.RuntimeError("unreachable");
      return next ?? instance.exports.tw_run(plan);
    };
    return { exports: { ...instance.exports, tw_run: run } };
  }
};
"""


@pytest.fixture(scope="module")
def sabotaged(browser: Browser) -> Iterator[JsPage]:
    site = Site()
    site.add("/dist/worker.js", SABOTAGE + (ROOT / "dist" / "npm" / "worker.js").read_text())
    with open_page(browser, site) as js:
        js.run(
            f"{SPY}{OPEN} window.s = await open(); window.t = await open(); await loss(t); await t.runOptimizerStep();"
        )
        yield js
    site.close()


TW_BAD_SEGMENT, TW_BAD_POINTER, TW_BAD_EXTENT = 3, 11, 7


def test_a_plan_that_the_verifier_refuses_is_no_lost_engine(sabotaged: JsPage) -> None:
    sabotaged.worker.evaluate("(fault) => { globalThis.next = fault; }", TW_BAD_EXTENT)
    outcome = sabotaged.run(
        f"""{OPEN}
        const error = await loss(s).catch(({{ name, message }}) => `${{name}}: ${{message}}`);
        return [error, await loss(s) > 0, await loss(t) > 0, workers.length];"""
    )
    assert outcome[0].startswith("EngineError: TW_BAD_EXTENT") and outcome[1:] == [True, True, 1]


@pytest.mark.parametrize("fault", ["trap", TW_BAD_SEGMENT, TW_BAD_POINTER])
def test_what_other_sessions_have_learned_survives_a_trap(sabotaged: JsPage, fault: str | int) -> None:
    before = sabotaged.run(f"{OPEN} return parameters(t);")
    sabotaged.worker.evaluate("(fault) => { globalThis.next = fault; }", fault)
    outcome = sabotaged.run(
        f"""{OPEN}
        const failure = (promise) => promise.then(() => null, (error) => `${{error.name}}: ${{error.message}}`);
        const errors = [await failure(loss(s)), await failure(loss(s)), await failure(loss(t))];
        const kept = await parameters(t);
        const checkpointState = await t.saveCheckpoint({{ includeOptimizerState: true }});
        const u = await TrainingSession.create({{ ...golden("mlp"), checkpointState }});
        const resumed = await parameters(u);
        const value = await loss(u);
        workers.shift();  // the lost one
        await s.release();
        await t.release();
        [window.s, window.t] = [await open(), u];  // for the next fault
        return {{ errors, kept, resumed, value, started: workers.length }};"""
    )
    for error in outcome["errors"]:
        assert error.startswith("EngineError: the engine is lost"), outcome["errors"]
    assert outcome["kept"] == outcome["resumed"] == before
    assert outcome["value"] > 0 and outcome["started"] == 1
    assert_workers(sabotaged, 1)


def test_a_cached_plan_that_the_verifier_refuses_is_compiled_anew(
    browser: Browser, make_site: Callable[..., Site]
) -> None:
    site = make_site()
    site.add("/dist/worker.js", SABOTAGE + (ROOT / "dist" / "npm" / "worker.js").read_text())
    run = f"{OPEN} const s = await open({{ cache: true }}); window.s = s;"
    end = "await s.release(); await env.release();"
    with open_page(browser, site) as js:
        first = js.run(f"{run} const value = await loss(s); {end} return value;")
        site.clear_log()
        js.run(run)
        js.worker.evaluate("(fault) => { globalThis.next = fault; }", TW_BAD_EXTENT)
        error = js.run(f"{OPEN} const error = await loss(s).catch(({{ name }}) => name); {end} return error;")
        assert error == "EngineError"
        assert not site.requests("/dist/python/")
        # Python compiles it, and what is stored then is used again.
        assert js.run(f"{run} const value = await loss(s); {end} return value;") == first
        assert site.requests("/dist/python/")
        site.clear_log()
        assert js.run(f"{run} const value = await loss(s); {end} return value;") == first
        assert not site.requests("/dist/python/")
