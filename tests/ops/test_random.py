"""Dropout in training, and the distributions of the random operators."""

import numpy as np
import pytest
from tests.ops.op_runner import feeds_of, gradients, run, single_node, with_loss

from trainweb.autodiff.gradient import build_gradients
from trainweb.model.graph import Graph, Node, Value
from trainweb.ops.frame.op import find
from trainweb.training.arrays import from_numpy, to_numpy
from trainweb.training.inference import InferenceCore

SIGMAS = 6.0
"""Standard errors a statistic may be off; the numbers are the same in every run."""
N = 20000


def dropout(x: np.ndarray, ratio: float, *, constant: bool, training: bool = True) -> tuple[np.ndarray, np.ndarray]:
    arrays = [x, np.float32(ratio), np.array(training)]
    cls = find("", "Dropout")
    assert cls is not None
    graph = single_node(cls, arrays, {}, 13, 2, constants=[1, 2] if constant else [1])  # type: ignore[arg-type]
    results = run(graph, feeds_of(graph, arrays))  # type: ignore[arg-type]
    return results["y0"], results["y1"]


@pytest.mark.parametrize("constant", [True, False], ids=["constant mode", "fed mode"])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_scales_what_it_keeps(ratio: float, constant: bool) -> None:
    x = np.random.default_rng(3).standard_normal(N).astype(np.float32) + 5
    y, mask = dropout(x, ratio, constant=constant)
    np.testing.assert_allclose(y, np.where(mask, x / (1 - ratio), 0), rtol=1e-6)
    error = abs(mask.mean() - (1 - ratio))
    assert error < SIGMAS * np.sqrt(ratio * (1 - ratio) / N)


def test_dropout_whose_mode_is_fed_passes_everything_outside_training() -> None:
    x = np.arange(9, dtype=np.float32)
    y, mask = dropout(x, 0.5, constant=False, training=False)
    np.testing.assert_array_equal(y, x)
    assert mask.all()


def test_the_gradient_of_dropout_uses_the_mask_of_the_forward_pass() -> None:
    x = np.ones(N, np.float32)
    arrays = [x, np.float32(0.25), np.array(True)]
    cls = find("", "Dropout")
    assert cls is not None
    graph = single_node(cls, arrays, {}, 13, constants=[1, 2])  # type: ignore[arg-type]
    graph = with_loss(graph, [("y0", x)])
    gradient = gradients(graph, ["x0"], {"x0": x, "w0": x})["x0"]
    kept = gradient != 0
    np.testing.assert_allclose(gradient[kept], 1 / 0.75, rtol=1e-6)
    assert abs(kept.mean() - 0.75) < SIGMAS * np.sqrt(0.25 * 0.75 / N)


def two_dropouts(x: np.ndarray, weights: np.ndarray, *, keep_masks: bool) -> tuple[dict[str, np.ndarray], str]:
    """x_grad of x -> Dropout -> Neg -> Dropout -> weighted sum, with the masks if they are outputs; and the plan."""
    graph = Graph("two", opsets={"": 13, "com.microsoft": 1}, inputs=[Value("x", "float32", x.shape)])
    graph.initializers = {"r": from_numpy("r", np.array(0.3, np.float32)), "on": from_numpy("on", np.array(True))}
    graph.nodes = [
        Node("Dropout", ["x", "r", "on"], ["a", "a_mask"], {}, "", "first"),
        Node("Neg", ["a"], ["b"], {}, "", "neg"),
        Node("Dropout", ["b", "r", "on"], ["c", "c_mask"], {}, "", "second"),
    ]
    backward = build_gradients(with_loss(graph, [("c", weights)]), "loss", ["x"])
    names = ["x_grad", *(["a_mask", "c_mask"] if keep_masks else [])]
    backward.outputs = [Value(name, "float32", None) for name in names]
    core = InferenceCore(backward)
    results = core.run({"x": from_numpy("x", x), "w0": from_numpy("w0", weights)})
    (loaded,) = core.host.loaded
    arrays = {name: to_numpy(tensor).copy() for name, tensor in results.items()}
    core.host.release()
    return arrays, loaded.plan.disassemble()


