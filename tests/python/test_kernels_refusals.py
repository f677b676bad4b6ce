"""Places that kernels refuse before anything is written: views outside of buffers, indices and labels out of range."""

from typing import Any

import numpy as np
import pytest
from tests.python.kernel_runner import KernelRunner
from tests.python.plan_builder import PlanFailed


def refused(kernels: KernelRunner, name: str, **args: Any) -> tuple[str, int, int]:
    """The status, and the value and the position that it names."""
    with pytest.raises(PlanFailed) as failure:
        kernels.run(name, **args)
    if failure.value.name == "TW_BAD_LABEL":
        assert failure.value.classes == args.get("c", args.get("hi"))
    return failure.value.name, failure.value.value, failure.value.position


def padded(values: list[int], fill: int) -> list[int]:
    """Eight numbers, `fill` in front."""
    return [fill] * (8 - len(values)) + values


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        ({"src_offset": 2}, "TW_BAD_EXTENT"),
        ({"src_strides": padded([-1], 0)}, "TW_BAD_CONDITION"),
        ({"dst_offset": 6}, "TW_BAD_EXTENT"),
        ({"dst_strides": padded([-2], 0), "dst_offset": 7}, "TW_BAD_CONDITION"),
        ({"dims": padded([2**30, 2**30, 2**30], 1)}, "TW_BAD_CONDITION"),
        ({"size": 3}, "TW_BAD_CONDITION"),
        ({"src_offset": -1}, "TW_BAD_ARGUMENT"),
    ],
)
def test_views_outside_of_buffers(kernels: KernelRunner, bad: dict[str, Any], status: str) -> None:
    args: dict[str, Any] = {"src": np.zeros(10, np.float32), "dst": np.zeros(10, np.float32), "size": 4}
    args |= {"dims": padded([5], 1), "src_offset": 0, "src_strides": padded([2], 0)}
    args |= {"dst_offset": 0, "dst_strides": padded([1], 0)}
    kernels.run("strided_copy", **args)
    assert refused(kernels, "strided_copy", **{**args, **bad})[0] == status


@pytest.mark.parametrize("bad", [-2, 24, 12, 1 << 40, -(1 << 63)])
def test_a_maximum_of_another_plane(kernels: KernelRunner, bad: int) -> None:
    args = {"dy": np.ones(4, np.float32), "dx": np.zeros(24, np.float32), "planes": 2, "size": 12, "out_size": 2}
    kernels.run("max_pool_gradient_f32", indices=np.array([0, 5, 12, 23]), **args)
    found = refused(kernels, "max_pool_gradient_f32", indices=np.array([0, bad, 12, 23]), **args)
    assert found == ("TW_BAD_INDEX", bad, 1)


@pytest.mark.parametrize(("dtype", "bad"), [(np.int32, 4), (np.int32, -5), (np.int64, 2**62), (np.int64, -(2**63))])
def test_indices(kernels: KernelRunner, dtype: type, bad: int) -> None:
    numbers = {"index_size": np.dtype(dtype).itemsize, "lo": -4, "hi": 4, "has_ignore": 0, "ignore": 0, "label": 0}
    indices = np.array([0, 3, bad, -4], dtype)
    assert refused(kernels, "check_indices", indices=indices, n=4, **numbers) == ("TW_BAD_INDEX", bad, 2)
    kernels.run("check_indices", indices=indices[:2].copy(), n=2, **numbers)
    ignoring = numbers | {"has_ignore": 1, "label": 1}
    if abs(bad) < 2**31:
        kernels.run("check_indices", indices=indices, n=4, **ignoring | {"ignore": bad})
    assert refused(kernels, "check_indices", indices=indices, n=4, **ignoring) == ("TW_BAD_LABEL", bad, 2)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("bad", [-1, 10, -(2**31), 2**31 - 1])
def test_labels(kernels: KernelRunner, dtype: type, bad: int) -> None:
    labels, x = np.array([0, 1, 2, 9, bad, 3], dtype), np.zeros((6, 10, 1), np.float32)
    numbers = {"n": 6, "c": 10, "inner": 1, "label_size": labels.itemsize, "reduction": 1, "from_log": 0}
    one, ignored = np.ones(1, np.float32), {"has_ignore": 1, "ignore_index": bad}
    for name, operands in (
        ("cross_entropy_f32", {"scores": x, "loss": one}),
        ("cross_entropy_grad_f32", {"log_prob": x, "dy": one, "dx": x}),
    ):
        args: dict[str, Any] = {"labels": labels, **operands, **numbers}
        kernels.run(name, **args, **ignored)
        for index in (0, 1):
            has = {"has_ignore": index, "ignore_index": -100}
            assert refused(kernels, name, **args, **has) == ("TW_BAD_LABEL", bad, 4)
