"""The scripts and style sheets of the widgets, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from luminal_lab.views.html import BASE_CSS

_HERE = Path(__file__).parent


@cache
def text(name: str) -> str:
    """A file beside this module."""
    return (_HERE / name).read_text(encoding="utf-8")


@cache
def data(name: str) -> bytes:
    """A file beside this module, as bytes."""
    return (_HERE / name).read_bytes()


def css(*names: str) -> str:
    """The colours of the views, then style sheets."""
    return "\n".join([BASE_CSS, *map(text, names)])


def script(*names: str) -> str:
    """One module out of several files, in this order; only the last one exports."""
    return "\n".join(map(text, names))
