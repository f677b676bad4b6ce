"""Record PyTorch's gradients where operators have none of their own: at ties, at bounds and at zero.

python tests/golden/ties/record.py, from the root of the project, with a Python that has torch and torchvision. Each
case of `recorded.json` has the nodes of a small model, what goes in, and the gradients of the sum of y times 1, 2, ...
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch.nn import functional as F

TARGET = Path(__file__).with_name("recorded.json")
OPSET = 17
Function = Callable[..., torch.Tensor]
NOTE = "%y : [num_users=1] = call_function[target=torch.ops.aten.{}](args = ({}), kwargs = {{}})"
"""What the dynamo exporter notes on a node."""

NEAR = [-2.0, -1.0, 0.0, 1.0, 2.0]
TIED = [[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0], [-1.0, -2.0, -1.0, -1.0]]
IMAGE = [[[[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-1.0, 0.0, 0.0, -1.0]]]]
ZEROS = [[1.0, 0.0, 2.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0], [2.0, -1.0, 4.0]]
EQUAL = [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [1.0, 2.0, 4.0]]


def unary() -> Iterator[tuple[str, Function, list[float], dict[str, Any]]]:
    """Operators of one input: name, function of torch, points, attributes."""
    for name in ("Abs", "Asinh", "Atan", "Cos", "Cosh", "Erf", "Exp", "Neg", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"):
        yield name, getattr(torch, name.lower()), [abs(x) for x in NEAR] if name == "Sqrt" else NEAR, {}
    for name in ("Acos", "Asin", "Atanh"):
        yield name, getattr(torch, name.lower()), NEAR[1:4], {}
    yield "Acosh", torch.acosh, [1.0, 2.0], {}
    yield "Log", torch.log, [0.0, 1.0], {}
    yield "Reciprocal", torch.reciprocal, NEAR, {}
    for name, f in {"Relu": F.relu, "Sigmoid": F.sigmoid, "Softplus": F.softplus, "Softsign": F.softsign}.items():
        yield name, f, NEAR, {}
    for name, f in {"Mish": F.mish, "Selu": F.selu, "Swish": F.silu}.items():
        yield name, f, NEAR, {}
    yield "Gelu", F.gelu, NEAR, {}
    yield "Gelu", lambda x: F.gelu(x, approximate="tanh"), NEAR, {"approximate": "tanh"}
    yield "HardSigmoid", F.hardsigmoid, [-4.0, -3.0, 0.0, 3.0, 4.0], {"alpha": 1 / 6, "beta": 0.5}
    yield "HardSwish", F.hardswish, [-4.0, -3.0, 0.0, 3.0, 4.0], {}
    yield "LeakyRelu", lambda x: F.leaky_relu(x, 0.1), NEAR, {"alpha": 0.1}
    yield "Elu", lambda x: F.elu(x, 0.7), NEAR, {"alpha": 0.7}
    yield "Celu", lambda x: F.celu(x, 0.7), NEAR, {"alpha": 0.7}
    yield "ThresholdedRelu", lambda x: F.threshold(x, 1.0, 0.0), NEAR, {"alpha": 1.0}
    yield "Shrink", lambda x: F.softshrink(x, 1.0), NEAR, {"lambd": 1.0, "bias": 1.0}
    yield "Shrink", lambda x: F.hardshrink(x, 1.0), NEAR, {"lambd": 1.0, "bias": 0.0}


def reductions() -> Iterator[tuple[str, Function, list[Any], dict[str, Any]]]:
    """Operators of one input of several dims, as those of `unary`."""
    rows = {"axes": [-1], "keepdims": 0}
    yield "ReduceMax", lambda x: x.amax(-1), TIED, rows
    yield "ReduceMin", lambda x: x.amin(-1), TIED, rows
    yield "ReduceMax", lambda x: x.max(), TIED, {"keepdims": 0}
    yield "ReduceMin", lambda x: x.min(), TIED, {"keepdims": 0}
    yield "ReduceProd", lambda x: x.prod(-1), ZEROS, rows
    yield "ReduceL1", lambda x: x.abs().sum(-1), ZEROS, rows
    yield "ReduceL1", lambda x: x.norm(p=1, dim=-1), ZEROS, rows
    yield "ReduceL2", lambda x: x.norm(dim=-1), ZEROS, rows
    yield "ReduceSumSquare", lambda x: x.square().sum(-1), ZEROS, rows
    yield "ReduceSum", lambda x: x.sum(-1), ZEROS, rows
    yield "ReduceMean", lambda x: x.mean(-1), ZEROS, rows
    yield "ReduceLogSum", lambda x: x.sum(-1).log(), ZEROS, rows
    yield "ReduceLogSumExp", lambda x: x.logsumexp(-1), [*TIED, [-math.inf, -math.inf, 0.0, 0.0]], rows
    yield "MaxPool", lambda x: F.max_pool2d(x, 2, 1, 1), IMAGE, {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}
    yield "MaxPool", lambda x: F.max_pool2d(x, 3, 2), IMAGE, {"kernel_shape": [3, 3], "strides": [2, 2]}
    yield "AveragePool", lambda x: F.avg_pool2d(x, 2, 1), IMAGE, {"kernel_shape": [2, 2]}
    yield "GlobalMaxPool", lambda x: F.adaptive_max_pool2d(x, 1), IMAGE, {}
    yield "GlobalAveragePool", lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE, {}
    yield "LpPool", lambda x: F.lp_pool2d(x, 2, 2, 1), IMAGE, {"kernel_shape": [2, 2], "p": 2}
    yield "GlobalLpPool", lambda x: x.norm(p=2, dim=(2, 3), keepdim=True), [[[[0.0, 0.0], [0.0, 0.0]]]], {"p": 2}
    yield "Softmax", lambda x: x.softmax(-1), TIED, {"axis": -1}
    yield "LogSoftmax", lambda x: x.log_softmax(-1), TIED, {"axis": -1}


def case(
    name: str,
    nodes: list[list[Any]],
    function: Function,
    inputs: dict[str, Any],
    *,
    constants: dict[str, Any] | None = None,
    opset: int = OPSET,
) -> dict[str, Any]:
    """One case; a node is [operator, inputs, outputs, attributes, note], and the last one makes y."""
    given = {key: torch.tensor(value, requires_grad=True) for key, value in inputs.items()}
    y = function(*given.values())
    (y * torch.arange(1.0, y.numel() + 1).reshape(y.shape)).sum().backward()
    gradients = {key: value.grad.tolist() for key, value in given.items() if value.grad is not None}
    nodes = [[*node, *[{}, ""][len(node) - 3 :]] for node in nodes]
    held = {key: {"dtype": "int64" if _whole(v) else "float32", "value": v} for key, v in (constants or {}).items()}
    made = {"inputs": inputs, "constants": held, "y": y.tolist(), "gradients": gradients}
    return {"name": name, "opset": opset, "nodes": nodes, **made}


def _whole(value: Any) -> bool:
    return _whole(value[0]) if isinstance(value, list) else isinstance(value, int)


def single(name: str, op: str, function: Function, inputs: dict[str, Any], attrs: dict[str, Any], **more: Any) -> Any:
    """A case of one node, whose inputs are those given and then the constants."""
    opset = max(more.pop("opset", OPSET), {"Mish": 18, "Gelu": 20, "Swish": 24}.get(op, 0))
    node = [op, [*inputs, *more.get("constants", {})], ["y"], attrs]
    return case(name, [node], function, inputs, opset=opset, **more)


def families() -> Iterator[dict[str, Any]]:
    """Each operator of one input, and once more below a root, whose gradient at 0 is infinite."""
    for k, (op, function, points, attrs) in enumerate([*unary(), *reductions()]):
        x = {"x": points}
        yield single(f"{op} {k}", op, function, x, attrs)
        if op in ("Relu", "HardSigmoid", "HardSwish", "ThresholdedRelu", "Shrink", "MaxPool", "ReduceMax", "Abs"):
            kept = torch.tensor(points) if op in ("HardSigmoid", "Relu") else torch.tensor(points).abs()
            nodes = [[op, ["x"], ["h"], attrs], ["Sqrt", ["h"], ["y"]]]
            yield case(f"root of {op} {k}", nodes, lambda x, f=function: f(x).sqrt(), {"x": kept.tolist()})


def several() -> Iterator[dict[str, Any]]:
    """Operators of several inputs."""
    pair = {"a": [1.0, 0.0, -1.0, 2.0], "b": [1.0, 0.0, 1.0, -2.0]}
    extrema = {"Max": torch.maximum, "Min": torch.minimum}
    for op, f in (extrema | {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul}).items():
        yield single(op, op, f, pair, {})
    yield single("Div", "Div", torch.div, {"a": [1.0, 0.0, 0.0], "b": [2.0, 1.0, 0.0]}, {})
    for n in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, -1.0):
        base = [0.0, 1.0, 2.0] if n % 1 else [-1.0, 0.0, 1.0, 2.0]
        yield single(f"Pow {n}", "Pow", lambda x, n=n: x**n, {"x": base}, {}, constants={"n": n})
    powers = {"a": [0.0, 0.0, 0.0, 0.0, 1.0, 2.0], "b": [0.0, 0.5, 1.0, 2.0, 0.0, 0.0]}
    yield single("Pow of two", "Pow", torch.pow, powers, {})
    division = {"a": [6.0, -6.0, 7.5, -7.5], "b": [3.0, 3.0, 2.0, 2.0]}
    yield single("Mod of the dividend's sign", "Mod", torch.fmod, division, {"fmod": 1})
    yield single("Mod of the divisor's sign", "Mod", torch.remainder, division, {}, opset=28)
    yield single("PRelu", "PRelu", F.prelu, {"x": [[-1.0, 0.0, -0.0, 2.0]], "slope": [0.2]}, {})
    yield case(
        "Where",
        [["Greater", ["x", "zero"], ["c"]], ["Where", ["c", "x", "b"], ["y"]]],
        lambda x, b: torch.where(x > 0, x, b),
        {"x": NEAR, "b": NEAR},
        constants={"zero": 0.0},
    )
    yield case(
        "root of Where",
        [["Greater", ["x", "zero"], ["c"]], ["Where", ["c", "x", "b"], ["h"]], ["Sqrt", ["h"], ["y"]]],
        lambda x, b: torch.where(x > 0, x, b).sqrt(),
        {"x": [0.0, 1.0, -1.0], "b": [0.0, 1.0, 0.0]},
        constants={"zero": 0.0},
    )
    for op, f in extrema.items():
        values = {"a": [0.0, 1.0, 0.0], "b": [-1.0, 1.0, 0.0] if op == "Max" else [1.0, 2.0, 0.0]}
        nodes = [[op, ["a", "b"], ["h"]], ["Sqrt", ["h"], ["y"]]]
        yield case(f"root of {op}", nodes, lambda a, b, f=f: f(a, b).sqrt(), values)


def bounded() -> Iterator[dict[str, Any]]:
    """Clip: bounds of constants, and computed ones."""
    x = {"x": [-1.0, 0.0, 3.0, 6.0, 7.0]}
    yield single("Clip", "Clip", lambda x: x.clamp(0, 6), x, {}, constants={"low": 0.0, "high": 6.0})
    yield single("relu6", "Clip", F.relu6, x, {}, constants={"low": 0.0, "high": 6.0})
    yield single("hardtanh", "Clip", lambda x: F.hardtanh(x, 0, 6), x, {"min": 0.0, "max": 6.0}, opset=7)
    yield single("Clip from below", "Clip", lambda x: x.clamp(min=0), x, {}, constants={"low": 0.0})
    yield case("Clip from above", [["Clip", ["x", "", "h"], ["y"]]], lambda x: x.clamp(max=6), x, constants={"h": 6.0})
    cast = [["CastLike", ["zero", "x"], ["low"]], ["CastLike", ["six", "x"], ["high"]]]
    clip = [*cast, ["Clip", ["x", "low", "high"], ["y"]]]
    yield case("dynamo's relu6", clip, F.relu6, x, constants={"zero": 0, "six": 6})
    yield single("Clip crossed", "Clip", lambda x: x.clamp(3, 0), x, {}, constants={"low": 3.0, "high": 0.0})
    for name, bounds in {"": (0.0, 6.0), " crossed": (3.0, 0.0), " equal": (3.0, 3.0)}.items():
        given = x | dict(zip(("low", "high"), bounds, strict=True))
        yield single(f"Clip learned{name}", "Clip", torch.clamp, given, {})
    yield single("Clip learned from below", "Clip", lambda x, low: x.clamp(min=low), x | {"low": 0.0}, {})
    yield case(
        "Clip learned from above",
        [["Clip", ["x", "", "high"], ["y"]]],
        lambda x, high: x.clamp(max=high),
        x | {"high": 6.0},
    )
    yield case(
        "root of Clip",
        [["Clip", ["x", "low"], ["h"]], ["Sqrt", ["h"], ["y"]]],
        lambda x: x.clamp(min=0).sqrt(),
        {"x": [-1.0, 0.0, 4.0]},
        constants={"low": 0.0},
    )
    numbers = NOTE.format("clamp.Tensor", "%x, %scalar_tensor_default, %scalar_tensor_default_1")
    tensors = NOTE.format("clamp.Tensor", "%x, %low, %high")
    for name, note, f in (("numbers", numbers, torch.clamp), ("tensors", tensors, _clamp_to_tensors)):
        nodes = [["Max", ["x", "low"], ["h"], {}, note], ["Min", ["h", "high"], ["y"], {}, note]]
        held = {"low": 0.0, "high": 6.0}
        yield case(f"dynamo's clamp to {name}", nodes, lambda x, f=f: f(x, 0, 6), x, constants=held)


def _clamp_to_tensors(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return x.clamp(torch.tensor(float(low)), torch.tensor(float(high)))


def chosen() -> Iterator[dict[str, Any]]:
    """Sorting, and maxima of which the first one counts."""
    for k in (1, 2, 4):
        for largest in (True, False):
            yield case(
                f"TopK {k} {'largest' if largest else 'smallest'}",  # torch leaves open which of equal ones are first
                [["TopK", ["x", "k"], ["y", "where"], {"largest": int(largest)}]],
                lambda x, k=k, down=largest: x.sort(dim=-1, descending=down, stable=True)[0][:, :k],
                {"x": TIED},
                constants={"k": [k]},
            )
    for which, op in (("max", "ReduceMax"), ("min", "ReduceMin")):
        for axis in (0, -1):
            for keepdims in (0, 1):
                note = NOTE.format(f"{which}.dim", f"%x, {axis}")
                yield case(
                    f"{which}.dim {axis} {keepdims}",
                    [[op, ["x"], ["y"], {"axes": [axis], "keepdims": keepdims}, note]],
                    lambda x, which=which, axis=axis, keep=bool(keepdims): getattr(x, which)(axis, keepdim=keep)[0],
                    {"x": TIED},
                )
    for op, f in {"CumSum": torch.cumsum, "CumProd": torch.cumprod}.items():
        opset = 26 if op == "CumProd" else OPSET
        yield single(op, op, lambda x, f=f: f(x, 1), {"x": ZEROS}, {}, constants={"axis": 1}, opset=opset)


def roots() -> Iterator[dict[str, Any]]:
    """Deviations, norms and distances at zero, in the nodes that torch's exporters write."""
    mean = {"axes": [-1], "keepdims": 1}
    difference = [["ReduceMean", ["x"], ["m"], mean], ["Sub", ["x", "m"], ["d"]], ["Mul", ["d", "d"], ["q"]]]
    variance = [*difference, ["ReduceMean", ["q"], ["v"], mean]]
    yield case(
        "std, TorchScript",
        [*variance, ["Mul", ["v", "n"], ["s"]], ["Div", ["s", "n1"], ["u"]], ["Sqrt", ["u"], ["y"]]],
        lambda x: x.std(-1, keepdim=True),
        {"x": EQUAL},
        constants={"n": 3.0, "n1": 2.0},
    )
    yield case(
        "std, dynamo",
        [*variance, ["Reshape", ["v", "shape"], ["r"]], ["Expand", ["r", "shape"], ["e"]], ["Sqrt", ["e"], ["y"]]],
        lambda x: x.std(-1, keepdim=True, correction=0),
        {"x": EQUAL},
        constants={"shape": [3, 1]},
    )
    total = ["ReduceSum", ["q", "axes"], ["s"], {"keepdims": 0}]
    powers = [["Sub", ["x", "z"], ["d"]], ["Pow", ["d", "two"], ["q"]], total]
    yield case(
        "pairwise_distance",
        [*powers, ["Pow", ["s", "half"], ["y"]]],
        lambda x: F.pairwise_distance(x, torch.zeros_like(x), eps=0),
        {"x": ZEROS},
        constants={"z": 0.0, "two": 2.0, "half": 0.5, "axes": [1]},
    )
    yield case(
        "cdist",
        [["Unsqueeze", ["x", "one"], ["a"]], ["Sub", ["a", "z"], ["d"]], *powers[1:], ["Pow", ["s", "half"], ["y"]]],
        lambda x: torch.cdist(x, torch.zeros(2, 3)),
        {"x": ZEROS},
        constants={"one": [1], "z": [[[0.0] * 3] * 2], "two": 2.0, "half": 0.5, "axes": [2]},
    )
    yield case(
        "norm of p = 3",
        [["Abs", ["x"], ["d"]], ["Pow", ["d", "three"], ["q"]], total, ["Pow", ["s", "third"], ["y"]]],
        lambda x: x.norm(p=3, dim=-1),
        {"x": ZEROS},
        constants={"three": 3.0, "third": 1 / 3, "axes": [1]},
    )
    yield case(
        "cosine_similarity, TorchScript",  # which has the bound 1e-8 on the product of the norms
        [
            ["Mul", ["x", "o"], ["c"]],
            ["ReduceSum", ["c", "axes"], ["n"], {"keepdims": 0}],
            ["Mul", ["x", "x"], ["q"]],
            total,
            ["Mul", ["s", "three"], ["p"]],
            ["Sqrt", ["p"], ["r"]],
            ["Max", ["r", "eps"], ["b"]],
            ["Div", ["n", "b"], ["y"]],
        ],
        lambda x: x.sum(-1) / (x.norm(dim=-1) * math.sqrt(3)).clamp(min=1e-8),
        {"x": ZEROS},
        constants={"o": [1.0] * 3, "axes": [1], "three": 3.0, "eps": 1e-8},
    )
    # Roots of other things are as infinite as in PyTorch.
    point = {"x": [0.0, 4.0]}
    product = [["Mul", ["a", "b"], ["h"]], ["Sqrt", ["h"], ["y"]]]
    yield case("root of a product", product, lambda a, b: (a * b).sqrt(), {"a": [0.0, 4.0], "b": [1.0, 1.0]})
    scaled = [["Mul", ["x", "three"], ["h"]], ["Pow", ["h", "half"], ["y"]]]
    constants = {"three": 3.0, "half": 0.5}
    yield case("root of a multiple", scaled, lambda x: (x * 3) ** 0.5, point, constants=constants)
    less = [["Mul", ["x", "x"], ["q"]], ["Sub", ["q", "x"], ["h"]], ["Sqrt", ["h"], ["y"]]]
    yield case("root of a square less its root", less, lambda x: (x * x - x).sqrt(), point)
    size = [["Abs", ["x"], ["a"]], ["Pow", ["a", "one"], ["h"]], ["Sqrt", ["h"], ["y"]]]
    yield case("root of a magnitude", size, lambda x: (x.abs() ** 1).sqrt(), point, constants={"one": 1.0})
    cubes = [["Pow", ["x", "three"], ["q"]], ["Sqrt", ["q"], ["y"]]]
    yield case("root of a cube", cubes, lambda x: (x**3).sqrt(), point, constants={"three": 3.0})


