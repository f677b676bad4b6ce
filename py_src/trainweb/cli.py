"""The command line: `trainweb artifacts | check | inspect | train | export | compile | quantize`, each with --help."""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
import sys
from collections.abc import Sequence
from enum import Enum
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from trainweb._version import __version__
from trainweb.errors import FeedError, TrainwebError

if TYPE_CHECKING:
    from random import Random

    from trainweb.ir.shapes import TensorType
    from trainweb.model.graph import Tensor
    from trainweb.session.check import Report
    from trainweb.session.example import Feed
    from trainweb.session.training_session import TrainingSession
    from trainweb.training.state import CheckpointState

Kind = TypeVar("Kind", bound=Enum)
ARTIFACT_FILES = {
    "train_model": "training_model.onnx",
    "eval_model": "eval_model.onnx",
    "optimizer_model": "optimizer_model.onnx",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    args = _parser().parse_args(argv)
    try:
        status = int(args.run(args) or 0)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has closed it: the rest of the buffer is dropped.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (TrainwebError, OSError, ValueError, TypeError) as e:
        return _fail(args.command, f"{type(e).__name__}: {e}")
    except ModuleNotFoundError as e:
        return _fail(args.command, f"this needs {e.name}, which is not installed. {IN_PYTHON}")


IN_PYTHON = """Run it with the Python package: pip install "trainweb[native]"."""


def _fail(command: str, text: str) -> int:
    print(f"trainweb {command}: {text}", file=sys.stderr)
    return 1


def main_in_node(words: Sequence[str], folder: str, engine: object) -> int:
    """Run the command line in the Pyodide of `npx trainweb`; the exit status.

    `words` come after `trainweb`. `folder` is the working directory, `engine` an `Engine` of the JavaScript package.
    """
    from trainweb.backend.chosen import RUNTIME

    os.chdir(folder)
    RUNTIME.use_worker_engine(engine)
    try:
        return main(words)
    except SystemExit as end:  # of argparse, after a help or an error
        return int(end.code or 0)
    except MemoryError:
        return _fail(words[0], f"the files do not fit into the 2 GiB that Python has in Node. {IN_PYTHON}")
    finally:
        sys.stdout.flush()


def _names(kinds: type[Enum]) -> str:
    *most, last = kinds.__members__
    return f"{', '.join(most)} or {last}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainweb", description="Train ONNX models on WebAssembly kernels.")
    parser.add_argument("--version", action="version", version=f"trainweb {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for add in (_add_artifacts_command, _add_check, _add_inspect, _add_train, _add_export, _add_compile, _add_quantize):
        add(commands)
    return parser


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_artifacts_command(commands: Commands) -> None:
    from trainweb.artifacts import OptimType

    p = commands.add_parser("artifacts", help="make training artifacts from a forward model")
    p.add_argument("model", type=Path, help="the forward model, .onnx")
    p.add_argument(
        "-o", "--output", type=Path, default=Path(), help="output folder; it is created if it does not exist"
    )
    _add_loss(p)
    p.add_argument("--optimizer", default="AdamW", help=_names(OptimType))
    _add_several(p, "--freeze", "PATTERN", "name or regular expression of parameters to freeze")
    _add_several(p, "--output-name", "NAME", "tensor that steps return besides the loss")
    _add_changes(p)
    p.set_defaults(run=_artifacts)


def _add_check(commands: Commands) -> None:
    from trainweb.artifacts import OptimType

    p = commands.add_parser(
        "check", help="list the trained parameters of a forward model, the cost of a step, and obstacles"
    )
    p.add_argument("model", type=Path, help="the forward model, .onnx")
    _add_loss(p, "--output")
    _add_several(p, "--train", "PATTERN", "train only these parameters")
    _add_several(p, "--freeze", "PATTERN", "freeze these parameters")
    _add_changes(p)
    p.add_argument("--optimizer", default="AdamW", help=_names(OptimType))
    p.add_argument(
        "--steps", type=int, default=0, help="train this many steps on random data, and print the time of one"
    )
    p.add_argument("--code", choices=["javascript", "python"], help="also print code that trains the model")
    p.add_argument("--json", action="store_true", help="print the report as JSON")
    p.set_defaults(run=_check)


def _add_inspect(commands: Commands) -> None:
    p = commands.add_parser(
        "inspect", help="show the inputs, outputs and operators of a model, or the contents of a checkpoint"
    )
    p.add_argument("file", type=Path, help="a .onnx model or a checkpoint")
    p.set_defaults(run=_inspect)


def _add_train(commands: Commands) -> None:
    p = commands.add_parser("train", help="train artifacts on arrays")
    _add_artifacts(p)
    p.add_argument("data", type=Path, help=".npz with one array per training input; rows are samples")
    p.add_argument("-o", "--output", type=Path, required=True, help="output checkpoint, with optimizer state")
    p.add_argument("--epochs", type=int, default=1, help="passes over the data; default 1")
    p.add_argument("--batch-size", type=int, default=32, help="rows in a batch; default 32")
    p.add_argument("--learning-rate", type=float, default=1e-3, help="default 0.001")
    p.add_argument("--seed", type=int, default=0, help="seed of the order of samples and of random operators")
    p.set_defaults(run=_train)


def _add_export(commands: Commands) -> None:
    p = commands.add_parser("export", help="write an inference model from the eval model and a checkpoint's parameters")
    _add_artifacts(p)
    p.add_argument("outputs", nargs="+", help="names of the outputs")
    p.add_argument("-o", "--output", type=_model_file, required=True, help="output .onnx")
    p.set_defaults(run=_export)


def _add_compile(commands: Commands) -> None:
    p = commands.add_parser("compile", help="compile a bundle from which a page trains without Python")
    _add_artifacts(p)
    p.add_argument(
        "--feed",
        action="append",
        required=True,
        metavar="NAME=DTYPE[D,D,...]",
        help="dtype and shape of a training input, e.g. x=float32[64,784]; once per input",
    )
    p.add_argument(
        "--memory-budget",
        type=int,
        metavar="BYTES",
        help="largest workspace of a step; the backward pass recomputes activations that do not fit",
    )
    metrics = 'metric that fit computes without Python: accuracy, or {"type": "topK", "k": 3}; once per metric'
    _add_several(p, "--metric", "NAME", metrics)
    p.add_argument(
        "--device",
        action="append",
        choices=("wasm", "webgpu"),
        help="device of the plans: the CPU or a GPU; once per device, default wasm",
    )
    p.add_argument("-o", "--output", type=Path, required=True, help="output bundle")
    p.set_defaults(run=_compile)


def _add_quantize(commands: Commands) -> None:
    p = commands.add_parser("quantize", help="quantize a forward model to 4 or 8 bits, to train adapters on it")
    p.add_argument("model", help="forward ONNX model in float32")
    p.add_argument("--bits", type=int, choices=(4, 8), default=4, help="bits of each number; default 4")
    p.add_argument("--all", action="store_true", help="also quantize the last product, such as a head to train")
    _add_weights(p)
    p.add_argument("--output", "-o", type=_model_file, help="file to write; default MODEL.q4.onnx or MODEL.q8.onnx")
    p.set_defaults(run=_quantize)


def _add_several(p: argparse.ArgumentParser, name: str, metavar: str, text: str, *older: str) -> None:
    """Add an option that may be repeated, under its name and older ones."""
    p.add_argument(name, *older, action="append", default=[], metavar=metavar, help=text)


def _model_file(text: str) -> Path:
    """The file of a model to write, which cannot be a file of its weights."""
    if not text.endswith(".onnx"):
        raise argparse.ArgumentTypeError(f"{text!r} is written as a model: its name must end in .onnx")
    return Path(text)


def _quantize(args: argparse.Namespace) -> None:
    from trainweb.checkpoint import write_file_atomically
    from trainweb.lora.quantize import quantize

    path = Path(args.output or f"{args.model.removesuffix('.onnx')}.q{args.bits}.onnx")
    data = quantize(args.model, args.bits, only_frozen=not args.all, weights=_weights(args))
    write_file_atomically(path, data)
    print(f"{path}: {len(data):,} bytes")


def _add_changes(p: argparse.ArgumentParser) -> None:
    """Options that complete or change the model before it is trained."""
    _add_several(p, "--dim", "NAME=SIZE", "size of a symbolic dimension")
    _add_weights(p)
    text = 'replace the layer that makes the classes by a new one; --freeze "all but head" trains only it'
    p.add_argument("--head", metavar="[LAYER=]CLASSES", help=text)
    text = "train adapters of this rank, on the modules that PEFT adapts"
    p.add_argument("--lora", type=int, metavar="RANK", help=text)


def _add_weights(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--weights",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="safetensors files, or their index, with the weights that the model lacks",
    )


def _weights(args: argparse.Namespace) -> list[Path] | None:
    return None if args.weights is None else [file for path in args.weights for file in _files_of(path)]


def _files_of(weights: Path) -> list[Path]:
    """The shards of an index; any other file itself."""
    from trainweb.model.weights import shards

    is_index = weights.suffix == ".json" and weights.is_file()
    return [weights.parent / name for name in shards(weights)] if is_index else [weights]


def _lora(args: argparse.Namespace) -> dict[str, Any] | None:
    if args.lora is None:
        return None
    if args.freeze or vars(args).get("train"):
        raise ValueError("--lora trains only adapters and freezes the model: leave out --train and --freeze.")
    return {"rank": args.lora}


def _head(args: argparse.Namespace) -> dict[str, Any] | None:
    if args.head is None:
        return None
    layer, _, classes = args.head.rpartition("=")
    if not classes.isdecimal():
        raise ValueError("--head has the form CLASSES, or LAYER=CLASSES, such as fc=5.")
    return {"classes": int(classes)} | ({"layer": layer} if layer else {})


def _frozen(args: argparse.Namespace) -> list[str] | str | None:
    from trainweb.heads import ALL_BUT_HEAD

    return ALL_BUT_HEAD if args.freeze == [ALL_BUT_HEAD] else args.freeze or None


def _dims(args: argparse.Namespace) -> dict[str, int]:
    sizes = dict(text.partition("=")[::2] for text in args.dim)
    if not all(size.isdecimal() for size in sizes.values()):
        raise ValueError("--dim has the form NAME=SIZE.")
    return {name: int(size) for name, size in sizes.items()}


def _add_loss(p: argparse.ArgumentParser, *older: str) -> None:
    from trainweb.artifacts import LossType
    from trainweb.artifacts.builder import BATCH_NORM

    forms = 'or JSON, such as {"name": "HuberLoss", "delta": 2}, or a loss by outputs: {"kind": "CrossEntropyLoss"}'
    p.add_argument("--loss", help=f"{_names(LossType)}; {forms}; without it the first output is the loss")
    _add_several(p, "--loss-output", "NAME", "output for the loss, where the model has more than it takes", *older)
    p.add_argument("--sample-weight", metavar="NAME", help="new input with the weight of each row")
    p.add_argument("--batch-norm", choices=BATCH_NORM, help="train batch normalizations, or keep them as exported")


def _loss(text: str | None) -> Any:
    """A loss by its name, or of JSON."""
    from trainweb.artifacts import LossType

    if text is None or not text.startswith(("{", "[")):
        # A text: the enumeration asks for the names of ONNX Runtime's inputs.
        return None if text is None else _member(LossType, "--loss", text).name
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"--loss is no JSON: {error}") from error


