"""A step of SmolLM2-135M's architecture with LoRA beside PyTorch and PEFT: processor time and memory, in turns.

    .venv/bin/python bench/language_model.py PYTHON [--batch 1] [--length 128] [--ignored 0.0] [--rounds 3]

PYTHON runs in an environment with torch, transformers and peft. It exports the model with random weights, and takes the
steps of PyTorch. Both sides compute on one thread. The table has the median of processor seconds of a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

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
MIB = 1 << 20


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("python", help="an interpreter with torch, transformers and peft")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--ignored", type=float, default=0.0, help="share of labels that are ignored")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def data(options: argparse.Namespace) -> tuple[Any, Any]:
    """Words and the next words, of which the first are ignored."""
    import numpy as np

    words = np.random.default_rng(1).integers(0, VOCABULARY, (options.batch, options.length + 1))
    ids, labels = words[:, :-1].copy(), words[:, 1:].copy()
    labels[:, : round(options.ignored * options.length)] = IGNORED
    return ids, labels


def be_peer(options: argparse.Namespace) -> None:
    """Export the model to `options.peer`; then take a step of PyTorch for each line of standard input."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    torch.set_num_threads(1)
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
    for _ in sys.stdin:
        start = process_time()
        logits = adapted(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(json.dumps([process_time() - start, float(loss.detach())]), flush=True)


def session_of(path: Path) -> Any:
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


def step(session: Any, feeds: dict[str, Any]) -> tuple[float, float]:
    """Processor seconds and the loss of a step."""
    start = process_time()
    outputs = session.train_step(feeds)
    session.optimizer_step()
    session.lazy_reset_grad()
    return process_time() - start, float(next(iter(outputs.values())))


def main() -> None:
    """Measure and print."""
    options = arguments()
    if options.peer:
        be_peer(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        command = [options.python, *sys.argv, "--peer", str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdin is not None and peer.stdout is not None
            while (line := peer.stdout.readline()) != "ready\n":
                if not line:
                    raise SystemExit("PyTorch's side ended; its error is above.")
            session = session_of(path)
            feeds = dict(zip(session.input_names(), data(options), strict=True))
            rows: dict[str, list[tuple[float, float]]] = {"trainweb": [], "torch": []}
            for _ in range(1 + options.rounds):
                rows["trainweb"].append(step(session, feeds))
                peer.stdin.write("step\n")
                peer.stdin.flush()
                rows["torch"].append(tuple(json.loads(peer.stdout.readline())))
            peer.stdin.close()
    print(f"{options.batch} x {options.length} tokens, {options.ignored:.0%} of the labels ignored")
    for name, results in rows.items():
        seconds = statistics.median(time for time, _ in results[1:])
        print(f"{name}: {seconds:.2f} s of processor time a step; losses {', '.join(f'{x:.6f}' for _, x in results)}")
    memory = session.memory()
    trained = memory.gradients + memory.moments
    print(
        f"parameters {memory.parameters / MIB:.0f} MiB, gradients and moments {trained / MIB:.1f} MiB, workspace "
        f"{memory.arena / MIB:.0f} MiB, cached {memory.prepared / MIB:.0f} MiB"
    )


if __name__ == "__main__":
    main()
