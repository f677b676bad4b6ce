"""A step of SmolLM2-135M's architecture with LoRA beside PyTorch and PEFT: processor time and memory, in turns.

    .venv/bin/python bench/language_model.py PYTHON [--batch 1] [--length 128] [--rounds 3]

PYTHON runs in an environment with torch, transformers and peft. It exports the model with random weights, and takes the
steps of PyTorch. trainweb runs natively on one thread, and in Chromium and PyTorch with one and two. The table has the
median of processor seconds of a step. The share is of the peak of SIMD128, which a page measures between the steps:
multiply-adds in registers that take about as long as a step, also by processor seconds, and also their median.
Chromium also takes steps that ignore half of the labels. These are the first half of each text, as of a prompt, or the
last, as of padding.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainweb import TrainingSession

VOCABULARY = 49152
ARCHITECTURE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "use_cache": False,
}
TARGETS, RANK = ["q_proj", "v_proj"], 8
RATE, IGNORED = 1e-3, -100
THREADS = (1, 2)
MIB = 1 << 20


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python", help="an interpreter with torch, transformers and peft")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def data(options: argparse.Namespace) -> tuple[Any, Any]:
    """Words and the next words."""
    import numpy as np

    words = np.random.default_rng(1).integers(0, VOCABULARY, (options.batch, options.length + 1))
    return words[:, :-1].copy(), words[:, 1:].copy()


def be_peer(options: argparse.Namespace) -> None:
    """Export the model to `options.peer`; then take a step of PyTorch with as many threads as each line says."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**ARCHITECTURE))
    ids, labels = (torch.from_numpy(a) for a in data(options))
    torch.onnx.export(
        model.eval(),
        (ids,),
        str(options.peer),
        dynamo=True,
        input_names=["input_ids"],
        verbose=False,
        external_data=False,
    )
    adapted = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=RANK, target_modules=TARGETS)).train()
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=RATE)
    print("ready", flush=True)
    for line in sys.stdin:
        torch.set_num_threads(int(line))
        start = process_time()
        logits = adapted(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(json.dumps([process_time() - start, float(loss.detach())]), flush=True)


def session_of(path: Path) -> TrainingSession:
    """A session of the exported model with adapters."""
    import trainweb
    from trainweb.lora import inject
    from trainweb.onnxblock.loss import CrossEntropyLoss

    made = inject(path, rank=RANK, targets=TARGETS).build_artifacts(
        loss=CrossEntropyLoss(ignore_index=IGNORED), optimizer="AdamW"
    )
    state = trainweb.CheckpointState.load_checkpoint(made.checkpoint)
    session = trainweb.TrainingSession(state, made.training_model, None, made.optimizer_model)
    session.set_learning_rate(RATE)
    return session


def step(session: TrainingSession, feeds: dict[str, Any]) -> tuple[float, float]:
    """Processor seconds and the loss of a step."""
    start = process_time()
    outputs = session.train_step(feeds)
    session.optimizer_step()
    session.lazy_reset_grad()
    return process_time() - start, float(next(iter(outputs.values())))


def move_weights(path: Path) -> None:
    """Move the weights of a model to a file beside it."""
    import onnx

    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.data")


class Peer:
    """PyTorch in another process; it has exported the model to `path` when this is made."""

    def __init__(self, python: str, path: Path) -> None:
        command = [python, *sys.argv, "--peer", str(path)]
        # Threads that wait for others on a busy machine must not count as work.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process: subprocess.Popen[str] = subprocess.Popen(command, env=environment, **pipes)
        while (line := self._line()) != "ready\n":
            if not line:
                raise SystemExit("PyTorch's side ended; its error is above.")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def step(self, threads: int) -> tuple[float, float]:
        """Processor seconds and the loss of a step."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{threads}\n")
        self.process.stdin.flush()
        seconds, loss = json.loads(self._line())
        return seconds, loss

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def flops_of(session: TrainingSession, feeds: dict[str, Any]) -> int:
    """Operations of the products of a train step."""
    from trainweb.ir.shapes import TensorType
    from trainweb.training.step_kind import TRAIN

    types = {name: TensorType("int64", a.shape) for name, a in feeds.items()}
    return int(session._core.plan(TRAIN, types).plan.flops)


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Take the steps in turns, and print the table."""
    from language_page import open_pages  # PyTorch's environment has no browser

    path = folder / "model.onnx"
    peer = Peer(options.python, path)
    move_weights(path)
    session = session_of(path)
    arrays = data(options)
    feeds = dict(zip(session.input_names(), arrays, strict=True))
    config = {
        "loss": {"type": "CrossEntropyLoss", "ignoreIndex": IGNORED},
        "optimizer": "AdamW",
        "lora": {"rank": RANK, "targets": TARGETS},
    }
    rows: dict[str, list[tuple[float, float]]] = {}
    peaks = []
    with open_pages(folder, config, arrays, THREADS) as pages:
        for _ in range(1 + options.rounds):
            rows.setdefault("trainweb, native, 1 thread", []).append(step(session, feeds))
            for threads, page in zip(THREADS, pages, strict=True):
                peaks.append(page.peak())
                rows.setdefault(f"trainweb, Chromium, {threads} thread(s)", []).append(page.step())
                for half in ("prompts", "padding"):
                    rows.setdefault(f"Chromium, {threads} thread(s), half are {half}", []).append(page.step(half))
                rows.setdefault(f"PyTorch, {threads} thread(s)", []).append(peer.step(threads))
    peer.close()
    report(options, rows, flops_of(session, feeds), statistics.median(peaks))
    report_memory(session)


def report(options: argparse.Namespace, rows: dict[str, list[tuple[float, float]]], flops: int, peak: float) -> None:
    """Print processor seconds of each side, without its first step. PyTorch's steps all train the same weights."""
    print(f"{options.batch} x {options.length} tokens")
    print(f"{flops / 1e9:.1f} GFLOP a step; peak of SIMD128 {peak:.1f} GFLOP/s")
    for name, results in rows.items():
        seconds = statistics.median(time for time, _ in results[1:])
        share = f"; {flops / seconds / peak / 1e9:.0%} of the peak" if name.startswith("trainweb") else ""
        print(f"{name}: {seconds:.2f} s of processor time a step{share}; first loss {results[0][1]:.6f}")


def report_memory(session: TrainingSession) -> None:
    """Print the memory of the native session."""
    memory = session.memory()
    trained = memory.gradients + memory.moments
    print(
        f"parameters {memory.parameters / MIB:.0f} MiB, gradients and moments {trained / MIB:.1f} MiB, workspace "
        f"{memory.arena / MIB:.0f} MiB, cached {memory.prepared / MIB:.0f} MiB"
    )


def main() -> None:
    """Measure, or be the other side."""
    options = arguments()
    if options.peer:
        be_peer(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder))


if __name__ == "__main__":
    main()
