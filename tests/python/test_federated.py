"""Federated rounds: FedProx, clipping, noise, averages, masks and accounting, against formulas of their own."""

import math
import sys
import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import onnx
import pytest
import scipy  # whose `stats` are imported where they are read: that takes two seconds
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from onnx import helper, numpy_helper
from tests.conformance.models import make_model
from tests.federated import norms
from tests.python.test_noted_batch_norm import MEAN, TRAINED, VARIANCE, net

import trainweb
from trainweb import federated
from trainweb.data.images import from_images
from trainweb.errors import BufferSizeError, FeedError, ModelError, SessionError, UnsupportedError
from trainweb.federated import ClientUpdate, FederatedClient, SecureMember, secure

WIDTH = 5
RNG = np.random.default_rng(8)
ROWS = {
    "x": RNG.normal(size=(24, WIDTH)).astype(np.float32),
    "target": RNG.normal(size=(24, 1)).astype(np.float32),
}
START = RNG.normal(size=WIDTH).astype(np.float32)


@pytest.fixture
def session() -> Any:
    """A linear regression: its gradient is a formula."""
    weight = numpy_helper.from_array(START.reshape(WIDTH, 1), "weight")
    model = make_model(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])], {"x": ["n", WIDTH]}, {"y": ["n", 1]}, [weight]
    )
    onnx.checker.check_model(model)
    with trainweb.TrainingSession.from_model(model, loss="MSELoss", optimizer="SGD") as made:
        made.set_learning_rate(0.05)
        yield made


def descend(start: np.ndarray, mu: float, batches: int, accumulate: int = 1) -> np.ndarray:
    """Gradient descent on ``mean((x w - t)^2) + mu / 2 * ||w - start||^2`` in float64."""
    w = start.astype(np.float64)
    x, t = ROWS["x"].astype(np.float64), ROWS["target"][:, 0].astype(np.float64)
    parts = np.array_split(np.arange(len(x)), batches)
    for k in range(0, batches, accumulate):
        taken = parts[k : k + accumulate]
        slope = sum(2 * x[p].T @ (x[p] @ w - t[p]) for p in taken) / sum(map(len, taken))
        w = w - 0.05 * (slope + mu * (w - start))
    return w


@pytest.mark.parametrize(("mu", "accumulate"), [(0.0, 1), (0.7, 1), (3.0, 2)])
def test_fedprox_descends_on_loss_and_term(session: trainweb.TrainingSession, mu: float, accumulate: int) -> None:
    options = {"batch_size": 4, "shuffle": False, "accumulate": accumulate, "progress": False}
    update = session.federated().round(START, ROWS, proximal=mu, **options)
    expected = descend(START, mu, 6, accumulate)
    np.testing.assert_allclose(START + update.delta, expected, rtol=2e-6, atol=2e-6)
    assert np.abs(expected - descend(START, mu + 0.5, 6, accumulate)).max() > 1e-3
    assert update.examples == 24 and not update.is_noised and len(update.history.losses) == 6
    # Another round starts from what it is given, not from where the session is.
    again = session.federated().round(2 * START, ROWS, proximal=mu, **options)
    np.testing.assert_allclose(2 * START + again.delta, descend(2 * START, mu, 6, accumulate), rtol=2e-6, atol=2e-6)


def test_examples_are_the_rows_that_were_trained_on(session: trainweb.TrainingSession) -> None:
    lost = ROWS | {"x": np.where(np.arange(24)[:, None] < 4, np.nan, ROWS["x"]).astype(np.float32)}
    settings = {"batch_size": 10, "shuffle": False, "progress": False}
    cases: list[tuple[Any, dict[str, Any], int]] = [
        (ROWS, {"validation_split": 0.75}, 6),
        (ROWS, {"validation_split": 0.75, "epochs": 3}, 6),
        (ROWS, {"remainder": "drop"}, 20),
        (ROWS, {"remainder": "pad"}, 24),
        (ROWS, {"callbacks": lambda event, run: run.stop(), "epochs": 2}, 24),
        (lost, {"on_nan": "skip", "batch_size": 4}, 20),
    ]
    for rows, options, count in cases:
        update = session.federated().round(START, rows, **settings | options)
        assert update.examples == count, options
    split = session.federated().round(START, ROWS, **settings, validation_split=0.75)
    alone = session.federated().round(START, {name: array[:6] for name, array in ROWS.items()}, **settings)
    np.testing.assert_array_equal(split.delta, alone.delta)
    assert alone.examples == 6


