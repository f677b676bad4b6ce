"""Sizes of tensors that are not known yet: expressions over symbols, computed with as ints are.

A dim is a plain int or a `SymbolicDim`: a polynomial with integer coefficients over atoms, which are symbols, floor
divisions and extrema. Equal expressions have equal terms, so that comparing two is cheap. A decision that depends on an
unknown size raises `UndecidedError`. Operators state their conditions with `equal`, `equal_shapes` and `at_most`. These
compare ints, and let the `SymbolTable` (ir/symbols.py) find out the consequences for symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    Number = int  # Code that infers shapes is written, and annotated, for ints.
else:
    Number = object

MAX_SIZE = 2**31 - 1
"""No dim is larger: kernels count in 32-bit signed integers."""
MAX_TERMS, MAX_DEGREE = 128, 24
"""Products beyond are not expanded; no shape arithmetic of a real model comes near."""
MAX_DYADIC = 256
"""A float factor is taken as the fraction it is if float32 rounds no product of it: p / 2^k up to this p."""
INFINITY = float("inf")


class UndecidedError(ArithmeticError):
    """A decision that depends on a size which is not known."""


class Symbols(Protocol):
    """The interface of dims to the table of their symbols; `SymbolTable` (ir/symbols.py) describes each method."""

    version: int

    def symbol(self, name: str, where: str, *, low: int | None = 1, named: bool = True) -> int: ...

    def substituted(self, dim: SymbolicDim) -> int: ...

    def quotient(self, num: int, den: int) -> int: ...

    def extremum(self, largest: bool, dims: Iterable[int]) -> int: ...

    def unify(self, a: int, b: int) -> bool: ...

    def require_at_most(self, a: int, b: int) -> bool: ...


class Atom:
    """A factor of a term. One object for each in a table; ordered by their text."""

    __slots__ = ("dim", "key", "table")

    def __init__(self, table: Symbols, key: str) -> None:
        self.table, self.key = table, key
        self.dim = SymbolicDim(table, {(self,): 1})


class Symbol(Atom):
    """An unknown size, or an unknown number among data.

    No value is smaller than `low`; it is None for numbers among data, which may be negative. `named`: the model calls
    it by this name. `part` is (whole, k, r) of the quotient of a symbol that is known to be k * quotient + r.
    """

    __slots__ = ("low", "named", "order", "part")

    def __init__(self, table: Symbols, key: str, low: int | None, named: bool, order: int) -> None:
        super().__init__(table, key)
        self.low, self.named, self.order = low, named, order
        self.part: tuple[Symbol, int, int] | None = None


class Quotient(Atom):
    """`num // den`, which leaves a remainder or may."""

    __slots__ = ("den", "num")

    def __init__(self, table: Symbols, key: str, num: int, den: int) -> None:
        super().__init__(table, key)
        self.num, self.den = num, den


class Extremum(Atom):
    """The largest or the smallest of some sizes."""

    __slots__ = ("args", "largest")

    def __init__(self, table: Symbols, key: str, largest: bool, args: tuple[int, ...]) -> None:
        super().__init__(table, key)
        self.largest, self.args = largest, args


Monomial = tuple[Atom, ...]
Coefficient = int | Fraction
Terms = dict[Monomial, Coefficient]


class SymbolicDim(Number):
    """A sum of products of atoms; immutable, but `resolved` follows what the table has found out meanwhile."""

    __slots__ = ("_key", "_now", "_version", "table", "terms")

    def __init__(self, table: Symbols, terms: Terms) -> None:
        self.table, self.terms = table, terms
        self._version = table.version
        self._now: int = self
        self._key: tuple[Any, ...] | None = None

    def resolved(self) -> int:
        """Return the same size with all present knowledge; an int where it is one."""
        if self._version != self.table.version:
            now = self.table.substituted(self)
            self._now, self._version = now, self.table.version
        return self._now

    def up_to_date(self) -> SymbolicDim:
        """The dim itself, to which nothing that is known now applies."""
        self._now, self._version = self, self.table.version
        return self

    def with_atoms(self, value_of: Callable[[Atom], int]) -> int:
        """The sum of products with a value in the place of each atom."""
        total: Any = 0
        for monomial, c in self.terms.items():
            product: Any = c
            for atom in monomial:
                product = value_of(atom) * product
            total = total + product
        return total  # type: ignore[no-any-return]

    # Arithmetic.

    def __add__(self, other: Any) -> int:
        pair = _operands(self, other)
        if pair is None:
            return NotImplemented
        a, b = pair
        terms = dict(a)
        for monomial, c in b.items():
            terms[monomial] = terms.get(monomial, 0) + c
        return build(self.table, terms)

    def __mul__(self, other: Any) -> int:
        pair = _operands(self, other)
        if pair is None:
            return NotImplemented
        terms: Terms = {}
        for left, c in pair[0].items():
            for right, d in pair[1].items():
                monomial = tuple(sorted(left + right, key=by_key)) if left and right else left or right
                terms[monomial] = terms.get(monomial, 0) + c * d
        if len(terms) > MAX_TERMS or max(map(len, terms), default=0) > MAX_DEGREE:
            raise UndecidedError("a product of many sizes")
        return build(self.table, terms)

    def __floordiv__(self, other: Any) -> int:
        if isinstance(other, float):
            if not other.is_integer():
                raise UndecidedError(f"{self} // {other}")
            other = int(other)
        return floor_divide(self, other) if isinstance(other, (int, SymbolicDim)) else NotImplemented

    def __rfloordiv__(self, other: int) -> int:
        return floor_divide(other, self)

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, SymbolicDim):
            exact = divide_exactly(self, other, whole=False)
            if exact is not None:
                return exact if isinstance(exact, SymbolicDim) else float(exact)
        elif isinstance(other, (int, float)) and other:
            return self * _dyadic(1 / other)
        raise UndecidedError(f"{self} / {other}")

    def __rtruediv__(self, other: Any) -> Any:
        raise UndecidedError(f"{other} / {self}")

    def __neg__(self) -> int:
        return self * -1

    def __pos__(self) -> int:
        return self

    def __sub__(self, other: Any) -> int:
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> int:
        return (-self).__add__(other)

    __radd__, __rmul__ = __add__, __mul__

    def __mod__(self, other: int) -> int:
        return self - self // other * other

    def __rmod__(self, other: int) -> int:
        return other - other // self * self

    def __floor__(self) -> int:
        return self // 1

    def __ceil__(self) -> int:
        return -(-self // 1)

    def __trunc__(self) -> int:
        return self if self.is_integral else self // 1 if self >= 0 else -(-self // 1)

    def __abs__(self) -> int:
        return self if self >= 0 else -self

    # Comparison: of expressions what is certain of them, whatever the symbols are.

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same expression."""
        a = self.resolved()
        b = other.resolved() if isinstance(other, SymbolicDim) else other
        if isinstance(a, SymbolicDim) and isinstance(b, SymbolicDim):
            return a.terms == b.terms
        return not isinstance(a, SymbolicDim) and not isinstance(b, SymbolicDim) and a == b

    def __hash__(self) -> int:
        now = self.resolved()
        return hash(now.key) if isinstance(now, SymbolicDim) else hash(now)

    def __lt__(self, other: int) -> bool:
        return _decide(other - self, 1)

    def __le__(self, other: int) -> bool:
        return _decide(other - self, 0)

    def __gt__(self, other: int) -> bool:
        return _decide(self - other, 1)

    def __ge__(self, other: int) -> bool:
        return _decide(self - other, 0)

    def __bool__(self) -> bool:
        return not same(self, 0)

    def __index__(self) -> int:
        self._unknown()

    def __int__(self) -> int:
        self._unknown()

    def __float__(self) -> float:
        self._unknown()

    def __round__(self, ndigits: Any = None) -> int:
        if self.is_integral:
            return self
        self._unknown()

    def _unknown(self) -> NoReturn:
        raise UndecidedError(f"{self}")

    # Text.

    @property
    def key(self) -> tuple[Any, ...]:
        """The terms in their order."""
        if self._key is None:
            self._key = tuple(sorted((tuple(a.key for a in m), c) for m, c in self.terms.items()))
        return self._key

    @property
    def is_integral(self) -> bool:
        """Return whether every coefficient is an integer. They are, except in float arithmetic on sizes."""
        return all(c.denominator == 1 for c in self.terms.values())

    def atoms(self) -> set[Atom]:
        """All atoms, also the ones inside atoms."""
        atoms = {atom for monomial in self.terms for atom in monomial}
        for atom in list(atoms):
            inner: tuple[int, ...] = (atom.num, atom.den) if isinstance(atom, Quotient) else ()
            inner = atom.args if isinstance(atom, Extremum) else inner
            for x in inner:
                if isinstance(x, SymbolicDim):
                    atoms |= x.atoms()
        return atoms

    def __repr__(self) -> str:
        now = self.resolved()
        return _text(now) if isinstance(now, SymbolicDim) else repr(now)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return str(self)


