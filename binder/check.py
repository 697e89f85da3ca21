"""Check what Binder will be given: do the files agree, and does each notebook fit?

    python binder/check.py                    # the files, then every notebook's peak memory
    python binder/check.py --files            # the files alone, at once
    python binder/check.py 02 11              # these notebooks only
    python binder/check.py --fresh            # in a new environment, built from the pins

Binder gives a session about 2 GB and no GPU; a notebook may take 1.5 GB, its child processes
included. The exit status is 1 when something does not hold. Nothing is written into the
checkout: notebooks run from memory.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "binder"
LIMIT = 1.5e9  # bytes
PACKAGE = "luminal_lab"
# Distributions whose name is not that of their module.
NAMES = {"IPython": "ipykernel"}
# Runs one notebook without writing it; its tree of processes is what is measured.
RUN = """
import sys, nbformat, nbclient
book = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(book, timeout=600, kernel_name="python3").execute()
"""


def project() -> dict:
    """`pyproject.toml`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))


def pins() -> dict[str, str]:
    """The tested version of each distribution, by normalised name."""
    lines = (ROOT / "constraints.txt").read_text("utf8").splitlines()
    found = (re.match(r"([\w.-]+)==([^\s;]+)", line) for line in lines)
    return {normal(m[1]): m[2] for m in found if m}


def normal(name: str) -> str:
    """A distribution's name, as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """The distribution that a requirement is about."""
    return normal(re.match(r"[\w.-]+", requirement)[0])  # type: ignore[index]


def extras() -> list[str]:
    """The extras that `postBuild` installs."""
    text = (HERE / "postBuild").read_text("utf8")
    found = re.search(r"-e '?\.\[([\w,]+)\]", text)
    return found[1].split(",") if found else []


def requirements(some: list[str]) -> set[str]:
    """The distributions that the package and some of its extras ask for."""
    about = project()["project"]
    asked = list(about["dependencies"])
    for extra in some:
        asked += about["optional-dependencies"].get(extra, [])
    return {name_of(r) for r in asked}


def imports(notebook: Path) -> set[str]:
    """The top-level modules that a notebook imports."""
    book = json.loads(notebook.read_text("utf8"))
    out: set[str] = set()
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or source.startswith("%%"):
            continue
        plain = "\n".join(
            "pass" if line.lstrip().startswith(("%", "!")) else line
            for line in source.splitlines()
        )
        for node in ast.walk(ast.parse(plain)):
            if isinstance(node, ast.Import):
                out |= {a.name.partition(".")[0] for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                out.add(node.module.partition(".")[0])
    return out


def notebooks() -> list[Path]:
    """All notebooks, in order."""
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def wrong_files() -> Iterator[str]:
    """What does not hold between the files, in words."""
    about, pinned = project()["project"], pins()
    environment = (HERE / "environment.yml").read_text("utf8")

    python = re.search(r"^\s*-\s*python=(\d+)\.(\d+)", environment, re.M)
    least = re.search(r">=\s*(\d+)\.(\d+)", about["requires-python"])
    if python is None or least is None:
        yield "environment.yml names no python, or pyproject.toml no least one"
    elif (int(python[1]), int(python[2])) < (int(least[1]), int(least[2])):
        have = f"{python[1]}.{python[2]}"
        yield f"environment.yml has python {have}, pyproject.toml asks for more"

    torch = re.search(r"^\s*-\s*pytorch-cpu=(\d+\.\d+)", environment, re.M)
    if torch is None:
        yield "environment.yml has no pytorch-cpu: the default build brings gigabytes of CUDA"
    elif not pinned["torch"].startswith(torch[1] + "."):
        yield f"environment.yml has torch {torch[1]}, constraints.txt {pinned['torch']}"
    if not re.search(r"^\s*-\s*pip\s*$", environment, re.M):
        yield "environment.yml has no pip, which postBuild calls"

    packages = set((HERE / "apt.txt").read_text("utf8").split())
    for package, why in (("gcc", "kernels are compiled"), ("libc6-dev", "and linked"),
                         ("graphviz", "graphs are drawn by dot")):  # fmt: skip
        if package not in packages:
            yield f"apt.txt lacks {package}: {why}"

    chosen = extras()
    for extra in chosen:
        if extra not in about["optional-dependencies"]:
            yield f"postBuild installs the extra {extra!r}, which pyproject.toml does not have"
    if "notebook" not in chosen:
        yield "postBuild does not install the extra 'notebook'"
    there = requirements(chosen)
    for name in sorted(there - set(pinned)):
        yield f"{name} has no tested version in constraints.txt"
    for book in notebooks():
        for module in sorted(imports(book) - set(sys.stdlib_module_names) - {PACKAGE}):
            if normal(NAMES.get(module, module)) not in there:
                yield f"{book.name} imports {module}, which no extra of postBuild brings"

    for script in ("postBuild", "start"):
        path = HERE / script
        if not os.access(path, os.X_OK):
            yield f"{script} is not executable"
        read = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
        if read.returncode:
            yield f"{script}: {read.stderr.strip()}"
    if not (HERE / "start").read_text("utf8").rstrip().endswith('exec "$@"'):
        yield 'start must end with exec "$@", which is the server that Binder starts'


def fresh(folder: Path) -> Path:
    """A new environment from the pins, with what `postBuild` installs; its Python."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
               "-c", str(ROOT / "constraints.txt")]  # fmt: skip
    more = os.environ.get("TORCH_PIP_ARGS", "").split()
    subprocess.run([*install, *more, f"torch=={pins()['torch']}"], check=True)
    subprocess.run([*install, "-e", f"{ROOT}[{','.join(extras())}]"], check=True)
    return python


