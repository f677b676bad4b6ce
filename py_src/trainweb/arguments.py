"""Checks of arguments: a wrong type is a TypeError that names the argument."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from trainweb import messages
from trainweb.errors import shortened
from trainweb.spelling import ARGUMENT

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def instance_of(kind: type[T], name: str, value: object) -> T:
    """An argument of this type."""
    if not isinstance(value, kind):
        raise TypeError(f"'{name}' must be of type {kind.__name__}, got {type(value).__name__}.")
    return value


def flag(name: str, value: Any) -> bool:
    """An argument that is true or false: the text "false" is neither."""
    if not isinstance(value, bool) and getattr(value, "dtype", None) != "bool":
        raise TypeError(f"'{name}' must be a bool, got {value!r:.80}.")
    return bool(value)


def mapping(name: str, value: Any) -> Mapping[Any, Any]:
    """An argument that is a dict."""
    if not isinstance(value, Mapping):
        raise TypeError(f"'{name}' must be a dict, got {type(value).__name__}.")
    return value


def only_one(*arguments: tuple[str, Any]) -> Any:
    """The value of arguments that mean the same, of which one must be given."""
    values = [(name, value) for name, value in arguments if value is not None]
    names = " or ".join(f"'{name}'" for name, _ in arguments)
    if len(values) != 1:
        raise TypeError(
            f"A session needs {names}: {'give one of them' if values else 'from_model makes them of a model'}."
        )
    return values[0][1]


def texts(name: str, value: Any) -> list[str]:
    """Several names; one alone is taken for several letters by nobody."""
    names = list(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else None
    if names is None or not all(isinstance(one, str) for one in names):
        raise TypeError(f"'{name}' must be a list of str, got {value!r:.80}.")
    return names


def path_of(name: str, value: Any) -> Path:
    """An argument that is a path."""
    if not isinstance(value, (str, os.PathLike)) or "\0" in os.fspath(value):
        raise TypeError(f"'{name}' must be a path, got {value!r:.80}.")
    return Path(value)


PACKAGE = os.path.join(os.path.dirname(__file__), "")
"""The folder of trainweb's files."""
FAR = 0.44
"""Names that differ by a larger share than this are hardly meant."""
SHOWN_NAME = 80
"""Characters of a name that is not known: those that are known have fewer."""


ALIASES = dict(sep="delimiter", monitor="metric", verbose="progress", classweight="loss", lossweights="loss")
ALIASES |= dict(lr="learning_rate", acc="accuracy", bce="BCEWithLogitsLoss", bceloss="BCEWithLogitsLoss")
ALIASES |= dict(mae="L1Loss", meanabsoluteerror="L1Loss mae", meansquarederror="MSELoss rmse")
ALIASES |= dict(binarycrossentropy="BCEWithLogitsLoss", sparsecategoricalcrossentropy="CrossEntropyLoss")
ALIASES |= dict(loraalpha="alpha", targetmodules="targets", initloraweights="init")
ALIASES |= dict.fromkeys(("rocauc", "rocaucscore", "auroc", "aucroc"), "auc")
ALIASES |= dict(rootmeansquarederror="rmse", jaccard="mIoU", jaccardscore="mIoU", topkaccuracy="topK")
ALIASES |= dict(r2score="r2", jaccardindex="mIoU", topkcategoricalaccuracy="topK", nllloss="CrossEntropyLoss")
ALIASES |= dict.fromkeys(("checkpointstate", "ckptpath", "loadcheckpoint", "resumefromcheckpoint"), "checkpoint")
"""Names in other libraries, in small letters without "_", and ours: one, or a loss and a metric."""
OF_CALLS = dict.fromkeys(("loss", "optimizer", "sample_weight", "frozen_params", "requires_grad"), "from_model")
OF_CALLS |= dict.fromkeys(("metrics", "epochs", "batch_size", "validation_split"), "fit")
OF_CALLS |= dict(checkpoint="fit or TrainingSession, or load_checkpoint of the session", learning_rate="from_model")
OF_CALLS |= dict.fromkeys(("device", "threads"), "the session options")
"""Arguments that users give to another call, and the calls that take them."""
ATTRIBUTES = dict(compile="from_model, which takes loss and optimizer", history='history["loss"]', score="evaluate")
ATTRIBUTES |= dict.fromkeys(("get_weights", "save_weights"), "export_weights") | dict(predict_proba="predict")
ATTRIBUTES |= dict.fromkeys(("set_weights", "load_state_dict"), "load_weights, or load_checkpoint with the optimizer")
ATTRIBUTES |= dict.fromkeys(("parameters", "named_parameters"), "parameter_names and get_parameter")
ATTRIBUTES |= dict.fromkeys(("backward", "train_on_batch", "training_step"), "train_step, which adds up the gradients")
ATTRIBUTES |= dict.fromkeys(("train", "eval"), "fit or train_step, and evaluate, predict or eval_step")
ATTRIBUTES |= dict.fromkeys(("to", "cuda"), "'device' of the session options") | dict(zero_grad="lazy_reset_grad")
ATTRIBUTES |= dict(state_dict="export_weights, or save with the optimizer", step="optimizer_step")
ATTRIBUTES |= dict.fromkeys(("fit_transform", "transform"), "standardize and others of a Dataset, and preprocess")
ATTRIBUTES |= dict(summary="parameter_names, or `trainweb check` in a shell", train_test_split="split")
"""Attributes in Keras, PyTorch and scikit-learn, and those that do the same here."""


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """The text of an error on an unknown name; it says the nearest of `known`."""
    return f"{what} {shortened(str(name), SHOWN_NAME, 0)!r} is not known; {suggestion(name, sorted(known))}"


