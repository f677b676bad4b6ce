"""Settings of optimizers and losses: what each may be, once, for Python and for pages.

A class says it in the annotations of its `__init__` (`weight_decay: NotNegative = 0.0`) under the decorator `checked`.
`scripts/session_description.py` makes the page's types and checks of the same annotations.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, get_annotations, signature
from math import isfinite
from numbers import Integral, Real
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_type_hints

from trainweb import messages
from trainweb.arguments import check_settings, nearest

P = ParamSpec("P")
T = TypeVar("T")


class Kind(ABC):
    """The allowed values of a setting."""

    name: str
    """Its name in a page."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """In words."""

    @property
    @abstractmethod
    def page_type(self) -> str:
        """In TypeScript."""

    @abstractmethod
    def accepts(self, value: Any) -> bool:
        """Return whether a value is one."""

    def check(self, name: str, value: Any) -> None:
        """Raise ModelError unless `value` is one."""
        if not self.accepts(value):
            raise messages.BAD_SETTING(name=name, value=value, expected=self.expected)

    def facts(self) -> dict[str, Any]:
        """Return the facts that the page needs to check a value: its fields that are not None, too."""
        fields = {k: v.facts() if isinstance(v, Kind) else v for k, v in vars(self).items() if v is not None}
        return {"kind": self.name, "expected": self.expected, **fields}


@dataclass(frozen=True)
class Number(Kind):
    """A finite number within bounds: `least` and `most` are allowed, `above` and `below` are not."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    name = "number"
    page_type = "number"

    @property
    def expected(self) -> str:
        low = [f"at least {self.least:g}"] if self.least is not None else []
        low += [f"greater than {self.above:g}"] if self.above is not None else []
        high = [f"at most {self.most:g}"] if self.most is not None else []
        high += [f"less than {self.below:g}"] if self.below is not None else []
        return " ".join(["a number", " and ".join([*low, *high])]).strip()

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, Real) or isinstance(value, bool):
            return False
        try:
            x = float(value)
        except OverflowError:  # an integer of hundreds of digits
            return False
        return (
            isfinite(x)
            and (self.least is None or x >= self.least)
            and (self.above is None or x > self.above)
            and (self.most is None or x <= self.most)
            and (self.below is None or x < self.below)
        )


@dataclass(frozen=True)
class Whole(Kind):
    """An integer; `least` is the smallest, `most` the largest."""

    least: int | None = None
    most: int | None = None
    name = "integer"
    page_type = "number"

    @property
    def expected(self) -> str:
        low = "an integer" if self.least is None else f"an integer >= {self.least}"
        return low if self.most is None else f"{low} and <= {self.most}"

    def accepts(self, value: Any) -> bool:
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        return (
            is_whole
            and (self.least is None or int(value) >= self.least)
            and (self.most is None or int(value) <= self.most)
        )


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    name = "flag"
    page_type = "boolean"
    expected = "true or false"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, bool)


class FlagOrName(Flag):
    """True, false or a name."""

    name = "flag or name"
    page_type = "boolean | string"
    expected = "true, false or the name of an input"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, (bool, str))


@dataclass(frozen=True)
class Choice(Kind):
    """One of some names or numbers."""

    options: tuple[str | int, ...]
    name = "choice"

    @property
    def expected(self) -> str:
        *most, last = map(str, self.options)
        return f"{', '.join(most)} or {last}"

    @property
    def page_type(self) -> str:
        return " | ".join(f'"{o}"' if isinstance(o, str) else str(o) for o in self.options)

    def accepts(self, value: Any) -> bool:
        return not isinstance(value, bool) and isinstance(value, (str, int)) and value in self.options


@dataclass(frozen=True)
class Text(Kind):
    """A text."""

    name = "text"
    page_type = "string"
    expected = "a text"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str)


@dataclass(frozen=True)
class Several(Kind):
    """Two or three numbers."""

    of: Number
    count: int = 2
    name = "several"

    @property
    def page_type(self) -> str:
        return f"readonly [{', '.join(['number'] * self.count)}]"

    @property
    def expected(self) -> str:
        count = {2: "two", 3: "three"}[self.count]
        return f"{count} numbers, each {self.of.expected.removeprefix('a number ')}"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == self.count

    def check(self, name: str, value: Any) -> None:
        super().check(name, value)
        for k, x in enumerate(value):
            self.of.check(f"{name}[{k}]", x)