def _add_artifacts(p: argparse.ArgumentParser) -> None:
    p.add_argument("artifacts", type=Path, help=f"folder with {', '.join(ARTIFACT_FILES.values())}, checkpoint")
    p.add_argument("--checkpoint", type=Path, help="checkpoint to use instead of the folder's")


def _artifact_paths(args: argparse.Namespace) -> dict[str, Path]:
    paths = {k: args.artifacts / f for k, f in ARTIFACT_FILES.items()}
    if not paths["train_model"].exists():
        raise OSError(f"{paths['train_model']} does not exist; `trainweb artifacts` writes it.")
    return {k: p for k, p in paths.items() if p.exists()}


def _state(args: argparse.Namespace) -> CheckpointState:
    from trainweb.training.state import CheckpointState

    return CheckpointState.load_checkpoint(args.checkpoint or args.artifacts / "checkpoint")


def _open(args: argparse.Namespace, *, optimizer: bool = True) -> tuple[CheckpointState, TrainingSession]:
    from trainweb.session.training_session import TrainingSession

    paths, state = _artifact_paths(args), _state(args)
    optimizer_model = paths.get("optimizer_model") if optimizer else None
    return state, TrainingSession(state, paths["train_model"], paths.get("eval_model"), optimizer_model)


def _artifacts(args: argparse.Namespace) -> None:
    from trainweb.artifacts import OptimType
    from trainweb.artifacts.builder import describe_missing_loss
    from trainweb.model import read_model
    from trainweb.model.graph import TRAINWEB
    from trainweb.onnxblock.optim import OPTIMIZERS
    from trainweb.session.creation import artifacts_of

    loss = _loss(args.loss)
    optimizer = _member(OptimType, "--optimizer", args.optimizer)
    lora = _lora(args)
    model = read_model(args.model, weights=_weights(args))
    missing = None if loss else describe_missing_loss(model, args.loss_output)
    if missing:
        raise ValueError(f"{missing} Name it with --loss.")
    args.output.mkdir(parents=True, exist_ok=True)
    settings = {
        "loss": loss,
        "optimizer": optimizer,
        "frozen_params": _frozen(args),
        "head": _head(args),
        "additional_output_names": args.output_name or None,
        "dims": _dims(args),
        "loss_input_names": args.loss_output or None,
        "batch_norm": args.batch_norm,
        "sample_weight": args.sample_weight,
    }
    files, _ = artifacts_of(model, lora, settings)
    files.write(args.output)
    print(f"Wrote {', '.join(ARTIFACT_FILES.values())} and checkpoint to {args.output.resolve()}.")
    operator = OPTIMIZERS[args.optimizer]()._operator
    if operator.domain == TRAINWEB:
        name = f"{operator.domain}.{operator.op_type()}"
        print(f"{ARTIFACT_FILES['optimizer_model']} has {name}, which runs in trainweb, not in ONNX Runtime training.")


