"""Triton source text without a GPU: run it in the interpreter, compile it ahead of time.

`load_module` turns text into functions, `run_interpreted` runs a kernel on CPU tensors, and
`compile_ahead` compiles it for a named architecture and reports what would bound a launch.
"""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from luminal_lab.errors import CompilerError
from luminal_lab.runtime.triton_interpreter import interpreting, require_triton


def load_module(source: str) -> ModuleType:
    """Execute a Triton module's text; line numbers in errors and in PTX point into the text.

    Triton reads a function's source through `inspect`, so the text is registered with
    `linecache` under a name made of its hash; nothing is written to disk.

    Raises:
        CompilerError: Triton is missing, or the text is not valid Python.
    """
    require_triton()
    name = f"<luminal:{hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    module = ModuleType(name)
    try:
        exec(compile(source, name, "exec"), module.__dict__)
    except Exception as error:
        raise CompilerError(f"the Triton source does not load: {error}", where=name) from error
    return module


def _entry(source: str, entry: str) -> Any:
    module = load_module(source)
    if not hasattr(module, entry):
        raise CompilerError(
            f"the Triton source defines no kernel {entry!r}", where=module.__name__
        )
    return getattr(module, entry)


# ------------------------------------------------------------------------------- interpreter
def run_interpreted(
    source: str,
    entry: str,
    grid: tuple[int, ...],
    args: Sequence[Any],
    *,
    in_process: bool = False,
    timeout: float = 120.0,
) -> None:
    """Run a kernel on CPU tensors, which are updated in place.

    Arguments:
        source: The module's text.
        entry: The kernel's name in it.
        grid: Up to three extents.
        args: The kernel's arguments in order: CPU tensors, numbers, values of constexprs.
        in_process: Run here rather than in a child process. An endless loop or a crash of an
            edited kernel then takes this process with it; accesses are bounds-checked in both.
        timeout: Seconds that the child may take.

    Raises:
        CompilerError: Triton is missing, or the kernel does not run; `OutOfBoundsError` when it
            leaves its arguments.
    """
    fn = _entry(source, entry)
    if in_process:
        with interpreting() as interpreter:
            interpreter.run(fn, grid, args)
        return
    import torch

    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    results = _in_child("interpret", entry, timeout, source, entry, tuple(grid), list(args))
    for tensor, new in zip(tensors, results, strict=True):
        tensor.copy_(new)


