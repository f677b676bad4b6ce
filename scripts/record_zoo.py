"""Record the models of tests/zoo: each as torch's exporters write it, and how PyTorch trains it.

    ./build.sh record-zoo [NAME ...]
    python scripts/record_zoo.py --older [NAME ...]   # with torch 2.13: adds its files of another form

Runs in a separate environment (`environments.py`); the tests replay the recordings without it. A recording
is `NAME.tar.xz` with `EXPORTER.onnx`, for each exporter that manages, `about.json` and `truth.npz`:

- `feed/*` and `target`: what is fed at each of the steps, and what the loss compares with;
- `KIND/losses` for the optimizers SGD and AdamW: the loss of each step, of PyTorch in float64;
- `KIND/after/*`: every parameter and running statistic after the last step, of PyTorch in float64, rounded to float32;
- `KIND/moved`: how far each of these tensors moved, the largest difference of its numbers;
- `KIND/noise`, `KIND/noise of losses`: how far PyTorch in float32 is from PyTorch in float64.

Dropout and stochastic depth are off, since random numbers differ. Running variances are of the population, as ONNX
defines them; PyTorch's are of the sample.
"""

from __future__ import annotations

import copy
import io
import json
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from recording import EXPORTERS, export
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.zoo.recording import ADAMW, FOLDER, OLDER, RATES, STEPS, form, load  # noqa: E402
from tests.zoo.sources import LOSSES, SOURCES, Case  # noqa: E402

SEED = 11


def settle(module: nn.Module) -> nn.Module:
    """In training mode, with nothing left to chance; a module never trained has equal parameters, as people's have."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
    return module.train()


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, and buffers of floating point, by name; tied ones once."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: t for name, t in named.items() if t.is_floating_point()}


def cast(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy, of that type where it is a floating one."""
    return t.detach().clone().to(dtype) if t.is_floating_point() else t.detach().clone()