@dataclass(frozen=True)
class Names(Kind):
    """A list of names or regular expressions."""

    may_be_empty: bool = False
    name = "names"
    page_type = "readonly string[]"
    expected = "a list of names or regular expressions"

    def accepts(self, value: Any) -> bool:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and (self.may_be_empty or len(value) > 0) and all(isinstance(x, str) for x in value)


@dataclass(frozen=True)
class Modules(Names):
    """Names of modules, or one of them alone."""

    page_type = "readonly string[] | string"
    expected = "a name or regular expression, or a list of them"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) or super().accepts(value)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"may_be_text": True}


@dataclass(frozen=True)
class Sizes(Kind):
    """Sizes of symbolic dimensions, by their names."""

    name = "sizes"
    page_type = "Readonly<Record<string, number>>"
    expected = "sizes by the names of dimensions, each an integer >= 1"

    def accepts(self, value: Any) -> bool:
        size = Whole(least=1)
        return isinstance(value, Mapping) and all(isinstance(k, str) and size.accepts(x) for k, x in value.items())


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a name, or a regular expression for whole names, stands for."""
    names = list(names)
    if pattern in names:
        return [pattern]
    try:
        expression = re.compile(pattern)
    except re.error:
        return []
    return [name for name in names if expression.fullmatch(name)]


@dataclass(frozen=True)
class Array(Kind):
    """An array of numbers, such as the weights of classes: a NumPy array or nested lists; in a page a Tensor, too."""

    name = "array"
    page_type = "readonly number[] | Float32Array | Tensor"
    expected = "an array of finite numbers, one for each class in their order"

    def accepts(self, value: Any) -> bool:
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, Sequence) and not isinstance(value, str):
            return len(value) > 0 and all(self.accepts(x) for x in value)
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


NotNegative = Annotated[float, Number(least=0)]
Positive = Annotated[float, Number(above=0)]
Fraction = Annotated[float, Number(least=0, below=1)]
Betas = Annotated[Sequence[float], Several(Number(least=0, below=1))]
ThreeBetas = Annotated[Sequence[float], Several(Number(least=0, below=1), 3)]
YesNo = Annotated[bool, Flag()]
Weights = Annotated[Any, Array()]
Count = Annotated[int, Whole(least=1)]
MAX_SEED = 2**53 - 1
"""Largest integer that a number in JavaScript holds exactly."""
SEED = Whole(least=0, most=MAX_SEED)
Seed = Annotated[int, SEED]
Patterns = Annotated[Sequence[str], Names()]

OTHER_NAMES = {"epsilon": "eps", "weights": "weight", "positive_weights": "pos_weight"}
"""Names that are accepted, in both languages, beside those that are documented; in the spelling of Python."""


@dataclass(frozen=True, slots=True)
class Field:
    """A setting: what it may be, its default, and whether it may be None."""

    kind: Kind
    default: Any
    is_optional: bool

    def check(self, name: str, value: Any) -> None:
        """Raise ModelError unless `value` may be given."""
        if value is not None or not self.is_optional:
            self.kind.check(name, value)


def own_names(what: str, values: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Settings by their documented names. Raise TypeError for an unknown name, or a setting with both of its names."""
    names, settings = set(known), dict[str, Any]()
    for name, value in values.items():
        documented = OTHER_NAMES.get(name, name)
        setting = documented if name not in names and documented in names else name
        if setting in settings:
            other = next(n for n, documented in OTHER_NAMES.items() if documented == setting)
            raise messages.SETTING_TWICE(what=what, name=setting, other=other)
        settings[setting] = value
    check_settings(what, settings, known)
    return settings


def _kind_of(hint: Any) -> Kind | None:
    kinds = [x for x in getattr(hint, "__metadata__", ()) if isinstance(x, Kind)]
    return kinds[0] if kinds else None


