"""No kernel touches memory outside its buffers, and no name in its text hides another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from luminal_lab.egraph.values import Buffer
from luminal_lab.hlir.dtypes import F32
from tests.codegen import kernels as K
from tests.codegen.test_c_kernels import verified


def test_nothing_outside_a_buffer_is_touched():
    child = subprocess.run(
        [sys.executable, "-m", "tests.codegen.guarded"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=Path(__file__).parents[2],
    )
    lines = child.stdout.splitlines()
    assert lines, child.stderr[-2000:]
    assert child.returncode == 0, f"{lines[-1]}: {child.returncode}\n{child.stderr[-2000:]}"
    assert lines[-1] == "all right"


def test_names_of_buffers_and_axes_may_be_anything():
    """A loop's variable once hid the pointer of a buffer with the same name."""
    pairs = [("i", "j"), ("b", "v1"), ("return", "ctx"), ("r1_0", "i_end"), ("last0", "vf")]
    for name, axis in pairs:
        x = K.load(name, "i", axis)
        value = K.mul(x, K.red("add", axis, x))
        shape = (5, 37)
        buffers = [Buffer(name, shape, F32), Buffer(axis, shape, F32)]
        extents = {"i": 5, axis: 37}
        verified(K.kernel([(axis, ("i", axis), value)], extents, buffers))
