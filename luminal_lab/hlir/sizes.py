"""Symbolic sizes: integer polynomials over size symbols, with bounds and a hint.

A `Symbol` is a size that a call decides: it has inclusive bounds, and a *hint*, the value for
which programs are tuned. A `Size` is a sum of products of symbols, floor-divisions, maxima and
minima of sizes; what has no symbol left is a plain int, so `Dim = int | Size`. The form is
canonical: equal polynomials are equal objects, `a % b` is `a - a//b*b`, and a floor-division
goes away wherever the bounds prove its value.

    >>> n = symbol("n", 2, 512, hint=128)
    >>> (n * 64 + 63) // 64, n * 64 % n, (2 * n + 1) // 2
    (n, 0, n)
    >>> n + 1 > n, n < 513, n // 2
    (True, True, (n//2))

A comparison that the bounds do not decide raises `Undecided`: nothing is proved by a hint.
`hint` is for predictions, `surely` for laws that may be left alone.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from luminal_lab.errors import HlirError

LARGEST = (1 << 31) - 1  # the upper bound of a size that has none
_STEPS = 64  # terms of a quotient of polynomials


class Undecided(HlirError):
    """A comparison of sizes whose answer depends on the values of symbols."""


@dataclass(frozen=True, order=True)
class Symbol:
    """A size that is known at the call.

    Arguments:
        name: Unique in its program.
        low, high: Inclusive bounds, `low` at least 1.
        hint: The value for which programs are tuned.
    """

    name: str
    low: int
    high: int
    hint: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Apply:
    """`a // b` (op `"//"`), or the maximum or minimum of two sizes."""

    op: str
    args: tuple[Dim, Dim]

    @functools.cached_property
    def _text(self) -> str:
        a, b = self.args
        if self.op == "//":
            return f"{_grouped(a)}//{_grouped(b)}"
        return f"{self.op}({a}, {b})"

    def __str__(self) -> str:
        return self._text


Atom = Symbol | Apply
Monomial = tuple[tuple[Atom, int], ...]  # (atom, power), sorted by text
Terms = dict[Monomial, int]
Dim = Any  # an int or a Size


def _grouped(a: Dim) -> str:
    text = str(a)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


class Size:
    """A symbolic size; made by arithmetic on `symbol(...)`, see the module."""

    __slots__ = ("_hash", "_text", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]):
        self.terms = terms
        self._hash = hash(terms)
        self._text: str | None = None

    def __reduce__(self):
        return (Size, (self.terms,))  # a hash of strings is this process's own

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Size) and self.terms == other.terms)

    def __str__(self) -> str:
        if self._text is None:
            self._text = _text(self, str, "//")
        return self._text

    __repr__ = __str__

    @property
    def name(self) -> str | None:
        """The symbol's name when it is a bare symbol, else None."""
        ((m, c), *rest) = self.terms
        bare = not rest and c == 1 and len(m) == 1 and m[0][1] == 1
        return m[0][0].name if bare and isinstance(m[0][0], Symbol) else None

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        """The symbols that occur in it."""
        return _symbols_of(self)

    # ------------------------------------------------------------------ arithmetic

    def __add__(self, other: Dim) -> Dim:
        if (terms := _terms(other)) is None:
            return NotImplemented
        out = dict(self.terms)
        for m, c in terms.items():
            out[m] = out.get(m, 0) + c
        return _make(out)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return _make({m: -c for m, c in self.terms})

    def __sub__(self, other: Dim) -> Dim:
        return NotImplemented if _terms(other) is None else self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        terms = _terms(other)
        return NotImplemented if terms is None else _make(_times(dict(self.terms), terms))

    __rmul__ = __mul__

    def __pow__(self, power: int) -> Dim:
        out: Dim = 1
        for _ in range(power):
            out = out * self
        return out

    def __floordiv__(self, other: Dim) -> Dim:
        return NotImplemented if _terms(other) is None else _floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return _floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return (
            NotImplemented if _terms(other) is None else self - _floordiv(self, other) * other
        )

    def __rmod__(self, other: int) -> Dim:
        return other - _floordiv(other, self) * self

    def __divmod__(self, other: Dim) -> tuple[Dim, Dim]:
        return self // other, self % other

    def __abs__(self) -> Dim:
        return self if self >= 0 else -self

    # ------------------------------------------------------------------ comparisons

    def __lt__(self, other: Dim) -> bool:
        return _decide(other - self - 1, f"{self} < {other}")

    def __le__(self, other: Dim) -> bool:
        return _decide(other - self, f"{self} <= {other}")

    def __gt__(self, other: Dim) -> bool:
        return _decide(self - other - 1, f"{self} > {other}")

    def __ge__(self, other: Dim) -> bool:
        return _decide(self - other, f"{self} >= {other}")

    def __bool__(self) -> bool:
        if at_least(self, 1) or at_least(-self, 1):
            return True
        raise Undecided(f"whether {self} is 0 depends on the sizes of a call")

    def __int__(self) -> int:
        raise Undecided(f"the size {self} is known at the call only")

    __index__ = __float__ = __int__

    def __truediv__(self, other: object) -> Any:
        raise Undecided(f"the size {self} is known at the call only")

    __rtruediv__ = __truediv__