def suggestion(name: object, known: Sequence[str]) -> str:
    """The name to give in the place of an unknown one, or all names that are known."""
    shown = shortened(str(name), SHOWN_NAME, 0)
    near, meant = nearest(shown, known) if known else "", _aliased(shown)
    far = FAR / 2 if meant in OF_CALLS else FAR
    if near and (near == meant or near.startswith(shown) or _difference(shown, near) <= far):
        return f"did you mean {near!r}?"
    others = f"there are {', '.join(known) or 'none'}."
    return f"did you mean {meant!r} of {OF_CALLS[meant]}?" if meant in OF_CALLS else others


def warn(text: str, *, again: bool = False) -> None:
    """Warn, at the line that calls trainweb; Python shows a text once a line, but `again` where the caller counts."""
    import warnings  # not on the way of a page's first step

    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    if ARGUMENT.in_page:  # its console has no lines of Python
        warnings.formatwarning = lambda message, *_: f"{message}\n"
    shown = {} if again else frame.f_globals.setdefault("__warningregistry__", {})
    name = frame.f_globals.get("__name__", "")
    warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno, name, shown)


def check_settings(what: str, settings: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for the first name that `what` does not have; the text names the nearest."""
    names = list(known)
    for name in settings:
        if name not in names:
            raise messages.UNKNOWN_SETTING(what=what, name=name, suggestion=suggestion(name, names))


def checks_keywords(target: F) -> F:
    """Decorate a function, or the public methods of a class: the error of an unknown argument says the nearest."""
    if isinstance(target, type):
        for name, value in list(vars(target).items()):
            if name == "__init__" or not name.startswith("_"):
                if isinstance(value, FunctionType):
                    setattr(target, name, checks_keywords(value))
                elif isinstance(value, classmethod):
                    setattr(target, name, classmethod(checks_keywords(value.__func__)))
        return target
    parameters = signature(target).parameters.values()
    known = [p.name for p in parameters if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    takes_one = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD] == ["self", "data"]

    @wraps(target)
    def checking(*args: Any, **kwargs: Any) -> Any:
        if takes_one and len(args) > 2:
            raise TypeError(f"{target.__name__} takes the data as one argument. Give several arrays as one: (x, y).")
        for name in () if takes_any else kwargs:
            if name not in known:
                what = target.__qualname__.split(".")[0] if target.__name__ == "__init__" else target.__name__
                raise TypeError(unknown(f"The argument of {what}", name, set(known) - {"self", "cls"}))
        return target(*args, **kwargs)

    return cast("F", checking)


class OtherNames:
    """Base class of objects whose error of an attribute of another library names ours."""

    __slots__ = ()
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            ours = f"; use {ATTRIBUTES[name]}." if name in ATTRIBUTES else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{ours}", name=name, obj=self)


def nearest(name: object, known: Iterable[str]) -> str:
    """An alias among `known`, or the name that the least changes turn `name` into; `data/nearest.ts` has the same."""
    shown = shortened(str(name), SHOWN_NAME, 0)
    return min(known, key=lambda one: -1 if one in _aliased(shown).split() else _difference(shown.lower(), one.lower()))


def _aliased(name: str) -> str:
    return ALIASES.get(name.lower().replace("_", ""), name)


def _difference(a: str, b: str) -> float:
    """The share of characters that must change, come or go to turn one text into the other (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a):
        before, row = row, [i + 1]
        for k, other in enumerate(b):
            row.append(min(before[k] + (letter != other), before[k + 1] + 1, row[k] + 1))
    return row[-1] / max(len(a), len(b), 1)
