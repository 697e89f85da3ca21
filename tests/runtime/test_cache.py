import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from luminal_lab.errors import CacheError
from luminal_lab.runtime import cache
from luminal_lab.runtime.cache import CacheWarning, FileCache, digest
from tests.runtime.processes import PATIENCE


@pytest.fixture(autouse=True)
def _no_fallback(monkeypatch):
    monkeypatch.setattr(cache, "_FALLBACK", {})


def test_a_file_comes_back(fresh_cache):
    files = FileCache("c")
    assert files.get("k", ".o") is None
    path = files.put("k", ".o", b"content")
    assert path == fresh_cache / "c" / "k.o"
    assert files.get("k", ".o") == path
    assert path.read_bytes() == b"content"
    assert not list(path.parent.glob(".part-*"))


@pytest.mark.parametrize("content", [b"", b"conten", b"Content"])
def test_a_damaged_file_is_forgotten(fresh_cache, content):
    files = FileCache("c")
    path = files.put("k", ".o", b"content")
    path.write_bytes(content)
    assert files.get("k", ".o") is None
    assert not path.exists()
    assert files.put("k", ".o", b"content").read_bytes() == b"content"


def test_borders_between_parts_count():
    assert digest("ab", "c") != digest("a", "bc")


def _refuse(number):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_cache_that_cannot_be_written_is_replaced(fresh_cache, monkeypatch, number):
    """A full disk, a read-only one, a folder of somebody else."""
    real = os.replace

    def replace(source, target):
        if str(target).startswith(str(fresh_cache)):
            raise OSError(number, os.strerror(number))
        return real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    files = FileCache("c")
    with pytest.warns(CacheWarning, match=os.strerror(number)):
        path = files.put("k", ".o", b"content")
    assert path.read_bytes() == b"content"
    assert files.get("k", ".o") == path
    files.put("j", ".o", b"more")  # no second warning


def test_a_cache_below_a_file(tmp_path, monkeypatch):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("LUMINAL_CACHE", str(blocker / "cache"))
    with pytest.warns(CacheWarning, match="Not a directory"):
        FileCache("c").put("k", ".o", b"content")


def test_no_place_at_all_is_an_error(fresh_cache, monkeypatch):
    monkeypatch.setattr(os, "replace", _refuse(errno.ENOSPC))
    monkeypatch.setattr(cache.tempfile, "mkdtemp", _refuse(errno.ENOSPC))
    with pytest.raises(CacheError, match="No space left") as caught:
        FileCache("c").put("k", ".o", b"content")
    assert "LUMINAL_CACHE" in str(caught.value)


def test_two_processes_write_the_same_file(fresh_cache):
    script = (
        "from luminal_lab.runtime.cache import FileCache\n"
        "files = FileCache('c')\n"
        "for _ in range(200):\n"
        "    files.put('k', '.o', b'content' * 1000)\n"
        "    path = files.get('k', '.o')\n"
        "    assert path is None or path.read_bytes() == b'content' * 1000\n"
    )
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "LUMINAL_CACHE": str(fresh_cache), "PYTHONPATH": root}
    both = [subprocess.Popen([sys.executable, "-c", script], env=env) for _ in range(2)]
    assert [child.wait(PATIENCE) for child in both] == [0, 0]
