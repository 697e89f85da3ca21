"""The cpu runtime's C library (`native.c`): loaded once, bound to the threads of PyTorch."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import sys
import threading
from ctypes import POINTER, Structure, c_long, c_longlong, c_void_p
from pathlib import Path
from typing import Literal

from luminal_lab.errors import CompilerError
from luminal_lab.runtime import compiler as cc

Pool = Literal["gomp", "dispatch", "pthread"]
_SOURCE = Path(__file__).with_name("native.c")
_LOCK = threading.Lock()


class CallRow(Structure):
    """`struct ll_call`: a kernel, and where its pointers begin in the table."""

    _fields_ = [("kernel", c_void_p), ("row", c_long)]


class PatchRow(Structure):
    """`struct ll_patch`: which slot of the table takes which external pointer."""

    _fields_ = [("slot", c_long), ("external", c_long)]


class FrameHeader(Structure):
    """`struct ll_frame`."""

    _fields_ = [
        ("calls", POINTER(CallRow)),
        ("patches", POINTER(PatchRow)),
        ("npatches", c_long),
        ("external", POINTER(c_void_p)),
        ("table", POINTER(c_void_p)),
    ]


class Native:
    """The loaded library.

    Arguments:
        library: The handle.
        pool: Where its threads come from.
        runtime: Path of the OpenMP runtime that it is bound to, `""` for another pool.
    """

    def __init__(self, library: ctypes.CDLL, pool: Pool, runtime: str):
        self.library, self.pool, self.runtime = library, pool, runtime
        self.call_all = _typed(library.ll_call_all, c_void_p, c_long, c_long)
        self.bind = _typed(library.ll_bind, c_void_p)
        self.run = _typed(library.ll_run, c_void_p, c_long, c_long, c_long)
        times = POINTER(c_longlong)
        self.run_timed = _typed(
            library.ll_run_timed, c_void_p, c_long, c_long, c_long, times, times
        )
        self.time_kernel = _typed(
            library.ll_time_kernel, c_void_p, c_void_p, c_long, c_long, c_long, c_long, times
        )
        self.empty = ctypes.cast(library.ll_empty, c_void_p).value

    def address(self, library: ctypes.CDLL, name: str) -> int:
        """The address of a function."""
        value = ctypes.cast(getattr(library, name), c_void_p).value
        assert value is not None
        return value

    def bind_blas(self) -> bool:
        """Bind `sgemm_` of the BLAS inside PyTorch; whether it is exported there."""
        with _LOCK:
            return _bind_blas(self.library)


def _typed(function: ctypes._NamedFuncPointer, *types: type) -> ctypes._NamedFuncPointer:
    function.argtypes = types
    function.restype = None
    return function


@functools.cache
def native() -> Native:
    """The runtime library of this process.

    Raises:
        CompilerError: when there is no compiler, or it rejects the library.
    """
    with _LOCK:
        wanted = os.environ.get("LUMINAL_THREAD_POOL", "")
        if wanted not in ("", "gomp", "dispatch", "pthread"):
            raise CompilerError(
                f"LUMINAL_THREAD_POOL={wanted} names no thread pool",
                fix="gomp, dispatch or pthread, or unset it",
            )
        runtime = openmp_runtime() if wanted in ("", "gomp") else None
        pool: Pool
        if sys.platform == "darwin" and wanted != "pthread":
            pool, runtime = "dispatch", None
        elif runtime is not None:
            pool = "gomp"
        else:
            pool = "pthread"
        unit = cc.Unit("native.c", _SOURCE.read_text(), (f"-DLL_{pool.upper()}",))
        path = cc.shared_library([unit])
        library = cc.load(path, mode=ctypes.RTLD_GLOBAL)
        if runtime is not None:
            openmp = ctypes.CDLL(runtime)
            library.ll_bind_gomp.argtypes = (c_void_p, c_void_p)
            library.ll_bind_gomp(
                ctypes.cast(openmp.GOMP_parallel, c_void_p),
                ctypes.cast(openmp.omp_get_thread_num, c_void_p),
            )
        return Native(library, pool, runtime or "")


def openmp_runtime() -> str | None:
    """Path of the OpenMP runtime that PyTorch uses here, or will use once it is imported."""
    if sys.platform == "darwin":
        return None
    candidates: list[str] = []
    if (folder := torch_library_folder()) is not None:
        for pattern in ("libgomp*.so*", "libiomp5*.so*", "libomp*.so*"):
            candidates += sorted(map(str, folder.glob(pattern)))
    candidates += loaded_openmp()
    for path in candidates:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_thread_num"):
            return path
    return None


def loaded_openmp() -> list[str]:
    """Paths of the OpenMP runtimes that are loaded into this process."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return sorted(set(re.findall(r"/\S*/lib(?:gomp|iomp5|omp)\b\S*\.so\S*", maps)))


def torch_library_folder() -> Path | None:
    """The folder of PyTorch's shared libraries; PyTorch is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "lib"


def _bind_blas(library: ctypes.CDLL) -> bool:
    import torch  # noqa: F401  (loads the BLAS)

    folder = torch_library_folder()
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        if folder is not None and (folder / name).exists():
            torch_cpu = ctypes.CDLL(str(folder / name))
            if hasattr(torch_cpu, "sgemm_"):
                library.ll_bind_blas.argtypes = (c_void_p,)
                library.ll_bind_blas(ctypes.cast(torch_cpu.sgemm_, c_void_p))
                return True
    return False
