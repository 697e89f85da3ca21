"""Checks on a tile program: what would otherwise be silent memory corruption."""

from __future__ import annotations

from luminal_lab.codegen.tile import TileProgram


def verify(program: TileProgram) -> None:
    """Raise when the program breaks an invariant."""
    del program
