"""Federated rounds in a page: against Python, whose own tests have formulas for it."""

import base64
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from onnx import helper, numpy_helper
from tests.conformance.fits import BASE
from tests.conformance.models import make_model
from tests.python.test_noted_batch_norm import TRAINED, net

import trainweb
from trainweb import federated
from trainweb.artifacts import build_artifacts
from trainweb.federated import ClientUpdate, SecureMember

from .js_session import JsPage
from .test_js_fit import OPEN, arrays

RNG = np.random.default_rng(3)
VECTORS = RNG.normal(size=(3, 50)).astype(np.float32)


def open_session() -> trainweb.TrainingSession:
    """The object that `open` of the page makes."""
    built = build_artifacts(BASE, loss="CrossEntropyLoss", optimizer="AdamW", additional_output_names=["logits"])
    state = trainweb.CheckpointState.load_checkpoint(built.checkpoint)
    models = built.training_model, built.eval_model, built.optimizer_model
    return trainweb.TrainingSession(state, *models, {"reproducible": True})


def literal(array: np.ndarray) -> str:
    """An array in JavaScript; float32 survive as float64."""
    kind = {"float32": "Float32Array", "uint8": "Uint8Array", "uint32": "Uint32Array"}[str(array.dtype)]
    return f"new {kind}({array.tolist()})"


@pytest.mark.parametrize("frozen", [[], ["n0\\..*"]])
def test_a_client_warns_of_statistics_that_rounds_do_not_average(js: JsPage, frozen: list[str]) -> None:
    said: list[str] = []
    js.page.on("console", lambda message: said.append(message.text))
    js.site.add("/norm.onnx", net(TRAINED).SerializeToString())
    js.run(
        """const config = { loss: null, optimizer: "SGD", frozenParams: frozen };
        const s = await TrainingSession.createFromModel("/norm.onnx", config);
        s.federated();
        s.federated({ statistics: "average" }); // it has nothing to warn of
        const x = new Tensor("float32", new Float32Array(9), [3, 3]);
        for (let k = 0; k < 3; k++) await s.fit({ x }, { batchSize: 2 });
        await s.release();""",
        frozen=frozen,
    )
    rounds = [text for text in said if "Training moves 2 untrained tensors, such as 'n0.running_mean'" in text]
    rows = [text for text in said if "A batch normalization in training mode gets one value" in text]
    assert (len(rounds), len(rows)) == ((0, 0) if frozen else (1, 1)), said


def test_a_client_warns_of_moments_that_stay(js: JsPage) -> None:
    said: list[str] = []
    js.page.on("console", lambda message: said.append(message.text))
    js.site.add("/mlp.onnx", BASE.read_bytes())
    js.run(
        """for (const optimizer of ["AdamW", "SGD"]) {
          const s = await TrainingSession.createFromModel("/mlp.onnx", { loss: "CrossEntropyLoss", optimizer });
          s.federated();
          await s.release();
        }"""
    )
    assert ["Moments of AdamW stay with each client" in text for text in said] == [True], said


@pytest.mark.parametrize("mu", [0.0, 0.6])
def test_a_round_gives_the_bytes_of_python(js: JsPage, mu: float) -> None:
    found = js.run(
        f"""{OPEN}
        const s = await open();
        const start = (await s.getContiguousParameters(true)).data;
        const options = {{ epochs: 2, batchSize: 16, accumulate: 2, seed: 4, proximal: {mu} }};
        const updates = [];
        for (const client of [s.federated(), s.federated({{ clipNorm: 0.01 }})]) {{
          updates.push(await client.round(start, data(), options));
        }}
        const noisy = s.federated({{ clipNorm: 0.01, noiseMultiplier: 1.5, noiseClients: 9, seed: 7 }});
        for (let k = 0; k < 2; k++) updates.push(await noisy.round(start, data(), options));
        await s.release();
        return updates.map(({{ delta, examples, norm, isNoised, history }}) =>
          [[...delta], examples, norm, isNoised, history.losses.length]);"""
    )
    with open_session() as session:
        start = session.get_contiguous_parameters(True)
        options = {"epochs": 2, "batch_size": 16, "accumulate": 2, "seed": 4, "proximal": mu, "progress": False}
        # The optimizer's moments go on from round to round: here as there.
        clients = [session.federated(), session.federated(clip_norm=0.01)]
        clients += 2 * [session.federated(clip_norm=0.01, noise_multiplier=1.5, noise_clients=9, seed=7)]
        expected = [client.round(start, arrays(), **options) for client in clients]
    for mine, other in zip(found, expected, strict=True):
        assert mine[1:2] + mine[3:] == [other.examples, other.is_noised, len(other.history.losses)]
        assert mine[2] == pytest.approx(other.norm, rel=1e-12)
        if not other.is_noised:
            np.testing.assert_array_equal(np.array(mine[0], np.float32), other.delta)
        # Logarithms and cosines are not the same everywhere.
        np.testing.assert_allclose(mine[0], other.delta, rtol=1e-5, atol=1e-9)
    assert found[1][2] > 0.02 and np.linalg.norm(found[1][0]) == pytest.approx(0.01, rel=1e-5)
    assert np.abs(np.subtract(found[2][0], found[3][0])).max() > 1e-3


