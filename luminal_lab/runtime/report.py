"""What this machine offers to the compiler, as text: for bug reports and the first look."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from luminal_lab.errors import LuminalError
from luminal_lab.runtime.cache import cache_root
from luminal_lab.runtime.calibration import calibration, thread_count
from luminal_lab.runtime.compiler import cpu, discover
from luminal_lab.runtime.native import loaded_openmp

_PACKAGES = ("luminal-lab", "torch", "egglog", "triton", "jupyterlab")


def doctor() -> str:
    """One line each: versions, processor, compiler, thread pool, cache, measured rates.

    What is missing is said with the way out; nothing raises.
    """
    rows = [("Python", f"{platform.python_version()} on {platform.platform()}")]
    rows += [(name, _version(name)) for name in _PACKAGES]
    rows += [
        ("processor", f"{cpu().model}, vectors of {cpu().vector_bytes} bytes"),
        ("threads", str(thread_count())),
    ]
    try:
        compiler = discover()
        rows.append(("C compiler", f"{' '.join(compiler.command)}: {compiler.version}"))
        made = calibration()
        machine = made.machine
        rows += [
            ("OpenMP", ", ".join(loaded_openmp()) or "none loaded"),
            ("memory", f"{machine.bandwidth / 1e9:.0f} GB/s"),
            ("products", f"{machine.dot_flops / 1e9:.0f} GFLOP/s (float32)"),
            ("launch", f"{machine.launch * 1e6:.2f} µs"),
            ("calibration", str(made.quality)),
        ]
        if not made.quality.good:
            rows.append(("", "`luminal-lab calibrate` measures again; do it when idle"))
    except LuminalError as error:
        rows.append(("C compiler", str(error)))
    rows.append(("cache", str(cache_root())))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
