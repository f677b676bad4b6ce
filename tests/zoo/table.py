"""Prints docs/models.md: what each recorded model does here.

    python -m tests.zoo.table > docs/models.md

The rows are the results of replaying the recordings; `test_zoo.py` compares each row with its own result.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx
from tests.zoo.recording import FOLDER, RATES, Recording, load, names
from tests.zoo.replay import Off, Trained, replay

EXPORTERS = {"plain": "dynamo, `optimize=False`", "script": "TorchScript", "dynamo": "dynamo"}
"""By the names of recordings: what docs/models.md calls them."""
HEAD = """\
# Models

Small models of many architectures, as PyTorch's exporters write them, and whether they train here to PyTorch's
trajectory: losses, and every parameter and running statistic after five steps of SGD and five of AdamW, against PyTorch
in float64, no farther from it than a few times what PyTorch in float32 is. `tests/zoo` holds the models and recordings
of them; this page is printed from replaying these (`python -m tests.zoo.table`), which the tests repeat. The exporters'
options are those of [export.md](export.md): training mode, and for dynamo both `optimize=False` and the default.

The table is what the tests replay. Beside it 136 other models (transformers, plain modules) and 121 functions of torch,
each between two layers, were tried once with torch 2.15: of 219 files of the dynamo exporter with `optimize=False` 210
train to PyTorch's trajectory, of 195 of the TorchScript exporter 176. The others are warned of or refused, but for what
[export.md](export.md) names as in no file (`detach`, `torch.no_grad()` and, of TorchScript, `padding_idx`).

At a batch of 1 a comparison may fail where PyTorch is wrong, as of EfficientFormer. PyTorch's gradient of `batch_norm`
on the CPU (2.13 and 2.15) reads a gradient in the wrong order that is strided like channels-last, as one that came
through `flatten(2).transpose(1, 2)`. The bias's gradient is not the sum of that gradient then. It is here; with
`.contiguous()` before the transpose it is in PyTorch, too.

Of 16 vision models whose trajectories part from float64 early, as few values meet in their batch norms, the gradients
of the first step are as near to float64 here as in PyTorch's float32, or as in it after the inputs moved by one
rounding (medians within 3 times). So is MobileNetV2 of transformers at 32 pixels, where the last norms have one pixel
of each image. UPerNet with AdamW parts from PyTorch where `eps` is the default here, ONNX Runtime's 1e-6, and there
torch's 1e-8, for under ConvNeXt's layer scales gradients are smaller than both; with `eps=1e-8` it is as near to
float64 as PyTorch's float32 is. Parameters whose gradient is zero but for rounding move by the rate then, in both.

- **yes**: trains to PyTorch's trajectory from the file alone.
- **yes, named**: the same, after `requires_grad` named the parameters: the file leaves it open, and a warning says so.
- **yes, warned**: the same, although a warning names what the exporter merged or folded.
- **warned**: the exporter's optimizer left parameters out of the file; a warning names them, and says to export with
  `optimize=False`. The first loss is PyTorch's, unless the remark says that batch norms are folded: the file then has
  their running statistics in its weights, and nothing that could be trained with the statistics of a batch.
- **no**: it does not; the remark says why.
- **-**: the exporter itself fails.
"""


@dataclass(frozen=True)
class Known:
    """A failure that tests/zoo/open.toml lists."""

    model: str
    exporter: str
    starts: str
    """Where it is seen first: how the message of the failure starts."""
    cause: str


def known_failures() -> dict[tuple[str, str], Known]:
    """The entries of open.toml by model and exporter."""
    data = tomllib.loads((FOLDER.parent / "open.toml").read_text())
    entries = [
        Known(entry["model"], e, entry["starts"], entry["cause"])
        for entry in data.get("open", [])
        for e in entry["exporters"]
    ]
    found = {(k.model, k.exporter): k for k in entries}
    if len(found) != len(entries):
        raise ValueError("open.toml lists a model and exporter twice")
    return found


def outcome(recording: Recording, exporter: str) -> Trained | Off:
    """What training with all recorded optimizers comes to."""
    try:
        results = [replay(recording, exporter, kind) for kind in RATES]
    except Off as off:
        return off
    same, starts = (all(getattr(r, name) for r in results) for name in ("all_the_same", "starts_the_same"))
    return replace(results[0], all_the_same=same, starts_the_same=starts)


def row(recording: Recording, exporter: str, result: Trained | Off | None, known: Known | None) -> str:
    """One line of the table; `result` is None where the exporter failed."""
    about = recording.about
    if result is None:
        trains, remark = "-", about["not exported"][exporter]
    elif isinstance(result, Off):
        trains, remark = "no", known.cause if known else str(result)
    elif result.untrained:
        trains = "yes, warned" if result.all_the_same else "warned"
        remark = f"folded, merged or removed: {_listed(result.untrained)}"
        remark += "" if result.starts_the_same else f"; {_lost_norms(recording, exporter)}"
    elif result.settled:
        trains, remark = "yes, named", f"doubtful: {_listed(result.settled)}"
    else:
        trains, remark = "yes", ""
    frozen = about.get("frozen")
    if frozen and trains.startswith("yes"):
        remark = f"`frozen_params` names what the module freezes: {_listed(tuple(frozen))}"
    cells = [about["title"], about["library"], EXPORTERS[exporter], trains, remark.replace("|", "\\|")]
    return "| " + " | ".join(cells) + " |"


def _lost_norms(recording: Recording, exporter: str) -> str:
    """What makes the file another function: norms that the exporter's optimizer folds as if they did not train."""
    there, kept = (
        sum(node.op_type == "BatchNormalization" for node in onnx.load_from_string(recording.files[e]).graph.node)
        for e in ("plain", exporter)
    )
    if kept == there:
        raise ValueError(f"{recording.name}: {exporter} computes something else, and has all {there} batch norms")
    return f"{there - kept} of {there} batch norms are folded as for inference: export with `optimize=False`"


def _listed(tensors: tuple[str, ...], most: int = 3) -> str:
    shown = ", ".join(f"`{name}`" for name in tensors[:most])
    return shown if len(tensors) <= most else f"{shown} and {len(tensors) - most} more"


def lines() -> Iterator[str]:
    """The whole page."""
    known = known_failures()
    yield HEAD
    yield "| model | library | exporter | trains | remarks |"
    yield "|---|---|---|---|---|"
    for name in names():
        recording = load(name)
        for exporter in EXPORTERS:
            result = outcome(recording, exporter) if exporter in recording.files else None
            yield row(recording, exporter, result, known.get((name, exporter)))
            print(f"{name} {exporter} {result!r}"[:300], file=sys.stderr, flush=True)


if __name__ == "__main__":
    for line in lines():
        print(line)
