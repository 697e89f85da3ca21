import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from luminal_lab.errors import CompilerError
from luminal_lab.runtime import compiler as cc
from tests.runtime.processes import PATIENCE, ctrl_c, gone, until

ROOT = str(Path(__file__).parents[2])
GOOD = cc.Unit("good", "int seven(void) { return 7; }")
BAD = cc.Unit("bad", "int seven(void) { return 7 }")


def test_a_unit_is_compiled_once(fresh_cache, c_compiler):
    first = cc.shared_library([GOOD])
    stamp = first.stat().st_mtime_ns
    assert cc.shared_library([GOOD]) == first
    assert first.stat().st_mtime_ns == stamp
    assert cc.load(first).seven() == 7


def test_a_rejected_unit_keeps_the_whole_message(fresh_cache, c_compiler):
    good, bad = cc.compile_units([GOOD, BAD])
    assert isinstance(good, Path)
    assert isinstance(bad, CompilerError)
    assert "expected" in str(bad)
    assert "bad" in bad.what
    kept = Path(str(bad).partition("source kept at ")[2].splitlines()[0])
    assert kept.read_text() == BAD.text
    with pytest.raises(CompilerError):
        cc.shared_library([GOOD, BAD])


def test_keys_hold_what_decides_the_object(c_compiler, monkeypatch):
    compiler = cc.discover()
    other = cc.Compiler(compiler.command, "cc 99.0", compiler.family)
    assert other.key != compiler.key
    chip = cc.cpu()
    monkeypatch.setattr(cc, "cpu", lambda: cc.Cpu(chip.model, chip.features[1:], 32))
    assert compiler.key != cc.Compiler(compiler.command, "cc 99.0", compiler.family).key


def test_denormals_survive_loading(fresh_cache, c_compiler):
    """Fast-math at link time would flush them to zero in the whole process."""
    import torch

    text = "float twice(float x) { return x + x; }"
    cc.load(cc.shared_library([cc.Unit("twice", text)]))
    assert float(torch.tensor([1e-40]) * 1) != 0


def test_nan_survives_the_flags(fresh_cache, c_compiler):
    import ctypes

    text = "int is_nan(float x) { return x != x; }"
    library = cc.load(cc.shared_library([cc.Unit("is_nan", text)]))
    library.is_nan.argtypes = (ctypes.c_float,)
    assert library.is_nan(float("nan")) == 1


def test_a_library_that_does_not_load_leaves_the_cache(fresh_cache, c_compiler):
    text = "extern int nowhere_to_be_found(void); int f(void) { return nowhere_to_be_found(); }"
    path = cc.shared_library([cc.Unit("f", text)])
    with pytest.raises(CompilerError, match="nowhere_to_be_found"):
        cc.load(path)
    assert not path.exists()


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LUMINAL_CC", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompilerError) as caught:
        cc.discover()
    assert "LUMINAL_CC" in str(caught.value)
    assert "luminal-lab[cc]" in str(caught.value)


def test_a_named_compiler_that_does_not_work(monkeypatch):
    monkeypatch.setenv("LUMINAL_CC", "/no/such/compiler -O1")
    with pytest.raises(CompilerError, match="/no/such/compiler"):
        cc.discover()


def test_a_named_compiler_with_arguments(monkeypatch, c_compiler):
    monkeypatch.setenv("LUMINAL_CC", f"{c_compiler} -DX=1")
    assert cc.discover().command == (*c_compiler.split(), "-DX=1")


def test_a_unit_that_takes_too_long_is_given_up(fresh_cache, tmp_path, monkeypatch):
    slow = tmp_path / "cc"
    slow.write_text('#!/bin/sh\n[ "$1" = --version ] && echo slow 1.0 && exit 0\nsleep 600\n')
    slow.chmod(0o755)
    monkeypatch.setenv("LUMINAL_CC", str(slow))
    (result,) = cc.compile_units([GOOD], seconds=0.3)
    assert isinstance(result, CompilerError)
    assert "gave up" in str(result)


def test_ctrl_c_ends_the_compilers(fresh_cache, tmp_path):
    """The whole process group goes: a driver's children too."""
    slow, pids = tmp_path / "cc", tmp_path / "pids"
    slow.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo slow 1.0 && exit 0\n'
        f"sleep 600 &\necho $$ $! >> {pids}\nwait\n"
    )
    slow.chmod(0o755)
    script = (
        "import signal\nfrom luminal_lab.runtime import compiler as cc\n"
        "units = [cc.Unit(str(k), f'int f{k};') for k in range(4)]\n"
        "try:\n"
        "    cc.compile_units(units)\n"
        "except KeyboardInterrupt:\n"
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "    print('interrupted')\n"
    )
    env = {**os.environ, "LUMINAL_CC": str(slow), "PYTHONPATH": ROOT}
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True
    )
    assert until(lambda: pids.exists() and pids.read_text().strip())
    with ctrl_c(child):
        out, _ = child.communicate(timeout=PATIENCE)
    assert out.strip() == "interrupted"
    for pid in map(int, pids.read_text().split()):
        assert gone(pid), pid


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("int f(char *p) { return p; }", "int-conversion"),
        ("float *f(double *p) { return p; }", "incompatible-pointer-types"),
        ("int f(void) { return g(); }", "implicit-function-declaration"),
        ("float f(void) { float x; return x; }", "uninitialized"),
        ("int f(void) { }", "return-type"),
    ],
)
def test_what_is_never_meant_is_an_error(fresh_cache, c_compiler, text, told):
    (result,) = cc.compile_units([cc.Unit("sum_1f0c2a7b", text)])
    assert isinstance(result, CompilerError)
    assert told in str(result)
    assert "rejected sum_1f0c2a7b" in result.what


def test_what_is_only_untidy_is_not(fresh_cache, c_compiler):
    text = "static int unused; int f(const char *p) { int x = 1; char *q = p; return *q; }"
    (result,) = cc.compile_units([cc.Unit("f", text)])
    assert isinstance(result, Path), result


def test_folders_of_killed_processes_are_removed(
    fresh_cache, c_compiler, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    nobody = 1 << 22  # numbers of processes are smaller
    left = tmp_path / f"luminal-cc-{nobody}-x"
    mine = tmp_path / f"luminal-cc-{os.getpid()}-x"
    left.mkdir()
    mine.mkdir()
    cc.compile_units([GOOD])
    assert not left.exists()
    assert mine.exists()
