"""Predicates of selects: where a block is entirely inside, entirely outside, or neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from luminal_lab.codegen.body import Stmt
from luminal_lab.hlir.index import Index

if TYPE_CHECKING:
    from luminal_lab.codegen.lower import Lowering, Scope

Segment = tuple[tuple[Index, ...], tuple[Index, ...], Sequence[Stmt]]


def segments(
    stmts: Sequence[Stmt], axis: str, step: int, scope: Scope, low: Lowering
) -> list[Segment]:
    """The loops over an axis: bounds, and the statements that each of them has."""
    return [((), (), list(stmts))]
