import dataclasses
import json
import time
from dataclasses import replace

import pytest
import torch

from luminal_lab.errors import CacheError, LuminalError
from luminal_lab.polling import polling
from luminal_lab.runtime import calibration, rates
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.building import build
from luminal_lab.runtime.calibration import (
    Calibration,
    cache_sizes,
    calibrate,
    contradict,
    fingerprint,
)
from luminal_lab.runtime.profiling import Profile, compulsory_bytes, profile
from luminal_lab.runtime.program import Routine
from luminal_lab.runtime.rates import Quality
from luminal_lab.search.machine import Machine
from tests.runtime import programs

pytestmark = pytest.mark.usefixtures("c_compiler")


@pytest.fixture
def profiled(affine):
    exe, _ = affine
    return profile(exe, (torch.randn(64, 40),), repeats=5)


def test_a_profile_says_what_fallbacks_cost():
    import luminal_lab as ll

    x = torch.rand(32, 32)
    hlir = ll.capture(lambda x: (torch.histc(x * 2, 5), torch.histc(x, 4), x + 1), (x,))
    exe = ll.build(ll.search(ll.saturate(hlir), ll.Budget("none")).best)
    found = profile(exe, (x,), repeats=3)
    table = hlir.fallbacks(found)
    rows = found.rows()
    spent = sum(r["us"] for r in rows if r["name"] == "aten.histc.default")
    assert list(table["us"]) == pytest.approx([spent / 2] * 2)
    assert 0 < table["share"].sum() < 1
    other = hlir.fallbacks(replace(found, kernels=()))
    assert other["us"].isna().all()
    assert "us" not in hlir.fallbacks()


def test_every_call_is_timed(profiled):
    assert [c.name for c in profiled.calls] == ["k_mul", "k_add"]
    assert [k.calls for k in profiled.kernels] == [1, 1]
    assert all(len(c.seconds) == 5 for c in profiled.calls)
    assert profiled.calls[0].start == 0
    for run, whole in enumerate(profiled.seconds):
        assert sum(c.seconds[run] for c in profiled.calls) < whole
    assert sum(r["share"] for r in profiled.rows()) == pytest.approx(1)
    assert profiled.kernels[0].bytes == 3 * 64 * 40 * 4


def test_its_views(profiled, tmp_path):
    assert "k_mul" in profiled.text()
    assert list(profiled.table()["name"]) == [r["name"] for r in profiled.rows()]
    assert profiled.graph().source.count("->") == 1
    assert "whole call" in profiled.diff(profiled)
    assert "text/plain" in profiled._repr_mimebundle_()
    path = tmp_path / "profile.json"
    profiled.save(path)
    assert Profile.load(path) == profiled
    path.write_text("{}")
    with pytest.raises(CacheError, match="not a readable saved profile"):
        Profile.load(path)


def test_python_steps_are_timed():
    candidate, code, _ = programs.affine()

    def multiply(reads, writes):
        torch.mul(reads[0], reads[1], out=writes[0])

    exe = build(candidate, code={**code, 0: Routine("mul", multiply)})
    p = profile(exe, (torch.randn(64, 40),), repeats=3)
    assert [c.name for c in p.calls] == ["mul", "k_add"]
    assert all(s > 0 for c in p.calls for s in c.seconds)


def test_too_fast_to_be_true():
    """A kernel that beats the memory is flagged, if its operands are not in cache."""
    from luminal_lab.runtime.profiling import KernelTime

    honest = KernelTime(0, "k", 1, (1e-3,), 10**8, 0.0, 1e-3, True)
    assert not honest.faster_than_memory
    assert dataclasses.replace(honest, seconds=(1e-4,)).faster_than_memory
    assert not dataclasses.replace(honest, seconds=(1e-4,), outside=False).faster_than_memory


def test_bytes_of_a_partial_read():
    from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Value
    from luminal_lab.hlir.dtypes import F32
    from luminal_lab.hlir.index import Index

    i = Index.axis("i")
    load = Value("load", (), ("b0", (i * 2,)), dtype=F32)
    buffers = {"b0": Buffer("b0", (1000,), F32), "b1": Buffer("b1", (100,), F32)}
    kernel = Kernel((KernelOutput("b1", (i,), load),), buffers, {"i": 100})
    assert compulsory_bytes(kernel) == 800


def test_the_interpreter_has_no_kernels(affine):
    exe, _ = affine
    exe.program = None
    with pytest.raises(LuminalError, match="no kernels to time"):
        profile(exe, (torch.randn(64, 40),))


def test_calibration_is_remembered(measured_rates):
    first = calibrate(1)
    assert first.threads == 1
    assert 1e8 < first.bandwidth <= first.l3_bandwidth <= first.l2_bandwidth
    assert first.dot_flops > 1e8
    assert first.special_ops > 1e6
    again = calibrate(1)
    stored = list((measured_rates / "machine").glob("*.json"))
    assert not stored or again == first
    for path in stored:
        path.write_text("{")
    assert isinstance(calibrate(1), Machine)


