"""Pages as Flower's clients, with a fleet of the test in the place of a SuperLink.

`tests/federated/rounds.npz` has what three clients in PyTorch sent to flwr's own server, and the averages that it made
of them: `./build.sh test-federated --record`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from tests.federated import norms, run, task
from tests.python.flower_fleet import FakeFleet, FakeNode
from websockets.sync.client import connect

from trainweb.flower.frames import Task

from .conftest import PAGE_TIMEOUT_MS
from .js_session import JsPage
from .server import ROOT, Site

SECONDS = 60
CONFIG = {"epochs": 1, "batch-size": 32, "lr": 0.1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("task")
    task.write(made)
    return made


@pytest.fixture(scope="module")
def task_site(folder: Path) -> Any:
    site = Site(isolated=True, mounts={"/dist/": (ROOT / "dist" / "npm",), "/task/": (folder,)})
    site.add("/client.html", run.CLIENT)
    yield site
    site.close()


def state_is(page: Page, pattern: str) -> str:
    page.wait_for_function(f"new RegExp({pattern!r}).test(window.state)", timeout=PAGE_TIMEOUT_MS)
    return str(page.evaluate("window.state"))


def node_of(fleet: FakeFleet) -> FakeNode:
    return fleet.nodes.get(timeout=SECONDS)


def asked(kind: str, number: int, arrays: dict[str, np.ndarray]) -> Task:
    return Task(f"round {number}", kind, {**CONFIG, "server-round": number}, arrays)


def test_pages_send_what_clients_in_pytorch_sent(browser: Browser, task_site: Site) -> None:
    """Two rounds of three pages; the average is numpy's here and flwr's in the recording."""
    with FakeFleet() as fleet, np.load(run.RECORDED) as recorded:
        pages = [browser.new_page() for _ in task.SIZES]
        nodes: list[FakeNode] = []
        for part, page in enumerate(pages):
            page.goto(task_site.url(f"/client.html?part={part}&bridge={fleet.url}"))
            state_is(page, "joined")
            nodes.append(node_of(fleet))
        common = task.initial()
        for number in range(1, run.RECORDED_ROUNDS + 1):
            for node in nodes:
                node.tasks.put(asked("train", number, common))
            answers = [node.answers.get(timeout=SECONDS)[1] for node in nodes]
            assert [metrics["num-examples"] for _, metrics in answers] == list(task.SIZES)
            for name in common:
                sent = np.stack([arrays[name] for arrays, _ in answers])
                theirs = np.stack([recorded[f"{number}/{size}/{name}"] for size in task.SIZES])
                np.testing.assert_allclose(sent, theirs, atol=run.PARAMETERS)
                common[name] = np.average(sent.astype(np.float64), axis=0, weights=task.SIZES).astype(np.float32)
                np.testing.assert_allclose(common[name], recorded[f"{number}/average/{name}"], atol=run.PARAMETERS)
        nodes[0].tasks.put(asked("evaluate", 3, common))
        arrays, metrics = nodes[0].answers.get(timeout=SECONDS)[1]
        assert not arrays and set(metrics) == {"num-examples", "loss"} and 0 < metrics["loss"] < 2.3
        # A page that is closed leaves; the others learn that the bridge stops, and end well.
        pages[0].close()
        assert nodes[0].left.wait(SECONDS)
        assert not nodes[1].left.is_set()
    for page in pages[1:]:
        assert state_is(page, "left") == "left"
        page.close()


def test_pages_average_statistics_as_flower_with_pytorch(js: JsPage) -> None:
    """PyTorch's clients sent their whole state, of which flwr made the recorded averages."""
    record = norms.recorded()
    common = norms.states(record, 0)
    js.site.add("/norms.onnx", norms.model(common).SerializeToString())
    clients = range(len(norms.SIZES))
    rows = [{"x": record[f"x{k}"].tolist(), "labels": record[f"labels{k}"].tolist()} for k in clients]
    with FakeFleet() as fleet:
        js.run(
            f"""window.sessions = [];
            const config = {{ loss: "CrossEntropyLoss", optimizer: "SGD", learningRate: {norms.RATE} }};
            for (const data of rows) {{
              const session = await TrainingSession.createFromModel("/norms.onnx", config);
              const client = session.federated({{ statistics: "average" }});
              window.sessions.push(session);
              await new Promise((onJoin, reject) => joinFlower(url, session, {{
                statistics: "average",
                train: (parameters) => client.round(parameters, data, {{ epochs: 2, batchSize: 8, shuffle: false }}),
                evaluate: async () => ({{ examples: 1, metrics: await session.evaluate(data) }}),
                onJoin,
              }}).catch(reject));
            }}""",
            rows=rows,
            url=fleet.url,
        )
        nodes = [node_of(fleet) for _ in clients]
        for number in range(1, norms.ROUNDS + 1):
            for node in nodes:
                node.tasks.put(asked("train", number, common))
            answers = [node.answers.get(timeout=SECONDS)[1][0] for node in nodes]
            average = {
                name: np.average([sent[name].astype(np.float64) for sent in answers], axis=0, weights=norms.SIZES)
                for name in common
            }
            common = {name: array.astype(np.float32) for name, array in average.items()}
            for name, array in norms.states(record, number).items():
                np.testing.assert_allclose(common[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
        # The session that evaluates has the statistics, too.
        nodes[0].tasks.put(asked("evaluate", 4, common))
        nodes[0].answers.get(timeout=SECONDS)
        mean = js.run('return [...(await sessions[0].getParameter("1.running_mean")).data];')
        np.testing.assert_array_equal(np.float32(mean), common["1.running_mean"])
        js.run("for (const session of sessions) await session.release();")


WITHOUT_EVALUATE = """async (url) => {
    const { joinFlower, TrainingSession } = await import("/dist/index.js");
    const config = { loss: "CrossEntropyLoss", optimizer: "SGD" };
    const session = await TrainingSession.createFromModel("/task/model.onnx", config);
    await new Promise((onJoin) => void joinFlower(url, session, { train: () => session.release(), onJoin }));
}"""


@pytest.mark.page_errors(r"WebSocket connection to .* failed")
def test_what_goes_wrong_is_told_to_both_sides(page: Page, task_site: Site) -> None:
    with FakeFleet() as fleet:
        page.goto(task_site.url(f"/client.html?part=0&bridge={fleet.url}"))
        state_is(page, "joined")
        node = node_of(fleet)
        # The page itself fails: the server learns of it, and the page stays.
        node.tasks.put(Task("bad", "train", {**CONFIG, "batch-size": 0}, task.initial()))
        name, reason = node.answers.get(timeout=SECONDS)
        assert name == "bad" and "batchSize is 0; it must be an integer >= 1" in reason
        node.tasks.put(asked("train", 1, {name: array * np.nan for name, array in task.initial().items()}))
        assert "not finite" in node.answers.get(timeout=SECONDS)[1]
        arrays = task.initial()
        arrays["conv.weight"] = arrays["conv.weight"][:4]
        node.tasks.put(asked("train", 1, arrays))
        assert "'conv.weight' has the shape [4, 1, 5, 5], expected [8, 1, 5, 5]" in node.answers.get(timeout=SECONDS)[1]
        assert page.evaluate("window.state") == "joined"
    assert state_is(page, "left") == "left"
    # A page without 'evaluate' says what the server can do.
    with FakeFleet() as other:
        page.evaluate(WITHOUT_EVALUATE, other.url)
        node = node_of(other)
        node.tasks.put(asked("evaluate", 1, task.initial()))
        assert "no 'evaluate'. Give joinFlower one, or the strategy" in node.answers.get(timeout=SECONDS)[1]
    # Nobody listens there any more.
    page.reload()
    assert f"SessionError: No connection to {fleet.url}" in state_is(page, "Error")
    with FakeFleet(pages=1) as fleet, connect(fleet.url):
        page.goto(task_site.url(f"/client.html?part=0&bridge={fleet.url}"))
        assert "ended (code 1013): there are 1 pages already" in state_is(page, "Error")


BAD_FRAMES = {
    "text": ("'hello'", "no frame"),
    "length": ("new Uint8Array([255, 255, 255, 255, 0])", "a header of 4294967295 bytes"),
    "json": ("new Uint8Array([1, 0, 0, 0, 123])", "not JSON"),
    "type": ("frame({ type: 'dance', arrays: [] })", "a message 'dance'"),
    "model": ("frame({ type: 'task', id: '1', kind: 'train', config: {}, arrays: [] })", "parameters of another model"),
    "short": ("frame({ type: 'task', arrays: [{ name: 'w', shape: [2] }] })", "too few numbers for 'w'"),
    "long": ("frame({ type: 'task', arrays: [{ name: 'w', shape: [0] }] }, 8)", "8 bytes too many"),
    "shapeless": ("frame({ type: 'task', arrays: [{}] })", "arrays that are none"),
}


def test_a_page_refuses_what_a_bridge_never_sends(js: JsPage) -> None:
    """The other end is a script of the test."""
    found = js.run(
        f"""const frame = (header, more = 0) => {{
          const text = new TextEncoder().encode(JSON.stringify(header));
          const bytes = new Uint8Array(4 + text.length + more);
          new DataView(bytes.buffer).setUint32(0, text.length, true);
          bytes.set(text, 4);
          return bytes;
        }};
        const session = {{
          parameterNames: async () => ["w"],
          getParameterTypeAndShape: async () => ({{ type: "float32", dims: [2] }}),
        }};
        const frames = {{ {", ".join(f"{name}: {made}" for name, (made, _) in BAD_FRAMES.items())} }};
        const found = {{}};
        const Real = WebSocket;
        try {{
          for (const [name, bytes] of Object.entries(frames)) {{
            globalThis.WebSocket = class {{
              static OPEN = 1;
              readyState = 1;
              constructor() {{
                setTimeout(() => {{
                  this.onopen();
                  this.onmessage({{ data: typeof bytes === "string" ? bytes : bytes.buffer }});
                }});
              }}
              send() {{}}
              close(code) {{ this.onclose({{ code, reason: "" }}); }}
            }};
            found[name] = await joinFlower("ws://x", session, {{ train: () => {{}} }}).then(() => "well", String);
          }}
        }} finally {{
          globalThis.WebSocket = Real;
        }}
        return found;"""
    )
    for name, (_, words) in BAD_FRAMES.items():
        assert found[name].startswith("SessionError: The bridge sent an unexpected message") and words in found[name]
