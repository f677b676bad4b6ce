"""`CheckpointStore` in Node: a folder on disk, whose files are Python's, and fits whose process is killed."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainweb
from trainweb.artifacts import build_artifacts
from trainweb.training.store import open_snapshot

from .server import ROOT
from .test_node import node
from .test_readme import FIRST_MODEL

ROWS, BATCH, EPOCHS = 96, 8, 4
SCHEDULE = {"type": "Cosine", "learning_rate": 0.05, "warmup": 2}

FIT = """
import { CheckpointStore, Dataset, TrainingSession } from "trainweb";
const points = Array.from({ length: 96 }, (_, k) => [((37 * k) % 101) / 101 - 0.5, ((59 * k) % 97) / 97 - 0.5]);
const data = { points, labels: points.map(([x, y]) => Number(x * y > 0)) };
const open = () => TrainingSession.createFromModel(
  "docs/first.onnx", { loss: "CrossEntropyLoss", optimizer: "AdamW" }, { reproducible: true });
const fit = async (checkpoint, epochs = 4, source = data, more = { validationSplit: 0.25 }) => {
  const session = await open();
  const schedule = { type: "Cosine", learningRate: 0.05, warmup: 2, total: 48 };
  const options = { epochs, batchSize: 8, schedule, metrics: ["accuracy"], ...more };
  const history = await session.fit(source, checkpoint ? { ...options, checkpoint } : options);
  const { data: bits } = await session.getContiguousParameters();
  const epochsOf = history.epochs.map((e) => [e.loss, e.validation, e.learningRate]);
  await session.release();
  return [Array.from(new Uint32Array(bits.buffer, bits.byteOffset, bits.length)), Array.from(history.losses), epochsOf];
};
"""

STREAM = """
// Rows that are read slowly, so that some of the process is left to be killed; each is told.
const slow = (ms) => new Dataset(async function* () {
  for (const [k, point] of points.entries()) {
    if (ms > 0) console.log(k);
    await new Promise((resolve) => setTimeout(resolve, ms));
    yield { points: point, labels: data.labels[k] };
  }
}).shuffle({ buffer: 16, seed: 3 });
const more = { validationData: data, shuffle: false };
"""


def store_in(folder: Path) -> str:
    return f"new CheckpointStore({json.dumps(str(folder))})"


def killed(code: str, at: int) -> None:
    """Run a module, and kill its process when it has printed so many lines."""
    process = subprocess.Popen(["node", "--input-type=module", "-e", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(at):
        assert process.stdout.readline(), "the fit ended before"
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    process.stdout.close()


def test_a_killed_fit_ends_with_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = node(f"{FIT}{STREAM} console.log(JSON.stringify(await fit(null, 4, slow(0), more)));")
    checkpoint = f'{{ store: {store_in(tmp_path)}, name: "a run", every: 2 }}'
    sizes = []
    for row in (130, 120, 60, 90):
        killed(f"{FIT}{STREAM} await fit({checkpoint}, 4, slow(4), more);", row)
        store = trainweb.CheckpointStore(tmp_path)
        sizes.append(json.loads(open_snapshot(store.read("a run")).metadata["position"])["optimizerSteps"])
    assert sizes == sorted(sizes) and sizes[0] >= 12 and sizes[-1] < 48
    resumed = node(f"{FIT}{STREAM} console.log(JSON.stringify(await fit({checkpoint}, 4, slow(0), more)));")
    assert resumed == undisturbed
    assert not list(tmp_path.glob(".*.tmp"))


def native(checkpoint: Any, epochs: int) -> tuple[list[int], list[float]]:
    points = np.array([[37 * k % 101 / 101 - 0.5, 59 * k % 97 / 97 - 0.5] for k in range(ROWS)])
    labels = (points[:, 0] * points[:, 1] > 0).astype(np.int64)
    files = build_artifacts(FIRST_MODEL, loss="CrossEntropyLoss", optimizer="AdamW")
    session = trainweb.TrainingSession(**files, options={"reproducible": True})
    history = session.fit(
        {"points": points.astype(np.float32), "labels": labels}, epochs=epochs, batch_size=BATCH,
        schedule=SCHEDULE | {"total": 48}, validation_split=0.25, metrics=["accuracy"], checkpoint=checkpoint,
    )  # fmt: skip
    bits: list[int] = session.get_contiguous_parameters().view(np.uint32).tolist()
    session.release()
    return bits, list(history.losses)


@pytest.mark.parametrize("first", ["node", "python"])
def test_a_fit_goes_on_in_the_other_language_from_the_folder(tmp_path: Path, first: str) -> None:
    name = "100 %: o'brien (*)!"
    store, in_node = trainweb.CheckpointStore(tmp_path), f"{{ store: {store_in(tmp_path)}, name: {json.dumps(name)} }}"
    whole = native(None, EPOCHS)
    if first == "node":
        node(f"{FIT} await fit({in_node}, 2);")
        found = native({"store": store, "name": name}, EPOCHS)
    else:
        native({"store": store, "name": name}, 2)
        bits, losses, _ = json.loads(node(f"{FIT} console.log(JSON.stringify(await fit({in_node})));"))
        found = bits, losses
    assert found == whole
    assert [path.name for path in tmp_path.glob("*.checkpoint")] == ["100 %25%3A o%27brien %28%2A%29%21.checkpoint"]


def test_calls_of_a_store_in_node(tmp_path: Path) -> None:
    found = node(f"""{FIT}
        const store = {store_in(tmp_path / "new" / "folder")};
        const names = async () => (await store.list()).map(({{ name, nbytes }}) => [name, nbytes]);
        const session = await open();
        const said = [await names()];
        await store.save(session, ".a/b");
        said.push(await names());
        await store.write("c", await store.read(".a/b"));
        await store.rename("c", "d");
        await store.load(session, "d");
        await store.delete(".a/b");
        said.push(await names());
        const errors = [];
        for (const call of [() => store.read("c"), () => store.load(session, "c"), () => new CheckpointStore().list(),
            () => store.write("!".repeat(80), new Uint8Array(1))]) {{
          await call().catch(({{ name, message }}) => errors.push(`${{name}} ${{message}}`));
        }}
        console.log(JSON.stringify([said, errors]));""")
    said, errors = json.loads(found)
    nbytes = said[1][0][1]
    assert said == [[], [[".a/b", nbytes]], [["d", nbytes]]] and nbytes > 0
    folder = tmp_path / "new" / "folder"
    assert errors[:2] == [f"StorageError There is no checkpoint 'c' in '{folder}'."] * 2
    assert errors[2].startswith("StorageError Outside of browsers name a folder: new Check")
    assert errors[3].startswith("StorageError A checkpoint's name must be a text of 1 to 180 bytes")
    assert trainweb.CheckpointStore(folder).list()[0].name == "d"


def test_a_damaged_file_and_a_second_fit_are_refused(tmp_path: Path) -> None:
    node(f'{FIT} const s = await open(); await {store_in(tmp_path)}.save(s, "x"); await s.release();')
    data = bytearray((tmp_path / "x.checkpoint").read_bytes())
    for size, flipped in ((len(data), len(data) - 1), (len(data), 30), (50, 40)):
        broken = data[:size]
        broken[flipped] ^= 1
        (tmp_path / "x.checkpoint").write_bytes(broken)
        found = node(
            f'{FIT} await {store_in(tmp_path)}.read("x").catch((e) => console.log(`${{e.name}} ${{e.message}}`));'
        )
        assert found == f"CheckpointError The checkpoint 'x' in '{tmp_path}' is damaged.\n"
    found = node(f"""{FIT}
        const checkpoint = {{ store: {store_in(tmp_path)}, name: "y" }};
        const both = await Promise.allSettled([fit(checkpoint), fit(checkpoint)]);
        console.log(JSON.stringify(both.map(({{ reason }}) => reason && `${{reason.name}} ${{reason.message}}`)));""")
    refusal = "StorageError The checkpoint 'y' is in use by a fit, perhaps of another process or tab: end it first."
    assert sorted(json.loads(found), key=str) == [None, refusal] or sorted(json.loads(found), key=str) == [
        refusal,
        None,
    ]


def test_a_disk_that_is_full_says_so_and_leaves_the_checkpoint(tmp_path: Path) -> None:
    """The limit of a process on the size of its files is a full disk of any machine."""
    before = node(f'{FIT} const s = await open(); await {store_in(tmp_path)}.save(s, "x"); await s.release();')
    assert before == ""
    old = (tmp_path / "x.checkpoint").read_bytes()
    code = f"""{FIT} const s = await open();
        const {{ name, needed, usage, quota, message }} = await {store_in(tmp_path)}.save(s, "x").catch((e) => e);
        console.log(JSON.stringify([name, needed > 0, usage > 0, quota > usage, message]));"""
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 1; trap "" XFSZ; exec node --input-type=module -e "$0"', code],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *kinds, message = json.loads(done.stdout)
    assert kinds == ["StorageError", True, True, True], message
    assert message.startswith("There is no room for the checkpoint 'x' of ") and message.endswith(
        "The old one is intact."
    )
    assert (tmp_path / "x.checkpoint").read_bytes() == old and not list(tmp_path.glob(".*.tmp"))
