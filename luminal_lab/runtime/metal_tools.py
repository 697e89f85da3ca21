"""Metal source text without a Mac: check it, compile it as C++, run it on the CPU.

`lint` looks for what a Metal compiler would reject. `compile_shim` compiles the text against a
small stand-in for Metal's library: each thread of a threadgroup is a fiber. Its `run` also
finds barriers that not all threads reach, accesses out of bounds, and (by running the threads
in two orders) barriers that are missing.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from luminal_lab.errors import CallError, CompilerError, VerificationError
from luminal_lab.runtime.cache import FileCache, digest
from luminal_lab.runtime.metal_source import (
    THREADGROUP_THREADS,
    KernelSignature,
    Parameter,
    problems,
    shared_arrays,
    signatures,
)

_SHIM = Path(__file__).with_name("metal_shim")
# Contraction would make the CPU's result differ from the text's; see the notes in the shim.
_FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fno-math-errno", "-w")
Order = Literal["forward", "reverse", "both"]


# ----------------------------------------------------------------------------------- compilers
def find_cxx() -> list[str]:
    """The C++ compiler for the shim: `$LUMINAL_CXX`, c++, g++, clang++, or zig's.

    Raises:
        CompilerError: there is none.
    """
    if named := os.environ.get("LUMINAL_CXX"):
        return named.split()
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    if zig := _zig():
        return zig
    raise CompilerError(
        "no C++ compiler was found, so Metal kernels can be printed but not run here",
        fix="install g++ or clang++, or pip install 'luminal-lab[cc]'",
    )


def find_clang() -> list[str] | None:
    """A clang of version 15 or later (it knows 16-bit floats), or None."""
    for name in (os.environ.get("LUMINAL_CLANGXX"), "clang++"):
        path = shutil.which(name) if name else None
        if path is None:
            continue
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"clang version (\d+)", text.stdout)
        if version and int(version.group(1)) >= 15:
            return [path]
    return _zig()


def _zig() -> list[str] | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    return [sys.executable, "-m", "ziglang", "c++"]


def _compile(command: Sequence[str], text: str, what: str) -> None:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        message = "\n".join(done.stderr.strip().splitlines()[:40])
        raise CompilerError(f"{what}\n{message}", where=_first_line(message))


def _first_line(message: str) -> str | None:
    found = re.search(r"kernel\.metal:\d+(?::\d+)?", message)
    return found.group() if found else None


# ---------------------------------------------------------------------------------------- lint
def lint(source: str, *, address_spaces: bool | None = None) -> None:
    """Check a Metal text as far as a machine without Metal's compiler can.

    Arguments:
        source: The text.
        address_spaces: Whether to type-check address spaces, which needs clang 15 or later;
            None does so when there is one.

    Raises:
        CompilerError: the text has a problem, or clang is asked for and missing.
    """
    found = problems(source)
    if found:
        raise CompilerError(
            "the Metal source is not valid:\n" + "\n".join(found), where=found[0]
        )
    clang = find_clang() if address_spaces in (None, True) else None
    if address_spaces and clang is None:
        raise CompilerError(
            "checking address spaces needs clang 15 or later",
            fix="pip install 'luminal-lab[cc]', or set LUMINAL_CLANGXX",
        )
    if clang is None:
        return
    text = shared_arrays(source, "static ", "")
    with tempfile.TemporaryDirectory(prefix="luminal-metal-") as folder:
        path = os.path.join(folder, "kernel.cpp")
        Path(path).write_text(f'#line 1 "kernel.metal"\n{text}\n')
        command = [*clang, "-x", "c++", "-std=c++17", "-O0", "-w", "-DMSL_LINT", "-c"]
        command += [f"-I{_SHIM}", path, "-o", os.path.join(folder, "kernel.o")]
        _compile(command, "", "the Metal source does not type-check:")


# ---------------------------------------------------------------------------------------- shim
@dataclass(frozen=True)
class ShimLibrary:
    """A Metal file, compiled for the CPU.

    Arguments:
        source: The Metal text.
        kernels: Its kernels by name.
        program: The executable.
    """

    source: str
    kernels: Mapping[str, KernelSignature]
    program: Path

    def run(
        self,
        entry: str,
        args: Sequence[Any],
        groups: Sequence[int],
        group_size: Sequence[int],
        *,
        order: Order = "both",
        timeout: float = 120.0,
    ) -> None:
        """Run a kernel on CPU tensors, which are updated in place.

        Arguments:
            entry: The kernel's name.
            args: One per buffer slot: a CPU tensor, or a number for a `constant T&`.
            groups: Threadgroups in the grid, up to three extents.
            group_size: Threads in a threadgroup, up to three extents.
            order: In which order the threads of a group run between barriers; `both` runs twice
                and compares the results bit by bit.
            timeout: Seconds per run.

        Raises:
            CallError: the arguments do not fit the kernel.
            CompilerError: the kernel diverges, leaves its buffers, or does not end.
            VerificationError: the result depends on the order of threads.
        """
        if entry not in self.kernels:
            known = ", ".join(self.kernels)
            raise CallError(f"the Metal source has no kernel {entry!r}; it has {known}")
        parameters = self.kernels[entry].buffers
        if len(args) != len(parameters):
            names = ", ".join(p.name for p in parameters)
            raise CallError(
                f"{entry} takes {len(parameters)} buffers ({names}), not {len(args)}"
            )
        grid = [*groups, 1, 1, 1][:3] + [*group_size, 1, 1, 1][:3]
        threads = grid[3] * grid[4] * grid[5]
        if threads > THREADGROUP_THREADS:
            raise CallError(
                f"{threads} threads in a threadgroup; at most {THREADGROUP_THREADS}"
            )
        blobs = [_to_bytes(p, a) for p, a in zip(parameters, args, strict=True)]
        results = [
            self._once(entry, blobs, grid, reverse, timeout)
            for reverse in {"forward": (0,), "reverse": (1,), "both": (0, 1)}[order]
        ]
        if len(results) == 2:
            for parameter, a, b in zip(parameters, *results, strict=True):
                if a != b:
                    raise VerificationError(
                        f"{entry} writes other values to {parameter.name!r} when its threads "
                        "run in another order: a barrier is missing, or two threads write one "
                        "element",
                        where="Metal shim",
                    )
        for arg, blob in zip(args, results[0], strict=True):
            _from_bytes(arg, blob)

    def _once(
        self, entry: str, blobs: list[bytes], grid: list[int], reverse: int, timeout: float
    ) -> list[bytes]:
        with tempfile.TemporaryDirectory(prefix="luminal-metal-") as folder:
            path = os.path.join(folder, "buffers")
            with open(path, "wb") as file:
                file.write(struct.pack("<q", len(blobs)))
                for blob in blobs:
                    file.write(struct.pack("<q", len(blob)) + blob)
            command = [str(self.program), entry, *map(str, grid), str(reverse), path]
            try:
                done = subprocess.run(
                    command, capture_output=True, timeout=timeout, check=False
                )
            except subprocess.TimeoutExpired:
                raise CompilerError(
                    f"{entry} ran for more than {timeout:g} s in the Metal shim and was stopped"
                ) from None
            if done.returncode != 0:
                text = done.stderr.decode(errors="replace").strip()
                raise CompilerError(
                    f"{entry} failed in the Metal shim: {text or f'exit {done.returncode}'}",
                    where="Metal shim",
                )
            out = []
            with open(path, "rb") as file:
                file.seek(8)
                for blob in blobs:
                    file.seek(8, 1)
                    out.append(file.read(len(blob)))
            return out


def compile_shim(source: str) -> ShimLibrary:
    """Compile a Metal text for the CPU, once per text.

    Raises:
        CompilerError: there is no C++ compiler, or it rejects the text (`kernel.metal:LINE`).
    """
    kernels = signatures(source)
    if not kernels:
        raise CompilerError("the Metal source has no kernel")
    cxx = find_cxx()
    cache = FileCache("metal")
    headers = "".join(p.read_text() for p in sorted(_SHIM.iterdir()) if p.is_file())
    body = shared_arrays(
        source, "static ", " msl_threadgroup({name}, sizeof {name}, __LINE__);"
    )
    text = f'#line 1 "kernel.metal"\n{body}\n#line 1 "launchers"\n{_launchers(kernels)}'
    key = digest(text, headers, *cxx, *_FLAGS)
    program = cache.get(key, "")
    if program is None:
        with tempfile.TemporaryDirectory(prefix="luminal-metal-") as folder:
            out = os.path.join(folder, "program")
            runner = _runner(cxx, headers, folder)
            command = [*cxx, *_FLAGS, f"-I{_SHIM}", "-x", "c++", "-", "-x", "none"]
            command += [str(runner), "-lm", "-o", out]
            _compile(command, text, "the Metal source does not compile as C++:")
            program = cache.put(key, "", Path(out).read_bytes())
    program.chmod(0o755)
    return ShimLibrary(source, kernels, program)


def _runner(cxx: Sequence[str], headers: str, folder: str) -> Path:
    cache, key = FileCache("metal"), digest("runner", headers, *cxx, *_FLAGS)
    found = cache.get(key, ".o")
    if found is None:
        out = os.path.join(folder, "runner.o")
        command = [*cxx, *_FLAGS, "-c", str(_SHIM / "runner.cpp"), "-o", out]
        _compile(command, "", "the Metal shim does not compile:")
        found = cache.put(key, ".o", Path(out).read_bytes())
    return found


_POSITIONS = {
    "threadgroup_position_in_grid": "group",
    "threadgroups_per_grid": "groups",
    "thread_position_in_threadgroup": "local",
    "threads_per_threadgroup": "size",
}
_NUMBERS = {
    "thread_index_in_threadgroup": "p->index",
    "thread_index_in_simdgroup": "p->lane",
    "simdgroup_index_in_threadgroup": "p->simdgroup",
    "threads_per_simdgroup": "32",
    "simdgroups_per_threadgroup": "(p->size.x * p->size.y * p->size.z + 31) / 32",
}


def _position(parameter: Parameter) -> str:
    attribute, type_ = parameter.attribute, parameter.type
    if attribute in _NUMBERS:
        return f"({type_})({_NUMBERS[attribute]})"
    dims = "xyz"[: {"uint": 1, "uint2": 2, "uint3": 3}.get(type_, 0)]
    if not dims:
        raise CompilerError(
            f"[[{attribute}]] of type {type_} is not supported by the Metal shim"
        )
    if attribute in _POSITIONS:
        parts = [f"p->{_POSITIONS[attribute]}.{d}" for d in dims]
    elif attribute == "thread_position_in_grid":
        parts = [f"p->group.{d} * p->size.{d} + p->local.{d}" for d in dims]
    elif attribute == "threads_per_grid":
        parts = [f"p->groups.{d} * p->size.{d}" for d in dims]
    else:
        raise CompilerError(f"the attribute [[{attribute}]] is not supported by the Metal shim")
    return parts[0] if len(parts) == 1 else f"{type_}{{{', '.join(parts)}}}"


def _launchers(kernels: Mapping[str, KernelSignature]) -> str:
    """C++ that calls each kernel for one thread, and the table of entries."""
    out = ["using namespace metal;"]
    for name, signature in kernels.items():
        slots = {p.slot: k for k, p in enumerate(signature.buffers)}
        args = []
        for p in signature.parameters:
            if p.slot is None:
                args.append(_position(p))
            else:
                pointer = f"({p.type} *)b[{slots[p.slot]}]"
                args.append(f"*{pointer}" if p.reference else pointer)
        out.append(
            f"static void msl_call_{name}(char *const *b, const msl_position *p) "
            f"{{ {name}({', '.join(args)}); }}"
        )
    rows = "".join(f'{{"{name}", msl_call_{name}}}, ' for name in kernels)
    out.append(f'extern "C" const msl_entry msl_entries[] = {{{rows}{{nullptr, nullptr}}}};\n')
    return "\n".join(out)


# ------------------------------------------------------------------------------------- buffers
_FORMATS = {
    "bool": "?", "char": "b", "uchar": "B", "short": "h", "ushort": "H", "int": "i",
    "uint": "I", "float": "f", "long": "q", "ulong": "Q",
}  # fmt: skip


def _flat(tensor: Any) -> Any:
    """The memory from a tensor's first to its last element, as one dimension."""
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((reach if tensor.numel() else 0,), (1,))


def _to_bytes(parameter: Parameter, arg: Any) -> bytes:
    import torch

    if parameter.reference != (not isinstance(arg, torch.Tensor)):
        want = "a number" if parameter.reference else "a tensor"
        raise CallError(f"the Metal parameter {parameter.name!r} takes {want}, not {arg!r}")
    if parameter.reference:
        return struct.pack("<" + _FORMATS[parameter.type], arg)
    return _flat(arg).view(torch.uint8).numpy().tobytes()


def _from_bytes(arg: Any, blob: bytes) -> None:
    import torch

    if isinstance(arg, torch.Tensor) and blob:
        flat = _flat(arg)
        flat.copy_(torch.frombuffer(bytearray(blob), dtype=torch.uint8).view(arg.dtype))