def symbol(name: str, low: int = 1, high: int = LARGEST, hint: int | None = None) -> Size:
    """A size symbol as a Size.

    Arguments:
        name: An identifier.
        low: Its least value, at least 1.
        high: Its greatest value.
        hint: The value to tune for; near the middle of small ranges when None.

    Raises:
        HlirError: when the bounds are empty or the hint is outside of them.
    """
    if not 1 <= low <= high:
        raise HlirError(f"the bounds [{low}, {high}] of the symbol {name} are empty")
    if hint is None:
        hint = max(low, min(high, 128))
    if not low <= hint <= high:
        raise HlirError(f"the hint {hint} of {name} is outside of [{low}, {high}]")
    return Size((((((Symbol(name, low, high, hint), 1),), 1)),))


def _terms(x: object) -> Terms | None:
    if isinstance(x, Size):
        return dict(x.terms)
    if isinstance(x, int):
        return {(): int(x)} if x else {}
    return None


def _make(terms: Terms) -> Dim:
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Size(tuple(sorted(kept, key=_order)))


def _order(term: tuple[Monomial, int]) -> tuple:
    m = term[0]
    return (-sum(p for _, p in m), [(str(a), p) for a, p in m])


def _times(a: Terms, b: Terms) -> Terms:
    out: Terms = {}
    for m, c in a.items():
        for n, d in b.items():
            both = _product(m, n)
            out[both] = out.get(both, 0) + c * d
    return out


def _product(m: Monomial, n: Monomial) -> Monomial:
    if not m or not n:
        return m or n
    powers = dict(m)
    for a, p in n:
        powers[a] = powers.get(a, 0) + p
    return tuple(sorted(powers.items(), key=lambda t: str(t[0])))


def _quotient(m: Monomial, n: Monomial) -> Monomial | None:
    """M / n, None when n does not divide m."""
    powers = dict(m)
    for a, p in n:
        left = powers.get(a, 0) - p
        if left < 0:
            return None
        powers[a] = left
    return tuple((a, p) for a, p in powers.items() if p)