def test_gradients_draw_the_mask_again_instead_of_keeping_it() -> None:
    rng = np.random.default_rng(5)
    x, weights = (rng.standard_normal((50, 77)).astype(np.float32) for _ in range(2))
    kept, with_masks = two_dropouts(x, weights, keep_masks=True)
    again, text = two_dropouts(x, weights, keep_masks=False)
    scale = np.float32(1) / np.float32(1 - np.float32(0.3))
    expected = np.where(kept["c_mask"], weights * scale, 0)
    expected = np.where(kept["a_mask"], -expected * scale, 0)
    np.testing.assert_array_equal(again["x_grad"], expected)
    np.testing.assert_array_equal(kept["x_grad"], expected)
    assert not np.array_equal(kept["a_mask"], kept["c_mask"])
    assert "mask=null" in text and ":bool[" not in text
    assert ":bool[50x77]" in with_masks


def drawn(name: str, **attrs: float) -> np.ndarray:
    cls = find("", name)
    assert cls is not None
    graph = single_node(cls, [], {"shape": [N], **attrs}, 17)
    return run(graph, {})["y0"].astype(np.float64)


def test_normal_numbers_are_normal() -> None:
    x = drawn("RandomNormal", mean=2.0, scale=3.0)
    assert abs(x.mean() - 2) < SIGMAS * 3 / np.sqrt(N)
    assert abs(x.std() - 3) < SIGMAS * 3 / np.sqrt(2 * N)
    share_within_one_sigma = (np.abs(x - 2) < 3).mean()
    assert abs(share_within_one_sigma - 0.6827) < SIGMAS * np.sqrt(0.22 / N)


def test_uniform_numbers_fill_their_interval_evenly() -> None:
    x = drawn("RandomUniform", low=-1.0, high=3.0)
    assert x.min() >= -1 and x.max() < 3
    counts = np.histogram(x, bins=10, range=(-1, 3))[0]
    assert np.abs(counts - N / 10).max() < SIGMAS * np.sqrt(N * 0.09)


def test_two_nodes_draw_different_numbers_and_two_sessions_the_same() -> None:
    cls = find("", "RandomNormal")
    assert cls is not None
    graph = single_node(cls, [], {"shape": [8]}, 17)
    second = single_node(cls, [], {"shape": [8]}, 17).nodes[0]
    second.outputs, second.name = ["z"], "other"
    graph.nodes.append(second)
    one, two = run(graph, {}, ["y0", "z"]), run(graph, {}, ["y0", "z"])
    assert not np.array_equal(one["y0"], one["z"])
    np.testing.assert_array_equal(one["y0"], two["y0"])


def test_every_run_draws_new_numbers() -> None:
    x = np.ones(64, np.float32)
    cls = find("", "Dropout")
    assert cls is not None
    arrays = [x, np.float32(0.5), np.array(True)]
    core = InferenceCore(single_node(cls, arrays, {}, 13, constants=[1, 2]))  # type: ignore[arg-type]
    runs = [bytes(core.run({"x0": from_numpy("x0", x)})["y0"].data) for _ in range(3)]
    core.host.release()
    assert len(set(runs)) == 3


def test_fake_quantization_passes_gradients_straight_through_where_it_did_not_clip() -> None:
    x = np.array([-3.0, 0.11, 0.26, 90.0], np.float32)
    cls = find("com.microsoft", "FakeQuant")
    assert cls is not None
    arrays = [x, np.float32(0.1), np.float32(0.0)]
    graph = single_node(cls, arrays, {"quant_min": -8, "quant_max": 7}, 17, constants=[1, 2])  # type: ignore[arg-type]
    weights = np.arange(1, 5, dtype=np.float32)
    gradient = gradients(with_loss(graph, [("y0", weights)]), ["x0"], {"x0": x, "w0": weights})["x0"]
    np.testing.assert_array_equal(gradient, [0, 2, 3, 0])