def _field(parameter: Parameter, hint: Any) -> Field | None:
    if kind := _kind_of(hint):
        return Field(kind, parameter.default, is_optional=False)
    kinds = [kind for kind in map(_kind_of, get_args(hint)) if kind]
    return Field(kinds[0], parameter.default, is_optional=True) if kinds else None


def fields_of(function: Callable[..., Any]) -> Mapping[str, Field]:
    """The settings among the arguments of a function or of a class's `__init__`, in order."""
    target = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    hints = get_type_hints(target, include_extras=True)
    fields = {p.name: _field(p, hints.get(p.name)) for p in signature(target).parameters.values()}
    return {name: f for name, f in fields.items() if f}


def fields_of_class(cls: type) -> Mapping[str, Field]:
    """The settings among the annotated attributes of a class itself, in order."""
    kinds = {name: _kind_of(hint) for name, hint in get_annotations(cls, eval_str=True).items()}
    return {name: Field(kind, vars(cls)[name], is_optional=False) for name, kind in kinds.items() if kind}


def check_values(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise ModelError for an argument that its annotation does not allow."""
    for name, field in fields_of(function).items():
        if name in settings:
            field.check(name, settings[name])


def checks_values(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that it checks its arguments against their annotations."""
    shape = signature(function)

    @wraps(function)
    def checking(*args: P.args, **kwargs: P.kwargs) -> T:
        check_values(function, shape.bind(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    return checking


def checked(init: Callable[P, None]) -> Callable[P, None]:
    """Decorate an `__init__` so that it checks settings against their annotations; `_settings` keeps those given."""
    shape = signature(init)

    @wraps(init)
    def checking(*args: P.args, **kwargs: P.kwargs) -> None:
        cls = type(args[0]).__name__
        named: Any = own_names(cls, kwargs, list(shape.parameters)[1:])
        arguments = shape.bind(*args, **named).arguments
        check_values(init, arguments)
        vars(arguments["self"])["_settings"] = {name: arguments[name] for name in fields_of(init) if name in arguments}
        init(*args, **named)

    return checking


def checked_values(
    what: str, settings: Mapping[str, Any], fields: Mapping[str, Field], path: str = ""
) -> dict[str, Any]:
    """All settings, with the defaults of absent ones.

    Raise TypeError for an unknown name, with the nearest known one. Raise ModelError for a value that is not allowed,
    and where a setting without a default is missing.
    """
    check_settings(what, settings, fields)
    values = {name: settings.get(name, field.default) for name, field in fields.items()}
    for name, field in fields.items():
        if values[name] is Parameter.empty:
            raise messages.MISSING_SETTING(what=what, name=name, expected=field.kind.expected)
        field.check(path + name, values[name])
    return values


def named_settings(what: str, kind: str | Mapping[str, Any]) -> dict[str, Any]:
    """A name, or a mapping of it as "type" and of settings, as the latter."""
    if not isinstance(kind, (str, Mapping)):
        name = "; a function needs a name: {'name': function}" if what == "metric" and callable(kind) else ""
        raise TypeError(f"'{what}' must be a name or a dict with its \"type\", got {type(kind).__name__}{name}.")
    return {"type": kind} if isinstance(kind, str) else dict(kind)


def make(what: str, kinds: Mapping[str, type[T]], kind: str | Mapping[str, Any], others: Sequence[str] = ()) -> T:
    """An optimizer, a loss or a schedule by its name, or by a mapping with its "type" and settings.

    The mapping may also have `others`, which were taken out before. Raise TypeError for an unknown name, which says the
    nearest, and ModelError for a missing setting or a value that is not allowed.
    """
    settings = named_settings(what, kind)
    name: Any = settings.pop("type", None)
    if not isinstance(name, str):
        raise messages.MISSING_SETTING(what=what, name="type", expected=f"one of {', '.join(kinds)}")
    if name not in kinds:
        raise messages.UNKNOWN_TYPE(what=what, name=name, nearest=nearest(name, kinds), names=", ".join(kinds))
    fields = fields_of(kinds[name])
    settings = own_names(name, settings, [*fields, *others])
    for setting, field in fields.items():
        if field.default is Parameter.empty and setting not in settings:
            raise messages.MISSING_SETTING(what=name, name=setting, expected=field.kind.expected)
    return kinds[name](**settings)
