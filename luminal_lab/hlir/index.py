"""Index expressions: integer-affine forms over named axes, with floor-division and remainder.

An `Index` is `const + sum(coefficient * atom)`. An atom is the name of an axis, or a
floor-division / remainder of another Index by a positive integer. The form is canonical: atoms
are sorted, zero terms dropped, and `//`, `%` simplified whenever the extents prove it. It
prints as `h*64+d` and parses back. Constants, coefficients and divisors may be symbolic sizes,
which print in braces: `b*{n}+i`.

    >>> i = Index.axis("i")
    >>> (i * 8 + Index.axis("j")).floordiv(8, {"i": 4, "j": 8})
    i
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from luminal_lab.errors import HlirError
from luminal_lab.hlir import sizes
from luminal_lab.hlir.sizes import Dim, Size

Extents = Mapping[str, Dim]
GATHERED = "@"  # prefix of the axes that a Gather binds to the values of its index operands
_DATA = 1 << 40  # what is assumed to be above all of those: nothing is proved from them


@dataclass(frozen=True)
class DivMod:
    """The atom `inner // by` (op `"//"`) or `inner % by` (op `"%"`); `by` is positive."""

    op: str
    inner: Index
    by: Dim

    def __str__(self) -> str:
        return str(Index(((self, 1),)))


Atom = str | DivMod


@dataclass(frozen=True)
class Index:
    """`const + sum(coef * atom)`: see the module. Build it with `num`, `axis`, `+`, `*`."""

    terms: tuple[tuple[Atom, Any], ...] = ()  # coefficients are Dims
    const: Any = 0  # a Dim

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.terms, self.const))

    def __reduce__(self):
        return (Index, (self.terms, self.const))  # a hash of strings is this process's own

    @staticmethod
    def num(value: Dim) -> Index:
        """The constant `value`."""
        return Index((), value if isinstance(value, Size) else int(value))

    @staticmethod
    def axis(name: str) -> Index:
        """The axis `name`."""
        return Index(((name, 1),))

    @staticmethod
    def linear(parts: Iterable[tuple[str, Any]]) -> Index:
        """The sum of some axes times their coefficients."""
        terms: dict[Atom, Any] = {}
        for name, coef in parts:
            terms[name] = terms.get(name, 0) + coef
        return Index._make(terms, 0)

    @staticmethod
    def _make(terms: dict[Atom, Any], const: Any) -> Index:
        while (joined := _join_remainder(terms)) is not None:
            terms, more = joined
            const += more
        kept = [(a, c) for a, c in terms.items() if c != 0]
        if len(kept) < 2:
            return Index(tuple(kept), const)
        return Index(tuple(sorted(kept, key=_order)), const)

    def __add__(self, other: Index | Dim) -> Index:
        if not isinstance(other, Index):
            return Index(self.terms, self.const + other)
        if not self.terms or not other.terms:
            return Index(self.terms or other.terms, self.const + other.const)
        terms = dict(self.terms)
        for atom, coef in other.terms:
            terms[atom] = terms.get(atom, 0) + coef
        return Index._make(terms, self.const + other.const)

    __radd__ = __add__

    def __mul__(self, k: Dim) -> Index:
        if k == 1:
            return self
        # A factor keeps the order of the terms, and joins none.
        return Index(tuple((a, c * k) for a, c in self.terms) if k != 0 else (), self.const * k)

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | Dim) -> Index:
        return self + (-other)

    def floordiv(self, k: Dim, extents: Extents) -> Index:
        """`self // k` (rounds to minus infinity), simplified under `extents`."""
        if k == 1:
            return self
        whole = {a: c // k for a, c in self.terms if sizes.divides(k, c)}
        rest = Index._make(
            {a: c for a, c in self.terms if not sizes.divides(k, c)}, self.const % k
        )
        out = Index._make(whole, self.const // k)
        lo, hi = rest.bounds(extents)
        if lo // k == hi // k:
            return out + lo // k
        if (atom := rest._atom) is not None and atom.op == "//":
            return out + atom.inner.floordiv(atom.by * k, extents)
        if atom is not None and atom.by % k == 0:
            return out + atom.inner.floordiv(k, extents).mod(atom.by // k, extents)
        if split := rest._split(k, extents):
            g, high, _ = split
            return out + high.floordiv(k // g, extents)
        return out + Index(((DivMod("//", rest, k), 1),))

    def mod(self, k: Dim, extents: Extents) -> Index:
        """`self % k` (result in `[0, k)`), simplified under `extents`."""
        if k == 1:
            return Index()
        rest = Index._make(
            {a: c for a, c in self.terms if not sizes.divides(k, c)}, self.const % k
        )
        lo, hi = rest.bounds(extents)
        if lo // k == hi // k:
            return rest - (lo // k) * k
        if (atom := rest._atom) is not None and atom.op == "%" and atom.by % k == 0:
            return atom.inner.mod(k, extents)
        if split := rest._split(k, extents):
            g, high, low = split
            return high.mod(k // g, extents) * g + low
        return Index(((DivMod("%", rest, k), 1),))

    @property
    def _atom(self) -> DivMod | None:
        """The floor-division or remainder that the whole expression is, if it is one."""
        if self.const == 0 and len(self.terms) == 1 and self.terms[0][1] == 1:
            atom = self.terms[0][0]
            return atom if isinstance(atom, DivMod) else None
        return None

    def _split(self, k: Dim, extents: Extents) -> tuple[Any, Index, Index] | None:
        """`(g, high, low)`: `self == g*high + low`, `0 <= low < g`, and `g > 1` divides `k`."""
        divisors = dict.fromkeys(_common(c, k) for _, c in self.terms)
        divisors.pop(1, None)
        for g in sorted(divisors, key=sizes.hint, reverse=True):
            whole = {a: c // g for a, c in self.terms if sizes.divides(g, c)}
            high = Index._make(whole, self.const // g)
            low = Index._make(
                {a: c for a, c in self.terms if not sizes.divides(g, c)}, self.const % g
            )
            lo, hi = low.bounds(extents)
            if high.terms and sizes.at_least(lo, 0) and sizes.at_least(g - hi, 1):
                return g, high, low
        return None

    def bounds(self, extents: Extents) -> tuple[Any, Any]:
        """Inclusive lower and upper bound (two Dims), with every axis in `[0, extent)`.

        An axis `@0, @1, …`, whose values are data, needs no extent.

        Raises:
            Undecided: when the sign of a symbolic coefficient is not known.
        """
        lo = hi = self.const
        for atom, coef in self.terms:
            if isinstance(atom, str):
                n = extents.get(atom)
                if n is None:
                    if not atom.startswith(GATHERED):
                        raise KeyError(atom)
                    n = _DATA
                alo, ahi = 0, max(n - 1, 0) if isinstance(n, int) else n - 1
            else:
                ilo, ihi = atom.inner.bounds(extents)
                if atom.op == "//":
                    alo, ahi = ilo // atom.by, ihi // atom.by
                elif ilo // atom.by == ihi // atom.by:
                    alo, ahi = ilo % atom.by, ihi % atom.by
                else:
                    alo, ahi = 0, atom.by - 1
            lo += coef * (alo if coef > 0 else ahi)
            hi += coef * (ahi if coef > 0 else alo)
        return lo, hi

    @cached_property
    def axes(self) -> frozenset[str]:
        """The names of the axes that occur in it."""
        out: set[str] = set()
        for atom, _ in self.terms:
            out |= {atom} if isinstance(atom, str) else atom.inner.axes
        return frozenset(out)

    @property
    def single(self) -> str | None:
        """The axis's name when the whole expression is one bare axis, else None."""
        if self.const == 0 and len(self.terms) == 1 and self.terms[0][1] == 1:
            atom = self.terms[0][0]
            return atom if isinstance(atom, str) else None
        return None

    @property
    def is_affine(self) -> bool:
        """Whether it has neither floor-division nor remainder."""
        return all(isinstance(a, str) for a, _ in self.terms)

    def coef(self, axis: str) -> Any:
        """The coefficient (a Dim) of a bare axis; 0 when it does not occur as one."""
        return next((c for a, c in self.terms if a == axis), 0)

    def substitute(self, by: Mapping[str, Index], extents: Extents) -> Index:
        """Replace axes by expressions; `extents` are those of the axes of the result."""
        terms: dict[Atom, int] = {}
        const = self.const
        for atom, coef in self.terms:
            if isinstance(atom, str):
                new = by.get(atom)
                if new is None:
                    terms[atom] = terms.get(atom, 0) + coef
                    continue
            else:
                inner = atom.inner.substitute(by, extents)
                op = Index.floordiv if atom.op == "//" else Index.mod
                new = op(inner, atom.by, extents)
            if len(self.terms) == 1:
                return new * coef + const
            for a, c in new.terms:
                terms[a] = terms.get(a, 0) + c * coef
            const += new.const * coef
        return Index._make(terms, const)

    def rename(self, by: Mapping[str, str]) -> Index:
        """Rename axes (a bijection on those that occur: nothing is re-simplified)."""

        def atom_(a: Atom) -> Atom:
            if isinstance(a, str):
                return by.get(a, a)
            return DivMod(a.op, a.inner.rename(by), a.by)

        return Index._make({atom_(a): c for a, c in self.terms}, self.const)

    @cached_property
    def symbols(self) -> frozenset[sizes.Symbol]:
        """The size symbols that occur in it."""
        out = sizes.symbols_in((self.const, *(c for _, c in self.terms)))
        for atom, _ in self.terms:
            if not isinstance(atom, str):
                out |= atom.inner.symbols | sizes.symbols_in((atom.by,))
        return out

    def resize(self, of: Callable[[Dim], Dim]) -> Index:
        """The expression with every size in it replaced: `of` maps one Dim to another."""
        out: dict[Atom, Any] = {}
        for atom, coef in self.terms:
            if not isinstance(atom, str):
                atom = DivMod(atom.op, atom.inner.resize(of), of(atom.by))
            out[atom] = out.get(atom, 0) + of(coef)
        return Index._make(out, of(self.const))

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value with each axis bound to a number, or to a broadcasting array or tensor."""
        out: Any = self.const
        for atom, coef in self.terms:
            if isinstance(atom, str):
                v = values[atom]
            else:
                inner = atom.inner.evaluate(values)
                v = inner // atom.by if atom.op == "//" else inner % atom.by
            out = out + v * coef
        return out

    def render(self, axis: Callable[[str], str] = str, div: str = "//", mod: str = "%") -> str:
        """Text of the expression; a renderer for C passes `div="/"` once bounds prove >= 0."""
        parts: list[str] = []
        for atom, coef in self.terms:
            if isinstance(atom, str):
                text = axis(atom)
            else:
                inner = atom.inner.render(axis, div, mod)
                op = div if atom.op == "//" else mod
                text = f"{inner if atom.inner.single else f'({inner})'}{op}{shown(atom.by)}"
                if _negative(coef) and not parts:  # unary minus binds tighter than / in C
                    text = f"({text})"
            sign = "-" if _negative(coef) else ("+" if parts else "")
            size = -coef if _negative(coef) else coef
            parts.append(f"{sign}{text}" + ("" if size == 1 else f"*{shown(size)}"))
        const = self.const
        if const != 0 or not parts:
            sign = "+" if parts and (isinstance(const, Size) or const >= 0) else ""
            parts.append(f"{sign}{shown(const)}")
        return "".join(parts)

    @cached_property
    def _text(self) -> str:
        return self.render()

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    @staticmethod
    def parse(
        text: str, extents: Extents | None = None, symbols: Mapping[str, Dim] | None = None
    ) -> Index:
        """Read back what `str(index)` printed.

        Arguments:
            text: The text.
            extents: Not needed.
            symbols: The size symbols that may occur in braces.

        Raises:
            HlirError: on anything else.
        """
        tokens = re.findall(r"\{[^}]*\}|//|[-+*%()]|\d+|[@\w.']+", text)
        if re.sub(r"\s", "", "".join(tokens)) != re.sub(r"\s", "", text):
            raise HlirError(f"not an index expression: {text!r}")
        it = _Tokens(tokens, text, symbols or {})
        out = _sum(it)
        if it.peek() is not None:
            raise HlirError(f"unexpected {it.peek()!r} in the index expression {text!r}")
        return out


def _order(term: tuple[Atom, Any]) -> tuple:
    atom, coef = term
    if type(coef) is not int:
        return (-abs(sizes.hint(coef)), str(atom))
    return (-abs(coef), str(atom))


def _common(a: Dim, b: Dim) -> Dim:
    """A common divisor of two sizes: the greatest one of numbers, else one of them or 1."""
    if isinstance(a, int) and isinstance(b, int):
        return math.gcd(a, b)
    return sizes.common_divisor(a, b)


def _negative(coef: Dim) -> bool:
    """Whether a coefficient is printed with a minus."""
    return (coef.terms[0][1] if isinstance(coef, Size) else coef) < 0


def shown(size: Dim) -> str:
    """A size as text: a number, or a symbolic size in braces."""
    # a comma separates index expressions
    return f"{{{size}}}".replace(", ", ";") if isinstance(size, Size) else str(size)


def _join_remainder(terms: dict[Atom, int]) -> tuple[dict[Atom, int], int] | None:
    """One step of `x//k*k + x%k = x` and `x//k%m*k + x%k = x%(k*m)`; None when there is none.

    Returns the other terms with the joined one, and what is added to the constant.
    """
    for low, c in terms.items():
        if not c or isinstance(low, str) or low.op != "%":
            continue
        for high, d in terms.items():
            if isinstance(high, str) or d != c * low.by or high == low:
                continue
            rest = {a: n for a, n in terms.items() if a not in (low, high)}
            if high.op == "//" and (high.inner, high.by) == (low.inner, low.by):
                joined = low.inner
            elif high.op == "%":
                joined = high.inner * low.by + Index(((low, 1),))
                if any(a == low for a, _ in joined.terms):
                    continue
                joined = Index(((DivMod("%", joined, low.by * high.by), 1),))
            else:
                continue
            for atom, n in joined.terms:
                rest[atom] = rest.get(atom, 0) + n * c
            return rest, joined.const * c
    return None


class _Tokens:
    def __init__(self, tokens: list[str], text: str, symbols: Mapping[str, Dim]):
        self.items: Iterator[str] = iter(tokens)
        self.text, self.symbols = text, symbols
        self.next: str | None = next(self.items, None)

    def peek(self) -> str | None:
        return self.next

    def take(self) -> str:
        if self.next is None:
            raise HlirError(f"the index expression ends too early: {self.text!r}")
        out, self.next = self.next, next(self.items, None)
        return out


def _sum(it: _Tokens) -> Index:
    sign = -1 if it.peek() == "-" else 1
    if it.peek() in ("-", "+"):
        it.take()
    out = _product(it) * sign
    while it.peek() in ("+", "-"):
        sign = 1 if it.take() == "+" else -1
        out = out + _product(it) * sign
    return out


def _product(it: _Tokens) -> Index:
    out = _leaf(it)
    while it.peek() in ("*", "//", "%"):
        op, right = it.take(), _leaf(it)
        if op == "*":
            if right.terms and out.terms:
                raise HlirError(f"a product of two axes is not an index: {it.text!r}")
            out = right * out.const if right.terms else out * right.const
        elif right.terms or not sizes.at_least(right.const, 1):
            raise HlirError(f"the divisor of {op} is a positive number: {it.text!r}")
        else:
            out = Index(((DivMod(op, out, right.const), 1),))
    return out


def _leaf(it: _Tokens) -> Index:
    token = it.take()
    if token == "(":
        inner = _sum(it)
        if it.take() != ")":
            raise HlirError(f"missing ) in the index expression {it.text!r}")
        return inner
    if token.startswith("{"):
        return Index.num(sizes.parse(token[1:-1].replace(";", ", "), it.symbols))
    return Index.num(int(token)) if token.isdigit() else Index.axis(token)
