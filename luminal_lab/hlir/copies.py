"""How tables and pictures say which copies of a region a row stands for."""

from __future__ import annotations

from collections.abc import Iterable


def ends(names: Iterable[str]) -> str:
    """The first and the last of some instances."""
    found = [n for n in dict.fromkeys(names) if n]
    return "".join(found) if len(found) < 2 else f"{found[0]} … {found[-1]}"


def span(names: Iterable[str]) -> str:
    """The first and the last of some instances, and how many they are.

    >>> span(["layers.0", "layers.1", "layers.1", "layers.2"])
    'layers.0 … layers.2 ×3'
    >>> span(["head"])
    'head'
    """
    found = [n for n in dict.fromkeys(names) if n]
    return ends(found) + (f" ×{len(found)}" if len(found) > 1 else "")