def _check(args: argparse.Namespace) -> int:
    from trainweb.artifacts import OptimType
    from trainweb.session.check import check

    loss = _loss(args.loss)
    optimizer = _member(OptimType, "--optimizer", args.optimizer)
    choices = (args.train or None, _frozen(args), loss, optimizer)
    others: dict[str, Any] = {"loss_input_names": args.loss_output or None, "batch_norm": args.batch_norm}
    others |= {"weights": _weights(args), "lora": _lora(args), "head": _head(args), "sample_weight": args.sample_weight}
    report = check(args.model, *choices, dims=_dims(args), **others)
    print(json.dumps(report.as_data(), indent=2) if args.json else _as_options(str(report)))
    if report.ok and args.steps > 0:
        losses, milliseconds = _try_steps(args, choices, others, report)
        print(
            f"{args.steps} steps on random data: {milliseconds:.2f} ms each, loss {losses[0]:.4f} to {losses[-1]:.4f}"
        )
    if args.code is not None and args.code in report.code:
        print("\n" + report.code[args.code].replace('"model.onnx"', json.dumps(str(args.model))), end="")
    return 0 if report.ok else 1


_OPTIONS = {
    r"loss_input_names=\['([^']*)'\]": r"--loss-output '\1'",
    r"batch_norm='(\w+)'": r"--batch-norm \1",
    "loss_input_names": "--loss-output",
    "requires_grad": "--train",
    "frozen_params": "--freeze",
    "'weights'": "--weights",
    "Name one as the setting 'layer' of 'head'": "Name one: --head LAYER=CLASSES",
}
"""Options of `trainweb check` by the arguments of `build_artifacts` that its report speaks of."""


