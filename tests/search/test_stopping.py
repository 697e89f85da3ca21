"""A search ends soon when it is asked to, whatever it is doing, and keeps what it found."""

import stat
import threading
import time

import pytest
import torch

import luminal_lab as ll
from luminal_lab.egraph.evaluate import evaluate
from luminal_lab.errors import CompilerError
from luminal_lab.hlir.interpreter import Reference
from luminal_lab.polling import polling
from luminal_lab.runtime.compiler import Unit, compile_units, discover
from luminal_lab.runtime.measure import Worker
from luminal_lab.search import Budget, Database, Search, search
from luminal_lab.search.verify import RegionVerifier
from tests.search.fake import FakeTarget
from tests.search.models import saturated

LONG = 200  # seconds that nobody waits for


class Stop(Exception):
    """Raised by a check."""


def after(seconds: float):
    limit = time.monotonic() + seconds

    def check():
        if time.monotonic() > limit:
            raise Stop

    return check


@pytest.fixture(scope="module")
def block():
    return saturated("block")


def test_the_budget_bounds_the_computing_of_what_kernels_must_give(block, monkeypatch):
    from luminal_lab.polling import poll

    budget = Budget("quick", seconds=LONG)
    run = Search(block, budget, target=FakeTarget(), database=Database(":memory:"))

    def endless(self, step):
        run.clock.deadline = time.monotonic()
        while True:
            poll()
            time.sleep(0.01)

    monkeypatch.setattr(RegionVerifier, "job", endless)
    result = run.run()
    assert result.out_of_time
    assert not result.interrupted
    assert "out of time" in repr(result)
    assert result.best.kernels


def test_the_evaluators_poll():
    x = torch.randn(4, 5)
    hlir = ll.capture(lambda a: torch.softmax(a, -1), (x,))
    reference = Reference(hlir, {hlir.inputs[0].name: x})
    egraph = ll.saturate(hlir)
    kernel = search(egraph, Budget("none")).best.kernels[0]
    with polling(after(0.0)):
        with pytest.raises(Stop):
            reference.value(len(hlir.nodes) - 1)
        with pytest.raises(Stop):
            evaluate([kernel.outputs[0].value], kernel.extents, {"b0": x})


def test_another_thread_ends_the_exploring(block):
    cancel = threading.Event()
    result = search(
        block,
        Budget("full"),
        target=FakeTarget(),
        database=Database(":memory:"),
        progress=lambda event: cancel.set() if event.done >= 64 else None,
        cancel=cancel,
    )
    assert result.interrupted
    assert result.considered < 200
    assert result.best.kernels


def test_another_thread_ends_the_measuring(block):
    target = FakeTarget()
    run = Search(block, Budget("quick"), target=target, database=Database(":memory:"))
    measure = target.measure

    def cancelling(jobs, **options):
        for k, measurement in enumerate(measure(jobs, **options)):
            if k == 3:
                run.cancel()
            yield measurement

    target.measure = cancelling
    result = run.run()
    assert result.interrupted
    assert result.finalists == ()
    assert 0 < result.timings < 16
    assert result.best.kernels


def test_a_compilation_ends_when_it_is_asked_to(tmp_path, monkeypatch):
    slow = tmp_path / "slow-cc"
    slow.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo slow 1; exit; }}\nexec sleep {LONG}\n'
    )
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("LUMINAL_CC", str(slow))
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(Stop), polling(after(0.2)):
        compile_units([Unit("a", "int a;"), Unit("b", "int b;")], compiler=discover())


def test_waiting_for_a_measurement_ends_when_it_is_asked_to():
    try:
        discover()
    except CompilerError:
        pytest.skip("there is no compiler")
    worker = Worker()
    child = worker._start()
    assert worker._read_line(child, LONG) == b"ready\n"
    with pytest.raises(Stop), polling(after(0.2)):
        worker._read_line(child, LONG)
    worker.close()


def test_waiting_for_whole_programs_ends_when_it_is_asked_to():
    from luminal_lab.runtime.cpu import CpuTarget

    egraph = ll.saturate(ll.capture(lambda a: torch.softmax(a, -1), (torch.randn(4, 5),)))
    best = search(egraph, Budget("none")).best
    with pytest.raises(Stop), polling(after(0.1)):
        CpuTarget().programs([best], [{}])
