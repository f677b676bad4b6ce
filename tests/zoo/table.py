"""Prints docs/models.md: what each recorded model does here.

    python -m tests.zoo.table > docs/models.md

The rows are the results of replaying the recordings; `test_zoo.py` compares each row with its own result.
"""

import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import onnx
from tests.zoo.recording import FOLDER, OLDER, RATES, Recording, load, names
from tests.zoo.replay import Off, Trained, replay

EXPORTERS = {
    "plain": "dynamo, `optimize=False`",
    "script": "TorchScript",
    "dynamo": "dynamo",
    OLDER["dynamo"]: "dynamo of torch 2.13",
    "default": "TorchScript, its default",
    OLDER["default"]: "TorchScript, its default, of torch 2.13",
}
"""By the names of recordings: what docs/models.md calls them. All models have those of the newest torch."""
HEAD = """\
# Models

This page shows which architectures train here as in PyTorch. Each row is a small model, exported from PyTorch. The
column *trains* has these values:

- **yes**: trains to PyTorch's trajectory from the file alone.
- **yes, named**: the same, after `requires_grad` names the parameters. The file leaves it open, and a warning says so.
- **yes, warned**: the same, although a warning names tensors that the exporter merged or folded.
- **warned**: the exporter's optimizer removed parameters from the file. A warning names them and recommends
  `optimize=False`. The first loss is PyTorch's, unless the remark mentions folded batch norms. Their running statistics
  are then part of the weights, and the statistics of a batch cannot be used.
- **no**: does not train; the remark says why.
- **-**: the exporter itself fails.

The trajectory is the losses, and all parameters and running statistics after five steps of SGD and five of AdamW. The
reference is PyTorch in float64. The distance to it may be a few times the distance of PyTorch in float32.

`tests/zoo` contains the models and their recordings. `python -m tests.zoo.table` prints this page from a replay, which
the tests repeat. The options of the exporters follow [export.md](export.md): training mode, and for dynamo both
`optimize=False` and the default. All models are exported as they begin, never trained. The
row *TorchScript, its default* compares losses only: the file is in evaluation mode, and its weights have no names.

The exporters belong to torch 2.15. Torch 2.13 wrote all models again, by the defaults of both exporters. If its
file has the same nodes, attributes, numbers and notes on parameters, only one file is kept, without a second row.

Another 136 models (transformers, plain modules) and 121 functions of torch between two layers were tested once, with
torch 2.15. With the dynamo exporter and `optimize=False`, 210 of 219 files train to PyTorch's trajectory; with the
TorchScript exporter, 176 of 195. The others raise a warning or an error, except for facts that no file contains:
`detach`, `torch.no_grad()` and, for TorchScript, `padding_idx` ([export.md](export.md)).

Three comparisons need an explanation:

- **PyTorch's batch normalization.** At a batch of 1, PyTorch may be wrong, as for EfficientFormer. On the CPU (2.13 and
  2.15), its gradient of `batch_norm` reads gradients with strides like channels-last in the wrong order,
  for example after `flatten(2).transpose(1, 2)`. The gradient of the bias is then not their sum. trainweb computes the
  sum, and so does PyTorch with `.contiguous()` before the transpose.
- **Small batch norms.** The trajectories of 16 vision models leave float64 early, because their batch norms see few
  values. The gradients of their first step are as close to float64 as PyTorch's float32 (medians within 3 times). Some
  are compared after the inputs moved by one rounding. The same holds for MobileNetV2 of transformers at 32 pixels,
  whose last norms see one pixel of each image.
- **Small gradients.** UPerNet with AdamW differs from PyTorch, because the default `eps` is ONNX Runtime's 1e-6 instead
  of 1e-8. Under ConvNeXt's layer scales, gradients are smaller than both. With `eps=1e-8` it is as close to float64 as
  PyTorch's float32. In both, parameters whose gradient is only rounding noise move by the rate.
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


def tried(recording: Recording) -> list[str]:
    """The exporters that a model was recorded with."""
    return [e for e in EXPORTERS if e in recording.files or e in recording.about["not exported"]]


def outcome(recording: Recording, exporter: str, kinds: Iterable[str] = RATES) -> Trained | Off:
    """The result of training with some of the recorded optimizers."""
    try:
        results = [replay(recording, exporter, kind) for kind in kinds]
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
        remark = f"{'doubtful' if exporter == 'default' else 'folded, merged or removed'}: {_listed(result.untrained)}"
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
    """The reason for a different function: norms that the exporter's optimizer folds as if they did not train."""
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
        for exporter in tried(recording):
            result = outcome(recording, exporter) if exporter in recording.files else None
            yield row(recording, exporter, result, known.get((name, exporter)))
            print(f"{name} {exporter} {result!r}"[:300], file=sys.stderr, flush=True)


if __name__ == "__main__":
    for line in lines():
        print(line)