def _as_options(text: str) -> str:
    for argument, option in _OPTIONS.items():
        text = re.sub(argument, option, text)
    return text


def _member(kinds: type[Kind], option: str, name: str) -> Kind:
    if name not in kinds.__members__:
        raise ValueError(f"{option} {name!r} is not one of {', '.join(kinds.__members__)}.")
    return kinds[name]


def _try_steps(
    args: argparse.Namespace, choices: tuple[Any, ...], others: dict[str, Any], report: Report
) -> tuple[list[float], float]:
    """Train on random data, integers of which are 0 and 1: the losses, and the median milliseconds of a step."""
    from random import Random
    from statistics import median
    from time import perf_counter

    from trainweb.session.check import CHOICES
    from trainweb.session.creation import artifacts_of
    from trainweb.training.core import SessionCore
    from trainweb.training.models import read_models
    from trainweb.training.state import CheckpointState
    from trainweb.training.step_kind import TRAIN

    named = {**dict(zip(CHOICES, choices, strict=True)), **others, "dims": report.dims}
    files, _ = artifacts_of(args.model, named.pop("lora", None), named)
    rng = Random(0)
    data = {feed.name: _random_tensor(feed, rng) for feed in report.feeds}
    graphs = read_models(files.training_model, None, files.optimizer_model)
    core = SessionCore(CheckpointState.load_checkpoint(files.checkpoint), *graphs)
    losses, times = [], []
    try:
        core.prepare({feed.name: feed.shape for feed in report.feeds})
        for _ in range(args.steps):
            start = perf_counter()
            results = core.step(TRAIN, data, core.outputs["train"][:1])
            core.optimizer_step()
            core.lazy_reset_grad()
            times.append(1e3 * (perf_counter() - start))
            losses.append(float(next(iter(results.values())).values()[0]))
    finally:
        core.release()
    return losses, median(times)


