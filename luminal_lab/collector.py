"""Python's cyclic garbage collector, switched off where it only costs time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """For code that makes many small objects and no cycles: collecting takes a third of it.

    Each collection visits every object of the process, which holds PyTorch and the user's own.
    What was made is put beside the objects that are old already: the next collection of young
    ones would visit all of it.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # nobody else's objects are thawed
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        gc.enable()
