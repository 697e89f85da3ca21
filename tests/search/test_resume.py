"""A search that was killed goes on where it was; a second one measures nothing."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

# Prints a line at each event; holds still at one of them when it is told to.
STEPS = """
import sys, time
hold = int(sys.argv[2])
seen = 0

def step(event):
    global seen
    seen += 1
    print("step", seen, flush=True)
    if seen == hold:
        time.sleep(3600)
"""

FAKE = (
    STEPS
    + """
import json
from luminal_lab.search import Budget, Database, search
from tests.search.fake import FakeTarget
from tests.search.models import saturated

class Slow(FakeTarget):
    def measure(self, jobs, **options):
        for measurement in super().measure(jobs, **options):
            time.sleep(0.02)
            yield measurement

egraph = saturated(sys.argv[3])
target = Slow()
with Database(sys.argv[1]) as database:
    result = search(egraph, Budget("quick"), 0, target, step, database=database)
print(json.dumps({"table": result.table().to_csv(), "best": result.best.text(),
                  "finalists": result.final_table().to_csv(), "timings": result.timings,
                  "measured": len(target.measured) + len(target.programs_run)}))
"""
)

REAL = (
    STEPS
    + """
import json
import luminal_lab as ll
from luminal_lab.runtime import compiler
from tests.search.models import small

compiled = []
compile_one = compiler._compile

def counted(*args):
    compiled.append(args[1])
    return compile_one(*args)

compiler._compile = counted
fn, args = small(sys.argv[3])
egraph = ll.saturate(ll.capture(fn, args))
result = ll.search(egraph, ll.Budget("quick"), progress=step)
print(json.dumps({"table": result.table().to_csv(), "best": result.best.text(),
                  "finalists": result.final_table().to_csv(), "timings": result.timings,
                  "genomes": [r.genome for r in result.rows], "compiled": len(compiled)}))
"""
)


def start(script: str, cache: Path, program: str, hold: int = 0) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(cache / "tuning.sqlite"), str(hold), program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LUMINAL_CACHE": str(cache)},
    )


def finish(script: str, cache: Path, program: str) -> dict:
    out, _ = start(script, cache, program).communicate(timeout=600)
    *steps, last = out.splitlines()
    return {**json.loads(last), "steps": len(steps)}


def killed(script: str, cache: Path, program: str, step: int, hold: bool) -> None:
    """Kill a search after some steps: while it holds still, or in whatever it does then."""
    child = start(script, cache, program, step if hold else 0)
    assert child.stdout is not None
    for line in child.stdout:
        if line == f"step {step}\n":
            break
    child.send_signal(signal.SIGKILL)
    child.communicate()
    sound(cache)


def sound(cache: Path) -> None:
    path = cache / "tuning.sqlite"
    if path.exists():
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
    assert not list(cache.glob("*.damaged*"))


def kill_and_resume(script: str, tmp_path: Path, times: int, program: str) -> None:
    whole = finish(script, tmp_path / "whole", program)
    rng = random.Random(0)
    for time in range(times):
        step = rng.randrange(whole["steps"] // 2, whole["steps"])
        killed(script, tmp_path / "killed", program, step, hold=time == 0)
    resumed = finish(script, tmp_path / "killed", program)
    again = finish(script, tmp_path / "killed", program)
    assert again["timings"] == 0
    for key in ("table", "best", "finalists"):
        assert again[key] == resumed[key]
    if script is FAKE:  # its times are the same in every run
        for key in ("table", "best", "finalists"):
            assert resumed[key] == whole[key]
    else:
        assert resumed["genomes"] == whole["genomes"]


@pytest.fixture(autouse=True)
def folders(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()


def test_a_search_that_was_killed_twice_ends_the_same(tmp_path):
    kill_and_resume(FAKE, tmp_path, 2, "layernorm")


@pytest.mark.slow
def test_a_search_that_was_killed_twenty_times_ends_the_same(tmp_path):
    kill_and_resume(FAKE, tmp_path, 20, "layernorm")


@pytest.mark.slow
def test_a_search_on_this_machine_that_was_killed_twenty_times_ends_the_same(tmp_path):
    kill_and_resume(REAL, tmp_path, 20, "layernorm")


def test_a_second_search_compiles_nothing_and_times_nothing(tmp_path):
    first = finish(REAL, tmp_path / "whole", "gelu")
    second = finish(REAL, tmp_path / "whole", "gelu")
    assert first["timings"] > 0
    assert first["compiled"] > 0
    assert second["timings"] == 0
    assert second["compiled"] == 0
    for key in ("table", "best", "finalists"):
        assert second[key] == first[key]