def _random_tensor(feed: Feed, rng: Random) -> Tensor:
    from trainweb.model.graph import Tensor

    n = prod(feed.shape)
    if "float" not in feed.dtype:
        return Tensor.of(feed.name, feed.dtype, feed.shape, (rng.randrange(2) for _ in range(n)))
    numbers = [rng.gauss(0, 1) for _ in range(n)]
    if feed.dtype == "bfloat16":  # the upper half of float32
        halves = struct.unpack(f"<{2 * n}H", struct.pack(f"<{n}f", *numbers))[1::2]
        return Tensor(feed.name, feed.dtype, tuple(feed.shape), struct.pack(f"<{n}H", *halves))
    return Tensor.of(feed.name, feed.dtype, feed.shape, numbers)


def _inspect(args: argparse.Namespace) -> None:
    data = args.file.read_bytes()
    if data[4:8] == b"ODTC":
        _inspect_checkpoint(data)
    else:
        _inspect_model(data)


def _inspect_checkpoint(data: bytes) -> None:
    from trainweb.checkpoint import read_checkpoint

    c = read_checkpoint(data)
    print(f"checkpoint{' (nominal)' if c.is_nominal else ''}")
    for tensors, kind in ((c.trained, "trainable"), (c.frozen, "frozen")):
        for t in tensors:
            print(f"  {kind:9} {t.name}  {t.dtype}{list(t.shape)}")
    if c.has_optimizer:
        print(f"  optimizer: step {c.step}, initial rate {c.initial_lr:g}, state of {len(c.moments)} parameters")
    for name, value in c.properties.items():
        print(f"  property  {name} = {value!r}")


def _inspect_model(data: bytes) -> None:
    from trainweb.model import read_model
    from trainweb.model.graph import Value
    from trainweb.ops.frame.op import find

    graph = read_model(data)
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in graph.opsets.items())
    print(f"model {graph.name!r}, opsets {opsets}")
    for kind, values in (("input", graph.inputs), ("output", graph.outputs)):
        for v in values:
            print(f"  {kind:6} {v.name}  {v.dtype}{list(v.shape or ()) if isinstance(v, Value) else ' sequence'}")
    print(f"  {len(graph.initializers)} initializers, {sum(t.size for t in graph.initializers.values())} elements")
    counts: dict[tuple[str, str], int] = {}
    for node in graph.nodes:
        counts[node.domain, node.op_type] = counts.get((node.domain, node.op_type), 0) + 1
    for (domain, op_type), n in sorted(counts.items()):
        mark = "" if find(domain, op_type) else "   (not supported)"
        print(f"  {n:5} {domain + '.' if domain else ''}{op_type}{mark}")


