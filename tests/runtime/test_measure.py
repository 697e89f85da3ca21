import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from luminal_lab.errors import CompilerError, ScheduleError
from luminal_lab.runtime import cpu, measure
from luminal_lab.runtime.cpu import CpuTarget
from luminal_lab.runtime.measure import copies_for
from luminal_lab.runtime.program import KernelCode
from luminal_lab.search.target import Expected, Job, Target, Tolerance
from tests.runtime.processes import PATIENCE, ctrl_c, gone, until
from tests.runtime.programs import kernel, pointwise

ROOT = str(Path(__file__).parents[2])
SHAPE = (64, 33)
N = 64 * 33
GOOD = pointwise("k_good", 2, "a * b", N)
PARAMS = ("b0", "b1", "b2")


def c(entry: str, body: str) -> KernelCode:
    return KernelCode(entry, f"void {entry}(char *const *b, long t) {{ {body} }}", PARAMS)


def edited(entry: str, old: str, new: str) -> KernelCode:
    return replace(GOOD, entry=entry, text=GOOD.text.replace("k_good", entry).replace(old, new))


PRINTING = 'extern int puts(const char *); puts("hi"); ll_parallel_for(k'
CODES = {
    "good": GOOD,
    "wrong": pointwise("k_wrong", 2, "a * b + 0.01f", N),
    "nan": pointwise("k_nan", 2, "a / 0.0f - b / 0.0f", N),
    "segfault": c("k_segfault", "*(volatile int *)8 = 1;"),
    "abort": c("k_abort", "extern void abort(void); abort();"),
    "writes past the end": edited("k_past", f"{N}, 256", f"{N + 1}, 256"),
    "reads past the end": edited("k_read", "a * b", "a * b + 0 * ((float *)p[0])[i + 999]"),
    "writes before the start": edited("k_before", "[i] = a", "[i - 1] = a"),
    "writes an operand": c("k_operand", "*(float *)b[0] = 1;"),
    "exits": c("k_exits", "extern void exit(int); exit(3);"),
    "does not compile": c("k_syntax", "syntax error"),
    "forgets to start at zero": edited("k_adds", "[i] = a", "[i] += a"),
    "writes nothing": c("k_nothing", ""),
    "prints": edited("k_prints", "ll_parallel_for(k", PRINTING),
}


HANGS = c("k_hangs", "for (;;) *(volatile char *)b[2] = 1;")


@pytest.fixture
def inputs():
    return {"b0": torch.randn(SHAPE), "b1": torch.randn(SHAPE)}


@pytest.fixture
def job(inputs):
    want = (inputs["b0"].double() * inputs["b1"].double()).reshape(-1)
    expected = {"b2": Expected(None, want, Tolerance(1e-6, 1e-5))}

    def make(name: str, **fields):
        return Job(kernel("mul", 2, SHAPE, **fields), name, inputs, expected)

    return make


@pytest.fixture
def target(monkeypatch, c_compiler):
    codes = {"hangs": HANGS}
    monkeypatch.setattr(cpu, "kernel_code", lambda k, s, machine: codes.get(s) or CODES[s])
    with CpuTarget(timeout=PATIENCE, workers=0) as made:
        yield made


def test_it_is_a_target(target):
    assert isinstance(target, Target)
    assert target.name == "cpu"
    assert "torch" in target.fingerprint()
    assert target.machine() is target.machine()


def test_every_end_of_a_job(target, job):
    """Whatever one kernel does, the next is measured all the same."""
    names = [n for n in CODES for n in (n, "good")]
    results = dict(zip(names, target.measure([job(n) for n in names])))
    assert results.pop("good").ok
    assert results.pop("prints").ok
    got = {name: m.reason for name, m in results.items()}
    assert got == {
        "wrong": "wrong",
        "nan": "nan",
        "segfault": "crashed",
        "abort": "crashed",
        "writes past the end": "crashed",
        "reads past the end": "crashed",
        "writes before the start": "crashed",
        "writes an operand": "crashed",
        "exits": "crashed",
        "does not compile": "compile failed",
        "forgets to start at zero": got["forgets to start at zero"],
        "writes nothing": "nan",
    }
    assert got["forgets to start at zero"] in ("wrong", "nan")
    assert "SIGSEGV" in results["segfault"].message
    assert "SIGABRT" in results["abort"].message
    assert "status 3" in results["exits"].message
    assert "error:" in results["does not compile"].message
    assert "want" in results["wrong"].message
    assert results["wrong"].max_error == pytest.approx(0.01, rel=1e-2)
    assert not any(m.ok or m.seconds for m in results.values())


