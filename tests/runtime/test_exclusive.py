import os
import subprocess
import sys
import threading
from pathlib import Path

from luminal_lab.runtime import exclusive
from tests.runtime.processes import PATIENCE, until

ROOT = str(Path(__file__).parents[2])


def held(context):
    """Hold a lock in another thread; returns when it is held."""
    ready, leave = threading.Event(), threading.Event()

    def hold():
        with context():
            ready.set()
            leave.wait(10 * PATIENCE)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    return thread, leave


def test_timings_exclude_each_other_and_compilations(monkeypatch, tmp_path):
    monkeypatch.setattr(exclusive, "lock_path", lambda name: tmp_path / name)
    thread, leave = held(exclusive.timing)
    with exclusive.timing(0.05) as had:
        assert not had
    with exclusive.compiling(0.05) as had:
        assert not had
    leave.set()
    thread.join()
    with exclusive.timing() as had:
        assert had


def test_compilations_share_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(exclusive, "lock_path", lambda name: tmp_path / name)
    thread, leave = held(exclusive.compiling)
    with exclusive.compiling() as had:
        assert had
    with exclusive.timing(0.05) as had:
        assert not had
    leave.set()
    thread.join()


def test_a_waiting_timing_keeps_new_compilations_out(monkeypatch, tmp_path):
    monkeypatch.setattr(exclusive, "lock_path", lambda name: tmp_path / name)
    first, leave = held(exclusive.compiling)
    order = []

    def wait():
        with exclusive.timing(10 * PATIENCE):
            order.append("timing")

    def kept_out() -> bool:
        with exclusive.compiling(0.05) as had:
            return not had

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert until(kept_out)  # or a stream of compilations would never let the timing begin
    assert not order
    leave.set()
    first.join()
    waiting.join()
    assert order == ["timing"]


def test_a_dead_process_gives_its_lock_back(monkeypatch, tmp_path):
    monkeypatch.setattr(exclusive, "lock_path", lambda name: tmp_path / name)
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from luminal_lab.runtime import exclusive\n"
        "exclusive.lock_path = lambda name: Path(sys.argv[1]) / name\n"
        "with exclusive.timing():\n    print('held', flush=True)\n    time.sleep(3600)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    )  # fmt: skip
    assert child.stdout.readline().strip() == "held"
    with exclusive.timing(0.05) as had:
        assert not had
    child.kill()
    child.communicate()
    with exclusive.timing() as had:
        assert had


def test_without_a_file_there_is_no_lock_and_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(exclusive, "lock_path", lambda name: tmp_path / "nowhere" / name)
    with exclusive.timing() as had:
        assert not had
    assert list(exclusive.in_turns([3, 4], str)) == ["3", "4"]
