"""What Binder is given agrees with the package; `binder/check.py` also measures memory."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("binder_check", ROOT / "binder" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_agree(check: ModuleType) -> None:
    assert list(check.wrong_files()) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("environment.yml", "python=3.11", "python=3.9", "pyproject.toml asks for more"),
        ("environment.yml", "pytorch-cpu=2.13", "pytorch-cpu=2.12", "constraints.txt 2.13"),
        ("environment.yml", "pytorch-cpu", "pytorch", "no pytorch-cpu"),
        ("environment.yml", "  - pip\n", "", "no pip"),
        ("apt.txt", "graphviz", "", "lacks graphviz"),
        ("postBuild", "models", "modles", "does not have"),
        ("postBuild", ",distributed", "", "imports distributed"),
        ("postBuild", "set -euo pipefail", "if then", "postBuild: "),
        ("start", 'exec "$@"', "true", "start must end"),
    ],
)
def test_what_does_not_agree_is_told(
    check: ModuleType, tmp_path: Path, file: str, old: str, new: str, said: str
) -> None:
    folder = tmp_path / "binder"
    shutil.copytree(ROOT / "binder", folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    check.HERE = folder
    assert any(said in line for line in check.wrong_files())


def test_the_memory_of_all_processes_counts(check: ModuleType, tmp_path: Path) -> None:
    import sys

    import nbformat

    book = nbformat.v4.new_notebook()
    hold = "import subprocess, sys; x = bytearray(150_000_000)\n"
    more = "'import time; x = bytearray(150_000_000); time.sleep(3)'"
    book.cells = [
        nbformat.v4.new_code_cell(f"{hold}subprocess.run([sys.executable, '-c', {more}])")
    ]
    path = tmp_path / "large.ipynb"
    nbformat.write(book, path)
    most, _, error = check.peak(Path(sys.executable), path)
    assert error == ""
    assert 300e6 < most < 600e6
    book.cells = [nbformat.v4.new_code_cell("1 / 0")]
    nbformat.write(book, path)
    assert "ZeroDivisionError" in check.peak(Path(sys.executable), path)[2]
