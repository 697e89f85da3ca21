"""The C compiler: which one, with which flags, and a cache of what it made.

Each kernel is one object file, keyed by everything that decides its contents, so a kernel that
a search has measured, or one that a user did not edit, is never compiled again; linking the
objects of a program takes about 10 ms. Compilers run in their own process groups and die with
an interrupted compilation.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from luminal_lab.errors import CompilerError
from luminal_lab.polling import POLL, poll
from luminal_lab.runtime.cache import FileCache, digest

CACHE = FileCache("c")
_SCRATCH = "luminal-cc-"  # then the process that made the folder
GENERATED = "a generated kernel that does not compile is a bug of the code generator"
UNIT_SECONDS = 300.0  # a unit that takes longer is given up

# The part of fast-math that keeps NaN and infinity; at compile time only, since linking with
# -ffast-math would switch denormals off for the whole process.
MATH_FLAGS = (
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fassociative-math",
    "-freciprocal-math",
    "-fno-signed-zeros",
    "-ffp-contract=fast",
)
LANGUAGE_FLAGS = ("-std=gnu11", "-fwrapv", "-fno-strict-aliasing", "-fPIC")
# What is never meant in generated code, and would otherwise be a wrong result or a crash. Other
# warnings are not asked for: generated text has unused names, and nobody reads it twice.
ERRORS = (
    "int-conversion",
    "incompatible-pointer-types",
    "implicit-function-declaration",
    "implicit-int",
    "return-type",
    "uninitialized",
)

Family = Literal["gcc", "clang", "apple", "zig"]


@dataclass(frozen=True)
class Unit:
    """A translation unit.

    Arguments:
        name: For messages: the kernel's entry, usually.
        text: The C source.
        flags: More flags for this unit alone.
    """

    name: str
    text: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cpu:
    """The processor, as far as generated code depends on it.

    Arguments:
        model: Its name.
        features: Instruction-set flags, sorted.
        vector_bytes: Width of its widest vector registers that are worth using.
    """

    model: str
    features: tuple[str, ...]
    vector_bytes: int

    @property
    def key(self) -> str:
        """A digest of model and features."""
        return digest(self.model, " ".join(self.features))[:12]


@functools.cache
def cpu() -> Cpu:
    """The processor of this machine."""
    model, features = platform.processor() or platform.machine(), ""
    if sys.platform == "darwin":
        model = _sysctl("machdep.cpu.brand_string") or model
        features = f"{_sysctl('machdep.cpu.features')} {_sysctl('machdep.cpu.leaf7_features')}"
    else:
        with contextlib.suppress(OSError), open("/proc/cpuinfo") as info:
            rows = [line.partition(":") for line in info]
            fields = {key.strip(): value.strip() for key, _, value in reversed(rows)}
            model = fields.get("model name", fields.get("CPU part", model))
            features = fields.get("flags", fields.get("Features", ""))
    flags = tuple(sorted(set(features.lower().split())))
    if "avx512f" in flags:
        width = 64
    elif "avx2" in flags:
        width = 32
    else:
        width = 16
    return Cpu(model, flags, width)


def _sysctl(name: str) -> str:
    try:
        out = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return out.stdout.strip()


@dataclass(frozen=True)
class Compiler:
    """A C compiler.

    Arguments:
        command: How to start it.
        version: The first line that it says about itself.
        family: Which flags it understands.
    """

    command: tuple[str, ...]
    version: str
    family: Family

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags for compiling a kernel for this machine."""
        arch = ["-mcpu=native"] if self.family == "apple" else ["-march=native"]
        if cpu().vector_bytes == 64:
            arch.append("-mprefer-vector-width=512")
        errors = [f"-Werror={name}" for name in ERRORS]
        if self.family != "gcc":  # clang counts a lost const among the pointer types
            errors.append("-Wno-incompatible-pointer-types-discards-qualifiers")
        return ("-O3", *arch, *MATH_FLAGS, *LANGUAGE_FLAGS, *errors)

    @property
    def link_flags(self) -> tuple[str, ...]:
        """Flags for linking; ll_parallel_for is found when the library is loaded."""
        if sys.platform == "darwin":
            return ("-shared", "-undefined", "dynamic_lookup")
        return ("-shared",)

    @property
    def key(self) -> str:
        """What the compiler adds to the key of a compiled file."""
        return digest(self.version, " ".join(self.command), " ".join(self.flags), cpu().key)

    def describe(self) -> str:
        """One line: the command and the version."""
        return f"{shlex.join(self.command)} ({self.version})"