def peak(python: Path, notebook: Path) -> tuple[float, float, str]:
    """Run a notebook: bytes of its processes at most, seconds, and its last error line."""
    import psutil

    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "w+") as log:
        surroundings = {
            **os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1",
            "LUMINAL_CACHE": str(Path(folder) / "cache"), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        started, most = time.monotonic(), 0.0
        child = subprocess.Popen(
            [str(python), "-c", RUN, str(notebook)], cwd=notebook.parent, env=surroundings,
            stdout=log, stderr=log,
        )  # fmt: skip
        tree = psutil.Process(child.pid)
        while child.poll() is None:
            total = 0
            try:
                for process in (tree, *tree.children(recursive=True)):
                    try:
                        info = process.memory_full_info()
                    except psutil.Error:
                        continue  # it has just ended
                    total += getattr(info, "pss", info.uss)  # shared pages count once
            except psutil.Error:
                pass
            most = max(most, float(total))
            time.sleep(0.2)
        seconds = time.monotonic() - started
        log.seek(0)
        lines = [line for line in log.read().splitlines() if line.strip()]
        return most, seconds, lines[-1] if child.returncode and lines else ""


def main() -> int:
    """Check, report, and say how it went."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="beginnings of notebooks' names; all if none")
    parser.add_argument("--files", action="store_true", help="check the files alone")
    parser.add_argument("--fresh", action="store_true", help="build a new environment first")
    given = parser.parse_args()

    failed = list(wrong_files())
    for line in failed:
        print(f"wrong: {line}")
    print(f"files: {'ok' if not failed else f'{len(failed)} wrong'}", flush=True)
    if given.files:
        return bool(failed)
    with tempfile.TemporaryDirectory(prefix="luminal-binder-") as folder:
        python = fresh(Path(folder) / "venv") if given.fresh else Path(sys.executable)
        for book in notebooks():
            if given.names and not book.name.startswith(tuple(given.names)):
                continue
            most, seconds, error = peak(python, book)
            fits = most <= LIMIT and not error
            said = error or ("" if fits else "too large")
            print(f"{book.stem:32} {most / 1e6:7.0f} MB {seconds:6.0f} s  {said}", flush=True)
            if not fits:
                failed.append(book.name)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