def _in_child(what: str, entry: str, timeout: float, *args: Any) -> Any:
    """Run `_serve` in a process of its own: a crash there is an error here."""
    with tempfile.TemporaryDirectory(prefix="luminal-triton-") as folder:
        path = os.path.join(folder, "call")
        with open(path, "wb") as file:
            pickle.dump((what, args), file)
        command = [sys.executable, "-c", f"from {__name__} import _serve; _serve({path!r})"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise CompilerError(
                f"to {what} {entry} took more than {timeout:g} s and was stopped",
                fix="look for a loop that does not end, or take a smaller problem",
            ) from None
        for suffix in (".out", ".error"):
            if os.path.exists(path + suffix):
                with open(path + suffix, "rb") as file:
                    result = pickle.load(file)
                if suffix == ".error":
                    raise result
                return result
    detail = done.stderr.decode(errors="replace").strip()[-2000:]
    raise CompilerError(
        f"the process that had to {what} {entry} died, exit code {done.returncode}\n{detail}",
        fix="exit code -11 is a crash inside Triton: other block sizes often avoid it",
    )


def _serve(path: str) -> None:
    """The child's side of `_in_child`."""
    from luminal_lab.errors import LuminalError

    with open(path, "rb") as file:
        what, args = pickle.load(file)
    try:
        if what == "interpret":
            import torch

            torch.set_num_threads(1)
            run_interpreted(*args, in_process=True)
            result = [a for a in args[-1] if isinstance(a, torch.Tensor)]
        else:
            result = compile_ahead(**args[0], in_process=True)
        suffix = ".out"
    except LuminalError as error:
        plain = type(error)(error.what, where=error.where, fix=error.fix)
        result, suffix = _Carried(plain), ".error"
    with open(path + ".part", "wb") as file:
        pickle.dump(result, file)
    os.replace(path + ".part", path + suffix)


class _Carried:
    """Pickles a LuminalError, whose constructor takes keywords, as a call that rebuilds it."""

    def __init__(self, error: Any):
        self.error = error

    def __reduce__(self) -> Any:
        e = self.error
        return _rebuild, (type(e), e.what, e.where, e.fix)


def _rebuild(kind: Any, what: str, where: str | None, fix: str | None) -> Any:
    return kind(what, where=where, fix=fix)


# ------------------------------------------------------------------------- ahead of time
@dataclass(frozen=True)
class Arch:
    """What bounds the number of resident blocks on one compute unit (vendor's tables).

    Arguments:
        backend: Triton's name of the backend.
        number: Triton's name of the architecture.
        warp_size: Lanes of a warp (a wavefront on AMD).
        registers: 32-bit registers per unit; an allocation is rounded up per warp.
        warps: Resident warps.
        blocks: Resident blocks.
        shared: Bytes of shared memory per unit.
        reserved: Bytes of shared memory that the system takes per block.
    """

    backend: str
    number: int | str
    warp_size: int
    registers: int
    warps: int
    blocks: int
    shared: int
    reserved: int


ARCHS: dict[str, Arch] = {
    "sm_80": Arch("cuda", 80, 32, 65536, 64, 32, 164 << 10, 1 << 10),
    "sm_90": Arch("cuda", 90, 32, 65536, 64, 32, 228 << 10, 1 << 10),
    "sm_100": Arch("cuda", 100, 32, 65536, 64, 32, 228 << 10, 1 << 10),
    "gfx942": Arch("hip", "gfx942", 64, 4 * 512 * 64, 32, 32, 64 << 10, 0),
}


@dataclass(frozen=True)
class Report:
    """What the compiler says about a kernel. Nothing here was measured on a device.

    Arguments:
        entry: The kernel.
        arch: A key of `ARCHS`.
        registers: Per thread.
        spill_bytes: Stack bytes per thread; more than 0 in a kernel without local arrays is
            register spilling.
        shared_bytes: Shared memory per block, static and dynamic.
        num_warps: Per block.
        num_stages: Of the software pipeline.
        stages: Text of each stage by name: `ttir`, `ttgir`, `llir`, `ptx`, `sass` or `amdgcn`.
        blocks_per_unit: Estimate of the blocks that fit one SM (CU).
        seconds: What the compilation took; 0 when Triton's cache had it.
    """

    entry: str
    arch: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    num_warps: int
    num_stages: int
    stages: Mapping[str, str]
    blocks_per_unit: int
    seconds: float

    @property
    def occupancy(self) -> float:
        """Estimated share of the resident warps that a full launch would use."""
        return min(1.0, self.blocks_per_unit * self.num_warps / ARCHS[self.arch].warps)

    def __repr__(self) -> str:
        return (
            f"{self.entry} on {self.arch}: {self.registers} registers, "
            f"{self.spill_bytes} B spilled, {self.shared_bytes} B shared, "
            f"{self.num_warps} warps, {self.num_stages} stages, "
            f"{self.blocks_per_unit} blocks per unit ({self.occupancy:.0%}, estimate)"
        )


def compile_ahead(
    source: str,
    entry: str,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    arch: str = "sm_90",
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    divisible: Sequence[str] | None = None,
    in_process: bool = False,
    timeout: float = 300.0,
) -> Report:
    """Compile a kernel for an architecture that need not be here.

    Arguments:
        source: The module's text.
        entry: The kernel's name.
        signature: Type of every argument in Triton's spelling, `constexpr` for those.
        constexprs: Values of the constexprs.
        arch: A key of `ARCHS`.
        num_warps: Per block.
        num_stages: Of the software pipeline.
        divisible: Arguments that are multiples of 16; all pointers when None (torch aligns its
            allocations to 64 bytes or more; without the promise loads are not vectorised).
        in_process: Compile here rather than in a child process, which costs about a second:
            Triton's compiler crashes on some valid kernels, and takes the process with it.
        timeout: Seconds that the child may take.

    Raises:
        CompilerError: Triton is missing, the architecture is unknown, or Triton rejects it.
    """
    triton = require_triton()
    if arch not in ARCHS:
        raise CompilerError(f"unknown architecture {arch!r}; known are {', '.join(ARCHS)}")
    if not in_process:
        call = {
            "source": source,
            "entry": entry,
            "signature": dict(signature),
            "constexprs": dict(constexprs),
            "arch": arch,
            "num_warps": num_warps,
            "num_stages": num_stages,
            "divisible": None if divisible is None else list(divisible),
        }
        return _in_child("compile", entry, timeout, call)
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = ARCHS[arch]
    fn = _entry(source, entry)
    names = list(signature)
    promised = divisible
    if promised is None:
        promised = [n for n, t in signature.items() if t.startswith("*")]
    src = ASTSource(
        fn=fn,
        signature=dict(signature),
        constexprs=dict(constexprs),
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in promised},
    )
    # Fusion of a*b+c is spelled out: its default changes with Triton 3.10.
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    start = time.perf_counter()
    try:
        with _scoped_cache(triton):
            kernel = triton.compile(
                src,
                target=GPUTarget(target.backend, target.number, target.warp_size),
                options=options,
            )
            stages = {
                k: v for k, v in kernel.asm.items() if isinstance(v, str) and k != "source"
            }
    except Exception as error:
        raise CompilerError(
            f"Triton cannot compile {entry} for {arch}: {error}".rstrip(),
            where=fn.fn.__code__.co_filename,
        ) from error
    seconds = time.perf_counter() - start
    if target.backend == "cuda":
        registers, spills, stages["sass"] = _cubin(triton, kernel.asm["cubin"])
    else:
        text = stages["amdgcn"]
        registers = _number(r"\.vgpr_count:\s+(\d+)", text)
        spills = 4 * _number(r"\.vgpr_spill_count:\s+(\d+)", text)
    shared = int(kernel.metadata.shared)
    return Report(
        entry=entry,
        arch=arch,
        registers=registers,
        spill_bytes=spills,
        shared_bytes=shared,
        num_warps=int(kernel.metadata.num_warps),
        num_stages=int(kernel.metadata.num_stages),
        stages=stages,
        blocks_per_unit=_resident(target, registers, shared, int(kernel.metadata.num_warps)),
        seconds=seconds,
    )


