"""Run gradient graphs of ours in ONNX Runtime: `ort_gradients.py FOLDER INPUTS.npz OUT_FOLDER`.

Run by an interpreter that has onnxruntime-training 1.19.2. For each NAME.onnx in the folder, feeds
the arrays NAME/in/X and writes OUTPUT_FOLDER/NAME.npz with every output, or NAME.txt with the
error.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime


def main(folder: Path, inputs: Path, results: Path) -> None:
    """Run every model that has no result yet."""
    arrays = np.load(inputs)
    onnxruntime.set_default_logger_severity(3)
    for path in sorted(folder.glob("*.onnx")):
        name = path.stem
        if (results / f"{name}.txt").exists() or (results / f"{name}.npz").exists():
            continue
        error = results / f"{name}.txt"
        error.write_text("the process was killed")
        try:
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            feeds = {i.name: arrays[f"{name}/in/{i.name}"] for i in session.get_inputs()}
            names = [o.name for o in session.get_outputs()]
            np.savez(results / f"{name}.npz", **dict(zip(names, session.run(names, feeds), strict=True)))
            error.unlink()
        except Exception as e:
            error.write_text(f"{type(e).__name__}: {e}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