def test_examples_of_images_are_those_of_their_steps() -> None:
    weight = numpy_helper.from_array(np.zeros((12, 2), np.float32), "weight")
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "weight"], ["y"])]
    model = make_model(nodes, {"x": ["n", 3, 2, 2]}, {"y": ["n", 2]}, [weight])
    sources = [np.full((2, 2, 3), 20 * k, np.uint8) for k in range(10)]
    with trainweb.TrainingSession.from_model(model, loss="CrossEntropyLoss", optimizer="SGD") as session:
        for options, count in (({}, 10), ({"validation_split": 0.5}, 5), ({"steps_per_epoch": 2}, 6)):
            data = from_images(sources, "x", columns={"labels": np.arange(10) % 2}, width=2, height=2)
            start = session.get_contiguous_parameters(True)
            update = session.federated().round(start, data, batch_size=3, progress=False, **options)
            assert update.examples == count, options


def test_updates_are_clipped_and_noised(session: trainweb.TrainingSession) -> None:
    options = {"batch_size": 8, "shuffle": False, "progress": False}
    plain = session.federated().round(START, ROWS, **options)
    norm = float(np.linalg.norm(plain.delta.astype(np.float64)))
    assert plain.norm == pytest.approx(norm, rel=1e-12)
    clipped = session.federated(clip_norm=norm / 4).round(START, ROWS, **options)
    np.testing.assert_allclose(clipped.delta, plain.delta / 4, rtol=1e-6)
    assert clipped.norm == plain.norm
    noisy = session.federated(clip_norm=norm / 4, noise_multiplier=2.0, noise_clients=4, seed=5)
    first, second = (noisy.round(START, ROWS, **options).delta - clipped.delta for _ in range(2))
    assert np.abs(first - second).max() > 0.01 * norm, "each round has noise of its own"
    # The standard deviation of one of four: 2 * (norm / 4) / sqrt(4).
    np.testing.assert_allclose(first, norm / 4 * federated.add_noise(np.full(WIDTH, 1e-9), 1.0, 5, 0), atol=1e-6 * norm)


def test_rows_as_clients_are_clipped_one_by_one(session: trainweb.TrainingSession) -> None:
    """DP-SGD as docs/privacy.md has it: the sum over rows of gradients that are clipped by themselves."""
    clip, rate = 2.0, 0.05
    client = session.federated(clip_norm=rate * clip)
    rows = [{name: a[k : k + 1] for name, a in ROWS.items()} for k in range(24)]
    total = sum(client.round(START, row, batch_size=1, progress=False).delta for row in rows)
    x, t, w = (a.astype(np.float64) for a in (ROWS["x"], ROWS["target"][:, 0], START))
    gradients = 2 * (x @ w - t)[:, None] * x
    norms = np.linalg.norm(gradients, axis=1)
    assert 3 < (norms > clip).sum() < 21, "some rows are clipped, some are not"
    np.testing.assert_allclose(total, -rate * (gradients * np.minimum(1, clip / norms)[:, None]).sum(0), rtol=1e-4)


