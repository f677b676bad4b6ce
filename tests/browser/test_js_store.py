"""`CheckpointStore` in a page, and fits whose tab is closed."""

import base64
import random
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import trainweb

from .closed_tabs import Tabs, equal, trial
from .js_session import JsPage, open_js_page
from .server import Site
from .test_js_fit import OPEN, arrays, native

BACKENDS = ("opfs", "indexedDB")

STORE = f"""{OPEN}
    const slots = async () => {{
      let folder = await navigator.storage.getDirectory();
      for (const name of ["trainweb", "checkpoints", "test"]) {{
        folder = await folder.getDirectoryHandle(name, {{ create: true }});
      }}
      return folder;
    }};
    const store = new CheckpointStore("test", {{ backend: typeof backend === "undefined" ? "opfs" : backend }});
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_closed_tabs(browser: Browser, plain_site: Site, backend: str) -> None:
    """Twenty moments: `./build.sh test-closed-tabs`."""
    tabs = Tabs(browser, plain_site)
    whole = tabs.fit(None)
    trial(tabs, "run", whole, random.Random(backend), backend)
    assert equal(tabs.fit("run", backend), whole), "a fit that is done goes on from its end"
    tabs.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_page_keeps_goes_on_in_python(js: JsPage, tmp_path: Path, backend: str) -> None:
    found, count = js.run(
        f"""{STORE}
        const options = {{ batchSize: 8, accumulate: 2, schedule, validationSplit: 0.2, seed: 3 }};
        const s = await open();
        const checkpoint = {{ store, name: "run", every: 2 }};
        const history = await s.fit(data(), {{ ...options, epochs: 2, checkpoint }});
        await s.release();
        return [base64(await (await store.read("run")).arrayBuffer()), history.losses.length];""",
        backend=backend,
    )
    options = {"batch_size": 8, "accumulate": 2, "validation_split": 0.2, "seed": 3}
    schedule = {"type": "Cosine", "learning_rate": 0.05, "total": 12, "warmup": 2}
    expected, whole = native(arrays(), epochs=4, schedule=schedule, **options)
    store = trainweb.CheckpointStore(tmp_path)
    store.write("run", base64.b64decode(found))
    got, history = native(arrays(), epochs=4, schedule=schedule, checkpoint={"store": store, "name": "run"}, **options)
    assert got == expected and history.losses == whole.losses and count == len(whole.losses) // 2
    assert [(e.loss, e.validation, e.learning_rate) for e in history.epochs] == [
        (e.loss, e.validation, e.learning_rate) for e in whole.epochs
    ]


def test_what_python_keeps_goes_on_in_a_page(js: JsPage, tmp_path: Path) -> None:
    options = {"batch_size": 8, "accumulate": 2, "validation_split": 0.2, "seed": 3}
    early = {"patience": 5, "restore_best": True}
    expected, whole = native(arrays(), epochs=4, early_stopping=early, **options)
    store = trainweb.CheckpointStore(tmp_path)
    native(arrays(), epochs=2, early_stopping=early, checkpoint={"store": store, "name": "run"}, **options)
    got, losses, best = js.run(
        f"""{STORE}
        await store.write("from python", Uint8Array.from(atob(file), (c) => c.charCodeAt(0)));
        const s = await open();
        const history = await s.fit(data(), {{
          epochs: 4, batchSize: 8, accumulate: 2, validationSplit: 0.2, seed: 3,
          earlyStopping: {{ patience: 5, restoreBest: true }}, checkpoint: {{ store, name: "from python" }},
        }});
        const found = [await bytes(s), history.losses, history.bestEpoch];
        await s.release();
        return found;""",
        file=base64.b64encode(store.read("run")).decode(),
    )
    assert bytes(got) == expected and losses == whole.losses and best == whole.best_epoch


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_store(js: JsPage, backend: str) -> None:
    """What only pages have: backends, stores by name, room. `tests/conformance/fits.py` has what calls give."""
    found = js.run(
        f"""{STORE}
        for (const {{ name }} of await store.list()) await store.delete(name);
        const s = await open();
        const before = await bytes(s);
        await store.save(s, "Größe/1 %");
        await s.fit(data());
        const after = await bytes(s);
        await store.save(s, "trained");
        await store.rename("trained", "..");
        const listed = (await store.list()).map((one) => [one.name, one.nbytes > 400, one.written instanceof Date]);
        const back = [];
        const copy = new CheckpointStore("other", {{ backend }});
        await copy.write("copy", await store.read(".."));
        await store.delete("..");
        const names = [(await store.list()).map(({{ name }}) => name), (await copy.list()).map(({{ name }}) => name)];
        for (const [from, name, wanted] of [[store, "Größe/1 %", before], [copy, "copy", after]]) {{
          await from.load(s, name);
          back.push((await bytes(s)).join() === wanted.join());
        }}
        await copy.delete("copy");
        const errors = [];
        for (const action of [() => store.write("x", 3), () => store.save(3, "x"), () => store.load(null, "x")]) {{
          const {{ name, message }} = await failure(action);
          errors.push([name, message.slice(0, 32)]);
        }}
        const quota = await store.quota();
        await s.release();
        return {{ back, listed, names, errors, quota, persists: typeof await store.persist() }};""",
        backend=backend,
    )
    assert found["back"] == [True, True]
    assert found["listed"] == [["..", True, True], ["Größe/1 %", True, True]]
    assert found["names"] == [["Größe/1 %"], ["copy"]]
    assert [e[0] for e in found["errors"]] == ["ModelError", "TypeError", "TypeError"]
    assert [e[1] for e in found["errors"][1:]] == ["'session' must be a TrainingSess"] * 2
    assert found["quota"]["quota"] > found["quota"]["usage"] >= 0 and found["persists"] == "boolean"


def test_files_of_others_are_not_listed(js: JsPage) -> None:
    names = js.run(
        f"""{STORE}
        for (const {{ name }} of await store.list()) await store.delete(name);
        await store.write("a b", new Uint8Array(8));
        const foreign = ["%E0%A4%A.0", "a b.0", "%41.1", "x".repeat(200) + ".0", ".hidden.0"];
        const folder = await slots();
        let contents = null;
        for await (const handle of folder.values()) contents ??= await (await handle.getFile()).arrayBuffer();
        for (const name of foreign) {{
          const file = await (await folder.getFileHandle(name, {{ create: true }})).createWritable();
          await file.write(contents);
          await file.close();
        }}
        const names = (await store.list()).map(({{ name }}) => name);
        for (const name of foreign) await folder.removeEntry(name);
        await store.delete("a b");
        return names;"""
    )
    assert names == ["a b"]


def test_a_write_that_is_interrupted_leaves_the_old_or_the_new(js: JsPage) -> None:
    """Slots as a crash leaves them: cut anywhere, or with the header missing."""
    found = js.run(
        f"""{STORE}
        const s = await open();
        const wanted = {{}};
        const files = {{}};
        const folder = await slots();
        for (const name of ["old", "new"]) {{
          if (name === "new") await s.fit(data());
          await store.save(s, "torn");
          wanted[name] = (await bytes(s)).join();
          for await (const [file, handle] of folder.entries()) {{
            if (!file.startsWith("torn.")) continue;
            files[name] = [file, new Uint8Array(await (await handle.getFile()).arrayBuffer())];
          }}
        }}
        const put = async ([file], data) => {{
          const stream = await (await folder.getFileHandle(file, {{ create: true }})).createWritable();
          await stream.write(data);
          await stream.close();
        }};
        const seen = [files.old[0] !== files.new[0]];
        const after = files.new[1];
        const cuts = Array.from({{ length: 24 }}, (_, k) => Math.floor((k * after.length) / 23));
        for (const cut of [0, 1, 71, 72, 73, ...cuts]) {{
          const bare = after.slice(0, cut).fill(0, 0, 72);
          for (const torn of [after.slice(0, cut), bare]) {{
            await put(files.old, files.old[1]);
            await put(files.new, torn);
            await store.load(s, "torn");
            const isWhole = torn.length === after.length && torn !== bare;
            seen.push((await bytes(s)).join() === (isWhole ? wanted.new : wanted.old));
          }}
        }}
        // Alone, a damaged one is told, and one that was never finished is none.
        const damaged = after.slice();
        damaged[after.length - 1] ^= 1;
        await folder.removeEntry(files.old[0]);
        await put(files.new, damaged);
        const errors = [await failure(() => store.load(s, "torn"))];
        for (const data of [after.slice(0, 100), after.slice(0, 40), after.map((byte, k) => byte ^ Number(k === 3))]) {{
          await put(files.new, data);
          errors.push(await failure(() => store.load(s, "torn")));
        }}
        const isListed = async () => (await store.list()).some(({{ name }}) => name === "torn");
        const listed = [await isListed()];
        for (const data of [after.slice().fill(0, 0, 72), after.slice(0, 0)]) {{
          await put(files.new, data);
          errors.push(await failure(() => store.load(s, "torn")));
        }}
        listed.push(await isListed());
        await store.delete("torn");
        await s.release();
        return [seen, errors.map(({{ name, message }}) => [name, message]), listed];"""
    )
    assert all(found[0]) and len(found[0]) == 59
    assert found[1] == [
        *[["CheckpointError", "The checkpoint 'torn' in 'test' is damaged."]] * 4,
        *[["StorageError", "There is no checkpoint 'torn' in 'test'."]] * 2,
    ]
    assert found[2] == [True, False]


def test_another_tab_is_kept_out(browser: Browser, plain_site: Site) -> None:
    with open_js_page(browser, plain_site) as js:
        other = JsPage(js.page.context.new_page(), plain_site)
        other.run(
            f"""{STORE}
            const s = await open();
            window.fit = s.fit(data(), {{ epochs: 1e6, checkpoint: {{ store, name: "one" }} }});
            window.fit.catch(() => {{}});
            while (window.fit.history.epochs.length === 0) await new Promise((resolve) => setTimeout(resolve, 10));"""
        )
        errors = js.run(
            f"""{STORE}
            const s = await open();
            const checkpoint = {{ store, name: "one" }};
            return Promise.all([
              () => store.save(s, "one"), () => store.delete("one"), () => s.fit(data(), {{ checkpoint }}),
            ].map(async (action) => (await failure(action)).message));"""
        )
        assert (
            errors == ["The checkpoint 'one' is in use by a fit, perhaps of another process or tab: end it first."] * 3
        )
        other.page.close()
        ended = js.run(
            f"""{STORE}
            const s = await open();
            return (await s.fit(data(), {{ epochs: 2, checkpoint: {{ store, name: "one" }} }})).ended;"""
        )
        assert ended == "done"


def test_a_full_disk_leaves_the_old_one(browser: Browser, plain_site: Site) -> None:
    with open_js_page(browser, plain_site) as js:
        js.run(
            f"""{STORE}
            window.s = await open();
            await store.save(s, "one");
            window.before = (await bytes(s)).join();"""
        )
        cdp = js.page.context.new_cdp_session(js.page)
        cdp.send("Storage.overrideQuotaForOrigin", {"origin": plain_site.url("").rstrip("/"), "quotaSize": 1})
        errors = js.run(
            f"""{STORE}
            await window.s.fit(data());
            const checkpoint = {{ store, name: "fit" }};
            const errors = [
              await failure(() => store.save(window.s, "one")),
              await failure(() => window.s.fit(data(), {{ checkpoint }})),
            ];
            return errors.map(({{ name, message }}) => [name, message.slice(0, 38)]);"""
        )
        assert errors == [
            ["StorageError", "There is no room for the checkpoint 'o"],
            ["StorageError", "There is no room for the checkpoint 'f"],
        ]
        assert js.run(
            f"""{STORE}
            await store.load(window.s, "one");
            return (await bytes(window.s)).join() === window.before;"""
        )


def test_a_full_database_leaves_the_old_one(js: JsPage) -> None:
    """The database of Chromium counts in steps of megabytes: its refusal is one of ours."""
    found = js.run(
        f"""{STORE}
        await store.write("full", Uint8Array.of(1, 2, 3));
        const {{ put }} = IDBObjectStore.prototype;
        IDBObjectStore.prototype.put = function (...args) {{
          const request = put.apply(this, args);
          request.onsuccess = () => {{
            throw new DOMException("full", "QuotaExceededError");  // which aborts the transaction
          }};
          return request;
        }};
        window.onerror = () => true;
        const error = await failure(() => store.write("full", new Uint8Array(5)));
        IDBObjectStore.prototype.put = put;
        return [error !== null, [...new Uint8Array(await (await store.read("full")).arrayBuffer())]];""",
        backend="indexedDB",
    )
    assert found == [True, [1, 2, 3]]


@pytest.mark.parametrize("how", ["missing", "refused"])
def test_without_private_files_checkpoints_go_to_indexed_db(browser: Browser, plain_site: Site, how: str) -> None:
    """Nobody says where: a browser that has no OPFS, or refuses it (private windows), is found out."""
    with open_js_page(browser, plain_site) as js:
        kept, steps, left, error = js.run(
            f"""const getDirectory = StorageManager.prototype.getDirectory;
            if (how === "missing") delete StorageManager.prototype.getDirectory;
            const refuse = async () => {{ throw new DOMException("no", "SecurityError"); }};
            if (how === "refused") StorageManager.prototype.getDirectory = refuse;
            {OPEN}
            const fitted = async (epochs) => {{
              const s = await open();
              const checkpoint = {{ store: new CheckpointStore("found"), name: "run" }};
              const history = await s.fit(data(), {{ batchSize: 8, epochs, checkpoint }});
              await s.release();
              return history.losses.length;
            }};
            const steps = [await fitted(1), await fitted(2)];
            const database = await new Promise((resolve) => {{
              const request = indexedDB.open("trainweb");
              request.onsuccess = () => resolve(request.result);
            }});
            const kept = await new Promise((resolve) => {{
              const request = database.transaction("checkpoints").objectStore("checkpoints").getAllKeys();
              request.onsuccess = () => resolve(request.result);
            }});
            database.close();
            Object.defineProperty(globalThis, "indexedDB", {{ value: undefined, configurable: true }});
            const error = await failure(() => new CheckpointStore("found").list());
            StorageManager.prototype.getDirectory = getDirectory;
            const left = [];
            for await (const name of (await navigator.storage.getDirectory()).keys()) left.push(name);
            return [kept, steps, left, error];""",
            how=how,
        )
    assert kept == [["found", "run"]] and "trainweb" not in left
    assert steps[1] == 2 * steps[0], "the second fit goes on from the first"
    assert error["class"] == "StorageError"


def test_a_fit_that_has_ended_says_that_nothing_is_trained(js: JsPage) -> None:
    said = js.run(
        f"""{STORE}
        await store.delete("done");
        const before = console.warn;
        const found = [];
        const all = [{{ epochs: 2 }}, {{ epochs: 2, learningRate: 0.5 }}, {{ epochs: 1 }}, {{ epochs: 3 }}];
        for (const options of all) {{
          const s = await open();
          const notices = [];
          console.warn = (...texts) => notices.push(texts.join(" "));
          const checkpoint = {{ store, name: "done" }};
          const {{ losses }} = await s.fit(data(), {{ batchSize: 20, ...options, checkpoint }});
          console.warn = before;
          found.push([losses.length, ...notices]);
          await s.release();
        }}
        return found;"""
    )
    (first, *none), *over, (more, *none_of_more) = said
    assert none == none_of_more == [] and more == 1.5 * first
    for count, notice in over:
        assert count == first
        assert notice.startswith("trainweb: The fit of the checkpoint 'done' ended before, after 2 epochs: nothing was")