def test_examples_are_the_rows_that_were_trained_on(js: JsPage) -> None:
    """Of 50 rows; of 10 images, whose steps are counted."""
    weight = numpy_helper.from_array(np.zeros((12, 2), np.float32), "weight")
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "weight"], ["y"])]
    model = make_model(nodes, {"x": ["n", 3, 2, 2]}, {"y": ["n", 2]}, [weight])
    js.site.add("/images.onnx", model.SerializeToString())
    found = js.run(
        f"""{OPEN}
        const [s, ofImages] = [await open({{ optimizer: "SGD" }}),
          await TrainingSession.createFromModel("/images.onnx", {{ loss: "CrossEntropyLoss", optimizer: "SGD" }})];
        const roundOf = async (s, rows, options) => {{
          const start = (await s.getContiguousParameters(true)).data;
          return (await s.federated().round(start, rows, {{ ...options }})).examples;
        }};
        const columns = {{ labels: new Tensor("int64", new BigInt64Array(10), [10]) }};
        const sources = Array.from({{ length: 10 }}, () => new ImageData(2, 2));
        const images = () => readImages(sources, {{ input: "x", width: 2, height: 2, columns }});
        const lost = data();
        lost.x.data.fill(NaN, 0, 40);
        const found = [];
        for (const [rows, options] of [
          [data(), {{ validationSplit: 0.8 }}], [data(), {{ validationSplit: 0.8, epochs: 3 }}],
          [data(), {{ batchSize: 20, remainder: "drop" }}], [data(), {{ batchSize: 20, remainder: "pad" }}],
          [data(), {{ epochs: 2, callbacks: [(event, run) => run.stop()] }}],
          [lost, {{ batchSize: 5, shuffle: false, onNaN: "skip" }}],
        ]) found.push(await roundOf(s, rows, options));
        for (const options of [{{}}, {{ validationSplit: 0.5 }}, {{ stepsPerEpoch: 2 }}]) {{
          found.push(await roundOf(ofImages, images(), {{ batchSize: 3, ...options }}));
        }}
        await s.release();
        await ofImages.release();
        return found;"""
    )
    assert found == [10, 10, 40, 50, 50, 45, 10, 5, 6]


def test_averages_are_those_of_python(js: JsPage) -> None:
    counts = [3, 10, 7]
    updates = ", ".join(f"{{ delta: {literal(v)}, examples: {n} }}" for v, n in zip(VECTORS, counts, strict=True))
    start = VECTORS[::-1].sum(0)
    found = js.run(
        f"""const updates = [{updates}];
        const weights = ["examples", "equal", [1, 2.5, 0.25]];
        return weights.map((given) => [...averageUpdates({literal(start)}, updates, given)]);"""
    )
    given = [ClientUpdate(v, n) for v, n in zip(VECTORS, counts, strict=True)]
    for mine, weights in zip(found, ("examples", "equal", [1, 2.5, 0.25]), strict=True):
        np.testing.assert_array_equal(np.array(mine, np.float32), federated.average_updates(start, given, weights))


