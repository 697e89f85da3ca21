"""Tables of numbers: sums with them are written out, so that their entries become constants.

A `table` is one of a few numbers, chosen by an index. Where that index is made of short axes,
and of `h % m` for a longer one, a kernel is written out over these: a sum over such an axis
becomes additions (none for an entry 0, no product for an entry 1), and a store over one becomes
a store for each of its points; `h` becomes `m*t + i`. Stores of the points of a last tile that
lie outside of the result are guarded. What is written out shares its terms. Everywhere else,
and where a kernel reduces other axes too, a table is a choice between its numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from luminal_lab.codegen import terms
from luminal_lab.codegen.terms import const
from luminal_lab.egraph.values import BINDERS, KernelOutput, Value, numbers_of, postorder
from luminal_lab.hlir.dtypes import BOOL
from luminal_lab.hlir.index import DivMod, Index
from luminal_lab.hlir.sizes import Dim, is_symbolic

MOST = 64  # stores that one store is written out as
SHORT = 8  # points of an axis that is written out

Point = tuple[tuple[str, Index], ...]  # what stands for some axes


@dataclass(frozen=True)
class Written:
    """One of the stores that an output is written out as.

    Arguments:
        value: What is stored.
        by: What stands for the axes of the output.
        guard: Expressions that must be >= 0 for the store to happen.
    """

    value: Value
    by: Mapping[str, Index]
    guard: tuple[Index, ...] = ()


def has_tables(values: Iterable[Value]) -> bool:
    """Whether there is a table among some terms."""
    return any(v.op == "table" for v in postorder(values))


def chosen(values: Sequence[Value]) -> list[Value]:
    """The terms with each table as nested choices between its numbers."""

    def step(v: Value, args: tuple[Value, ...]) -> Value:
        if v.op != "table":
            return terms.remake(v, args)
        at, numbers = args[0], numbers_of(v.attrs[0])
        out = const(numbers[-1], v.dtype)
        for k in range(len(numbers) - 2, -1, -1):
            below = Value("lessthan", (at, const(k + 1, at.dtype)), dtype=BOOL)
            out = Value("select", (below, const(numbers[k], v.dtype), out), dtype=v.dtype)
        return out

    return terms.rewrite(values, step)


def written_out(
    outputs: Sequence[KernelOutput], values: Sequence[Value], extents: dict[str, Dim]
) -> list[list[Written]] | None:
    """For each output the stores that it is written out as; None when that is not possible.

    Arguments:
        outputs: What a kernel stores.
        values: Their values, with a flat index in each load.
        extents: Receives the axes of tiles.
    """
    if len(values) != len(outputs) or any(o.scatter is not None for o in outputs):
        return None
    found = _axes(values, extents)
    if found is None:
        return None
    short, periods = found
    out = []
    for o, v in zip(outputs, values):
        places = _places(frozenset(o.axes) | v.free, short, periods, extents)
        if len(places) > MOST:
            return None
        writer = _Writer(short, extents)
        out.append(
            [Written(writer.write(v, dict(at)), dict(at), guard) for at, guard in places]
        )
    return out


def _axes(
    values: Sequence[Value], extents: Mapping[str, Dim]
) -> tuple[frozenset[str], dict[str, int]] | None:
    """The short axes of all tables, and the longer ones of which they see a remainder."""
    short: set[str] = set()
    periods: dict[str, int] = {}
    for v in postorder(values):
        if v.op != "table":
            continue
        at = v.args[0]
        if at.op not in ("iota", "const"):
            return None
        for atom, _ in at.attrs[0].terms if at.op == "iota" else ():
            if isinstance(atom, str):
                short.add(atom)
            elif _remainder(atom) is None or periods.setdefault(
                atom.inner.terms[0][0], atom.by
            ) != atom.by:  # fmt: skip
                return None
    for v in postorder(values):  # what reduces something else would be made for each point
        if v.op in BINDERS and (v.op != "red" or v.attrs[1] not in short):
            return None
    sizes = [extents[a] for a in (*short, *periods)]
    if any(is_symbolic(n) for n in sizes) or any(extents[a] > SHORT for a in short):
        return None
    return None if short & periods.keys() else (frozenset(short), periods)


def _remainder(atom: DivMod) -> str | None:
    """The axis whose remainder it is."""
    plain = atom.op == "%" and atom.inner.single is not None and isinstance(atom.by, int)
    return atom.inner.single if plain else None


def _places(
    axes: frozenset[str],
    short: frozenset[str],
    periods: Mapping[str, int],
    extents: dict[str, Dim],
) -> list[tuple[Point, tuple[Index, ...]]]:
    """What stands for the axes of each store, and what guards it."""
    choices: list[list[tuple[str, Index, tuple[Index, ...]]]] = []
    for a in sorted(axes & short):
        choices.append([(a, Index.num(k), ()) for k in range(_number(extents[a]))])
    for a in sorted(axes & periods.keys()):
        n, m = _number(extents[a]), periods[a]
        tile = f"{a}_{m}"
        while tile in extents and extents[tile] != -(-n // m):
            tile += "_"
        extents[tile] = -(-n // m)
        point = Index.axis(tile) * m
        rest = n % m or m
        choices.append(
            [
                (a, point + i, ((point * -1) + (n - 1 - i),) if i >= rest else ())
                for i in range(m)
            ]
        )
    return [
        (tuple((a, i) for a, i, _ in chosen), tuple(g for *_, gs in chosen for g in gs))
        for chosen in itertools.product(*choices)
    ]


def _number(n: Dim) -> int:
    assert isinstance(n, int)
    return n


class _Writer:
    """Writes terms out at points; equal terms at equal points are one."""

    def __init__(self, short: frozenset[str], extents: Mapping[str, Dim]):
        self.short, self.extents = short, extents
        self.memo: dict[tuple[Value, Point], Value] = {}
        self.inside: dict[Value, bool] = {}

    def touched(self, root: Value) -> bool:
        """Whether a term contains a table, or binds a short axis."""
        if root not in self.inside:
            for v in postorder([root]):
                here = v.op == "table" or (v.op == "red" and v.attrs[1] in self.short)
                self.inside[v] = here or any(self.inside[a] for a in v.args)
        return self.inside[root]

    def write(self, v: Value, at: Mapping[str, Index]) -> Value:
        """A term, with some of its axes replaced."""
        point = tuple((a, at[a]) for a in sorted(v.free & at.keys()))
        if not point and not self.touched(v):
            return v
        key = (v, point)
        if key not in self.memo:
            self.memo[key] = self._written(v, dict(point))
        return self.memo[key]

    def _written(self, v: Value, at: dict[str, Index]) -> Value:
        if v.op == "red" and v.attrs[1] in self.short:
            return self._sum(v, at)
        if v.op == "load":
            args = tuple(self.write(a, at) for a in v.args)
            index = tuple(i.substitute(at, self.extents) for i in v.attrs[1])
            return terms.remake(v, args, (v.attrs[0], index, *v.attrs[2:]))
        if v.op == "iota":
            index = v.attrs[0].substitute(at, self.extents)
            if not index.terms and isinstance(index.const, int):
                return const(index.const, v.dtype)
            return terms.remake(v, (), (index,))
        args = tuple(self.write(a, at) for a in v.args)
        return folded(v, args, self.extents)

    def _sum(self, v: Value, at: Mapping[str, Index]) -> Value:
        axis = v.attrs[1]
        out: Value | None = None
        for k in range(_number(self.extents[axis])):
            x = self.write(v.args[0], {**at, axis: Index.num(k)})
            if v.attrs[0] == "max":
                out = x if out is None else Value("maximum", (out, x), dtype=v.dtype)
            elif out is None or _is(out, 0.0):
                out = x
            elif not _is(x, 0.0):
                out = terms.op("add", out, x)
        assert out is not None
        return out


def folded(v: Value, args: tuple[Value, ...], extents: Mapping[str, Dim]) -> Value:
    """An op on other arguments, where these say what it is."""
    if v.op == "table" and args[0].op == "const":
        return const(numbers_of(v.attrs[0])[args[0].attrs[0]], v.dtype)
    if v.op == "lessthan":
        known = [_bounds(a, extents) for a in args]
        if None not in known:
            (low, high), (least, most) = known  # type: ignore[misc]
            if high < least or low >= most:
                return const(high < least, BOOL)
    if v.op == "mul":
        for old, a, b in zip(v.args, args, reversed(args)):
            if v.dtype is BOOL and a.op == "const":
                return b if a.attrs[0] else a
            if old.op == "table" and _is(a, 1.0):
                return b
            if old.op == "table" and _is(a, 0.0):
                return a
    if v.op == "select" and args[0].op == "const":
        return args[1] if args[0].attrs[0] else args[2]
    return terms.remake(v, args)


def _is(v: Value, number: float) -> bool:
    return v.op == "const" and v.dtype.is_float and v.attrs[0] == number


def _bounds(v: Value, extents: Mapping[str, Dim]) -> tuple[int, int] | None:
    """The least and the largest value of an integer that depends on axes alone."""
    if v.op == "const" and v.dtype.is_int:
        return v.attrs[0], v.attrs[0]
    if v.op != "iota" or any(is_symbolic(extents[a]) for a in v.free):
        return None
    low, high = v.attrs[0].bounds(extents)
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None
