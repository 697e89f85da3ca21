"""The primitive functions of egglog, in Python: what guards and right sides compute.

Values of primitive sorts are plain: i64 `int`, f64 `float`, String `str`, bool `bool`, sets
`frozenset`, vectors `tuple`; what is none of these (an e-class) is an `int` too. A primitive is
partial: where egglog has no value (1/0, an overflow), it returns None and nothing matches.
NaN is one value, the largest number, as it is in egglog.

>>> call("+", (2, 3)), call("set-remove", (frozenset("ab"), "a")), call("/", (1, 0))
(5, frozenset({'b'}), None)
>>> call("<", (1.0, NAN)), call("set-contains", (frozenset("ab"), "c"))
(True, False)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

NAN = float(
    "nan"
)  # the one NaN: equal to itself, as tuples and dicts compare by identity first
_WORD = 1 << 63


class UnknownPrimitive(Exception):
    """A primitive that is not in the table; `args[0]` is its name."""


def number(value: float) -> float:
    """A float with the one NaN, and without the sign of zero."""
    return NAN if value != value else value + 0.0


def _whole(value: int) -> int | None:
    return value if -_WORD <= value < _WORD else None


def _arithmetic(
    on_int: Callable[..., int | None] | None, on_float: Callable[..., float | None] | None
) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        if all(isinstance(a, float) for a in args) and on_float is not None:
            found = on_float(*args)
            return None if found is None else number(found)
        if all(isinstance(a, int) for a in args) and on_int is not None:
            found = on_int(*args)
            return None if found is None else _whole(found)
        return None

    return run


def _plus(*args: Any) -> Any:
    return "".join(args) if args and isinstance(args[0], str) else _SUM(*args)


def _quotient(a: int, b: int) -> int | None:
    """Rounded towards zero."""
    if b == 0:
        return None
    out = abs(a) // abs(b)
    return out if (a < 0) == (b < 0) else -out


def _remainder(a: int, b: int) -> int | None:
    whole = _quotient(a, b)
    return None if whole is None else a - b * whole


def _power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except ValueError:
        return NAN
    except OverflowError:
        return math.inf


def _key(a: Any) -> Any:
    """Sorts numbers as egglog does: NaN is the largest."""
    return (1, 0.0) if isinstance(a, float) and a != a else (0, a)


_SUM = _arithmetic(lambda a, b: a + b, lambda a, b: a + b)

_TABLE: Mapping[str, Callable[..., Any]] = {
    "+": _plus,
    "-": _arithmetic(lambda a, b: a - b, lambda a, b: a - b),
    "*": _arithmetic(lambda a, b: a * b, lambda a, b: a * b),
    "/": _arithmetic(_quotient, lambda a, b: None if b == 0 else a / b),
    "%": _arithmetic(_remainder, lambda a, b: None if b == 0 else math.fmod(a, b)),
    "^": _arithmetic(lambda a, b: a ^ b, _power),
    "&": _arithmetic(lambda a, b: a & b, None),
    "|": _arithmetic(lambda a, b: a | b, None),
    "<<": _arithmetic(lambda a, b: a << b if 0 <= b < 64 else None, None),
    ">>": _arithmetic(lambda a, b: a >> b if 0 <= b < 64 else None, None),
    "log2": _arithmetic(lambda a: a.bit_length() - 1 if a > 0 else None, None),
    "abs": _arithmetic(lambda a: abs(a), lambda a: abs(a)),
    "neg": _arithmetic(None, lambda a: -a),
    "min": lambda *args: min(args, key=_key),
    "max": lambda *args: max(args, key=_key),
    "to-f64": lambda a: number(float(a)),
    "to-i64": lambda a: _whole(int(a)) if math.isfinite(a) else None,
    "to-string": lambda a: str(a),
    "replace": lambda text, old, new: text.replace(old, new),
    "count-matches": lambda text, part: text.count(part),
    "<": lambda a, b: _key(a) < _key(b),
    ">": lambda a, b: _key(a) > _key(b),
    "<=": lambda a, b: _key(a) <= _key(b),
    ">=": lambda a, b: _key(a) >= _key(b),
    "!=": lambda a, b: a is not b and a != b,
    "bool-=": lambda a, b: a == b,
    "bool-<": lambda a, b: a < b,
    "bool->": lambda a, b: a > b,
    "bool-<=": lambda a, b: a <= b,
    "bool->=": lambda a, b: a >= b,
    "and": lambda *args: all(args),
    "or": lambda *args: any(args),
    "not": lambda a: not a,
    "xor": lambda a, b: a != b,
    "set-empty": lambda: frozenset(),
    "set-of": lambda *args: frozenset(args),
    "set-insert": lambda s, x: s | {x},
    "set-remove": lambda s, x: s - {x},
    "set-union": lambda a, b: a | b,
    "set-intersect": lambda a, b: a & b,
    "set-diff": lambda a, b: a - b,
    "set-contains": lambda s, x: x in s,
    "set-not-contains": lambda s, x: x not in s,
    "set-length": lambda s: len(s),
    "vec-empty": lambda: (),
    "vec-of": lambda *args: tuple(args),
    "vec-append": lambda *vecs: tuple(x for v in vecs for x in v),
    "vec-push": lambda v, x: (*v, x),
    "vec-pop": lambda v: v[:-1] if v else None,
    "vec-length": lambda v: len(v),
    "vec-get": lambda v, k: v[k] if 0 <= k < len(v) else None,
    "vec-contains": lambda v, x: x in v,
    "vec-not-contains": lambda v, x: x not in v,
}  # fmt: skip

# Those that hold or fail and have no value of their own: as a premise, False fails. In egglog a
# comparison that fails has no value; one that holds has the unit value.
TESTS = frozenset(
    {"<", ">", "<=", ">=", "!=", "set-contains", "set-not-contains", "vec-contains",
     "vec-not-contains"}
)  # fmt: skip


def known(name: str) -> bool:
    """Whether a primitive is in the table."""
    return name in _TABLE


def call(name: str, args: tuple[Any, ...]) -> Any:
    """The value of a primitive, None where it has none.

    Raises:
        UnknownPrimitive: when it is not in the table.
    """
    if name not in _TABLE:
        raise UnknownPrimitive(name)
    try:
        return _TABLE[name](*args)
    except (TypeError, OverflowError, AttributeError):
        return None