def test_a_kernel_that_hangs_is_ended(target, job):
    (m,) = target.measure([job("good")])
    assert m.ok
    child = target._worker._child
    target._worker.timeout = 1
    (m,) = target.measure([job("hangs")])
    assert m.reason == "timed out"
    assert gone(child.pid)
    target._worker.timeout = PATIENCE
    (m,) = target.measure([job("good")])
    assert m.ok


def test_samples_are_plausible(target, job):
    (m,) = target.measure([job("good")])
    assert len(m.seconds) >= 3
    assert 0 < m.median < 1
    (m,) = target.measure([replace(job("good"), timed=False)])
    assert m.ok
    assert m.seconds == ()


def test_constants_are_read_from_copies(target, job):
    code = replace(GOOD, params=("b0", "b1", "b2"), packs=(4 * N,), workspace=64)
    code = replace(
        code,
        text=code.text
        + f"\nvoid k_good_pack(char *const *b, long t) {{ ((float *)b[3])[{N - 1}] = t; }}",
    )
    CODES["packed"] = code
    try:
        (m,) = target.measure([job("packed", constant=(1,))])
    finally:
        del CODES["packed"]
    assert m.ok, m
    assert copies_for(1 << 10, 32 << 20) == 1
    assert copies_for(4 << 20, 32 << 20) == 10
    assert copies_for(1 << 30, 32 << 20) == 1


def test_a_schedule_that_does_not_fit(monkeypatch, target, job):
    def refuse(*args):
        raise ScheduleError("no vector axis")

    monkeypatch.setattr(cpu, "kernel_code", refuse)
    (m,) = target.measure([job("good")])
    assert (m.ok, m.reason) == (False, "compile failed")
    assert "no vector axis" in m.message


def test_over_memory(monkeypatch, target, job):
    monkeypatch.setattr(measure, "available_bytes", lambda: 4096)
    (m,) = target.measure([job("good")])
    assert m.reason == "over memory"


def test_a_full_shared_memory_is_reported(monkeypatch, target, job):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    (m,) = target.measure([job("good")])
    assert m.reason == "over memory"
    assert "No space left" in m.message
    assert not list(Path("/dev/shm").glob(f"luminal-{os.getpid()}-*"))


def test_no_compiler(monkeypatch, target, job):
    monkeypatch.setenv("LUMINAL_CC", "/no/such/cc")
    with pytest.raises(CompilerError):
        next(target.measure([job("good")]))
    assert "no compiler" in target.fingerprint()


def test_a_killed_child_is_replaced(target, job):
    (m,) = target.measure([job("good")])
    assert m.ok
    os.kill(target._worker._child.pid, signal.SIGKILL)
    (m,) = target.measure([job("good")])
    assert m.ok


def test_progress(target, job):
    seen = []
    list(target.measure([job("good")] * 3, progress=seen.append))
    assert seen == [1, 2, 3]


SCRIPT = """
import signal, sys, torch
from luminal_lab.runtime import cpu
from tests.runtime import test_measure as t
cpu.kernel_code = lambda kernel, schedule, machine: t.HANGS
x = torch.randn(t.SHAPE)
job = t.Job(t.kernel("mul", 2, t.SHAPE), "hangs", {"b0": x, "b1": x}, {})
target = cpu.CpuTarget(timeout=3600, workers=0)
target._worker._start()
try:
    print(target._worker._child.pid, flush=True)
    print(next(target.measure([job])))
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", flush=True)
    sys.stdin.readline()
"""


def _start():
    env = {**os.environ, "PYTHONPATH": ROOT}
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], env=env, cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    worker = int(child.stdout.readline())
    assert until(lambda: _cpu_seconds(worker) > 1)  # it is in the kernel, or will be
    return child, worker


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_ends_the_child_and_leaves_nothing(c_compiler):
    child, worker = _start()
    with ctrl_c(child):
        assert child.stdout.readline().strip() == "interrupted"
    assert gone(worker)
    child.communicate("\n", timeout=PATIENCE)
    assert child.returncode == 0
    assert not list(Path("/dev/shm").glob(f"luminal-{child.pid}-*"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_child_does_not_outlive_its_parent(c_compiler):
    child, worker = _start()
    child.kill()
    child.communicate(timeout=PATIENCE)
    assert gone(worker)
    for left in Path("/dev/shm").glob(f"luminal-{child.pid}-*"):
        left.unlink()
