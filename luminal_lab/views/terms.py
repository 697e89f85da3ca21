"""Values as mathematics: `Σ_d q[s,d]·k[t,d]`, with shared parts named once.

>>> from luminal_lab.egraph.values import Value
>>> from luminal_lab.hlir.dtypes import F32
>>> from luminal_lab.hlir.index import Index
>>> x = Value("load", (), ("x", (Index.axis("i"),)), dtype=F32)
>>> print(term(Value("mul", (x, Value("recip", (x,), dtype=F32)), dtype=F32)))
x[i] / x[i]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from luminal_lab.egraph.values import Value, postorder
from luminal_lab.hlir.dtypes import BOOL

# Binding strength of what is printed, loosest first.
_LOOSE, _SUM, _QUOTIENT, _PRODUCT, _TIGHT = range(5)
_LOGIC = {"add": "or", "mul": "and"}  # what they are on bool
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


@dataclass(frozen=True)
class Terms:
    """Lines of mathematics.

    Arguments:
        lets: `(name, right side)` of the shared parts, in order of use.
        results: One line per root.
        names: What each named value is called, those that had a name before included.
    """

    lets: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    names: Mapping[Value, str]

    def __str__(self) -> str:
        where = [f"  where {n} = {t}" if not k else f"        {n} = {t}"
                 for k, (n, t) in enumerate(self.lets)]  # fmt: skip
        return "\n".join([*self.results, *where])


def term(root: Value) -> str:
    """One value on one line, nothing shared."""
    return _text(root, {}, {})[0]


def terms(roots: Iterable[Value], names: Mapping[Value, str] | None = None) -> Terms:
    """Values with the parts that occur more than once named.

    Arguments:
        roots: What to print.
        names: Values that have a name already.
    """
    roots = list(roots)
    given = dict(names or {})
    uses: dict[Value, int] = {}
    order = list(postorder(roots))
    for value in order:
        for arg in value.args:
            uses[arg] = uses.get(arg, 0) + 1
    known = dict(given)
    lets: list[tuple[str, str]] = []
    done: dict[Value, tuple[str, int]] = {}
    taken = {name.partition("[")[0] for name in given.values()}
    letters = (x for x in _names() if x not in taken)
    for value in order:
        spelled = _text(value, known, done)
        done[value] = spelled
        if value not in known and uses.get(value, 0) > 1 and _worth(value, spelled[0]):
            name = next(letters)
            free = ",".join(sorted(value.free))
            shown = f"{name}[{free}]" if free else name
            lets.append((shown, spelled[0]))
            known[value] = shown
            done[value] = (shown, _TIGHT)
    return Terms(tuple(lets), tuple(done[r][0] for r in roots), known)


def _names() -> Iterable[str]:
    yield from _LETTERS
    n = 1
    while True:
        yield from (f"{x}{n}" for x in _LETTERS)
        n += 1


def _worth(value: Value, spelled: str) -> bool:
    return value.op not in ("load", "const", "iota") and len(spelled) > 12


def number(value: object) -> str:
    """A constant, short; well-known ones by name."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    for exact, name in ((math.log2(math.e), "log2e"), (math.log(2), "ln2")):
        if isinstance(value, float) and math.isclose(value, exact, rel_tol=1e-6):
            return name
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:g}".replace("-", "−")


def _text(
    value: Value, known: Mapping[Value, str], done: Mapping[Value, tuple[str, int]]
) -> tuple[str, int]:
    """The text of a value and how tightly it binds (args from `done` where it has them)."""
    if value in known:
        return known[value], _TIGHT

    def spell(v: Value, least: int = _LOOSE) -> str:
        spelled, binds = done[v] if v in done else _text(v, known, done)
        return spelled if binds >= least else f"({spelled})"

    def inside(k: int, least: int = _LOOSE) -> str:
        return spell(value.args[k], least)

    op = value.op
    if op == "const":
        out = number(value.attrs[0])
        return out, _SUM if out.startswith("−") else _TIGHT
    if op == "iota":
        return str(value.attrs[0]), _TIGHT if value.attrs[0].single else _SUM
    if op == "load":
        where = ",".join(_index(i, [inside(k) for k in range(len(value.args))])
                         for i in value.attrs[1])  # fmt: skip
        return f"{value.attrs[0]}[{where}]" if where else str(value.attrs[0]), _TIGHT
    if value.dtype is BOOL and op in ("add", "mul"):
        return f"{inside(0, _SUM)} {_LOGIC[op]} {inside(1, _SUM)}", _LOOSE
    if op == "add":
        for k in (1, 0):
            positive = _negated(value.args[k])
            if positive is not None and value.args[k] not in known:
                return f"{inside(1 - k, _SUM)} − {spell(positive, _QUOTIENT)}", _SUM
        return f"{inside(0, _SUM)} + {inside(1, _QUOTIENT)}", _SUM
    if op == "mul":
        for k in (1, 0):
            right = value.args[k]
            if right.op == "recip" and right not in known:
                above, below = inside(1 - k, _PRODUCT), spell(right.args[0], _TIGHT)
                return f"{above} / {below}", _QUOTIENT
        return f"{inside(0, _PRODUCT)}·{inside(1, _TIGHT)}", _PRODUCT
    if op == "recip":
        return f"1/{inside(0, _TIGHT)}", _QUOTIENT
    if op == "mod":
        return f"{inside(0, _TIGHT)} mod {inside(1, _TIGHT)}", _PRODUCT
    if op == "lessthan":
        return f"{inside(0, _SUM)} < {inside(1, _SUM)}", _LOOSE
    if op == "select" and [a.attrs for a in value.args[1:]] == [(False,), (True,)]:
        return f"not {inside(0, _TIGHT)}", _LOOSE
    if op == "select":
        return f"({inside(0)} ? {inside(1)} : {inside(2)})", _TIGHT
    if op == "cast":
        return f"{value.dtype}({inside(0)})", _TIGHT
    if op == "red":
        sign = {"add": "Σ", "max": "max"}.get(value.attrs[0], value.attrs[0])
        return f"{sign}_{value.attrs[1]}({inside(0)})", _TIGHT
    if op == "carry":
        return f"{value.attrs[0]}_{value.attrs[1]}({inside(0)}, {inside(1)})", _TIGHT
    if op == "online":
        scaled = inside(0) if inside(1) == "1" else f"{inside(1)}·{inside(0, _PRODUCT)}"
        weight = "" if inside(2) == "1" else f", {inside(2)}"
        return f"online_{value.attrs[0]}({scaled}{weight})", _TIGHT
    return f"{op}({', '.join(inside(k) for k in range(len(value.args)))})", _TIGHT


def _negated(value: Value) -> Value | None:
    """`x` for `-1 * x`, else None."""
    if value.op == "mul":
        for k in (0, 1):
            if value.args[k].op == "const" and value.args[k].attrs[0] == -1:
                return value.args[1 - k]
    return None


def _index(index: object, gathered: list[str]) -> str:
    spelled = str(index)
    for k, name in enumerate(gathered):
        spelled = spelled.replace(f"@{k}", f"⟨{name}⟩")
    return spelled
