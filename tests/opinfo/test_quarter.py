"""A fixed quarter of the committed table, in pieces that workers share: `make opinfo`."""

from __future__ import annotations

import pytest

from tests.opinfo.cases import cases
from tests.opinfo.pool import run_all
from tests.opinfo.test_opinfo import COMMITTED, check

PIECES = 24


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
def test_a_quarter_of_the_table(piece: int) -> None:
    held = [c for c in cases() if (*c.key, "lower") in COMMITTED][::4][piece::PIECES]
    single = [c for c in held if c.dtype == "float32"]
    check(list(run_all(single, "lower", limit=6)))  # as many samples as the table has
    check(list(run_all([c for c in held if c.dtype != "float32"], "lower", limit=3)))