# ---- what operators need to hold


def equal(a: int, b: int) -> bool:
    """Return whether two sizes that must be equal can be. Symbols are equal from here on."""
    if a.__class__ is int and b.__class__ is int:
        return a == b
    table = table_of((a, b))
    return a == b if table is None else table.unify(a, b)


def equal_shapes(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether two shapes that must be equal can be."""
    if len(a) != len(b):
        return False
    return all((x.__class__ is int and x == y) or equal(x, y) for x, y in zip(a, b, strict=True))


def at_most(a: int, b: int) -> bool:
    """Return whether a size can be at most another one, as it must be."""
    if a.__class__ is int and b.__class__ is int:
        return a <= b
    table = table_of((a, b))
    return a <= b if table is None else table.require_at_most(a, b)


def static(*dims: int) -> bool:
    """Return whether all are plain ints."""
    return SymbolicDim not in map(type, dims)


def maximum(*dims: int) -> int:
    """The largest."""
    return max(dims) if static(*dims) else _extremum(True, dims)


def minimum(*dims: int) -> int:
    """The smallest."""
    return min(dims) if static(*dims) else _extremum(False, dims)


def is_size(dim: int) -> bool:
    """Return whether a number is a size. Numbers made of numbers among data may mean something else."""
    symbols = dim.atoms() if isinstance(dim, SymbolicDim) else ()
    return all(a.low is not None for a in symbols if isinstance(a, Symbol))


def resolve(dim: int) -> int:
    """Return the dim with all present knowledge."""
    return dim.resolved() if isinstance(dim, SymbolicDim) else dim


def table_of(dims: Iterable[Any]) -> Symbols | None:
    """The table of the symbols in `dims`, None where all are ints."""
    return next((dim.table for dim in dims if isinstance(dim, SymbolicDim)), None)


# ---- certainty


def same(a: Any, b: Any) -> bool:
    """Return whether two sizes are equal, whatever the symbols are. Raise UndecidedError if that depends."""
    difference = resolve(a - b)
    if not isinstance(difference, SymbolicDim):
        return bool(difference == 0)
    if lowest(difference) > 0 or lowest(-difference) > 0:
        return False
    raise UndecidedError(f"{a} = {b}")


def certainly_at_most(a: int, b: int) -> bool:
    """Return whether a <= b, whatever the symbols are."""
    return lowest(resolve(b - a)) >= 0


def _decide(difference: int, least: int) -> bool:
    """Return whether difference >= least."""
    difference = resolve(difference)
    if not isinstance(difference, SymbolicDim):
        return difference >= least
    if lowest(difference) >= least:
        return True
    if -lowest(-difference) < least:
        return False
    raise UndecidedError(f"{difference} >= {least}")


def lowest(dim: Any, depth: int = 4) -> float:
    """A lower bound."""
    if not isinstance(dim, SymbolicDim):
        return dim  # type: ignore[no-any-return]
    if depth:
        for monomial, c in dim.terms.items():
            if len(monomial) == 1 and isinstance(monomial[0], Extremum):
                extremum = monomial[0]
                rest = build(dim.table, {m: x for m, x in dim.terms.items() if m != monomial})
                bounds = [lowest(rest + arg * c, depth - 1) for arg in extremum.args]
                return max(bounds) if (c > 0) == extremum.largest else min(bounds)
    plain = sum(_term_bounds(m, c)[0] for m, c in dim.terms.items())
    relaxed = _without_quotients(dim) if depth else None
    return plain if relaxed is None else max(plain, lowest(relaxed, depth - 1))


def _without_quotients(dim: SymbolicDim) -> int | None:
    """A smaller expression: p - k + 1 <= k (p // k) <= p."""
    relaxed: Any = None
    for monomial, c in dim.terms.items():
        for atom in monomial:
            if not isinstance(atom, Quotient):
                continue
            is_sole = monomial == (atom,) and static(atom.den)
            if is_sole or (sole_atom(atom.den) == _other(monomial, atom) and lowest(atom.den) >= 1):
                slack = atom.den - 1 if c > 0 else 0
                share = Fraction(c, atom.den) if is_sole else c
                term = build(dim.table, {monomial: c})
                relaxed = (dim if relaxed is None else relaxed) + (atom.num - slack) * share - term
                break
    return relaxed  # type: ignore[no-any-return]


def _other(monomial: Monomial, atom: Atom) -> Atom | str:
    """The factor besides `atom`, if there is one."""
    left = _difference(monomial, (atom,)) or ()
    return left[0] if len(left) == 1 else ""


def _term_bounds(monomial: Monomial, c: Coefficient) -> tuple[float, float]:
    low: float = c  # type: ignore[assignment]
    high = low
    for atom in monomial:
        a, b = _atom_bounds(atom)
        corners = [x * y if x and y else 0 for x in (low, high) for y in (a, b)]
        low, high = min(corners), max(corners)
    return low, high


def _atom_bounds(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Symbol):
        return (-INFINITY, INFINITY) if atom.low is None else (atom.low, MAX_SIZE)
    if isinstance(atom, Quotient):
        low, high = lowest(atom.num), -lowest(-atom.num)
        if not isinstance(atom.den, SymbolicDim):
            return _floor(low, atom.den), _floor(high, atom.den)
        if lowest(atom.den) < 1:
            return -INFINITY, INFINITY
        return (0 if low >= 0 else low), max(high, 0)
    assert isinstance(atom, Extremum)
    pick = max if atom.largest else min
    return pick(map(lowest, atom.args)), pick(-lowest(-x) for x in atom.args)


def _floor(bound: float, den: int) -> float:
    return bound // den if abs(bound) < INFINITY else bound


# ---- canonical forms


def build(table: Symbols, terms: Terms) -> int:
    """The dim of these terms; a plain int where it is one."""
    nonzero = {m: int(c) if c.denominator == 1 else c for m, c in terms.items() if c}
    if not nonzero:
        return 0
    if len(nonzero) == 1 and () in nonzero:
        return nonzero[()]  # type: ignore[return-value]
    return SymbolicDim(table, nonzero)


def by_key(atom: Atom) -> str:
    """Sort key of atoms."""
    return atom.key


def _operands(a: SymbolicDim, b: Any) -> tuple[Terms, Terms] | None:
    """Terms of both operands."""
    now = a.resolved()
    left: Terms = now.terms if isinstance(now, SymbolicDim) else {(): now}
    if isinstance(b, SymbolicDim):
        b = b.resolved()
        if isinstance(b, SymbolicDim):
            return left, b.terms
    if isinstance(b, float):
        b = _dyadic(b)
    return (left, {(): b}) if isinstance(b, (int, Fraction)) else None


def _dyadic(value: float) -> Fraction:
    if abs(value) < INFINITY:
        fraction = Fraction(value)
        if abs(fraction.numerator) <= MAX_DYADIC and fraction.denominator <= MAX_DYADIC:
            return fraction
    raise UndecidedError(f"the factor {value}")


def floor_divide(num: int, den: int) -> int:
    """num // den."""
    num, den = resolve(num), resolve(den)
    table = table_of((num, den))
    if table is None:
        return num // den
    if isinstance(num, SymbolicDim) and not num.is_integral:
        scale = lcm(*(c.denominator for c in num.terms.values()))
        return floor_divide(num * scale, den * scale)
    if isinstance(den, SymbolicDim):
        return _divide_by_symbols(table, num, den)
    if den == 0:
        raise ZeroDivisionError(f"{num} // 0")
    assert isinstance(num, SymbolicDim)
    return _divide_by_int(num, den) if den > 0 else _divide_by_int(-num, -den)  # type: ignore[arg-type]


def _divide_by_int(num: SymbolicDim, den: int) -> int:
    """The part that divides goes out; the rest has coefficients in [0, den), the first one positive by its own sign."""
    table = num.table
    order = sorted((m for m in num.terms if m), key=lambda m: (-len(m), [a.key for a in m]))
    exact: Terms = {}
    rest: Terms = {}
    sign = 1
    for monomial in (*order, ()):
        c = sign * int(num.terms.get(monomial, 0))
        if monomial == () and sign < 0:
            c += den - 1  # floor(-p / k) = -floor((p + k - 1) / k)
        if not rest and monomial and c % den and c < 0:
            sign, c = -1, -c
            exact = {m: -x for m, x in exact.items()}
        exact[monomial], rest[monomial] = divmod(c, den)
        if not rest[monomial]:
            del rest[monomial]
    quotient = build(table, {m: sign * c for m, c in exact.items()})
    remainder = build(table, rest)
    if not isinstance(remainder, SymbolicDim):
        return quotient
    return quotient + sign * _quotient(remainder, den)


def _quotient(num: SymbolicDim, den: int) -> int:
    """num // den with nothing to take out of it but common factors and inner quotients."""
    table = num.table
    common = gcd(den, *(int(c) for m, c in num.terms.items() if m))
    if common > 1:
        terms: Terms = {m: int(c) // common for m, c in num.terms.items()}
        return floor_divide(build(table, terms), den // common)
    if lowest(num) >= 0 and -lowest(-num) < den:
        return 0
    variable = [m for m in num.terms if m]
    if len(variable) == 1 and len(variable[0]) == 1 and num.terms[variable[0]] == 1:
        inner = variable[0][0]
        if isinstance(inner, Quotient) and not isinstance(inner.den, SymbolicDim):
            # floor((floor(p / d) + c) / k) = floor((p + c d) / (d k))
            return floor_divide(inner.num + int(num.terms.get((), 0)) * inner.den, inner.den * den)
    return table.quotient(num, den)


def _divide_by_symbols(table: Symbols, num: int, den: SymbolicDim) -> int:
    """Exact where the division of polynomials is; common factors, which are no less than 1, are left out."""
    exact = divide_exactly(num, den)
    if exact is not None:
        return exact
    if len(den.terms) == 1 and isinstance(num, SymbolicDim):
        (monomial,) = den.terms
        shared = common_factor([*num.terms, monomial])
        if shared:
            return floor_divide(_without(num, shared), _without(den, shared))
    if lowest(num) >= 0 and lowest(den - num) > 0:
        return 0
    return table.quotient(num, den)


def divide_exactly(num: int, den: int, *, whole: bool = True) -> int | None:
    """The polynomial (of `whole` coefficients) that `den` must be multiplied with to give `num`, if there is one."""
    assert isinstance(den, SymbolicDim)
    lead = max(den.terms, key=_rank)
    quotient, rest = 0, num
    for _ in range(MAX_TERMS):
        if not isinstance(rest, SymbolicDim):
            return quotient if rest == 0 else None
        top = max(rest.terms, key=_rank)
        left = _difference(top, lead)
        if left is None or (whole and rest.terms[top] % den.terms[lead]):
            return None
        term = build(den.table, {left: rest.terms[top] / Fraction(den.terms[lead])})
        quotient, rest = quotient + term, rest - term * den
    return None


def _rank(monomial: Monomial) -> tuple[int, list[str]]:
    return len(monomial), [a.key for a in monomial]


def _difference(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """`monomial` without `factors`, None where it lacks one."""
    left = list(monomial)
    for atom in factors:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def common_factor(monomials: Sequence[Monomial]) -> Monomial:
    """Atoms of value 1 or more that every monomial has."""
    shared: list[Atom] = []
    for atom in dict.fromkeys(monomials[0]):
        if _atom_bounds(atom)[0] >= 1:
            shared += [atom] * min(m.count(atom) for m in monomials)
    return tuple(shared)


def _without(dim: SymbolicDim, factors: Monomial) -> int:
    return build(dim.table, {_difference(m, factors) or (): c for m, c in dim.terms.items()})


def divide_common(dim: SymbolicDim) -> int:
    """`dim`, which is 0 just where this is: without the factors all its terms share."""
    return _without(dim, common_factor(list(dim.terms)))


def _extremum(largest: bool, dims: Sequence[int]) -> int:
    """Return the largest or smallest of some dims, without dims that another one certainly bounds."""
    table = table_of(dims)
    assert table is not None
    flat: list[int] = []
    for dim in map(resolve, dims):
        atom = sole_atom(dim)
        flat += atom.args if isinstance(atom, Extremum) and atom.largest == largest else [dim]
    bounds: list[int] = []
    for dim in flat:
        if any(_outdoes(other, dim, largest) for other in bounds):
            continue
        bounds = [other for other in bounds if not _outdoes(dim, other, largest)] + [dim]
    return bounds[0] if len(bounds) == 1 else table.extremum(largest, bounds)


def sole_atom(dim: int) -> Atom | None:
    """The atom that `dim` equals, if it is one."""
    terms = [*dim.terms.items()] if isinstance(dim, SymbolicDim) else []
    return terms[0][0][0] if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1 else None


def _outdoes(a: int, b: int, largest: bool) -> bool:
    return certainly_at_most(b, a) if largest else certainly_at_most(a, b)


# ---- text


def _text(dim: SymbolicDim) -> str:
    """The text in the words of the model: n for 2 * (n // 2) where n is known to be even."""
    terms = dict(dim.terms)
    changed = True
    while changed:
        changed = False
        for monomial, c in list(terms.items()):
            part = next((a for a in monomial if isinstance(a, Symbol) and a.part and c % a.part[1] == 0), None)
            if part is None or part.part is None:
                continue
            symbol, k, r = part.part
            del terms[monomial]
            left = _difference(monomial, (part,)) or ()
            for factor, x in (((symbol,), c // k), ((), -(c // k) * r)):
                product = tuple(sorted((*left, *factor), key=by_key))
                terms[product] = terms.get(product, 0) + x
            terms = {m: x for m, x in terms.items() if x}
            changed = True
            break
    text = ""
    for monomial, c in sorted(terms.items(), key=_reading_order):
        factors = _factors(monomial, -c if c < 0 else c)
        sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
        # A quotient that stands alone needs no parentheses.
        bare = len(factors) == 1 and factors[0][0] == "(" and sign != "-"
        text += sign + (factors[0][1:-1] if bare else "*".join(factors))
    return text


def _reading_order(item: tuple[Monomial, Coefficient]) -> tuple[Any, ...]:
    monomial, c = item
    return -len(monomial), c < 0, [(not isinstance(a, Symbol), a.key) for a in monomial]


def _factors(monomial: Monomial, c: Coefficient) -> list[str]:
    factors = [str(c)] if c != 1 or not monomial else []
    first = monomial[0] if monomial else None
    if isinstance(first, Symbol) and first.part and c > 1:
        symbol, k, r = _parted(first)
        if r == 0 and k % c == 0:  # 2 * (n // 4) is n // 2 where n is known to be a multiple of 4
            return [f"({symbol.key}//{k // c})", *map(atom_text, monomial[1:])]
    return factors + list(map(atom_text, monomial))


def _parted(symbol: Symbol) -> tuple[Symbol, int, int]:
    """(whole, k, r): whole = k * symbol + r, over all steps."""
    k, r = 1, 0
    while symbol.part:
        symbol, step, rest = symbol.part
        k, r = k * step, r * step + rest
    return symbol, k, r


def atom_text(atom: Atom) -> str:
    """An atom as the model would write it."""
    if isinstance(atom, Symbol):
        symbol, k, _ = _parted(atom)
        return symbol.key if k == 1 else f"({symbol.key}//{k})"
    if isinstance(atom, Quotient):
        inner = sole_atom(atom.num)
        if isinstance(inner, Symbol) and inner.part and static(atom.den):
            symbol, k, _ = _parted(inner)
            return f"({symbol.key}//{k * atom.den})"
        return f"({_operand_text(atom.num)}//{_operand_text(atom.den)})"
    assert isinstance(atom, Extremum)
    return f"{'max' if atom.largest else 'min'}({', '.join(map(str, atom.args))})"


def _operand_text(dim: int) -> str:
    text = str(dim)
    return text if text.isidentifier() or text.isdigit() else f"({text})"
