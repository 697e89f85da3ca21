"""Timing several implementations of one thing so that none has an advantage.

All run in one process, in rounds; each round goes through them in a new random order, calls
each twice and times the second call (the first one meets caches and thread pools that another
has just used). Reported are medians with quartiles. Results are checked after the timing,
against a reference in float64. The allocator is kept warm, so that nobody pays for page faults
of fresh outputs: `warm_allocator` says how.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from luminal_lab.errors import LuminalError
from luminal_lab.runtime.allocator import warm_allocator


@dataclass(frozen=True)
class Contestant:
    """How one implementation did.

    Arguments:
        name: Its name.
        seconds: One sample per round.
        error: Largest absolute difference from the float64 reference, over all outputs; None
            without a reference.
        prepare: Seconds that compiling it took, 0 when nothing was compiled.
    """

    name: str
    seconds: tuple[float, ...]
    error: float | None = None
    prepare: float = 0.0

    @property
    def median(self) -> float:
        """Median seconds of a call."""
        return median(self.seconds)

    @property
    def iqr(self) -> float:
        """Distance between the quartiles."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return high - low


@dataclass(frozen=True)
class Comparison:
    """Timings of several implementations of one workload.

    Arguments:
        workload: Its name.
        contestants: In the order they were given.
        floor: Seconds that the machine's measured rates allow at best, 0 when unknown.
        tolerance: Largest error that counts as right.
        bars: For some contestants, how many times as fast as them the last one is meant to be.
    """

    workload: str
    contestants: tuple[Contestant, ...]
    floor: float = 0.0
    tolerance: float = float("inf")
    bars: Mapping[str, float] | None = None

    def __getitem__(self, name: str) -> Contestant:
        for c in self.contestants:
            if c.name == name:
                return c
        raise KeyError(name)

    @property
    def wrong(self) -> tuple[str, ...]:
        """Contestants whose results are not within the tolerance."""
        return tuple(
            c.name
            for c in self.contestants
            if c.error is not None and not c.error <= self.tolerance
        )

    @property
    def not_credible(self) -> tuple[str, ...]:
        """Contestants that beat the floor by more than a tenth: faster than memory."""
        return tuple(c.name for c in self.contestants if c.median < 0.9 * self.floor)

    def ratio(self, over: str, name: str | None = None) -> float:
        """How many times as fast as `over` a contestant is; the last one by default."""
        mine = self.contestants[-1] if name is None else self[name]
        return self[over].median / mine.median

    def missed(self) -> dict[str, float]:
        """The bars that the last contestant does not reach, with its ratio."""
        bars = {n: b for n, b in (self.bars or {}).items() if n in self.names}
        return {n: self.ratio(n) for n, bar in bars.items() if self.ratio(n) < bar}

    @property
    def names(self) -> tuple[str, ...]:
        """The contestants, in the order they were given."""
        return tuple(c.name for c in self.contestants)

    def rows(self) -> list[dict[str, Any]]:
        """Plain data, one dict per contestant."""
        out = []
        for c in self.contestants:
            row: dict[str, Any] = {
                "workload": self.workload,
                "name": c.name,
                "ms": c.median * 1e3,
                "iqr_ms": c.iqr * 1e3,
                "floor_ms": self.floor * 1e3,
                "error": c.error,
                "right": c.name not in self.wrong,
                "credible": c.name not in self.not_credible,
                "prepare_s": c.prepare,
            }
            row |= {f"vs {n}": self.ratio(n, c.name) for n in self.names}
            out.append(row)
        return out

    def table(self):
        """One row per contestant as a pandas DataFrame: time, spread, error, ratios."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def text(self) -> str:
        """A line per contestant."""
        floor = f"  (floor {self.floor * 1e3:.3f} ms)" if self.floor else ""
        lines = [f"{self.workload}{floor}"]
        first = self.names[0]
        for row in self.rows():
            error = "" if row["error"] is None else f"  error {row['error']:.1e}"
            flags = "" if row["right"] else "  WRONG"
            flags += "" if row["credible"] else "  FASTER THAN MEMORY"
            lines.append(
                f"  {row['name']:<10} {row['ms']:>9.3f} ms ±{row['iqr_ms']:<8.3f}"
                f"{row[f'vs {first}']:>6.2f}x {first}{error}{flags}"
            )
        for name, bar in (self.bars or {}).items():
            if name in self.names:
                ratio = self.ratio(name)
                word = "reached" if ratio >= bar else "MISSED"
                lines.append(f"  bar: {bar}x {name}: {ratio:.2f}x, {word}")
        return "\n".join(lines)

    __repr__ = text


def compare(
    fns: Mapping[str, Callable[..., Any]],
    args: Sequence[Any],
    *,
    reference: Callable[[], Any] | None = None,
    rounds: int = 15,
    seconds: float = 20.0,
    seed: int = 0,
    name: str = "",
    prepare: Mapping[str, float] | None = None,
) -> Comparison:
    """Time functions of the same arguments against each other.

    Arguments:
        fns: By name. They are called without gradients.
        args: Their arguments; what they are called with is never modified by the comparison.
        reference: Computes the right results in float64; called once, after the timing.
        rounds: Samples of each.
        seconds: No new round begins after so many (but three are always run).
        seed: Of the order within rounds.
        name: What is compared, for titles.
        prepare: Seconds that compiling each took, for the record.

    Returns:
        The comparison; the tolerance is infinite.

    >>> import torch
    >>> x = torch.ones(8)
    >>> compare({"a": torch.exp, "b": torch.exp}, (x,), rounds=3)["b"].error is None
    True
    """
    import torch

    if not fns:
        raise LuminalError("there is nothing to compare", fix="give at least one function")
    warm_allocator()
    order = list(fns)
    shuffle = random.Random(seed).shuffle
    samples: dict[str, list[float]] = {n: [] for n in fns}
    results: dict[str, Any] = {}
    with torch.no_grad():
        for fn in fns.values():
            for _ in range(3):
                fn(*args)
        limit = time.monotonic() + seconds
        for k in range(rounds):
            shuffle(order)
            for n in order:
                fns[n](*args)
                start = time.perf_counter()
                results[n] = fns[n](*args)
                samples[n].append(time.perf_counter() - start)
            if k >= 2 and time.monotonic() > limit:
                break
        want = None if reference is None else reference()
    made = tuple(
        Contestant(
            n,
            tuple(samples[n]),
            None if want is None else largest_error(results[n], want),
            (prepare or {}).get(n, 0.0),
        )
        for n in fns
    )
    return Comparison(name, made)


def largest_error(got: Any, want: Any) -> float:
    """Largest absolute difference of two structures of tensors; NaN against NaN is 0."""
    import torch
    from torch.utils._pytree import tree_leaves

    pairs = list(zip(tree_leaves(got), tree_leaves(want), strict=True))
    worst = 0.0
    for a, b in pairs:
        if not isinstance(a, torch.Tensor):
            continue
        x, y = a.detach().double(), b.detach().double()
        if x.shape != y.shape:
            return float("inf")
        same = (x == y) | (x.isnan() & y.isnan())
        difference = torch.where(same, 0.0, (x - y).abs()).nan_to_num(nan=float("inf"))
        worst = max(worst, float(difference.max()) if difference.numel() else 0.0)
    return worst