def test_noise_without_a_seed_is_new_each_time(js: JsPage) -> None:
    first, second = js.run(
        """const zeros = new Float32Array(40001);
        return [[...addNoise(zeros, 2)], [...addNoise(zeros, 2)]];"""
    )
    assert (np.array(first) != np.array(second)).mean() > 0.99
    for drawn in (first, second):  # eight standard errors and more
        assert abs(np.mean(drawn)) < 0.1 and abs(np.std(drawn) - 2) < 0.1 and np.count_nonzero(drawn) > 39_000


def der() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    form = (serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form)


def test_pages_and_processes_mask_for_each_other(js: JsPage) -> None:
    """Two members are processes, one is a page with a key of the test: its words are Python's, and the masks cancel."""
    key = der()
    twin, *others = (SecureMember(name, "round-1", k) for name, k in (("page", key), ("ann", None), ("zoe", None)))
    keys = {member.public_key: member for member in (twin, *others)}
    listed = {member.name: public for public, member in keys.items()}
    given = ", ".join(f"{name}: {literal(np.frombuffer(public, np.uint8))}" for name, public in listed.items())
    masked, public, refused = js.run(
        f"""const der = Uint8Array.from(atob("{base64.b64encode(key).decode()}"), (c) => c.charCodeAt(0));
        const curve = {{ name: "ECDH", namedCurve: "P-256" }};
        const privateKey = await crypto.subtle.importKey("pkcs8", der, curve, false, ["deriveBits"]);
        const raw = {literal(np.frombuffer(twin.public_key, np.uint8))};
        const publicKey = await crypto.subtle.importKey("raw", raw, curve, true, []);
        const member = await SecureMember.create("page", "round-1", {{ privateKey, publicKey }});
        const keys = {{ {given} }};
        const masked = await member.mask({literal(VECTORS[0])}, keys, {{ bound: 6, weight: 0.3 }});
        const again = await member.mask({literal(VECTORS[0])}, keys, {{ bound: 6 }}).catch(String);
        return [[...masked], [...member.publicKey], again];"""
    )
    assert bytes(public) == twin.public_key and "already masked an update" in refused
    np.testing.assert_array_equal(np.array(masked, np.uint32), twin.mask(VECTORS[0], listed, 6, 0.3))
    sent = {m.name: m.mask(v, listed, 6) for m, v in zip(others, VECTORS[1:], strict=True)}
    sent["page"] = np.array(masked, np.uint32)
    total, weight = federated.add_masked(sent, list(listed), 6)
    assert weight == pytest.approx(2.3, abs=1e-8)
    np.testing.assert_allclose(total, 0.3 * VECTORS[0].astype(float) + VECTORS[1] + VECTORS[2], atol=1e-7)
    words = ", ".join(f"{name}: {literal(vector)}" for name, vector in sent.items())
    mine, lost = js.run(
        f"""const masked = {{ {words} }};
        const names = Object.keys(masked);
        const {{ sum, weight }} = addMasked(masked, names, {{ bound: 6 }});
        delete masked.zoe;
        const errors = [];
        for (const members of [names, names.slice(0, 1), names.filter((name) => name !== "zoe")]) {{
          try {{ addMasked(masked, members, {{ bound: 6 }}); }} catch (error) {{ errors.push(String(error)); }}
        }}
        return [[...sum, weight], errors];"""
    )
    np.testing.assert_array_equal(mine, [*total, weight])
    for error, text in zip(
        lost, ("No masked update arrived from zoe", "two members or more", "do not cancel"), strict=True
    ):
        assert text in error


