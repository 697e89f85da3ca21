import time
from types import SimpleNamespace

import pytest
import torch

from luminal_lab.bench import timing
from luminal_lab.bench.timing import Comparison, Contestant, compare, largest_error
from luminal_lab.errors import LuminalError


def slow(x):
    time.sleep(2e-3)
    return x + 1


def test_medians_ratios_and_errors(monkeypatch):
    now = 0.0

    def takes(seconds, fn):
        def run(x):
            nonlocal now
            now += seconds
            return fn(x)

        return run

    clock = SimpleNamespace(perf_counter=lambda: now, monotonic=lambda: now)
    monkeypatch.setattr(timing, "time", clock)
    x = torch.ones(4)
    made = compare(
        {
            "slow": takes(3e-3, lambda x: x + 1),
            "wrong": takes(1e-3, lambda x: x + 2),
            "fast": takes(2e-3, lambda x: x + 1),
        },
        (x,),
        reference=lambda: x.double() + 1,
        rounds=4,
        name="add one",
    )
    assert [len(c.seconds) for c in made.contestants] == [4, 4, 4]
    assert made.ratio("slow") == pytest.approx(1.5)
    assert made.ratio("fast", "slow") == pytest.approx(2 / 3)
    assert [c.error for c in made.contestants] == [0, 1, 0]
    assert "add one" in made.text()
    assert list(made.table()["name"]) == ["slow", "wrong", "fast"]
    with pytest.raises(KeyError):
        made["none"]


def test_calls_are_interleaved_and_repeatable():
    def order(seed):
        seen = []
        fns = {n: (lambda x, n=n: seen.append(n)) for n in "abc"}
        compare(fns, (0,), rounds=8, seed=seed)
        return seen[9:]

    calls = order(1)
    assert calls[::2] == calls[1::2]  # each is called twice in a row
    rounds = [tuple(calls[k : k + 6 : 2]) for k in range(0, len(calls), 6)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len(set(rounds)) > 1
    assert calls == order(1)


def test_time_is_bounded():
    made = compare({"slow": slow}, (torch.ones(1),), rounds=100_000, seconds=0.05)
    assert 3 <= len(made.contestants[0].seconds) < 100_000


def test_what_is_flagged():
    fast, slow = Contestant("a", (1e-3,), 0.0), Contestant("b", (2e-3,), float("nan"))
    made = Comparison(
        "w", (slow, fast), floor=1.5e-3, tolerance=1e-3, bars={"b": 3.0, "c": 9.0}
    )
    assert made.not_credible == ("a",)
    assert made.wrong == ("b",)
    assert made.missed() == {"b": 2.0}
    assert "MISSED" in made.text()
    assert "FASTER THAN MEMORY" in made.text()
    assert "WRONG" in made.text()


def test_errors_of_structures():
    nan = torch.tensor([1.0, float("nan"), float("inf")])
    assert largest_error({"a": nan}, {"a": nan.double()}) == 0
    assert largest_error([nan], [nan.double().nan_to_num()]) == float("inf")
    assert largest_error((nan, torch.ones(2)), (nan.double(), torch.zeros(2))) == 1
    assert largest_error(torch.ones(2), torch.ones(3)) == float("inf")


def test_nothing_to_compare():
    with pytest.raises(LuminalError, match="nothing to compare"):
        compare({}, ())
