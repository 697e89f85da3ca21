"""How long a cancel takes, at random moments of each phase; prints the worst and the median.

`pytest -m slow -s tests/widgets/test_cancel.py`; `LUMINAL_CANCELS` is how often
each phase is canceled.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import luminal_lab as ll
from tests.runtime.processes import PATIENCE, until

pytestmark = pytest.mark.slow

REPEATS = int(os.environ.get("LUMINAL_CANCELS", "5"))
BOUND = 2.0  # seconds, on a machine that does nothing else


@pytest.fixture(scope="module")
def bench() -> Any:
    """The workbench of a layer of a transformer."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    return ll.Workbench(layer, (torch.randn(1, 32, 64),))


@pytest.fixture
def forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes that nothing was compiled or measured before."""
    number = iter(range(10_000))
    return lambda: monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path / str(next(number))))


def loaded() -> float:
    """How much longer work takes than on an idle machine, because others run as well."""
    started, ran = time.perf_counter(), time.process_time()
    while time.process_time() - ran < 0.2:
        pass
    return (time.perf_counter() - started) / (time.process_time() - ran)


def canceled(
    bench: Any, phase: str, start: Callable[[], Any], begun: Callable[[], bool], longest: float
) -> None:
    """Cancel at random moments, up to `longest` seconds after the phase has begun."""
    job, draw, took = bench.state.job, random.Random(phase), []
    for _ in range(3 * REPEATS):  # some end before they can be canceled
        assert start()
        assert until(lambda: begun() or job.state == "idle")
        time.sleep(draw.uniform(0.0, longest))
        if job.state != "running":
            job.wait(PATIENCE)
            continue
        asked = time.perf_counter()
        job.cancel()
        job.wait(PATIENCE)
        took.append(time.perf_counter() - asked)
        assert job.state == "idle"
        assert not job.failed, job.message
        if len(took) == REPEATS:
            break
    shared = loaded()
    assert took, f"{phase} always ended by itself"
    print(f"\n{phase}: {len(took)} cancels, worst {max(took):.2f} s, median", end=" ")
    print(f"{statistics.median(took):.2f} s, machine slowed by others {shared:.1f}x")
    assert max(took) < BOUND * max(1.0, shared)


def test_saturation(bench: Any) -> None:
    canceled(bench, "saturation", bench.state.saturate, lambda: True, 1.0)
    bench.state.saturate()
    bench.state.job.wait()
    assert not bench.state.job.failed, bench.state.job.message


def test_search_and_measurement(bench: Any, forget: Callable[[], None]) -> None:
    assert bench.state.egraph is not None
    job = bench.state.job

    def start() -> bool:
        forget()
        return bench.state.search(ll.Budget("full"), seed=1)

    canceled(bench, "exploration", start, lambda: job.message.startswith("explore"), 1.0)
    assert bench.state.result is not None
    canceled(bench, "measurement", start, lambda: job.message.startswith("measure"), 5.0)
    assert bench.state.result is not None  # what was found is kept
    assert bench.state.candidate is not None


def test_compilation(bench: Any, forget: Callable[[], None]) -> None:
    assert bench.state.candidate is not None

    def start() -> bool:
        forget()
        return bench.state.build()

    canceled(bench, "compilation", start, lambda: True, 1.0)
    assert bench.state.candidate is not None
    bench.state.build()
    bench.state.job.wait()
    assert bench.state.executable is not None