def test_noise_is_gaussian() -> None:
    zeros = np.zeros(200_001, np.float32)
    seeded = federated.add_noise(zeros, 3.0, seed=2**52 + 1)
    assert scipy.stats.kstest(seeded, "norm", args=(0, 3)).pvalue > 0.01
    assert abs(np.corrcoef(seeded[:-1], seeded[1:])[0, 1]) < 0.01
    np.testing.assert_array_equal(seeded, federated.add_noise(zeros, 3.0, seed=2**52 + 1))
    assert (seeded != federated.add_noise(zeros, 3.0, seed=2**52 + 1, stream=1)).mean() > 0.99
    first, second = (federated.add_noise(zeros, 3.0) for _ in range(2))
    assert (first != second).mean() > 0.99
    for drawn in (first, second):  # by chance beyond this once in 10^12
        assert scipy.stats.kstest(drawn, "norm", args=(0, 3)).pvalue > 1e-12


def test_averages_are_those_of_numpy() -> None:
    deltas = RNG.normal(size=(3, 40)).astype(np.float32)
    updates = [ClientUpdate(delta, count) for delta, count in zip(deltas, (10, 40, 250), strict=True)]
    start = RNG.normal(size=40).astype(np.float32)
    exact = deltas.astype(np.float64)
    own = (0.5, 0.25, 4.0)
    cases: list[tuple[Any, Sequence[float]]] = [("examples", (10, 40, 250)), ("equal", (1, 1, 1)), (own, own)]
    for weights, shares in cases:
        expected = (start + np.average(exact, axis=0, weights=shares)).astype(np.float32)
        np.testing.assert_allclose(federated.average_updates(start, updates, weights), expected, rtol=1e-6)
    noised = [ClientUpdate(delta, count, is_noised=True) for delta, count in zip(deltas, (1, 2, 3), strict=True)]
    mixed = [ClientUpdate(noised[0].delta, 1, is_noised=True), *updates[1:]]
    for given in (noised, mixed, mixed[::-1]):
        for weights in ("examples", (1, 1, 2)):
            with pytest.raises(ModelError, match="equal weights"):
                federated.average_updates(start, given, weights)
        equal = (start + exact.mean(axis=0)).astype(np.float32)
        for weights in ("clients", 3):
            with pytest.raises(ModelError, match="must be 'examples', 'equal' or a list of numbers, one a client"):
                federated.average_updates(start, given, weights)  # type: ignore[arg-type]
        for weights in ("equal", (3, 3, 3)):
            np.testing.assert_allclose(federated.average_updates(start, given, weights), equal, rtol=1e-5, atol=1e-6)


def clients_of_norms(record: dict[str, np.ndarray], **options: Any) -> list[FederatedClient]:
    model = norms.model(norms.states(record, 0))
    settings = {"loss": "CrossEntropyLoss", "optimizer": "SGD", "learning_rate": norms.RATE}
    return [trainweb.TrainingSession.from_model(model, **settings).federated(**options) for _ in norms.SIZES]


def test_averaged_statistics_are_those_of_flower_with_pytorch() -> None:
    """Flower's clients send their whole state: parameters and running statistics."""
    record = norms.recorded()
    clients = clients_of_norms(record, statistics="average")
    session = clients[0].session
    common = session.get_contiguous_parameters(False)
    for number in range(1, norms.ROUNDS + 1):
        rows = [{"x": record[f"x{k}"], "labels": record[f"labels{k}"]} for k in range(len(clients))]
        pairs = zip(clients, rows, strict=True)
        updates = [client.round(common, data, **norms.OPTIONS, progress=False) for client, data in pairs]
        common = federated.average_updates(common, updates)
        session.load_parameters_buffer(common, False)
        expected = norms.states(record, number)
        assert set(expected) == set(session.parameter_names())
        for name, array in expected.items():
            np.testing.assert_allclose(session.get_parameter(name), array, rtol=1e-5, atol=1e-5, err_msg=name)
    for client in clients:
        client.session.release()


