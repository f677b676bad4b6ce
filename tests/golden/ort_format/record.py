"""Record ORT format models, as onnxruntime's own converter writes them, and what onnxruntime computes with each.

python tests/golden/ort_format/record.py    # needs onnxruntime and onnx, which the tests do not

`NAME.ort` is the optimized file that the converter writes by default, `NAME.plain.ort` has the nodes as they were,
`NAME.runtime.ort` keeps optimizations apart from the graph, `NAME.nchwc.ort` is laid out for one kind of processor.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
GOLDEN = HERE.parent
FEEDS = {"mlp": {"x": (5, 10)}, "cnn": {"image": (4, 1, 12, 12)}, "branches": {"x": (3, 4), "n": ()}}


def branches() -> onnx.ModelProto:
    """A model with subgraphs, every kind of attribute that an operator here has, symbols, and texts about itself."""
    value = helper.make_tensor_value_info

    def tensor(name: str, array: np.ndarray) -> TensorProto:
        return numpy_helper.from_array(array, name)

    def branch(name: str, op: str) -> onnx.GraphProto:
        node = helper.make_node(op, ["h", "scale"], [f"{name}_out"], f"{name}_node")
        return helper.make_graph([node], name, [], [value(f"{name}_out", TensorProto.FLOAT, ["rows", 4])])

    step = helper.make_graph(
        [
            helper.make_node("Add", ["carried", "bias"], ["next"], "step"),
            helper.make_node("Identity", ["going"], ["goes"], "go"),
        ],
        "body",
        [
            value("k", TensorProto.INT64, []),
            value("going", TensorProto.BOOL, []),
            value("carried", TensorProto.FLOAT, ["rows", 4]),
        ],
        [value("goes", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, ["rows", 4])],
    )
    nodes = [
        helper.make_node("Gemm", ["x", "w", "bias"], ["h"], "gemm", alpha=0.5, transB=1),
        helper.make_node("Greater", ["n", "one"], ["many"], "compare"),
        helper.make_node(
            "If", ["many"], ["chosen"], "choice", then_branch=branch("then", "Mul"), else_branch=branch("else", "Sub")
        ),
        helper.make_node("Constant", [], ["trips"], "trips", value=tensor("", np.array(3))),
        helper.make_node("Loop", ["trips", "", "chosen"], ["summed"], "loop", body=step),
        helper.make_node("Transpose", ["summed"], ["turned"], "turn", perm=[1, 0]),
        helper.make_node("Pad", ["turned", "pads"], ["padded"], "pad", mode="reflect"),
        helper.make_node("ReduceMean", ["padded"], ["y"], "mean", keepdims=0),
    ]
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        nodes,
        "choices",
        [value("x", TensorProto.FLOAT, ["rows", 4]), value("n", TensorProto.INT64, [])],
        [value("y", TensorProto.FLOAT, []), value("h", TensorProto.FLOAT, ["rows", 4])],
        [
            tensor("w", rng.normal(size=(4, 4)).astype(np.float32)),
            tensor("bias", rng.normal(size=4).astype(np.float32)),
            tensor("scale", np.float32(2.5)),
            tensor("one", np.array(1)),
            tensor("pads", np.array([1, 0, 1, 0])),
        ],
        doc_string="about the graph",
        value_info=[value("turned", TensorProto.FLOAT, [4, "rows"])],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="recorder",
        doc_string="about it",
    )
    model.domain, model.model_version, model.producer_version = "org.example", 3, "1.2"
    helper.set_model_props(model, {"author": "somebody", "empty": ""})
    onnx.checker.check_model(model, full_check=True)
    return model


def plain(source: Path, target: Path) -> None:
    """Write the nodes as they are."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(source), options, ["CPUExecutionProvider"])


def convert(source: Path, target: Path, style: str, platform: str = "arm") -> None:
    """Write what the converter makes of it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"{source.stem}.onnx"
        copy.write_bytes(source.read_bytes())
        command = [sys.executable, "-m", "onnxruntime.tools.convert_onnx_models_to_ort", "--optimization_style", style]
        subprocess.run([*command, "--target_platform", platform, folder], check=True, capture_output=True)
        name = f"{source.stem}.with_runtime_opt.ort" if style == "Runtime" else f"{source.stem}.ort"
        target.write_bytes((Path(folder) / name).read_bytes())


def main() -> None:
    """Write the files beside this one."""
    onnx.save(branches(), HERE / "branches.onnx")
    recorded = {}
    for name, shapes in FEEDS.items():
        source = HERE / "branches.onnx" if name == "branches" else GOLDEN / name / "base.onnx"
        plain(source, HERE / f"{name}.plain.ort")
        convert(source, HERE / f"{name}.ort", "Fixed")
        rng = np.random.default_rng(1)
        feeds = {n: rng.normal(size=s).astype(np.float32) if s else np.array(2) for n, s in shapes.items()}
        session = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        recorded |= {f"{name}.in.{n}": array for n, array in feeds.items()}
        recorded |= {f"{name}.out.{n}": a for n, a in zip(names, session.run(names, feeds), strict=True)}
    convert(GOLDEN / "cnn" / "base.onnx", HERE / "cnn.runtime.ort", "Runtime")
    convert(GOLDEN / "cnn" / "base.onnx", HERE / "cnn.nchwc.ort", "Fixed", "amd64")
    np.savez(HERE / "expected.npz", **recorded)


if __name__ == "__main__":
    main()
