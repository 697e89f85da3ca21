"""Jobs that compile quickly, and what a worker does to one that is poisoned."""

from __future__ import annotations

import os
import time

import torch

from luminal_lab.runtime import remote
from luminal_lab.search.canonical import canonical
from luminal_lab.search.inputs import Recipe
from luminal_lab.search.target import Expected, Job, Tolerance
from tests.runtime.programs import kernel

POISON = 61  # rows of the kernel that kills whoever prepares it
SLOW = 67  # rows of the kernel that takes an hour to prepare
_prepare = remote.prepare


def job(rows: int, wrong: bool = False) -> Job:
    """The product of two tensors, one of which travels as a recipe."""
    shape = (rows, 5)
    made = canonical(kernel("mul", 2, shape))[0]
    recipe = Recipe(shape, "f32", seed=rows)
    a, b = recipe.make(), torch.randn(shape)
    want = (a.double() * b.double()).reshape(-1) + wrong
    expected = {"b2": Expected(None, want, Tolerance(1e-6, 1e-5))}
    return Job(made, None, {"b0": a, "b1": b}, expected, recipes={"b0": recipe})


def spoiled_batch(batch: remote.Batch) -> remote.Report:
    """`measure_batch`, in a process that some kernels kill or stop."""
    remote.prepare = _spoiled
    try:
        return remote.measure_batch(batch)
    finally:
        remote.prepare = _prepare


def _spoiled(order):
    if f"[{POISON}, 5]" in order.kernel:
        os._exit(1)
    if f"[{SLOW}, 5]" in order.kernel:
        time.sleep(3600)
    return _prepare(order)
