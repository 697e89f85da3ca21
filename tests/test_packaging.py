"""The package as others receive it: what the wheel holds, what the engine needs to import."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from luminal_lab import resources
from luminal_lab.errors import LuminalError

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ("hlir", "tensor", "capture", "egraph", "search", "codegen", "runtime")

# Refuses what only a notebook has, then imports the modules named on the command line.
_WITHOUT_JUPYTER = """
import importlib, sys

class Refuse:
    names = {"IPython", "ipywidgets", "anywidget", "ipykernel", "jupyterlab", "notebook"}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ImportError(f"refused by the test: {name}")

sys.meta_path.insert(0, Refuse())
for name in sys.argv[1:]:
    importlib.import_module(name)
drawing = [m for m in sys.modules if m.startswith(("luminal_lab.views", "luminal_lab.widgets"))]
if sys.argv[1] != "luminal_lab" and drawing:
    sys.exit(f"importing {sys.argv[1:]} pulled in {drawing}")
"""


def _files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix()
        for path in found
        if "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    (wheel,) = out.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("folder", ["rules", "kernels"])
def test_wheel_ships_data_folder(wheel_names: set[str], folder: str) -> None:
    if not (ROOT / folder).is_dir():
        pytest.skip(f"{folder}/ does not exist yet")
    expected = {f"luminal_lab/_{folder}/{name}" for name in _files(ROOT / folder)}
    assert expected
    assert expected <= wheel_names


def test_wheel_holds_the_package_and_nothing_else(wheel_names: set[str]) -> None:
    package = {f"luminal_lab/{name}" for name in _files(ROOT / "luminal_lab")}
    assert package <= wheel_names
    top = {name.split("/")[0] for name in wheel_names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"luminal_lab"}


def test_wheel_ships_the_licences(wheel_names: set[str]) -> None:
    names = {Path(name).name for name in wheel_names if "/licenses/" in name}
    assert names == {"LICENSE", "LICENSE-MIT", "LICENSE-APACHE"}


def test_resources_prefer_the_packaged_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "luminal_lab"
    (package / "_rules").mkdir(parents=True)
    (tmp_path / "rules").mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resources.rules_dir() == package / "_rules"


def test_resources_fall_back_to_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels").mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "luminal_lab")
    assert resources.kernels_dir() == tmp_path / "kernels"


def test_resources_that_are_missing_say_where_they_were_sought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "luminal_lab")
    with pytest.raises(LuminalError, match="_rules"):
        resources.rules_dir()


@pytest.mark.parametrize("stage", ENGINE)
def test_engine_imports_without_jupyter(stage: str) -> None:
    if importlib.util.find_spec(f"luminal_lab.{stage}") is None:
        pytest.skip(f"luminal_lab.{stage} does not exist yet")
    _import_without_jupyter(f"luminal_lab.{stage}")


def test_top_level_imports_without_jupyter() -> None:
    _import_without_jupyter("luminal_lab")


def _import_without_jupyter(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_JUPYTER, module],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_package_folder_is_a_package() -> None:
    """import-linter and pytest overlook a folder without `__init__.py`, without a word."""
    package = ROOT / "luminal_lab"
    if not (package / "__init__.py").exists():
        pytest.skip("luminal_lab is not a package yet")
    holding_code = {path.parent for path in package.rglob("*.py")}
    assert [str(p) for p in sorted(holding_code) if not (p / "__init__.py").exists()] == []


def test_arrows_between_stages_point_one_way() -> None:
    if not (ROOT / "luminal_lab" / "__init__.py").exists():
        pytest.skip("luminal_lab is not a package yet")
    code = "from importlinter.cli import lint_imports_command as run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pins_satisfy_the_declared_dependencies() -> None:
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    active = {pin.name.lower(): pin for pin in pins if not pin.marker or pin.marker.evaluate()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # ziglang is a way out for machines without a compiler; the tests do not install it.
    wanted = project["dependencies"] + [
        line for extra, lines in extras.items() if extra != "cc" for line in lines
    ]
    for line in wanted:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate():
            continue
        pin = active.get(requirement.name.lower())
        assert pin is not None, f"constraints.txt has no pin for {requirement.name}"
        (spec,) = pin.specifier
        assert requirement.specifier.contains(spec.version), f"{pin} is outside {requirement}"


def test_every_named_rule_states_its_law_and_its_class() -> None:
    if not (ROOT / "rules").is_dir():
        pytest.skip("rules/ does not exist yet")
    spec = importlib.util.spec_from_file_location("gen_rules", ROOT / "docs" / "gen_rules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gen_rules"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    named = [rule for rule in module.read_rules(ROOT / "rules") if rule.name]
    assert len({rule.name for rule in named}) == len(named)
    unclear = [
        f"{rule.file}:{rule.line} {rule.name}"
        for rule in named
        if not rule.law or rule.tolerance not in module.CLASSES
    ]
    assert unclear == []
