"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    value = float(f"{value:.3g}")  # 0.9996 has the places of 1.00
    places = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-12))
    return f"{value:,.{places}f}"


def seconds(value: float | None) -> str:
    """A duration.

    >>> seconds(0.01234), seconds(3.2e-6), seconds(None)
    ('12.3 ms', '3.20 µs', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    for unit, name in _TIME:
        if abs(value) >= unit * 0.9995:
            return f"{digits(value / unit)} {name}"
    return "0 s" if value == 0 else f"{digits(value / 1e-9)} ns"


def size(value: float | None) -> str:
    """A number of bytes.

    >>> size(4096), size(100)
    ('4.00 KiB', '100 B')
    """
    if value is None:
        return "–"
    for unit, name in _BINARY:
        if value >= unit:
            return f"{digits(value / unit)} {name}"
    return f"{value:,.0f} B"


def count(value: float | None, unit: str = "") -> str:
    """A large number with an SI prefix.

    >>> count(2_147_483_648, "FLOP"), count(12)
    ('2.15 GFLOP', '12')
    """
    if value is None:
        return "–"
    for step, name in _SI:
        if abs(value) >= step:
            return f"{digits(value / step)} {name}{unit}"
    return f"{value:,.0f} {unit}".rstrip()


def shape(dims: Sequence[object]) -> str:
    """The dims of a tensor: `1×12×64`; `scalar` for none."""
    return "×".join(map(str, dims)) if dims else "scalar"


def plural(n: int, noun: str, many: str | None = None) -> str:
    """`1 kernel`, `1,024 kernels`."""
    return f"{n:,} {noun if n == 1 else many or noun + 's'}"


def counted(n: int, noun: str, many: str | None = None) -> tuple[str, str]:
    """A pair for `html.facts`: `("1", "kernel")`, `("1,024", "kernels")`."""
    return f"{n:,}", noun if n == 1 else many or noun + "s"