def test_pages_aggregate_securely_by_themselves(js: JsPage) -> None:
    found: list[Any] = js.run(
        """const names = ["a", "b", "c", "d"];
        const members = await Promise.all(names.map((name) => SecureMember.create(name, "r")));
        const keys = Object.fromEntries(members.map(({ name, publicKey }) => [name, publicKey]));
        const updates = names.map((_, k) => Float32Array.from({ length: 300 }, (_, i) => Math.sin(i * (k + 1))));
        const masked = {};
        for (const [k, member] of members.entries()) {
          masked[member.name] = await member.mask(updates[k], keys, { bound: 1 });
        }
        const beyond = await (await SecureMember.create("a", "s")).mask(updates[0], keys, { bound: 1 }).catch(String);
        const other = await SecureMember.create("a", "s");
        const mine = { ...keys, a: other.publicKey };
        const large = await other.mask(updates[0], mine, { bound: 0.5 }).catch(String);
        const same = await other.mask(updates[0], { ...mine, b: other.publicKey }, { bound: 1 }).catch(String);
        const bad = { ...mine, b: new Uint8Array(65).fill(4) };
        const point = await other.mask(updates[0], bad, { bound: 1 }).catch(String);
        const length = (await other.mask(updates[0], mine, { bound: 1 })).length;
        const { sum, weight } = addMasked(masked, names, { bound: 1 });
        return [[...sum], weight, updates.map((update) => [...update]), [beyond, large, same, point], length];"""
    )
    total, weight, updates, errors, length = found
    assert length == 305  # nothing was given away by the one that failed
    np.testing.assert_allclose(total, np.sum(updates, axis=0), atol=4 * 0.5 * 2.0**-28)
    assert weight == 4
    said = ("do not contain the key of 'a'", "beyond the bound 0.5", "same public key", "a point of P-256")
    for error, text in zip(errors, said, strict=True):
        assert text in error


def test_what_cannot_be_is_refused(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}
        const s = await open();
        const start = (await s.getContiguousParameters(true)).data;
        const store = new CheckpointStore("federated");
        const mixed = [1, 2].map((n) => ({{ delta: start, examples: n, isNoised: n === 1 }}));
        const tries = {{
          unknown: () => s.federated({{ clip: 1 }}),
          clip: () => s.federated({{ clipNorm: 0 }}),
          noise: () => s.federated({{ noiseMultiplier: 1 }}),
          statistics: () => s.federated({{ clipNorm: 1, noiseMultiplier: 1, statistics: "average" }}),
          average: () => s.federated({{ statistics: "mean" }}),
          joined: () => joinFlower("ws://127.0.0.1:9", s, {{ train: () => {{}}, statistics: "mean" }}),
          length: () => s.federated().round(start.subarray(1), data()),
          array: () => s.federated().round([...start], data()),
          finite: () => s.federated().round(start.map(() => NaN), data()),
          stream: () => s.federated().round(start, () => []),
          list: () => s.federated().round(start, [{{ x: 1 }}]),
          checkpoint: () => s.federated().round(start, data(), {{ proximal: 1, checkpoint: {{ store, name: "x" }} }}),
          updates: () => averageUpdates(start, []),
          infinite: () => averageUpdates(start, [{{ delta: start.map(() => Infinity), examples: 1 }}]),
          examples: () => averageUpdates(start, [{{ delta: start, examples: 0 }}]),
          weights: () => averageUpdates(start, [1, 2].map((n) => ({{ delta: start, examples: n, isNoised: true }}))),
          mixed: () => averageUpdates(start, mixed),
          last: () => averageUpdates(start, mixed.toReversed(), [1, 2]),
          equal: () => averageUpdates(start, mixed, [2, 2]),
          join: () => joinFlower("ws://127.0.0.1:9", s, {{ trian: () => {{}} }}),
          train: () => joinFlower("ws://127.0.0.1:9", s, {{}}),
        }};
        const found = {{}};
        for (const [name, call] of Object.entries(tries)) {{
          try {{ await call(); found[name] = "accepted"; }} catch (error) {{ found[name] = String(error); }}
        }}
        await s.release();
        return found;"""
    )
    expected = {
        "unknown": "has no setting 'clip'",
        "clip": "clipNorm is 0",
        "noise": "give 'clipNorm' with",
        "statistics": "with noise, 'statistics' must be 'local'",
        "average": "statistics is 'mean'; it must be local or average",
        "joined": "statistics is 'mean'; it must be local or average",
        "length": "BufferSizeError: parameters has",
        "array": "a Float32Array",
        "finite": "not finite",
        "stream": "needs arrays",
        "list": "needs arrays",
        "checkpoint": "cannot continue from a checkpoint",
        "updates": "a list of updates",
        "infinite": "updates[0].delta has numbers that are not finite",
        "examples": "updates[0].examples is 0",
        "weights": "equal weights",
        "mixed": "equal weights",
        "last": "equal weights",
        "equal": "accepted",
        "join": "trian",
        "train": "train is 'undefined'; it must be a function",
    }
    assert {name: text for name, text in expected.items() if text not in found[name]} == {}, found