def _floordiv(a: Dim, b: Dim) -> Dim:
    """`a // b` for a positive b."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if not at_least(b, 1):
        raise Undecided(f"the divisor of {a}//{_grouped(b)} may be 0")
    if b == 1:
        return a
    quotient: Dim = 0
    rest: Dim = a
    lead, scale = (b.terms[0]) if isinstance(b, Size) else ((), b)
    for _ in range(_STEPS):
        part = next(_multiples(rest, lead, scale), 0)
        if part == 0:
            break
        quotient, rest = quotient + part, rest - part * b
    return quotient + _fraction(rest, b)


def _multiples(a: Dim, lead: Monomial, scale: int) -> Iterator[Dim]:
    """The terms of `a` that `scale * lead` divides, divided by it."""
    for m, c in a.terms if isinstance(a, Size) else (((), a),):
        q = _quotient(m, lead)
        if q is not None and (c % scale == 0 or not (m or lead)) and c // scale:
            yield _make({q: c // scale})


def _fraction(rest: Dim, b: Dim) -> Dim:
    """`rest // b` where nothing divides out."""
    if isinstance(rest, int) and isinstance(b, int):
        return rest // b
    if at_least(rest, 0):
        if at_least(b - rest, 1):
            return 0
    elif at_least(-rest, 1) and at_least(rest + b, 0):
        return -1
    if isinstance(rest, Size) and isinstance(b, int) and rest.terms[0][1] < 0:
        # -x//b = -((x + b - 1)//b)
        return -_fraction_of(-rest + b - 1, b)
    return _fraction_of(rest, b)


def _fraction_of(rest: Dim, b: Dim) -> Dim:
    if isinstance(rest, int):
        if isinstance(b, int):
            return rest // b
    elif isinstance(b, int) and len(rest.terms) == 1:
        ((m, c),) = rest.terms  # x//p//q = x//(p*q)
        if c == 1 and len(m) == 1 and m[0][1] == 1 and isinstance(m[0][0], Apply):
            inner = m[0][0]
            if inner.op == "//" and isinstance(inner.args[1], int):
                return _floordiv(inner.args[0], inner.args[1] * b)
    return Size(((((Apply("//", (rest, b)), 1),), 1),))


def largest(*dims: Dim) -> Dim:
    """The maximum of sizes."""
    return functools.reduce(lambda a, b: _extreme("max", a, b), dims)


def smallest(*dims: Dim) -> Dim:
    """The minimum of sizes."""
    return functools.reduce(lambda a, b: _extreme("min", a, b), dims)


def _extreme(op: str, a: Dim, b: Dim) -> Dim:
    if at_least(a - b, 0):
        return a if op == "max" else b
    if at_least(b - a, 0):
        return b if op == "max" else a
    first, second = sorted((a, b), key=str)
    return Size(((((Apply(op, (first, second)), 1),), 1),))


def common_divisor(a: Dim, b: Dim) -> Dim:
    """A common divisor of two sizes of one term each; 1 for others."""
    if isinstance(a, int) and isinstance(b, int):
        return math.gcd(a, b)
    one: Any = a.terms if isinstance(a, Size) else (((), a),)
    other: Any = b.terms if isinstance(b, Size) else (((), b),)
    if len(one) > 1 or len(other) > 1:
        return a if divides(a, b) else b if divides(b, a) else 1
    (m, c), (n, d) = one[0], other[0]
    powers = dict(n)
    shared = tuple((x, min(p, powers[x])) for x, p in m if x in powers)
    return _make({shared: math.gcd(c, d)})


def ceildiv(a: Dim, b: Dim) -> Dim:
    """`a / b`, rounded up."""
    return (a + (b - 1)) // b


# ------------------------------------------------------------------------------- proofs


def at_least(a: Dim, bound: int) -> bool:
    """Whether the bounds prove `a >= bound` (False: they do not)."""
    if isinstance(a, int):
        return a >= bound
    return bounds(a)[0] >= bound


def surely(compare: Callable[[], bool]) -> bool:
    """Whether a comparison is provably true."""
    try:
        return compare()
    except Undecided:
        return False


def divides(k: Dim, n: Dim) -> bool:
    """Whether `n` is provably a multiple of `k`."""
    if isinstance(k, int) and isinstance(n, int):
        return n % k == 0
    rest = n % k
    return isinstance(rest, int) and rest == 0


def _decide(difference: Dim, text: str) -> bool:
    """Whether a difference is >= 0, when that is the same for all values."""
    if isinstance(difference, int):
        return difference >= 0
    low, high = bounds(difference)
    if low >= 0:
        return True
    if high < 0:
        return False
    raise Undecided(f"whether {text} depends on the sizes of a call")


def bounds(a: Dim) -> tuple[int, int]:
    """The least and the greatest value that the bounds of its symbols allow (or wider)."""
    return (a, a) if isinstance(a, int) else _bounds(a)


@functools.lru_cache(maxsize=65536)
def _bounds(a: Size) -> tuple[int, int]:
    return _lower(a), -_lower(-a)


def _lower(a: Dim) -> int:
    """A lower bound.

    With every atom written as its own bound plus or minus something that is not negative, the
    constant is a bound where no other coefficient is negative. Quotients are replaced by their
    dividends first: k*(x//k) = x - r with 0 <= r < k.
    """
    terms = dict(a.terms) if isinstance(a, Size) else {(): a}
    terms, scale = _without_quotients(terms)
    atoms = sorted({x for m in terms for x, _ in m}, key=str)
    ranges = {x: _range(x) for x in atoms}
    best = _interval(terms, ranges)
    choices = itertools.product((0, 1), repeat=len(atoms)) if len(atoms) <= 5 else [(0,) * 9]
    for ends in choices:
        moved = terms
        for x, end in zip(atoms, ends):
            at = ranges[x][end]
            moved = _replaced(moved, x, {(): at, ((x, 1),): 1 - 2 * end})
        if all(c >= 0 for m, c in moved.items() if m):
            best = max(best, moved.get((), 0))
    return -(-best // scale)


def _interval(terms: Terms, ranges: Mapping[Atom, tuple[int, int]]) -> int:
    low = 0
    for m, c in terms.items():
        least = most = 1
        for x, p in m:
            for _ in range(p):
                ends = [u * v for u in (least, most) for v in ranges[x]]
                least, most = min(ends), max(ends)
        low += c * (least if c > 0 else most)
    return low


def _without_quotients(terms: Terms) -> tuple[Terms, int]:
    """The same times a number, without floor-divisions by numbers."""
    scale = 1
    for _ in range(4):
        found = sorted(
            {
                x
                for m in terms
                for x, p in m
                if isinstance(x, Apply) and x.op == "//" and isinstance(x.args[1], int)
            },
            key=str,
        )
        if not found:
            break
        x = found[0]
        if any((a is x and p > 1) or (a == x and p > 1) for m in terms for a, p in m):
            break
        k = x.args[1]
        assert isinstance(k, int)
        rest = Symbol(f"({x})", 0, k - 1, 0)
        by = {**(_terms(x.args[0]) or {})}
        by[((rest, 1),)] = -1
        out: Terms = {}
        for m, c in terms.items():
            left = tuple((a, p) for a, p in m if a != x)
            part = _times({left: c}, by) if len(left) < len(m) else {m: c * k}
            for n, d in part.items():
                out[n] = out.get(n, 0) + d
        terms, scale = out, scale * k
    return terms, scale


def _replaced(terms: Terms, x: Atom, by: Terms) -> Terms:
    """The polynomial with an atom replaced by another polynomial."""
    out: Terms = {}
    for m, c in terms.items():
        power = next((p for a, p in m if a == x), 0)
        part: Terms = {tuple((a, p) for a, p in m if a != x): c}
        for _ in range(power):
            part = _times(part, by)
        for n, d in part.items():
            out[n] = out.get(n, 0) + d
    return out


def _range(x: Atom) -> tuple[int, int]:
    if isinstance(x, Symbol):
        return x.low, x.high
    (alo, ahi), (blo, bhi) = map(bounds, x.args)
    if x.op == "//":
        ends = [p // q for p in (alo, ahi) for q in (max(blo, 1), max(bhi, 1))]
        return min(ends), max(ends)
    pick = max if x.op == "max" else min
    return pick(alo, blo), pick(ahi, bhi)


# ------------------------------------------------------------------------------- values


def is_symbolic(a: object) -> bool:
    """Whether a dim is decided at the call."""
    return isinstance(a, Size)


def hint(a: Dim) -> int:
    """The value at the hints of the symbols."""
    return a if isinstance(a, int) else _hint(a)


@functools.lru_cache(maxsize=65536)
def _hint(a: Size) -> int:
    return value(a, {s.name: s.hint for s in a.free_symbols})


def value(a: Dim, symbols: Mapping[str, int]) -> int:
    """The value of a dim, given those of its symbols.

    Raises:
        HlirError: when a symbol has no value.
    """
    if isinstance(a, int):
        return a
    total = 0
    for m, c in a.terms:
        for x, p in m:
            c *= _value(x, symbols) ** p
        total += c
    return total


def _value(x: Atom, symbols: Mapping[str, int]) -> int:
    if isinstance(x, Symbol):
        try:
            return symbols[x.name]
        except KeyError:
            raise HlirError(f"no value for the symbolic dim {x.name}") from None
    a, b = (value(y, symbols) for y in x.args)
    return a // b if x.op == "//" else max(a, b) if x.op == "max" else min(a, b)


def rename(a: Dim, by: Mapping[str, Symbol | int]) -> Dim:
    """The size with its symbols replaced, by others or by numbers."""
    if isinstance(a, int):
        return a
    out: Dim = 0
    for m, c in a.terms:
        part: Dim = c
        for x, p in m:
            part = part * _renamed(x, by) ** p
        out = out + part
    return out


def _renamed(x: Atom, by: Mapping[str, Symbol | int]) -> Size | Any:
    if isinstance(x, Symbol):
        other = by.get(x.name, x)
        return other if isinstance(other, int) else Size(((((other, 1),), 1),))
    a, b = (rename(y, by) for y in x.args)
    return _floordiv(a, b) if x.op == "//" else _extreme(x.op, a, b)


@functools.lru_cache(maxsize=65536)
def _symbols_of(a: Size) -> frozenset[Symbol]:
    out: set[Symbol] = set()
    for m, _ in a.terms:
        for x, _ in m:
            out |= {x} if isinstance(x, Symbol) else symbols_in(x.args)
    return frozenset(out)


def symbols_in(dims: Iterable[Any]) -> frozenset[Symbol]:
    """The symbols that occur in some dims."""
    return frozenset().union(*(d.free_symbols for d in dims if isinstance(d, Size)))


# ------------------------------------------------------------------------------- text


def _text(a: Dim, name: Callable[[Symbol], str], div: str) -> str:
    if isinstance(a, int):
        return str(a)
    parts: list[str] = []
    for m, c in a.terms:
        factors = [f for x, p in m for f in [_atom_text(x, name, div)] * p]
        if abs(c) != 1 or not factors:
            factors.insert(0, str(abs(c)))
        sign = "-" if c < 0 else "+" if parts else ""
        parts.append(sign + "*".join(factors))
    return "".join(parts)


def _atom_text(x: Atom, name: Callable[[Symbol], str], div: str) -> str:
    if isinstance(x, Symbol):
        return name(x)
    a, b = (_text(y, name, div) for y in x.args)
    if x.op != "//":
        return f"{x.op}({a}, {b})"
    inner = (t if t.isidentifier() or t.isdigit() else f"({t})" for t in (a, b))
    quotient = div.join(inner)
    return f"({quotient})"


def c_text(a: Dim, name: Callable[[Symbol], str]) -> str:
    """A C expression of type `long`.

    Arguments:
        a: The size.
        name: The C expression of a symbol.
    """
    if isinstance(a, int):
        return str(a)
    parts: list[str] = []
    for m, c in a.terms:
        factors = [f for x, p in m for f in [_c_atom(x, name)] * p]
        if abs(c) != 1 or not factors:
            factors.append(str(abs(c)))
        sign = "-" if c < 0 else "+" if parts else ""
        parts.append(f"{sign} {'*'.join(factors)}" if parts else sign + "*".join(factors))
    text = " ".join(parts)
    return text if len(parts) == 1 and text.isidentifier() else f"({text})"


def _c_atom(x: Atom, name: Callable[[Symbol], str]) -> str:
    if isinstance(x, Symbol):
        return name(x)
    a, b = (c_text(y, name) for y in x.args)
    if x.op == "//":
        return f"({a} / {b})" if at_least(x.args[0], 0) else f"ll_fdiv({a}, {b})"
    return f"ll_{x.op}({a}, {b})"


def parse(text: str, symbols: Mapping[str, Dim]) -> Dim:
    """Read back what `str(size)` printed.

    Raises:
        HlirError: on anything else.
    """
    import ast

    def read(node: ast.AST) -> Dim:
        match node:
            case ast.Constant(value=int(n)) if not isinstance(n, bool):
                return n
            case ast.Name(id=name) if name in symbols:
                return symbols[name]
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return -read(x)
            case ast.BinOp(left=a, op=ast.Add(), right=b):
                return read(a) + read(b)
            case ast.BinOp(left=a, op=ast.Sub(), right=b):
                return read(a) - read(b)
            case ast.BinOp(left=a, op=ast.Mult(), right=b):
                return read(a) * read(b)
            case ast.BinOp(left=a, op=ast.FloorDiv(), right=b):
                return _floordiv(read(a), read(b))
            case ast.Call(func=ast.Name(id="max" | "min" as op), args=[a, b]):
                return _extreme(op, read(a), read(b))
        raise HlirError(f"not a size: {text!r}")

    try:
        return read(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise HlirError(f"not a size: {text!r}") from error
