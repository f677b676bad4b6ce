"""Train a recorded export here, and hold it to PyTorch's trajectory."""

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from tests.python.sessions import take_steps
from tests.zoo.recording import ADAMW, RATES, STEPS, Recording

from trainweb.artifacts import Artifacts, LossType, OptimType, build_artifacts
from trainweb.artifacts.evidence import Decision
from trainweb.errors import TrainwebError
from trainweb.onnxblock.blocks import Block
from trainweb.onnxblock.loss import CrossEntropyLoss
from trainweb.onnxblock.optim import AdamW
from trainweb.session.training_session import TrainingSession

NOISE = 8
"""How much farther from float64 than PyTorch's own float32 a tensor may end up: another order of sums."""
MOVE = 5e-3
"""How far off it may be besides, as a part of the farthest that any of its numbers moves: a rectifier whose input is
zero but for rounding is on the other side, or AdamW divides a gradient by its own rounding."""
ROUNDING = 2.0**-21
"""The same as a part of the tensor's largest number: a few roundings of float32 in five updates."""
STILL = 1e-8
"""The same of a mean that stays zero: the rounding of sums of numbers near 1, divided by some hundreds of them."""
LOSS = 1e-5


_STATISTICS = re.compile(r"running_(mean|var)$")
LOST = re.compile("export with optimize=False")
"""In the reason for what the file does not hold any more."""
SAID = re.compile("does not settle|are folded into the layers before them|is folded into weights")
ORDERED = ", in the order that ONNX gives to gates"
"""In the reason for a tensor that has the numbers of parameters, which it names."""


class Off(Exception):
    """The model does not train here as it does in PyTorch; the message says where that was seen first."""


@dataclass(frozen=True)
class Trained:
    """That a model trains as in PyTorch."""

    settled: tuple[str, ...] = ()
    """Tensors of which the file leaves open whether they are parameters, so that `requires_grad` named them."""
    untrained: tuple[str, ...] = ()
    """What the exporter's optimizer removed, merged or computed from parameters, of which a warning tells."""
    all_the_same: bool = False
    """Whether it trains as in PyTorch although a warning named something."""
    starts_the_same: bool = True
    """Whether its first loss is PyTorch's: an exporter that folds batch norms writes another function down."""


def loss_of(recording: Recording) -> LossType | Block | None:
    name = recording.about["loss"]
    if name.endswith(" of axis 1"):
        return CrossEntropyLoss(class_axis=1)
    return LossType[name] if name else None


def build(recording: Recording, exporter: str, kind: str, wanted: Iterable[str] | None = None) -> Artifacts:
    """Artifacts of one export; what is doubtful is in their decisions."""
    optimizer = OptimType.SGD if kind == "SGD" else AdamW(adam_mode=0, **ADAMW)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        artifacts = build_artifacts(
            recording.files[exporter],
            requires_grad=None if wanted is None else [re.escape(name) for name in wanted],
            frozen_params=[re.escape(name) for name in recording.about.get("frozen", [])] or None,
            loss=loss_of(recording),
            optimizer=optimizer,
        )
    doubtful = [d.name for d in artifacts.decisions if d.doubtful]
    if doubtful and not any(SAID.search(str(w.message)) for w in caught):
        raise Off(f"{doubtful[0]}: doubtful, and no warning says so")
    return artifacts


def settle(recording: Recording, exporter: str, kind: str, parameters: set[str]) -> tuple[Artifacts, Trained]:
    """Artifacts that train what PyTorch trains, and what had to be said for that."""
    artifacts = build(recording, exporter, kind)
    own = own_names(recording, artifacts)
    decisions = {name: d for d in artifacts.decisions for name in own if own[name] == d.name}
    chosen = {name for name, d in decisions.items() if d.trained}
    ordered = [d for d in artifacts.decisions if d.reason.endswith(ORDERED)]
    turned = {d.name for d in ordered}.union(*(d.reason.removesuffix(ORDERED).split(", ") for d in ordered))
    wrong = sorted((chosen ^ parameters) - turned)
    silent = [name for name in wrong if name not in decisions or not decisions[name].doubtful]
    if silent:
        raise Off(f"{silent[0]}: {_account(decisions.get(silent[0]), silent[0] in parameters)}")
    gone = tuple(sorted({d.name for d in artifacts.decisions if d.doubtful and LOST.search(d.reason)} | turned))
    if gone or not wrong:
        return artifacts, Trained(untrained=gone)
    return build(recording, exporter, kind, sorted(own[name] for name in parameters)), Trained(settled=tuple(wrong))


def own_names(recording: Recording, artifacts: Artifacts) -> dict[str, str]:
    """Names of tensors in the file, by PyTorch's names: of tied ones an exporter may keep another."""
    there = {d.name for d in artifacts.decisions if not LOST.search(d.reason)}
    other = {
        first: name
        for name, first in recording.about.get("aliases", {}).items()
        if name in there and first not in there
    }
    names = {d.name: d.name for d in artifacts.decisions if d.name not in other.values()}
    return {**names, **other}


