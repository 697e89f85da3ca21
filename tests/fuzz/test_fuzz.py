"""A few random programs; `make fuzz` compiles hundreds."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.fuzz.check import Verdict, shortened, unsure, wrong
from tests.fuzz.pool import FINE, run_all
from tests.fuzz.programs import Program, program


def made(*lines: str, inputs: tuple[torch.Tensor, ...]) -> Program:
    return Program(0, lines, (f"v{len(lines) - 1}",), inputs)


def test_some_programs_are_right() -> None:
    bad = [row for row in run_all(range(1000, 1008), jobs=1) if row[1] not in FINE]
    assert not bad, "\n".join(f"seed {seed}: {outcome}\n{text}" for seed, outcome, text in bad)


def test_a_seed_is_one_program_and_runs_in_eager() -> None:
    for seed in range(20):
        one, two = program(seed), program(seed)
        assert one is not None
        assert two is not None
        assert one.text == two.text
        assert all(
            a.equal(b) or a.dtype.is_floating_point for a, b in zip(one.inputs, two.inputs)
        )
        assert len(one.function()(*one.inputs)) == len(one.results)


def test_what_rounding_decides_is_not_compared() -> None:
    x = torch.rand(16, generator=torch.Generator().manual_seed(0)) + 1
    steady = made("v0 = a0 * 2", "v1 = torch.argmax(v0)", inputs=(x,))
    shaky = made("v0 = a0 / a0", "v1 = torch.argmax(v0)", inputs=(x,))
    for found, expected in ((steady, False), (shaky, True)):
        want = found.function()(x)
        assert bool(unsure(found, want, want)[0]) is expected


def test_wrong_is_farther_than_eager_from_float64() -> None:
    exact = torch.tensor([1.0, 1.0, torch.inf, torch.nan, 0.0, 8.0], dtype=torch.float64)
    want = torch.tensor([1.0, 1.0001, torch.inf, torch.nan, -0.0, torch.inf])
    got = torch.tensor([1.01, 1.0003, -torch.inf, 0.0, 0.0, 8.0])
    assert wrong(got, want, exact).tolist() == [True, False, True, True, False, False]
    assert wrong(torch.tensor([1, 2]), torch.tensor([1, 3]), torch.tensor([1, 3])).any()


def test_a_wrong_program_is_shortened(monkeypatch) -> None:
    long = made("v0 = a0 + 1", "v1 = a0.sin()", "v2 = v1 * 2", inputs=(torch.ones(3),))
    long = replace(long, results=("v0", "v2"))

    def verdict(found: Program, effort: str = "none") -> Verdict:
        found.function()(*found.inputs)
        return Verdict("WRONG" if "v2" in found.results else "right")

    monkeypatch.setattr("tests.fuzz.check.judge", verdict)
    short = shortened(long, Verdict("WRONG"))
    assert short.results == ("v2",)
    assert short.lines == ("v1 = a0.sin()", "v2 = v1 * 2")
