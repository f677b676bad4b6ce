"""The worked example of docs/architecture-plan.md agrees with the compiler."""

import re
import struct
from pathlib import Path

import trainweb
from trainweb.ir.layout import BUFFER_WORDS, HEADER_WORDS, SEGMENT_WORDS
from trainweb.ir.shapes import TensorType
from trainweb.training.step_kind import TRAIN

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "mlp"


def test_the_worked_example_is_true() -> None:
    page = (ROOT / "docs" / "architecture-plan.md").read_text()
    state = trainweb.CheckpointState.load_checkpoint(GOLDEN / "checkpoint")
    with trainweb.TrainingSession(state, GOLDEN / "training_model.onnx") as session:
        feeds = {"x": TensorType("float32", (8, 10)), "labels": TensorType("int64", (8,))}
        plan = session._core.models.compile_step(TRAIN, feeds, True)
    words = struct.unpack(f"<{len(plan.words) // 4}I", plan.words)
    n_segments, n_buffers = words[5], words[6]
    buffers_at = HEADER_WORDS + SEGMENT_WORDS * n_segments
    code_at = buffers_at + BUFFER_WORDS * n_buffers
    first = words[code_at] >> 16
    at = code_at + 1 + first
    n_args = words[at] >> 16

    line = next(line for line in page.splitlines() if re.match(r"\s+opcode \| \d+ << 16", line))
    shown = [int(n, 0) for n in re.findall(r"0x[0-9a-f]+|\d+", line.replace("<< 16", ""))]
    assert shown == [n_args, *words[at + 1 : at + 1 + n_args]]

    table = re.findall(r"(\d) = segment (\d)(?: \(\w+\))? \+ (\d+), (\d+)", page)
    assert len(table) == 4
    for number, segment, offset, nbytes in table:
        entry = buffers_at + BUFFER_WORDS * int(number)
        assert words[entry : entry + 3] == (int(segment), int(offset), int(nbytes))

    example = page[page.index("    1  gemm_f32(") :]
    text = re.sub(r"\s+", " ", example[: example.index("Gemm_1'") + 7]).strip().removeprefix("1 ")
    before, after = text.split(" ..., ")
    disassembled = re.sub(r"\s+", " ", plan.text[1])
    assert disassembled.startswith(before) and disassembled.endswith(after)