@pytest.mark.parametrize(("weights", "clip"), [("examples", None), ("equal", None), ("examples", 0.5)])
def test_averaged_statistics_are_a_formula(weights: str, clip: float | None) -> None:
    """Statistics of the rows themselves depend on no parameter."""
    rows = [RNG.normal(2 * k, 1 + k, (size, 3)).astype(np.float32) for k, size in enumerate((4, 12))]
    options = {"statistics": "average"} | ({} if clip is None else {"clip_norm": clip})
    sessions = [trainweb.TrainingSession.from_model(net(TRAINED), loss=None, optimizer="SGD") for _ in rows]
    common = sessions[0].get_contiguous_parameters(False)
    pairs = zip(sessions, rows, strict=True)
    updates = [
        s.federated(**options).round(common, {"x": x}, batch_size=4, shuffle=False, progress=False) for s, x in pairs
    ]
    sessions[0].load_parameters_buffer(federated.average_updates(common, updates, weights), False)
    for name, start, moment in (("mean", MEAN, np.mean), ("var", VARIANCE, np.var)):
        moved = []
        for x, update in zip(rows, updates, strict=True):
            statistic = start.astype(np.float64)
            for part in np.split(x.astype(np.float64), len(x) // 4):
                statistic = 0.9 * statistic + 0.1 * moment(part, axis=0)
            moved.append((statistic - start) * min(1.0, (clip or np.inf) / update.norm))
        expected = start + np.average(moved, axis=0, weights=[4, 12] if weights == "examples" else None)
        np.testing.assert_allclose(sessions[0].get_parameter(f"n0.running_{name}"), expected, rtol=1e-5)
    for session in sessions:
        session.release()


@pytest.mark.parametrize(("options", "count"), [({}, 3), ({"statistics": "local"}, 3), ({"statistics": "average"}, 0)])
def test_clients_warn_of_local_statistics(options: dict[str, str], count: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clients = clients_of_norms(norms.recorded(), **options)
    texts = [
        str(one.message) for one in caught if "moves 2 untrained tensors, such as '1.running_mean'" in str(one.message)
    ]
    assert len(texts) == count and all("'statistics' is 'average'" in text for text in texts)
    assert all(one.filename == __file__ for one in caught)
    for client in clients:
        client.session.release()


@pytest.mark.parametrize(("optimizer", "count"), [("AdamW", 1), ("Lion", 1), ("SGD", 0)])
def test_clients_warn_of_moments_that_stay(optimizer: str, count: int) -> None:
    settings = {"loss": None, "optimizer": optimizer, "frozen_params": [r"n0\..*"]}
    session = trainweb.TrainingSession.from_model(net(TRAINED), **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session.federated()
    session.release()
    assert [str(one.message).split(" stay")[0] for one in caught] == count * [f"Moments of {optimizer}"]


def test_what_cannot_be_is_refused(session: trainweb.TrainingSession) -> None:
    with pytest.raises(TypeError, match="no setting 'clip'"):
        session.federated(clip=1)
    with pytest.raises(ModelError, match="clip_norm is 0"):
        session.federated(clip_norm=0)
    with pytest.raises(ModelError, match="give 'clip_norm'"):
        session.federated(noise_multiplier=1.0)
    with pytest.raises(ModelError, match="running variance negative"):
        session.federated(clip_norm=1.0, noise_multiplier=1.0, statistics="average")
    with pytest.raises(ModelError, match="statistics is 'mean'; it must be local or average"):
        session.federated(statistics="mean")
    client = session.federated()
    assert isinstance(client, FederatedClient)
    with pytest.raises(BufferSizeError, match="parameters has 4 numbers, expected 5"):
        client.round(START[:4], ROWS)
    with pytest.raises(ModelError, match="not finite"):
        client.round(np.full(WIDTH, np.nan), ROWS)
    for rows in (lambda: iter([]), [{"x": 1}]):
        with pytest.raises(FeedError, match="needs arrays"):
            client.round(START, rows)
    with pytest.raises(ModelError, match="checkpoint"):
        client.round(START, ROWS, proximal=1.0, checkpoint={"store": "x", "name": "y"})
    update = ClientUpdate(START, 3)
    with pytest.raises(ModelError, match="a list of updates"):
        federated.average_updates(START, [])
    with pytest.raises(ModelError, match=r"updates\[1\].delta has numbers that are not finite"):
        federated.average_updates(START, [update, ClientUpdate(START * np.inf, 3)])
    with pytest.raises(ModelError, match="examples is 0"):
        federated.average_updates(START, [ClientUpdate(START, 0)])
    with pytest.raises(BufferSizeError):
        federated.average_updates(START, [ClientUpdate(START[1:], 1)])


NAMES = ("alice", "bob", "carol", "dave")
BOUND = 2.5


def members(names: Sequence[str] = NAMES, round: str = "round-7") -> dict[str, SecureMember]:
    return {name: SecureMember(name, round) for name in names}


def keys_of(made: dict[str, SecureMember]) -> dict[str, bytes]:
    return {name: member.public_key for name, member in made.items()}


def test_masks_are_gone_in_the_sum_alone() -> None:
    made = members()
    updates = {name: RNG.uniform(-BOUND, BOUND, 1000).astype(np.float32) for name in NAMES}
    weights = dict(zip(NAMES, (1.0, 0.25, 0.5, 0.125), strict=True))
    masked = {n: made[n].mask(updates[n], keys_of(made), BOUND, weights[n]) for n in NAMES}
    total, weight = federated.add_masked(masked, NAMES[::-1], BOUND)
    assert weight == sum(weights.values())
    exact = sum(weights[n] * updates[n].astype(np.float64) for n in NAMES)
    # Each member rounds once: half a step of 2^-27 * 2 at most, for 2^31 / 4 / 2.5 is above 2^27.
    assert np.abs(total - exact).max() <= 4 * 0.5 * 2.0**-27
    for name in NAMES:
        # The masked update reveals nothing about the update: evenly spread words.
        assert scipy.stats.kstest(masked[name] / 2**32, "uniform").pvalue > 1e-9
    for some in (subset for size in (1, 2, 3) for subset in combinations(NAMES, size)):
        part = np.sum([masked[n].astype(np.uint64) for n in some], axis=0) % 2**32
        assert scipy.stats.kstest(part / 2**32, "uniform").pvalue > 1e-9, some


def test_a_lost_member_ends_the_round() -> None:
    made = members()
    masked = {n: made[n].mask(START, keys_of(made), 10.0) for n in NAMES}
    del masked["bob"]
    with pytest.raises(SessionError, match="No masked update arrived from bob"):
        federated.add_masked(masked, NAMES, 10.0)
    with pytest.raises(ModelError, match="do not cancel"):
        federated.add_masked(masked, ["alice", "carol", "dave"], 10.0)


def test_masks_of_other_keys_or_rounds_are_noticed() -> None:
    made, other = members(), members(round="round-8")
    masked = {n: made[n].mask(START, keys_of(made), 10.0) for n in NAMES}
    with pytest.raises(ModelError, match="do not cancel"):
        federated.add_masked(masked | {"bob": other["bob"].mask(START, keys_of(other), 10.0)}, NAMES, 10.0)


def test_sums_of_rounded_numbers_do_not_overflow() -> None:
    for members, bound in ((1000, (2**31 - 1) / 1000), (3, (2**31 - 1) / 3), (2, 0.5), (7, 2.0**30 / 7)):
        scale = secure.scale_of(bound, members)
        assert members * math.floor(bound * scale + 0.5) <= 2**31 - 1 < 5 * members * bound * scale


def test_members_refuse_what_would_disclose_or_overflow() -> None:
    made = members(("a", "b"))
    keys = keys_of(made)
    with pytest.raises(ModelError, match=r"magnitude 3\.0, beyond the bound 2\.5"):
        made["a"].mask(np.array([3.0]), keys, BOUND)
    made["a"].mask(START, keys, 10.0)
    with pytest.raises(SessionError, match="already masked an update"):
        made["a"].mask(START, keys, 10.0)
    b = made["b"]
    for given, message in (
        ({"b": b.public_key}, "two members or more"),
        ({"a": keys["a"], "c": b.public_key}, "do not contain the key of 'b'"),
        (keys | {"c": b.public_key}, "same public key"),
        (keys | {"a": b"\4"}, "65 bytes"),
        (keys | {"two words": keys["a"]}, "without spaces"),
        (keys | {"a": b"\4" * 65}, "a point of P-256"),
    ):
        with pytest.raises(ModelError, match=message):
            b.mask(START, given, 10.0)
    assert len(b.mask(START, keys, 10.0)) == len(START) + 5  # nothing was given away before
    with pytest.raises(ModelError, match="private key of P-256"):
        der = ec.generate_private_key(ec.SECP384R1()).private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        SecureMember("a", "r", der)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Delta of a Gaussian mechanism of sensitivity mu, exactly: https://arxiv.org/abs/1805.06530, theorem 8."""
    below = scipy.stats.norm.cdf(mu / 2 - epsilon / mu)
    return float(below - math.exp(epsilon + scipy.stats.norm.logcdf(-mu / 2 - epsilon / mu)))


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 25)])
def test_accounting_is_that_of_the_gaussian_mechanism(noise: float, rounds: int) -> None:
    epsilon = federated.privacy_spent(noise, rounds, 1e-5)
    exact = gaussian_delta(math.sqrt(rounds) / noise, epsilon)
    assert exact == pytest.approx(1e-5, rel=0.02) and exact <= 1e-5
    if rounds > 1:  # once: it takes the library some twenty convolutions
        least = federated.noise_multiplier_for(epsilon, rounds, 1e-5)
        assert least == pytest.approx(noise, rel=0.02)
        assert gaussian_delta(math.sqrt(rounds) / least, epsilon) <= 1e-5