def sampled() -> Iterator[dict[str, Any]]:
    """Images read at and beyond their borders, at their pixels and halfway."""
    lines = {0: [-2.0, -1.25, -1.0, -0.75, -0.25, 0.0, 0.75, 1.0, 1.75], 1: [-2.5, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0]}
    generator = torch.Generator().manual_seed(1)
    for align, points in lines.items():
        size = 3 if align else 4  # so that pixels lie at multiples of 1/2 or 1/4
        image = torch.randn(1, 1, size, size, generator=generator).tolist()
        grid = [[[[a, b] for a in points[::2]] for b in points[1::3]]]
        for mode in ("bilinear", "nearest", "bicubic"):
            for padding in ("zeros", "border", "reflection"):
                attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
                found = single(
                    f"GridSample {mode} {padding} {align}",
                    "GridSample",
                    lambda x, g, m=mode, p=padding, a=bool(align): F.grid_sample(x, g, m, p, a),
                    {"x": image, "grid": grid},
                    attrs,
                )
                if mode == "nearest":
                    del found["gradients"]["grid"]  # zeros in torch
                yield found


def regions() -> Iterator[dict[str, Any]]:
    """Regions of an image that was zero in places, and back from pooled ones."""
    image = {"x": [[[[float((3 * a + 5 * b) % 7 > 3) for b in range(6)] for a in range(6)]]]}
    rois = [[0.0, 0.0, 0.0, 5.0, 5.0], [0.0, 1.0, 1.0, 4.0, 3.0], [0.0, 7.0, 7.0, 9.0, 9.0]]
    yield single(
        "MaxRoiPool",
        "MaxRoiPool",
        lambda x: torchvision.ops.roi_pool(x, torch.tensor(rois), (2, 3), 1.0),
        image,
        {"pooled_shape": [2, 3]},
        constants={"rois": rois},
    )
    yield single(
        "RoiAlign",
        "RoiAlign",
        lambda x: torchvision.ops.roi_align(x, torch.tensor(rois[:2]), (2, 3), 1.0, 2, True),
        image,
        {"output_height": 2, "output_width": 3, "sampling_ratio": 2},
        constants={"boxes": [roi[1:] for roi in rois[:2]], "images": [0, 0]},
    )
    places = [[[[0, 2], [8, 10]]]]
    yield single(
        "MaxUnpool",
        "MaxUnpool",
        lambda x: F.max_unpool2d(x, torch.tensor(places), 2),
        {"x": [[[[1.0, 0.0], [0.0, 2.0]]]]},
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        constants={"places": places},
    )


def scattered() -> Iterator[dict[str, Any]]:
    """Updates that equal what they meet, and zeros among factors."""
    values = {"x": [1.0, 2.0, 2.0, 0.0, 0.0], "u": [2.0, 1.0, 2.0, 0.0, 0.0, 3.0]}
    where = [0, 1, 1, 3, 4, 4]
    for how, name in {"max": "amax", "min": "amin", "mul": "prod", "add": "sum"}.items():
        for op, held in {"ScatterElements": where, "ScatterND": [[k] for k in where]}.items():
            yield case(
                f"{op} {how}",
                [[op, ["x", "where", "u"], ["y"], {"reduction": how}]],
                lambda x, u, n=name: x.scatter_reduce(0, torch.tensor(where), u, n, include_self=True),
                values,
                constants={"where": held},
                opset=18,
            )


def main() -> None:
    """Write the file, a case a line."""
    cases = [c for part in (families, several, bounded, chosen, roots, sampled, regions, scattered) for c in part()]
    lines = ",\n".join(json.dumps(c) for c in cases)
    TARGET.write_text(f'{{"torch": "{torch.__version__.partition("+")[0]}", "cases": [\n{lines}\n]}}\n')
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
