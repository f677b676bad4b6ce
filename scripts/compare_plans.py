"""Compare the plans of the compiler before and after a redesign that must not change any result.

    python scripts/compare_plans.py write FILE     # before
    python scripts/compare_plans.py check FILE     # after: prints what differs, exits 1 if anything does

Compiles every plan (train, adding and overwriting; eval; optimizer; with and without a memory budget) of the golden
models and of the benchmark models. Opcodes are compared by the names of their kernels, without the fingerprint. Kernels
may thus be added or described anew.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "py_src"), str(ROOT / "bench")]

import models as bench_models  # noqa: E402
from networks import MODELS  # noqa: E402

import trainweb  # noqa: E402
from trainweb.errors import LimitError  # noqa: E402
from trainweb.ir.instructions import KernelCall  # noqa: E402
from trainweb.ir.shapes import TensorType  # noqa: E402
from trainweb.training.core import SessionCore  # noqa: E402
from trainweb.training.models import read_models  # noqa: E402
from trainweb.training.step_kind import StepKind  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"
HEADER_WORDS, FINGERPRINT = 20, 3
BUDGET_SHARE = 0.7
"""The memory budget tried, in parts of the workspace without one."""


def folders() -> Iterator[tuple[str, Path, dict[str, TensorType] | None]]:
    """Name, folder of artifacts, and types of the feeds (None: the types of the benchmark's manifest)."""
    for folder in sorted(GOLDEN.iterdir()):
        if (folder / "training_model.onnx").is_file() and (folder / "inputs.npz").is_file():
            arrays = np.load(folder / "inputs.npz")
            first = {n.removeprefix("b0."): arrays[n] for n in arrays.files if n.startswith("b0.")}
            yield folder.name, folder, {n: TensorType(str(a.dtype), a.shape) for n, a in first.items()}
    for name in MODELS:
        built = bench_models.build(name)
        yield f"bench {name}", built.folder, None


def feeds_of(core: SessionCore, kind: str, folder: Path, given: dict[str, TensorType] | None) -> dict[str, TensorType]:
    """Types of the feeds of a step."""
    if given is not None:
        return {n: given[n] for n in core.inputs[kind]}
    manifest = json.loads((folder / "manifest.json").read_text())
    x, labels = core.inputs[kind].values()
    return {
        x.name: TensorType(x.dtype, tuple(manifest["xshape"])),
        labels.name: TensorType(labels.dtype, (manifest["ysize"],)),
    }


def plans(name: str, folder: Path, given: dict[str, TensorType] | None) -> Iterator[tuple[str, Any, list[int]]]:
    """Every plan of a session on the artifacts in `folder`, and the bytes of the segments that do not depend on it."""
    optimizer = folder / "optimizer_model.onnx"
    graphs = read_models(
        folder / "training_model.onnx", folder / "eval_model.onnx", optimizer if optimizer.is_file() else None
    )
    arena = 0
    for budget in (False, True):
        state = trainweb.CheckpointState.load_checkpoint(folder / "checkpoint")
        core = SessionCore(state, *graphs, memory_budget=int(BUDGET_SHARE * arena) if budget else None)
        try:
            kept: dict[str, tuple[int, int]] = {}
            for kind, overwrite in (("train", True), ("train", False), ("eval", True)):
                try:
                    plan = core.models.compile_step(
                        StepKind(kind), feeds_of(core, kind, folder, given), overwrite, kept
                    )
                    kept.update(plan.kept)
                except LimitError:
                    if not budget:
                        raise
                    continue
                arena = max(arena, plan.arena_bytes) if not budget else arena
                yield f"{name} {kind} overwrite={overwrite} budget={budget}", plan, core.models.segment_bytes
            if graphs[2] is not None and not budget:
                yield f"{name} optimizer", core.models.compile_optimizer(), core.models.segment_bytes
        finally:
            core.release()


def words_of(plan: Any) -> list[int | str]:
    """The words of a plan, opcodes as names."""
    words = list(struct.unpack(f"<{len(plan.words) // 4}I", plan.words))
    names = {call.OPCODE: call.KERNEL for call in KernelCall.KERNELS} | {0: "generated"}
    n_segments, n_buffers, n_code = words[5], words[6], words[7]
    at = HEADER_WORDS + 3 * n_segments + 3 * n_buffers
    end = at + n_code
    result: list[int | str] = [*words[:FINGERPRINT], 0, *words[FINGERPRINT + 1 : at]]
    while at < end:
        n = words[at] >> 16
        result += [names[words[at] & 0xFFFF], *words[at + 1 : at + 1 + n]]
        at += 1 + n
    return [*result, *words[end:]]


def without_custom_sections(module: bytes) -> bytes:
    """A WebAssembly module without what describes it: the code alone."""
    kept, at = module[:8], 8
    while at < len(module):
        start, size, shift = at, 0, 0
        while True:
            at += 1
            size |= (module[at] & 0x7F) << shift
            shift += 7
            if module[at] < 0x80:
                break
        at += 1 + size
        kept += module[start:at] if module[start] else b""
    return kept


def record() -> dict[str, dict[str, Any]]:
    """The cases to compare, by plan."""
    found = {}
    for name, folder, given in folders():
        for title, plan, _ in plans(name, folder, given):
            parts = {
                "words": json.dumps(words_of(plan)).encode(),
                "constants": plan.constants + b"".join(piece for _, piece in plan.large.pieces()),
                "code": without_custom_sections(bytes(plan.code)),
            }
            found[title] = {
                **{part: hashlib.sha256(data).hexdigest() for part, data in parts.items()},
                "flops": plan.flops,
                "arena": plan.arena_bytes,
                "text": plan.disassemble().splitlines(),
            }
    return found


def main() -> int:
    """Write or check; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("write", "check"))
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    now = record()
    if options.command == "write":
        options.file.write_text(json.dumps(now))
        print(f"{len(now)} plans written")
        return 0
    before = json.loads(options.file.read_text())
    differing = sorted(before.keys() ^ now.keys())
    for title in sorted(before.keys() & now.keys()):
        parts = [p for p in before[title] if p != "text" and before[title][p] != now[title][p]]
        if parts:
            differing.append(title)
            print(f"{title}: other {', '.join(parts)}")
            lines = difflib.unified_diff(before[title]["text"], now[title]["text"], "before", "now", lineterm="", n=0)
            print("\n".join(line[:300] for line in list(lines)[:12]))
    print(f"{len(now)} plans, {len(differing)} differ{': ' + ', '.join(differing) if differing else ''}")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