def _train(args: argparse.Namespace) -> None:
    import numpy as np

    from trainweb.training.core import set_seed
    from trainweb.training.history import Epoch, Event, Run
    from trainweb.training.state import CheckpointState

    set_seed(args.seed)
    state, session = _open(args)
    with session, np.load(args.data) as data:
        names = session.input_names()
        missing = [n for n in names if n not in data.files]
        if missing:
            raise FeedError(
                f"{args.data} has no array {', '.join(missing)}; the training inputs are {', '.join(names)}."
            )
        arrays = {n: data[n] for n in names}

        def show(event: Event, _: Run) -> None:
            if isinstance(event, Epoch):
                print(f"epoch {event.epoch}/{args.epochs}  loss {event.loss:.5f}")

        session.fit(
            arrays,
            epochs=args.epochs,
            batch_size=args.batch_size,
            remainder="drop" if len(arrays[names[0]]) >= args.batch_size else "keep",
            learning_rate=args.learning_rate,
            seed=args.seed,
            progress=False,
            callbacks=show,
        )
        CheckpointState.save_checkpoint(state, args.output, include_optimizer_state=True)
    print(f"Wrote {args.output}.")


def _export(args: argparse.Namespace) -> None:
    _, session = _open(args, optimizer=False)
    with session:
        session.export_model_for_inferencing(args.output, args.outputs)
    print(f"Wrote {args.output}.")


def _compile(args: argparse.Namespace) -> None:
    from trainweb import messages
    from trainweb.backend.chosen import RUNTIME
    from trainweb.checkpoint import write_file_atomically
    from trainweb.model.checks import Limits, check_memory_budget
    from trainweb.page.bundle import make_bundle
    from trainweb.spelling import by_inputs
    from trainweb.training.models import SessionModels, read_models

    targets = args.device or ["wasm"]
    if "webgpu" in targets and args.memory_budget is not None:
        raise messages.NOT_ON_GPU(what="--memory-budget")
    paths, state = _artifact_paths(args), _state(args)
    origin = state._lent()
    models = SessionModels(
        origin.trainable,
        *read_models(paths["train_model"], paths.get("eval_model"), paths.get("optimizer_model"), tells_which=True),
        engine=RUNTIME.get_engine(),
        limits=Limits(),
        memory_budget=check_memory_budget(args.memory_budget),
        halves=origin.halves,
    )
    feeds = dict(by_inputs(dict(parse_feed(text) for text in args.feed), models.inputs["train"]))
    files = {k: p.read_bytes() for k, p in paths.items()}
    metrics = [json.loads(text) if text.startswith("{") else text for text in args.metric]
    bundle = make_bundle(models, origin, [feeds], files, metrics, targets)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_file_atomically(args.output, bundle)
    print(f"Wrote {args.output}, {len(bundle)} bytes.")


def parse_feed(text: str) -> tuple[str, TensorType]:
    """("x", TensorType) of "x=float32[64,784]"."""
    from trainweb.ir.shapes import TensorType
    from trainweb.model.graph import ITEM_SIZE

    name, _, rest = text.partition("=")
    dtype, bracket, dims = rest.partition("[")
    try:
        shape = tuple(int(d) for d in dims.rstrip("]").split(",") if d.strip())
    except ValueError:
        shape = (-1,)
    if not name or dtype not in ITEM_SIZE or not bracket or not dims.endswith("]") or any(d < 0 for d in shape):
        raise ValueError(f"--feed {text!r} is not of the form NAME=DTYPE[D,D,...].")
    return name, TensorType(dtype, shape)


if __name__ == "__main__":
    sys.exit(main())
