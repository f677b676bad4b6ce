"""Known facts about the symbols of a model's dims: their names, and which must be equal.

An operator that needs two dims equal says so (`SymbolTable.unify`). The equation is solved for a symbol where it can
be: n = 4, h = 2 (h // 2); what cannot be solved yet is kept and tried again when more is known. An equation that holds
for no sizes is a contradiction.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm, prod

from trainweb.errors import ModelError
from trainweb.ir.dims import (
    Atom,
    Extremum,
    Quotient,
    Symbol,
    SymbolicDim,
    UndecidedError,
    atom_text,
    build,
    by_key,
    divide_common,
    floor_divide,
    lowest,
    maximum,
    minimum,
    resolve,
    sole_atom,
    static,
)

MAX_KEY = 4000
"""Atoms inside atoms may double with every step: longer ones are not computed with."""
MAX_NAME = 256
"""Longer names are taken for names, not for expressions."""
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_EXTREMA = {"max": maximum, "min": minimum}
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][\w.:]*)|(//|\*|\(|\)|,)|(?<![\w.:)])([+-]))")


@dataclass(frozen=True, slots=True)
class Fact:
    """An equation `dim` = 0, and who needs it."""

    dim: int
    reason: str


@dataclass(frozen=True, slots=True)
class Known:
    """The knowledge of a table at a time."""

    values: Mapping[Atom, int]
    reasons: Mapping[Atom, str]
    open: Iterable[Fact]
    lows: Mapping[Symbol, int | None]


class SymbolTable:
    """Symbols, the atoms made of them, and the knowledge of both.

    `version` counts facts; dims look themselves up again when it has grown. `node` is the operator with the present
    question, for errors. `conflict` is the contradiction to the last equation that could not hold.
    """

    def __init__(self) -> None:
        self.version = 0
        self.node: object = ""
        self.conflict: str | None = None
        self.symbols: dict[str, Symbol] = {}
        self._where: dict[Symbol, str] = {}
        self._atoms: dict[str, Atom] = {}
        self._values: dict[Atom, int] = {}
        self._reasons: dict[Atom, str] = {}
        self._open: list[Fact] = []
        self._current: dict[Atom, int] = {}
        self._aliases: list[tuple[str, int]] = []
        self._called: set[str] = set()

    # Making dims.

    def symbol(self, name: str, where: str, *, low: int | None = 1, named: bool = True) -> int:
        """A new size; `where` says which one it is."""
        unique, k = name, 1
        while unique in self.symbols:
            k += 1
            unique = f"{name}'{k}"
        symbol = self.symbols[unique] = Symbol(self, unique, low, named, len(self.symbols))
        self._where[symbol] = where
        return symbol.dim

    def declared(self, dim: int | str | None, tensor: str, axis: int) -> int:
        """Return the dim that a file declares: a size, a name, an expression of names, or nothing (a new dim)."""
        if isinstance(dim, int):
            return dim
        where = f"dimension {axis} of {tensor!r}"
        if not dim:
            return self.symbol(f"{tensor}[{axis}]", where, named=False)
        expression = parse(dim, lambda name: self._named(name, where))
        return self._named(dim, where) if expression is None else expression

    def _named(self, name: str, where: str) -> int:
        symbol = self.symbols.get(name)
        return resolve(symbol.dim) if symbol else self.symbol(name, where)

    def quotient(self, num: int, den: int) -> int:
        """num // den as an atom, or its known value."""
        key = _checked(f"({_key(num)}//{_key(den)})")
        return self._known(self._atoms.get(key) or self._atoms.setdefault(key, Quotient(self, key, num, den)))

    def extremum(self, largest: bool, dims: Iterable[int]) -> int:
        """The largest or smallest as an atom, or its known value."""
        args = tuple(sorted(dims, key=_key))
        key = _checked(f"{'max' if largest else 'min'}({','.join(map(_key, args))})")
        return self._known(self._atoms.get(key) or self._atoms.setdefault(key, Extremum(self, key, largest, args)))

    def _known(self, atom: Atom) -> int:
        # It was asked for with operands that are up to date, and so is it.
        return resolve(self._values[atom]) if atom in self._values else atom.dim.up_to_date()

    def substituted(self, dim: SymbolicDim) -> int:
        """`dim` with the known values of its atoms."""
        parts = {atom: self._now(atom) for monomial in dim.terms for atom in monomial}
        if all(value is atom.dim for atom, value in parts.items()):
            return dim
        return dim.with_atoms(parts.__getitem__)

    def _now(self, atom: Atom) -> int:
        value = self._current.get(atom)
        if value is None:
            if atom in self._values:
                value = resolve(self._values[atom])
            elif isinstance(atom, Quotient):
                value = floor_divide(resolve(atom.num), resolve(atom.den))
            elif isinstance(atom, Extremum):
                value = (maximum if atom.largest else minimum)(*map(resolve, atom.args))
            else:
                value = atom.dim.up_to_date()
            self._current[atom] = value
        return value

    # Equations.

    def unify(self, a: int, b: int) -> bool:
        """Make two dims equal from here on; False where they cannot be."""
        a, b = resolve(a), resolve(b)
        return a == b or self._holds(Fact(a - b, f"{self.node} needs {a} = {b}"))

    def require_at_most(self, a: int, b: int) -> bool:
        """Return whether a <= b is possible; where that bounds a symbol, it is remembered."""
        difference = resolve(b - a)
        if not isinstance(difference, SymbolicDim):
            return difference >= 0
        if lowest(difference) >= 0:
            return True
        if lowest(-difference) > 0:
            return False
        variable = [m for m in difference.terms if m]
        if len(variable) == 1 and len(variable[0]) == 1 and difference.terms[variable[0]] > 0:
            symbol, c = variable[0][0], difference.terms[variable[0]]
            if isinstance(symbol, Symbol) and symbol.low is not None:
                symbol.low = max(symbol.low, -int(difference.terms.get((), 0) // c))
                self._learn()
        return True

    def known(self) -> Known:
        """The present knowledge, for `back_to`."""
        lows = {symbol: symbol.low for symbol in self.symbols.values()}
        return Known(dict(self._values), dict(self._reasons), list(self._open), lows)

    def back_to(self, known: Known) -> None:
        """Forget the knowledge since then."""
        self._values, self._reasons = dict(known.values), dict(known.reasons)
        self._open, self.conflict = list(known.open), None
        for symbol, low in known.lows.items():
            symbol.low = low
        self._learn()

    def _learn(self) -> None:
        self.version += 1
        self._current.clear()

    def _holds(self, fact: Fact) -> bool:
        """Solve an equation, or keep it; False where it holds for no sizes."""
        dim = _primitive(resolve(fact.dim))
        if dim is None or lowest(dim) > 0 or lowest(-dim) > 0:
            self.conflict = fact.reason
            return False
        if not isinstance(dim, SymbolicDim):
            return True
        for solve in (self._solve_for_symbol, self._solve_remainder, self._solve_factors, self._solve_for_atom):
            solved = solve(dim, fact.reason)
            if solved is not None:
                if not solved:
                    self.conflict = self.conflict or fact.reason
                return solved
        self._open.append(Fact(dim, fact.reason))
        return True

    def _solve_for_symbol(self, dim: SymbolicDim, reason: str) -> bool | None:
        ways: list[tuple[bool, int, Symbol, int]] = []
        for monomial, c in dim.terms.items():
            if len(monomial) == 1 and isinstance(monomial[0], Symbol) and abs(c) == 1:
                rest = dim - monomial[0].dim * c
                if not isinstance(rest, SymbolicDim) or monomial[0] not in rest.atoms():
                    ways.append((not monomial[0].named, monomial[0].order, monomial[0], rest * (-1 if c > 0 else 1)))
        if not ways:
            return None
        _, _, symbol, value = max(ways, key=lambda item: item[:2])
        if symbol.low is not None and not self.require_at_most(symbol.low, value):
            return False
        return self._substitute(symbol, resolve(value), reason)

    def _solve_remainder(self, dim: SymbolicDim, reason: str) -> bool | None:
        """p - s = k (p // k): p leaves the remainder s."""
        for monomial, c in dim.terms.items():
            atom = monomial[0] if len(monomial) == 1 else None
            if not isinstance(atom, Quotient) or isinstance(atom.den, SymbolicDim) or abs(c) != atom.den:
                continue
            rest = (dim if c < 0 else -dim) + atom.dim * atom.den
            remainder = resolve(atom.num - rest)
            if isinstance(remainder, SymbolicDim):
                continue
            if not 0 <= remainder < atom.den:
                return False
            return self._congruent(atom.num, remainder, atom.den, reason)
        return None

    def _solve_factors(self, dim: SymbolicDim, reason: str) -> bool | None:
        """k (p // k) m (q // m) = p q, as of tiled images. k (p // k) is never larger than p, so both are equal."""
        if len(dim.terms) != 2:
            return None
        for one, other in (dim.terms, [*dim.terms][::-1]):
            parts = [(a, sole_atom(a.num)) for a in one if isinstance(a, Quotient) and static(a.den)]
            wholes = [symbol for _, symbol in parts if symbol is not None and lowest(symbol.dim) >= 1]
            left = [a for a in one if all(a is not part for part, _ in parts)]
            factor = prod(part.den for part, _ in parts)
            fits = len(wholes) == len(parts) > 1 and sorted([*left, *wholes], key=by_key) == list(other)
            if fits and all(lowest(a.dim) >= 1 for a in left) and dim.terms[one] == -factor * dim.terms[other]:
                return all(self._holds(Fact(part.num - part.dim * part.den, reason)) for part, _ in parts)
        return None

    def _congruent(self, dim: int, remainder: int, k: int, reason: str) -> bool | None:
        """dim = remainder modulo k: a symbol n becomes k (n // k) + r."""
        dim = resolve(dim - remainder)
        if not isinstance(dim, SymbolicDim):
            return dim % k == 0
        variable = [m for m in dim.terms if m]
        if len(variable) != 1:
            return None
        a, rest = int(dim.terms[variable[0]]), -int(dim.terms.get((), 0))
        common = gcd(a, k)
        if rest % common:
            return False
        a, rest, k = a // common, rest // common, k // common
        if k == 1:
            return True
        symbol = variable[0][0]
        if len(variable[0]) != 1 or not isinstance(symbol, Symbol):
            return None
        r = rest * pow(a, -1, k) % k
        low = None if symbol.low is None else -((r - symbol.low) // k)
        part = self.symbol(f"{symbol.key}//{k}", self._where[symbol], low=low, named=False)
        atom = sole_atom(part)
        assert isinstance(atom, Symbol)
        atom.part = symbol, k, r
        return self._substitute(symbol, part * k + r, reason)

    def _solve_for_atom(self, dim: SymbolicDim, reason: str) -> bool | None:
        for monomial, c in sorted(dim.terms.items(), key=lambda item: [a.key for a in item[0]], reverse=True):
            if len(monomial) == 1 and not isinstance(monomial[0], Symbol) and abs(c) == 1:
                rest = dim - monomial[0].dim * c
                if not isinstance(rest, SymbolicDim) or monomial[0] not in rest.atoms():
                    return self._substitute(monomial[0], rest * (-1 if c > 0 else 1), reason)
        return None

    def _substitute(self, atom: Atom, value: int, reason: str) -> bool:
        """Note the value of an atom, and solve the equations that it opens."""
        again = self._open
        # Equations of other atoms are open again where the atoms may have become something else.
        others = [a for a in self._values if isinstance(atom, Symbol) and not isinstance(a, Symbol)]
        known = [(a, self._values.pop(a), self._reasons[a]) for a in others]
        self._values[atom], self._reasons[atom] = value, reason
        self._open = []
        self._learn()
        again += [Fact(a.dim - was, why) for a, was, why in known]
        return all(self._holds(fact) for fact in again)

    # Texts.

    def call(self, name: str, dim: int, tensor: str, axis: int) -> None:
        """Let a symbol that nothing has read yet stand for a computed size, which the model declares to be it."""
        if parse(name, lambda _: 1) is not None:
            return  # An expression of other symbols names nothing.
        dim = resolve(dim)
        symbol = self.symbols.get(name) or sole_atom(self.symbol(name, f"dimension {axis} of {tensor!r}"))
        if not isinstance(symbol, Symbol) or symbol in self._values:
            return
        if isinstance(dim, SymbolicDim) and symbol in dim.atoms():
            return
        if not isinstance(sole_atom(dim), Symbol):
            self._aliases.append((name, dim))
        self._called.add(name)
        self._substitute(symbol, dim, f"{tensor!r} declares {name} = {dim}")

    def text(self, dim: int) -> int | str | None:
        """The dim as a file declares it; None if it has unnamed symbols or is too long."""
        dim = resolve(dim)
        if not isinstance(dim, SymbolicDim):
            return dim
        for name, other in self._aliases:
            if resolve(other) == dim:
                return name
        if any(isinstance(a, Symbol) and not (a.part[0] if a.part else a).named for a in dim.atoms()):
            return None
        text = str(dim)
        return text if len(text) <= MAX_NAME else None

    def explain(self, dims: Iterable[int]) -> list[str]:
        """Return the known facts about the symbols that these dims were first made of."""
        lines: dict[str, None] = {}
        waiting = [a for d in dims if isinstance(d, SymbolicDim) for a in d.atoms()]
        seen: set[Atom] = set()
        while waiting:
            atom = waiting.pop(0)
            if atom in seen or atom not in self._values:
                continue
            seen.add(atom)
            value = self._values[atom]
            lines[f"{self._equation(atom)}, as {self._reasons[atom]}"] = None
            waiting += sorted(value.atoms(), key=lambda a: a.key) if isinstance(value, SymbolicDim) else []
        return list(lines)

    def _equation(self, atom: Atom) -> str:
        value = self._values[atom]
        for part in value.atoms() if isinstance(value, SymbolicDim) else ():
            if isinstance(part, Symbol) and part.part and part.part[0] is atom:
                _, k, r = part.part
                return f"{atom_text(atom)} is a multiple of {k}" + (f" plus {r}" if r else "")
        return f"{atom_text(atom)} = {value}"

    def refinements(self) -> list[str]:
        """Return the demands of operators on the symbols of the model."""
        named = [a for a in self._values if isinstance(a, Symbol) and a.named and a.key not in self._called]
        return [f"{self._equation(a)}, as {self._reasons[a]}" for a in named]

    def fix(self, sizes: Mapping[str, int]) -> None:
        """Give symbols their sizes. Raise ModelError for an unknown symbol, and for a size that operators refuse."""
        for name, size in sizes.items():
            symbol = self.symbols.get(name)
            if symbol is None:
                known = ", ".join(s for s, a in self.symbols.items() if a.named) or "none"
                raise ModelError(f"There is no dimension {name!r}; the model's are {known}.")
            facts = "; ".join(self.explain([symbol.dim]))
            self.node = "the caller"
            if not self.unify(symbol.dim, size) or size < (symbol.low or 0):
                least = f"it is at least {symbol.low}" if size < (symbol.low or 0) else self.conflict
                raise ModelError(f"The dimension {name!r} cannot be {size}: {facts or least}.")

    def evaluated(self, dim: int, sizes: Mapping[str, int]) -> int:
        """The dim where symbols have these sizes; symbols that are left out have their least sizes."""
        dim = resolve(dim)
        if not isinstance(dim, SymbolicDim):
            return dim
        return int(dim.with_atoms(lambda atom: self._size(atom, sizes)))

    def _size(self, atom: Atom, sizes: Mapping[str, int]) -> int:
        if isinstance(atom, Symbol):
            if atom.key in sizes:
                return sizes[atom.key]
            if not atom.part:
                return max(1, atom.low or 0)
            symbol, k, _ = atom.part
            root = symbol
            while root.part and root.key not in sizes:
                root = root.part[0]
            return self._size(symbol, sizes) // k if root.key in sizes else atom.low or 0
        if isinstance(atom, Quotient):
            return self.evaluated(atom.num, sizes) // self.evaluated(atom.den, sizes)
        assert isinstance(atom, Extremum)
        return (max if atom.largest else min)(self.evaluated(x, sizes) for x in atom.args)


def _key(dim: int) -> str:
    """Text of a canonical form, by which it is found again."""
    if not isinstance(dim, SymbolicDim):
        return str(dim)
    return "+".join(f"{c}*{'*'.join(names)}" for names, c in dim.key)


def _checked(key: str) -> str:
    if len(key) > MAX_KEY:
        raise UndecidedError("sizes that follow from each other in very many steps")
    return key


def _primitive(dim: int) -> int | None:
    """An equation dim = 0 with smaller numbers; None where remainders rule it out."""
    if not isinstance(dim, SymbolicDim):
        return dim
    scale = lcm(*(c.denominator for c in dim.terms.values()))
    terms = {m: int(c * scale) for m, c in dim.terms.items()}
    common = gcd(*(c for m, c in terms.items() if m))
    if terms.get((), 0) % common:
        return None
    dim = build(dim.table, {m: Fraction(c, common) for m, c in terms.items()})
    return divide_common(dim) if isinstance(dim, SymbolicDim) and () not in dim.terms else dim


# ---- expressions in files


def parse(text: str, symbol: Callable[[str], int]) -> int | None:
    """The expression of dims that `text` writes, with `symbol(name)` for each name; None where it is none.

    Understood are names, integers, `*`, `//`, `+` and `-` after spaces, parentheses, `max` and `min`, as
    exporters write them.
    """
    tokens, at = [], 0
    while at < len(text) <= MAX_NAME:
        match = _TOKEN.match(text, at)
        if match is None:
            return None
        tokens.append(match)
        at = match.end()
    if len(tokens) < 2:
        return None
    # Names with dots and colons are not identifiers of Python.
    names = [match[2] or "" for match in tokens]
    words = [f"name{k}" if match[2] else str(int(match[1])) if match[1] else match[0] for k, match in enumerate(tokens)]
    try:
        return _value(ast.parse(" ".join(words).strip(), mode="eval").body, names, symbol)
    except (SyntaxError, ValueError, ArithmeticError):
        return None


def _value(node: ast.expr, names: Sequence[str], symbol: Callable[[str], int]) -> int:
    """The value of an expression whose names are `name` and their number among the tokens."""

    def name_of(node: ast.expr) -> str:
        return names[int(node.id.removeprefix("name"))] if isinstance(node, ast.Name) else ""

    match node:
        case ast.Constant(int(number)):
            return number
        case ast.Name():
            return symbol(name_of(node))
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, names, symbol)
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATIONS:
            a, b = (_value(side, names, symbol) for side in (left, right))
            return _OPERATIONS[type(operation)](a, b)
        case ast.Call(function, args) if args and name_of(function).lower() in _EXTREMA:
            return _EXTREMA[name_of(function).lower()](*(_value(arg, names, symbol) for arg in args))
    raise ValueError(ast.unparse(node))