def test_accounting_goes_on_where_nothing_is_protected() -> None:
    """Beyond an epsilon of 50 the bound is looser, but one."""
    epsilon = federated.privacy_spent(0.1, 50, 1e-5)
    assert gaussian_delta(math.sqrt(50) / 0.1, epsilon) <= 1e-5 and 2000 < epsilon < 4000
    with pytest.raises(ModelError, match="rounds is 0"):
        federated.privacy_spent(1.0, 0, 1e-5)


def test_sampling_spends_less() -> None:
    whole, sampled = (federated.privacy_spent(1.1, 10, 1e-5, sampling_rate=q) for q in (1.0, 0.01))
    assert 0 < sampled < whole / 10


def renyi_bound(noise: float, rounds: int, delta: float, rate: float) -> float:
    """Epsilon of the sampled Gaussian mechanism by whole Rényi orders (https://arxiv.org/abs/1908.10530)."""

    def divergence(order: int) -> float:
        terms = [
            math.log(math.comb(order, k))
            + k * math.log(rate)
            + (order - k) * math.log1p(-rate)
            + (k * k - k) / (2 * noise**2)
            for k in range(order + 1)
        ]
        return float(np.logaddexp.reduce(terms)) / (order - 1)

    return min(rounds * divergence(a) + math.log(1 / delta) / (a - 1) for a in range(2, 200))


def test_accounting_of_samples_is_within_the_renyi_bound() -> None:
    noise, rounds, rate = 1.1, 600, 16 / 1000
    epsilon = federated.privacy_spent(noise, rounds, 1e-5, sampling_rate=rate)
    bound = renyi_bound(noise, rounds, 1e-5, rate)
    # The bound by divergences is looser, by a fifth or so here; a rate that is forgotten costs ten times as much.
    assert 0.6 * bound < epsilon <= bound


def test_accounting_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UnsupportedError, match=r"trainweb\[federated\]"):
        federated.privacy_spent(1.0, 1, 1e-5)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ec", None)
    monkeypatch.delattr("cryptography.hazmat.primitives.asymmetric.ec", raising=False)
    with pytest.raises(UnsupportedError, match=r"cryptography is not installed"):
        SecureMember("a", "r")