def population_variance(module: nn.Module, inputs: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
    """Take back that the running variance moved towards the sample's: ONNX has the population's."""
    if module.training and module.track_running_stats:
        n = inputs[0].numel() / inputs[0].shape[1]
        kept = (1 - module.momentum) * module.before
        module.running_var.data.copy_(kept + (module.running_var - kept) * (n - 1) / n)
        module.before = module.running_var.clone()


def as_onnx(module: nn.Module) -> nn.Module:
    """The module with running variances as ONNX defines them; nothing else depends on these in training."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
            part.before = part.running_var.clone()
            part.register_forward_hook(population_variance)
    return module


def optimizer_of(kind: str, module: nn.Module) -> torch.optim.Optimizer:
    if kind == "SGD":
        return torch.optim.SGD(module.parameters(), lr=RATES[kind])
    return torch.optim.AdamW(module.parameters(), lr=RATES[kind], **ADAMW)


def train(case: Case, kind: str, dtype: torch.dtype) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Losses of the steps, and after them all tensors but parameters without a gradient."""
    module = as_onnx(copy.deepcopy(case.module).to(dtype))
    feeds = [cast(t, dtype) for t in case.feeds.values()]
    optimizer = optimizer_of(kind, module)
    losses, used = [], set()
    for _ in range(STEPS):
        y = module(*feeds)
        loss = LOSSES[case.loss](y, cast(case.target, y.dtype)) if case.target is not None else y
        if loss.dtype != dtype:
            raise TypeError(f"the loss is {loss.dtype}: the module leaves {dtype}")
        loss.backward()
        used |= {name for name, p in module.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    unused = set(dict(module.named_parameters())) - used
    named = {name: t.detach().numpy().astype(np.float64) for name, t in tensors(module).items() if name not in unused}
    return np.array(losses), named


def truth(case: Case, about: dict[str, Any]) -> dict[str, np.ndarray]:
    """Feeds and training, as the recording stores them."""
    found = {f"feed/{name}": t.numpy() for name, t in case.feeds.items()}
    if case.target is not None:
        found["target"] = case.target.numpy()
    before = {name: t.detach().numpy().astype(np.float64) for name, t in tensors(case.module).items()}
    for kind in RATES:
        losses, exact = train(case, kind, torch.float64)
        rough, single = train(case, kind, torch.float32)
        if not np.isfinite(losses).all():
            raise ValueError(f"{kind} diverges: {losses}")
        about["parameters"] = [name for name, _ in case.module.named_parameters() if name in exact]
        updated = [n for n in exact if n in about["parameters"] or not np.array_equal(exact[n], before[n])]
        farthest = {
            "moved": [np.abs(exact[n] - before[n]).max(initial=0) for n in updated],
            "noise": [np.abs(single[n] - exact[n]).max(initial=0) for n in updated],
        }
        found |= {f"{kind}/losses": losses, f"{kind}/noise of losses": np.abs(rough - losses)}
        found |= {f"{kind}/after/{n}": exact[n].astype(np.float32) for n in updated}
        found |= {f"{kind}/{what}": np.array(values, np.float32) for what, values in farthest.items()}
        share = np.array(farthest["noise"]) / np.maximum(farthest["moved"], 1e-9)
        worst = f"noise up to {share.max():.1e} of the way in {updated[int(share.argmax())]}"
        print(f"    {kind:5} loss {losses[0]:.5f} -> {losses[-1]:.5f}, {len(about['parameters'])} parameters, {worst}")
    return found


def aliases(module: nn.Module) -> dict[str, str]:
    """The other names of tied parameters, each with the one that `named_parameters` has."""
    first = {id(p): name for name, p in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in every if name != first[id(p)]}


def first_cause(error: Exception) -> str:
    """The error of an exporter, in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    causes = [line.split(">: ", 1)[1] for line in lines if line.startswith("<class ")]
    text = re.sub(r"\x1b\[\d+m", "", (causes or lines or [""])[0])
    return f"{type(error).__name__}: {text[:160]}"


def exported(case: Case, about: dict[str, Any], exporters: Sequence[str] = (*EXPORTERS, "default")) -> dict[str, bytes]:
    """The files by exporter; what an exporter cannot do is noted."""
    files = {}
    state = {name: t.detach().clone() for name, t in case.module.state_dict().items()}
    for exporter in exporters:
        case.module.load_state_dict(state)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            try:
                export(case.module, case.feeds, ["y"], path, exporter)
            except Exception as error:  # exporters raise whatever they like
                about["not exported"][exporter] = first_cause(error)
                print(f"    {exporter} {about['not exported'][exporter]}")
                continue
            restore(path, {name: state[name] for name, _ in case.module.named_buffers() if name in state})
            files[exporter] = path.read_bytes()
    case.module.load_state_dict(state)
    return files


def restore(path: Path, buffers: dict[str, torch.Tensor]) -> None:
    """Put back the buffers: exporters run the module in training mode, which changes some."""
    file = onnx.load(path)
    for tensor in file.graph.initializer:
        if tensor.name in buffers and list(tensor.dims) == list(buffers[tensor.name].shape):
            tensor.CopyFrom(onnx.numpy_helper.from_array(buffers[tensor.name].numpy(), tensor.name))
    onnx.save(file, path)


def pack(path: Path, files: dict[str, bytes]) -> None:
    """One archive, for weights that files share are stored once in it; the same bytes whenever it is made."""
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def record(name: str) -> None:
    """Make the recording of one model."""
    print(name, flush=True)
    start = time.monotonic()
    torch.manual_seed(SEED)
    source = SOURCES[name]
    case = source.make()
    settle(case.module)
    about: dict[str, Any] = {"title": source.title, "library": source.library, "loss": case.loss, "not exported": {}}
    about["numbers"] = sum(p.numel() for p in case.module.parameters())
    about["aliases"] = aliases(case.module)
    about["frozen"] = [name for name, p in case.module.named_parameters() if not p.requires_grad]
    arrays: dict[str, Any] = truth(case, about)
    files = exported(case, about)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    parts = {"about.json": json.dumps(about, indent=1).encode()}
    parts |= {f"{exporter}.onnx": data for exporter, data in files.items()}
    FOLDER.mkdir(exist_ok=True)
    pack(FOLDER / f"{name}.tar.xz", {**parts, "truth.npz": buffer.getvalue()})
    size = (FOLDER / f"{name}.tar.xz").stat().st_size
    print(f"    {size / 1024:.0f} KiB of {sum(map(len, files.values())) / 1024:.0f}, {time.monotonic() - start:.0f} s")


def add_older(name: str) -> None:
    """Note the forms of the files that this torch writes for a recorded model, and add the files of another form."""
    recording = load(name)
    torch.manual_seed(SEED)
    case = SOURCES[name].make()
    settle(case.module)
    feeds = recording.part("feed/")
    if not all(np.array_equal(feeds[n], t.numpy()) for n, t in case.feeds.items()):
        raise ValueError("this torch draws other numbers")
    about: dict[str, Any] = {"not exported": {}}
    files = exported(case, about, [*OLDER])
    forms = {exporter: form(file) for exporter, file in files.items()}
    newest = {exporter: form(recording.files[exporter]) for exporter in OLDER if exporter in recording.files}
    with tarfile.open(FOLDER / f"{name}.tar.xz", "r:xz") as archive:
        parts = {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}  # type: ignore[union-attr]
    noted = {**recording.about, "older": forms}
    noted["not exported"] = {e: cause for e, cause in noted["not exported"].items() if e not in OLDER.values()}
    noted["not exported"] |= {OLDER[e]: cause for e, cause in about["not exported"].items() if e in newest}
    parts["about.json"] = json.dumps(noted, indent=1).encode()
    other = [e for e in forms if forms[e] != newest.get(e)]
    parts = {n: data for n, data in parts.items() if n.removesuffix(".onnx") not in OLDER.values()}
    pack(FOLDER / f"{name}.tar.xz", {**parts, **{f"{OLDER[e]}.onnx": files[e] for e in other}})
    print(f"{name}: another form of {other}" if other else f"{name}: the same forms", about["not exported"] or "", flush=True)


def main() -> int:
    """Record all models, or those named; the exit status says whether all could be."""
    torch.set_num_threads(1)
    step, arguments = (add_older, sys.argv[2:]) if sys.argv[1:2] == ["--older"] else (record, sys.argv[1:])
    unknown = set(arguments) - set(SOURCES)
    if unknown:
        print(f"no such models: {', '.join(sorted(unknown))}; there are {', '.join(sorted(SOURCES))}", file=sys.stderr)
        return 2
    failed = []
    for name in arguments or SOURCES:
        try:
            step(name)
        except Exception as error:  # one model must not keep the others from being recorded
            failed.append(name)
            print(f"    FAILED: {type(error).__name__}: {error}", flush=True)
    print(f"{len(failed)} failed: {' '.join(failed)}" if failed else "all recorded")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
