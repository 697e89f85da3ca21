"""The tuning database under damage, other processes, kills and full disks."""

import os
import random
import sqlite3
import subprocess
import sys

import pytest

from luminal_lab.errors import CacheError
from luminal_lab.search import Database, DatabaseWarning, Measurement
from luminal_lab.search.database import default_path
from tests.runtime.processes import PATIENCE

GOOD = Measurement(True, (1e-3, 2e-3, 3e-3), max_error=1e-7)
BAD = Measurement(
    False, reason="wrong", message="element 3: got 1, want 2", max_error=float("nan")
)


def put(database: Database, kernel: str, m: Measurement = GOOD) -> None:
    database.put(kernel, None, "cpu", "f", m)


def get(database: Database, kernel: str, **options) -> Measurement | None:
    return database.get(kernel, None, "cpu", "f", **options)


def test_what_is_put_comes_back(tmp_path):
    with Database(tmp_path / "sub" / "db") as database:
        assert get(database, "k") is None
        put(database, "k")
        put(database, "w", BAD)
        assert get(database, "k") == GOOD
        assert get(database, "w").message == BAD.message
    with Database(tmp_path / "sub" / "db") as database:
        assert get(database, "k") == GOOD
        assert len(database) == 2
        assert "2 measurements" in repr(database)


def test_schedule_target_and_fingerprint_are_part_of_the_key(tmp_path):
    with Database(tmp_path / "db") as database:
        database.put("k", {"b": 1, "a": [2]}, "cpu", "f", GOOD)
        assert database.get("k", {"a": [2], "b": 1}, "cpu", "f") == GOOD
        for schedule, target, fingerprint in (
            (None, "cpu", "f"),
            ({"b": 1, "a": [2]}, "cuda", "f"),
            ({"b": 1, "a": [2]}, "cpu", "other compiler"),
        ):
            assert database.get("k", schedule, target, fingerprint) is None


def test_a_verified_kernel_without_a_time_is_timed_later(tmp_path):
    with Database(tmp_path / "db") as database:
        put(database, "k", Measurement(True))
        assert get(database, "k") is None
        assert get(database, "k", timed=False) == Measurement(True)


@pytest.mark.parametrize("damage", ["garbage", "truncated", "version", "page"])
def test_a_damaged_file_is_set_aside_with_a_warning(tmp_path, damage):
    path = tmp_path / "db"
    with Database(path) as database:
        for k in range(200):
            put(database, f"k{k}" * 50)
    if damage == "garbage":
        path.write_bytes(b"this is no database" * 1000)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "page":
        data = bytearray(path.read_bytes())
        data[4096:16384] = random.Random(0).randbytes(12288)
        path.write_bytes(data)
    else:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version=99")
        connection.close()
    with pytest.warns(DatabaseWarning, match="set aside"):
        database = Database(path)
    with database:
        assert len(database) == 0
        put(database, "k")
        assert get(database, "k") == GOOD
    assert len(list(tmp_path.glob("db.damaged-*"))) == 1


@pytest.mark.skipif(os.name != "posix", reason="needs /proc")
def test_a_folder_that_cannot_be_made_is_a_clear_error():
    with pytest.raises(CacheError, match="LUMINAL_CACHE"):
        Database("/proc/nowhere/db")


def test_a_file_that_cannot_be_opened_is_a_clear_error(tmp_path):
    (tmp_path / "db").mkdir()
    with pytest.raises(CacheError, match="cannot be read or written"):
        Database(tmp_path / "db")


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path):
    with Database(tmp_path / "db") as database:
        put(database, "before")
        (pages,) = database._connection.execute("PRAGMA page_count").fetchone()
        database._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(CacheError, match="full"):
            put(database, "k" * 1_000_000)
        assert get(database, "before") == GOOD
    with Database(tmp_path / "db") as database:
        assert get(database, "before") == GOOD


WRITER = """
import sys
from luminal_lab.search import Database, Measurement
with Database(sys.argv[1]) as database:
    for k in range(int(sys.argv[3])):
        database.put(f"{sys.argv[2]}.{k}", None, "cpu", "f", Measurement(True, (1.0,)))
        assert database.get(f"{sys.argv[2]}.{k}", None, "cpu", "f") is not None
        print(k, flush=True)
"""


def writer(path, name: str, n: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(n)], stdout=subprocess.PIPE
    )


def test_several_processes_write_at_once(tmp_path):
    path = tmp_path / "db"
    running = [writer(path, name, 60) for name in "abc"]
    for p in running:
        p.communicate(timeout=PATIENCE)
    assert [p.returncode for p in running] == [0, 0, 0]
    with Database(path) as database:
        assert len(database) == 180


def test_a_killed_writer_leaves_a_sound_file(tmp_path):
    path = tmp_path / "db"
    running = writer(path, "a", 10**6)
    for _ in range(30):
        assert running.stdout.readline()
    running.kill()
    running.communicate()
    with Database(path) as database:
        n = len(database)
        assert n >= 30
        assert all(get(database, f"a.{k}") == Measurement(True, (1.0,)) for k in range(n))
        put(database, "after")


def test_the_path_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LUMINAL_CACHE", str(tmp_path))
    assert default_path() == tmp_path / "tuning.sqlite"
    monkeypatch.delenv("LUMINAL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path().name == "tuning.sqlite"