def discover() -> Compiler:
    """The compiler to use: `$LUMINAL_CC`, else cc, gcc or clang, else ziglang.

    Raises:
        CompilerError: when there is none, or when `$LUMINAL_CC` does not work.
    """
    return _discover(os.environ.get("LUMINAL_CC", ""), os.environ.get("PATH", ""))


@functools.lru_cache(maxsize=8)
def _discover(named: str, path: str) -> Compiler:
    if named:
        command = tuple(shlex.split(named))
        found = _probe(command)
        if found is None:
            raise CompilerError(
                f"LUMINAL_CC={named} does not work: `{named} --version` failed",
                fix="name a C compiler that can be run, or unset LUMINAL_CC",
            )
        return found
    for name in ("cc", "gcc", "clang"):
        if (full := shutil.which(name, path=path)) and (found := _probe((full,))):
            return found
    if importlib.util.find_spec("ziglang"):
        found = _probe((sys.executable, "-m", "ziglang", "cc"))
        if found:
            return found
    raise CompilerError(
        "there is no C compiler: cc, gcc and clang are not on the PATH, and the Python package "
        "ziglang is not installed",
        fix="install gcc or clang (Debian: apt install gcc; macOS: xcode-select --install), or "
        "pip install 'luminal-lab[cc]', or name a compiler in LUMINAL_CC",
    )


def _probe(command: tuple[str, ...]) -> Compiler | None:
    try:
        run = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if run.returncode != 0 or not run.stdout.strip():
        return None
    version = run.stdout.strip().splitlines()[0]
    family: Family = "gcc"
    if "ziglang" in command or "zig" in Path(command[0]).name:
        family = "zig"
    elif "Apple" in version:
        family = "apple"
    elif "clang" in version:
        family = "clang"
    return Compiler(command, version, family)


Progress = Callable[[int, int, str], None]  # units done, units in all, name of the last


def compile_units(
    units: Sequence[Unit],
    *,
    compiler: Compiler | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    seconds: float = UNIT_SECONDS,
) -> list[Path | CompilerError]:
    """Compile units to cached objects, several at a time.

    Arguments:
        units: What to compile; equal units are compiled once.
        compiler: The compiler, `discover()` by default.
        jobs: How many at a time, the number of cores by default.
        progress: Called after each unit.
        seconds: Limit for one unit.

    Returns:
        For each unit its object file, or the error with the compiler's whole message.

    Raises:
        KeyboardInterrupt: on Ctrl-C, after the compilers were killed.
    """
    compiler = compiler or discover()
    keys = [digest(unit.text, " ".join(unit.flags), compiler.key) for unit in units]
    done: dict[str, Path | CompilerError] = {}
    todo: dict[str, Unit] = {}
    for key, unit in zip(keys, units, strict=True):
        if key in done or key in todo:
            continue
        if (path := CACHE.get(key, ".o")) is not None:
            done[key] = path
        else:
            todo[key] = unit
    group = _Children()
    if todo:
        # The largest first: one that is started last would be waited for alone.
        order = sorted(todo, key=lambda key: -len(todo[key].text))
        workers = jobs or max(1, min(len(todo), os.cpu_count() or 1))
        pool = ThreadPoolExecutor(workers, thread_name_prefix="luminal-cc")
        try:
            futures = {
                pool.submit(_compile, todo[key], key, compiler, group, seconds): key
                for key in order
            }
            for count, future in enumerate(_completed(futures), 1):
                key = futures[future]
                done[key] = future.result()
                if progress is not None:
                    progress(count, len(todo), todo[key].name)
        except BaseException:
            group.kill()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return [done[key] for key in keys]


def _completed(futures: Collection[Future[Any]]) -> Iterator[Future[Any]]:
    """Futures as they are done; whoever asked for them may end the wait."""
    left = set(futures)
    while left:
        done, left = wait(left, timeout=POLL, return_when=FIRST_COMPLETED)
        poll()
        yield from (f for f in futures if f in done)


