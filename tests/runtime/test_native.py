import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from luminal_lab.errors import CompilerError
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime import native as module
from luminal_lab.runtime.native import loaded_openmp, native

ROOT = str(Path(__file__).parents[2])
COUNT = """
extern void ll_parallel_for(void (*)(void *, long, long), void *, long, long, long);
extern long ll_thread_index(void);
struct job { int *hits; long grain; int small; int bad; long threads; };
static void body(void *ctx, long lo, long hi) {
  struct job *j = ctx;
  if (ll_thread_index() < 0 || ll_thread_index() >= j->threads) j->bad = 1;
  for (long i = lo; i < hi; ++i) __atomic_fetch_add(&j->hits[i], 1, __ATOMIC_RELAXED);
}
int cover(int *hits, long n, long grain, long threads) {
  struct job j = {hits, grain, 0, 0, threads < 1 ? 1 : threads};
  ll_parallel_for(body, &j, n, grain, threads);
  return j.bad;
}
"""


def _cover(library, n, grain, threads):
    hits = (ctypes.c_int * max(n, 1))()
    arguments = hits, ctypes.c_long(n), ctypes.c_long(grain), ctypes.c_long(threads)
    assert library.cover(*arguments) == 0
    assert all(hits[i] == 1 for i in range(n)), (n, grain, threads)


def cover_all(library):
    """Each index once, for many shapes of the loop."""
    for n in (0, 1, 2, 3, 7, 64, 1000, 1003):
        for grain in (0, 1, 3, 64, 5000):
            for threads in (0, 1, 2, 3, 8, 300):
                _cover(library, n, grain, threads)


def test_each_index_once(c_compiler):
    native()
    cover_all(cc.load(cc.shared_library([cc.Unit("cover", COUNT)])))


def test_loops_of_several_python_threads(c_compiler):
    native()
    library = cc.load(cc.shared_library([cc.Unit("cover", COUNT)]))
    failures = []

    def work():
        try:
            for _ in range(50):
                _cover(library, 1000, 10, 2)
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and libgomp are Linux's")
def test_there_is_one_openmp_runtime(c_compiler):
    """Ours is PyTorch's: a second pool would fight with it for the cores."""
    torch.ones(1000, 1000).exp()
    runtime = native().runtime
    assert runtime in loaded_openmp()
    assert Path(runtime).parent == Path(torch.__file__).parent / "lib"


def test_the_pool_of_last_resort(c_compiler):
    script = (
        "from tests.runtime.test_native import *\n"
        "from luminal_lab.runtime import compiler as cc\n"
        "from luminal_lab.runtime.native import native\n"
        "import os\n"
        "assert native().pool == 'pthread'\n"
        "library = cc.load(cc.shared_library([cc.Unit('cover', COUNT)]))\n"
        "cover_all(library)\n"
        "test_loops_of_several_python_threads(None)\n"
        "pid = os.fork()\n"
        "cover_all(library)\n"
        "if pid == 0: os._exit(0)\n"
        "raise SystemExit(os.waitpid(pid, 0)[1])\n"
    )
    env = {**os.environ, "LUMINAL_THREAD_POOL": "pthread", "PYTHONPATH": ROOT}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], env=env, timeout=600, cwd=ROOT
    )
    assert run.returncode == 0


def test_an_unknown_pool(monkeypatch):
    monkeypatch.setenv("LUMINAL_THREAD_POOL", "tbb")
    with pytest.raises(CompilerError, match="tbb"):
        module.native.__wrapped__()