@contextlib.contextmanager
def _scoped_cache(triton: Any) -> Iterator[None]:
    """Triton's cache below ours, when the user has set ours and not Triton's."""
    ours = os.environ.get("LUMINAL_CACHE")
    if not ours or "TRITON_CACHE_DIR" in os.environ:
        yield
        return
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = os.path.join(ours, "triton")
        yield


def _cubin(triton: Any, cubin: bytes) -> tuple[int, int, str]:
    """Registers per thread, stack (spill) bytes per thread, and SASS of a binary."""
    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        texts = []
        for option in ("-res-usage", "-sass"):
            command = [tool, option, file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CompilerError(
                    f"cuobjdump cannot read the cubin: {done.stderr.strip()[-500:]}", where=tool
                )
            texts.append(done.stdout)
    usage, sass = texts
    return _number(r"REG:(\d+)", usage), _number(r"STACK:(\d+)", usage), sass


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise CompilerError(f"the compiler's report lacks {pattern!r}: {text[:300]}")
    return int(found.group(1))


def _resident(target: Arch, registers: int, shared: int, warps: int) -> int:
    """Blocks that fit one unit at once: an estimate from the vendor's allocation rules."""
    per_warp = -(-registers * target.warp_size // 256) * 256
    limits = [
        target.registers // max(1, per_warp * warps),
        target.warps // warps,
        target.blocks,
    ]
    if shared + target.reserved > 0:
        limits.append(target.shared // (shared + target.reserved))
    return max(0, min(limits))