def _account(decision: Decision | None, is_parameter: bool) -> str:
    what = "is a parameter of the module" if is_parameter else "is not a parameter of the module"
    if decision is None:
        return f"{what}, and the file is silent about it"
    return f"{what}, but it is {'trained' if decision.trained else 'left out'}: {decision.reason}"


def replay(recording: Recording, exporter: str, kind: str) -> Trained:
    """Take the recorded steps with one optimizer; raises `Off` with what went wrong first."""
    try:
        if exporter.startswith("default"):
            return of_default(recording, exporter, kind)
        artifacts, trained = settle(recording, exporter, kind, set(recording.about["parameters"]))
        if not trained.untrained:
            hold(recording, kind, *steps(recording, artifacts, kind))
        else:
            trained = account_of_warned(recording, artifacts, kind, trained)
    except TrainwebError as error:
        raise Off(f"{type(error).__name__}: {error}") from error
    return trained


def of_default(recording: Recording, exporter: str, kind: str) -> Trained:
    """Training of a file in evaluation mode, whose weights lost names: it warns of another course than PyTorch's."""
    artifacts = build(recording, exporter, kind)
    doubtful = tuple(sorted(decision.name for decision in artifacts.decisions if decision.doubtful))
    try:
        hold_losses(recording, kind, steps(recording, artifacts, kind)[0])
    except Off:
        if not doubtful:
            raise
        return Trained(untrained=doubtful)
    return Trained(untrained=doubtful, all_the_same=True)


def account_of_warned(recording: Recording, artifacts: Artifacts, kind: str, trained: Trained) -> Trained:
    """The distance to PyTorch of a model with a warning: the whole course, the start, or not even that."""
    losses, found = steps(recording, artifacts, kind)
    try:
        hold_losses(recording, kind, losses[:1])
    except Off:
        return replace(trained, starts_the_same=False)
    try:
        hold(recording, kind, losses, found)
    except Off:
        return trained
    return replace(trained, all_the_same=True)


def hold_losses(recording: Recording, kind: str, losses: list[float]) -> None:
    """Raise `Off` unless the losses of the first steps equal PyTorch's."""
    exact, rough = recording.truth[f"{kind}/losses"], recording.truth[f"{kind}/noise of losses"]
    for k, loss in enumerate(losses):
        if not abs(loss - exact[k]) <= LOSS * max(1.0, abs(exact[k])) + NOISE * rough[k]:
            raise Off(f"loss of step {k + 1}: {loss:.7g} where PyTorch has {exact[k]:.7g}")


def hold(recording: Recording, kind: str, losses: list[float], found: dict[str, np.ndarray]) -> None:
    """Raise `Off` unless losses and tensors equal PyTorch's."""
    hold_losses(recording, kind, losses)
    moved, noise = recording.truth[f"{kind}/moved"], recording.truth[f"{kind}/noise"]
    for k, (name, expected) in enumerate(recording.part(f"{kind}/after/").items()):
        if name not in found and name not in recording.about["parameters"] and not _STATISTICS.search(name):
            continue  # a buffer that nothing reads in training
        if name not in found:
            raise Off(f"{name}: the file does not have it")
        compare(name, found[name], expected, float(moved[k]), float(noise[k]))


def compare(name: str, found: np.ndarray, expected: np.ndarray, moved: float, noise: float) -> None:
    """Raise `Off` unless the tensor is as near to float64 as float32 can be expected to be."""
    if found.shape != expected.shape:
        raise Off(f"{name}: shape {found.shape} where PyTorch has {expected.shape}")
    error = np.abs(found.astype(np.float64) - expected).max(initial=0)
    bound = STILL + MOVE * moved + ROUNDING * np.abs(expected).max(initial=0) + NOISE * noise
    if not error <= bound:
        raise Off(f"{name}: off by {error:.2g} after moving by {moved:.2g}; PyTorch's float32 is off by {noise:.2g}")


def feed_of(recording: Recording, name: str) -> np.ndarray:
    """The feed of an input of the training model: one of the model's, or the target of the loss."""
    return recording.truth.get(f"feed/{name}", recording.truth.get("target"))


def steps(recording: Recording, artifacts: Artifacts, kind: str) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses of the steps, and the recorded tensors after them, in the orientation that PyTorch has them in."""
    with TrainingSession(**artifacts) as session:
        session.set_learning_rate(RATES[kind])
        feeds = {name: feed_of(recording, name) for name in session.input_names()}
        losses = take_steps(session, feeds, STEPS)
        transposed = {d.name for d in artifacts.decisions if "transposed" in d.reason}
        own = own_names(recording, artifacts)
        there = session.parameter_names()
        wanted = {n: own.get(n, n) for n in recording.part(f"{kind}/after/")}
        found = {n: np.array(session.get_parameter(name)) for n, name in wanted.items() if name in there}
        return losses, {name: a.T if name in transposed else a for name, a in found.items()}