def link(objects: Sequence[Path], *, compiler: Compiler | None = None) -> Path:
    """Link objects to one cached shared library.

    Raises:
        CompilerError: with the linker's message.
    """
    compiler = compiler or discover()
    key = digest("link", *(path.stem for path in objects), compiler.key)
    if (path := CACHE.get(key, ".so")) is not None:
        return path
    with _scratch() as folder:
        out = Path(folder) / "out.so"
        command = [*compiler.command, *compiler.link_flags, *map(str, objects), "-o", str(out)]
        code, message = _Children().run(command, folder, UNIT_SECONDS)
        if code != 0:
            for path in objects:  # perhaps one of them is damaged: make them again next time
                CACHE.drop(path)
            raise CompilerError(
                f"linking {len(objects)} objects failed (exit status {code}):\n{message}",
                where=compiler.describe(),
            )
        return CACHE.put(key, ".so", out.read_bytes())


def shared_library(
    units: Sequence[Unit],
    *,
    compiler: Compiler | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Compile and link units; see `compile_units` and `link`.

    Raises:
        CompilerError: for the first unit that was rejected.
    """
    objects: list[Path] = []
    for result in compile_units(units, compiler=compiler, jobs=jobs, progress=progress):
        if isinstance(result, CompilerError):
            raise result
        objects.append(result)
    return link(list(dict.fromkeys(objects)), compiler=compiler)


def load(path: Path, *, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """Load a shared library.

    Raises:
        CompilerError: when the loader rejects it (it is dropped from the cache).
    """
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError as error:
        CACHE.drop(path)
        raise CompilerError(
            f"the compiled library does not load: {error}",
            where=str(path),
            fix="run again: it was removed from the cache and will be compiled anew",
        ) from error


class _Children:
    """Compiler processes in flight, each in a group of its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: list[subprocess.Popen[str]] = []
        self.killed = False

    def run(self, command: Sequence[str], folder: str, seconds: float) -> tuple[int, str]:
        """Exit status and everything the command printed."""
        with self.lock:
            if self.killed:
                return -signal.SIGKILL, "interrupted"
            child = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C", "TMPDIR": folder},
            )
            self.running.append(child)
        try:
            message, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _kill_group(child)
            child.communicate()
            return -signal.SIGALRM, f"gave up after {seconds:.0f} s"
        except BaseException:
            _kill_group(child)
            child.communicate()
            raise
        finally:
            with self.lock:
                self.running.remove(child)
        return child.returncode, message

    def kill(self) -> None:
        """End all of them, and start no more."""
        with self.lock:
            self.killed = True
            for child in self.running:
                _kill_group(child)


def _kill_group(child: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    """A folder for one run of the compiler, which also keeps its own files there."""
    _sweep(tempfile.gettempdir())
    prefix = f"{_SCRATCH}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield folder


def remove_scratch(pid: int) -> None:
    """Remove what a process that was ended in the middle of a compilation has left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}{pid}-*"):
        for _ in range(3):  # its compiler may be writing there until it finds the folder gone
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break


@functools.cache
def _sweep(root: str) -> None:
    """Remove, once in a process, what killed processes of this machine have left."""
    for folder in Path(root).glob(f"{_SCRATCH}*"):
        pid = folder.name.removeprefix(_SCRATCH).partition("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def _compile(
    unit: Unit, key: str, compiler: Compiler, group: _Children, seconds: float
) -> Path | CompilerError:
    with _scratch() as folder:
        source, out = Path(folder) / "kernel.c", Path(folder) / "kernel.o"
        source.write_text(unit.text)
        flags = [*compiler.flags, *unit.flags]
        command = [*compiler.command, *flags, "-c", "kernel.c", "-o", "kernel.o"]
        code, message = group.run(command, folder, seconds)
        if code == 0 and out.exists():
            return CACHE.put(key, ".o", out.read_bytes())
    kept = ""
    if not group.killed:
        kept = str(CACHE.put(key, ".failed.c", unit.text.encode()))
    ended = f"exit status {code}" if code >= 0 else f"signal {-code}"
    return CompilerError(
        f"the C compiler rejected {unit.name} ({ended}):\n{message.strip()}",
        where=f"{compiler.describe()}, source kept at {kept}",
        fix=f"{GENERATED}: report it with the source",
    )