def test_a_calibration_can_be_stopped(measured_rates, c_compiler):
    bench = rates._Bench(1)

    def stop() -> None:
        raise TimeoutError

    with polling(stop), pytest.raises(TimeoutError):
        bench.round()
    assert bench.round()["launch"] > 0


def test_what_calibration_depends_on():
    assert fingerprint(1) != fingerprint(2)
    l1, l2, l3 = cache_sizes()
    assert 0 < l1 <= l2 <= l3


def quality(**fields):
    return replace(Quality(0.02, 2, 0.01, 0.0, time.time()), **fields)


@pytest.fixture
def rounds(monkeypatch, measured_rates, c_compiler):
    """Calibration with made-up measurements, and how often it measured."""
    made = []

    def measure(threads):
        made.append(threads)
        return measure.next

    measure.next = Machine(bandwidth=40e9), quality()
    monkeypatch.setattr(rates, "measure", measure)
    measure.made = made

    def forget():
        calibration._KNOWN.clear()

    measure.restart = forget
    forget()
    yield measure
    forget()


def test_good_rates_are_measured_once(rounds):
    for _ in range(3):
        rounds.restart()
        assert calibrate(1).bandwidth == 40e9
    assert len(rounds.made) == 1
    calibrate(1, fresh=True)
    assert len(rounds.made) == 2


def test_disturbed_rates_are_replaced_by_good_ones_after_a_while(rounds):
    rounds.next = Machine(bandwidth=20e9, dot_flops=300e9), quality(foreign=0.5)
    calibrate(1)
    rounds.restart()
    assert calibrate(1).bandwidth == 20e9
    assert len(rounds.made) == 1  # two runs right after each other agree

    def an_hour_later():
        old = calibration.calibration(1)
        then = replace(old.quality, when=time.time() - 3600)
        calibration._remember(calibration._key(1), replace(old, quality=then))
        rounds.restart()

    an_hour_later()
    rounds.next = Machine(bandwidth=30e9, dot_flops=200e9), quality(spread=0.4)
    again = calibrate(1)
    assert len(rounds.made) == 2
    # A machine that is always busy keeps its rates, and with them what a search asks for.
    assert (again.bandwidth, again.dot_flops) == (20e9, 300e9)
    fresh = calibrate(1, fresh=True)
    assert (fresh.bandwidth, fresh.dot_flops) == (30e9, 300e9)
    an_hour_later()
    rounds.next = Machine(bandwidth=40e9, dot_flops=250e9), quality()
    good = calibrate(1)
    assert (good.bandwidth, good.dot_flops) == (40e9, 250e9)


def test_a_kernel_that_beats_the_rates_has_them_measured_again(rounds):
    old = Machine(bandwidth=10e9)
    long_ago = quality(when=time.time() - 1000)
    calibration._remember(calibration._key(1), Calibration(old, long_ago))
    made = contradict(1, "k moved 38 GB/s")
    assert made.machine.bandwidth == 40e9
    assert made.quality.good
    assert contradict(1, "k moved 99 GB/s") == made  # just measured, and well
    assert len(rounds.made) == 1


def test_quality_says_what_disturbed():
    assert quality().good
    for fields, told in (
        ({"foreign": 0.4}, "other programs took 40%"),
        ({"stolen": 0.1}, "hypervisor kept 10%"),
        ({"spread": 0.3}, "within 30%"),
        ({"contradicted": "k moved 99 GB/s"}, "k moved 99"),
        ({"rounds": 0}, "0 rounds"),
    ):
        assert not quality(**fields).good
        assert told in str(quality(**fields))
        assert str(quality(**fields)).startswith("disturbed")


def test_rates_from_before_quality_was_kept_are_measured_again(rounds):
    calibration.CACHE.put(
        calibration._key(1), ".json", json.dumps(dataclasses.asdict(Machine())).encode()
    )
    assert calibrate(1).bandwidth == 40e9


def test_rates_can_be_given(monkeypatch, tmp_path):
    path = tmp_path / "machine.json"
    Machine(bandwidth=7e9, threads=64, vector_bytes=8, l3=5 << 20).save(path)
    monkeypatch.setenv("LUMINAL_MACHINE", str(path))
    machine = calibrate(2)
    assert (machine.bandwidth, machine.l3, machine.threads) == (7e9, 5 << 20, 2)
    assert machine.vector_bytes == cc.cpu().vector_bytes  # what code here may use
    made = contradict(2, "k moved 99 GB/s")
    assert made.machine == machine
    assert made.quality.good
    assert str(path) in str(made)
    monkeypatch.setenv("LUMINAL_MACHINE", str(tmp_path / "none"))
    with pytest.raises(LuminalError, match="LUMINAL_MACHINE"):
        calibrate(2)
