"""What every test stands on: no network, a cache of its own, the same numbers on every run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

# Set before anything imports torch, transformers or luminal_lab.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
# Two workers share the machine: threads that spin while they wait would starve each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# What wins by cost is the same on every machine: rates are given, not measured.
os.environ["LUMINAL_MACHINE"] = str(Path(__file__).with_name("machine.json"))

import hypothesis
import pytest
import torch

# A shell starts background jobs with Ctrl-C ignored, and their children inherit that: the tests
# that send it would wait for ever.
in_main = threading.current_thread() is threading.main_thread()
if in_main and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples are derived from the test itself, so a failure repeats; no deadline, since a slow
# machine is not a wrong result. `fuzz` looks further: HYPOTHESIS_PROFILE=fuzz make test-slow
hypothesis.settings.register_profile(
    "suite",
    derandomize=True,
    deadline=None,
    max_examples=25,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

_CACHE = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config: pytest.Config) -> None:
    """Give this run a cache of its own: the user's is neither read nor written.

    The workers of one run, and the kernels of its notebooks, share it.
    """
    if not hasattr(config, "workerinput"):
        # A process that was not waited for may write while it is removed.
        config.stash[_CACHE] = tempfile.TemporaryDirectory(
            prefix="luminal-tests-", ignore_cleanup_errors=True
        )
        os.environ["LUMINAL_CACHE"] = config.stash[_CACHE].name


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's cache."""
    if _CACHE in config.stash:
        config.stash[_CACHE].cleanup()


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for one test."""
    path = tmp_path / "cache"
    monkeypatch.setenv("LUMINAL_CACHE", str(path))
    return path


@pytest.fixture
def measured_rates(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for one test, in which the machine's own rates are measured."""
    monkeypatch.delenv("LUMINAL_MACHINE")
    return fresh_cache


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Inputs made with the global generators are the same in any order of tests."""
    random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> Iterator[None]:
    """Those of a whole module or session too, and the test that comes first makes the same."""
    if fixturedef.scope == "function":
        return (yield)
    before = random.getstate(), torch.get_rng_state()
    random.seed(0)
    torch.manual_seed(0)
    try:
        return (yield)
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])


@pytest.fixture(scope="session")
def c_compiler() -> str:
    """The name of a C compiler, for a test that needs one to be there."""
    for name in (os.environ.get("LUMINAL_CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    pytest.skip("no C compiler on this machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a device that is not here, and say so."""
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA or Metal device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
