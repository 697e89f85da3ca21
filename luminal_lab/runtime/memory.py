"""Blocks of memory for arenas and packed weights: aligned, zeroed, in huge pages if large."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

ALIGNMENT = 64
_HUGE = 2 << 20
MAPPED = 32 << 20  # bytes from which glibc maps every allocation anew


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the alignment of every buffer."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def in_huge_pages(address: int, nbytes: int) -> None:
    """Ask for huge pages for memory that the allocator has just mapped and nobody touched.

    The pages of a large result cost more than what is written there: 64 MiB are 16,384 faults,
    13.6 ms where 32 of them take 3.5 ms (measured). It is advice: nothing happens where the
    system has no huge pages, and nothing changes in memory that has its pages already.

    Arguments:
        address: Where the memory begins.
        nbytes: Its size; below `MAPPED` the allocator reuses what it has.
    """
    if _madvise is not None:
        start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        _madvise(start, (address + nbytes - start) & -mmap.PAGESIZE, mmap.MADV_HUGEPAGE)


def _find_madvise() -> Any:
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    found = ctypes.CDLL(None).madvise
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found


_madvise = _find_madvise()


class Block:
    """Anonymous memory of the process, freed with the last reference to it.

    Blocks of a huge page or more begin at a huge-page border and ask for huge pages (measured:
    a quarter more bandwidth for weights that stream).

    Arguments:
        nbytes: Size; 0 is allowed.
    """

    def __init__(self, nbytes: int):
        self.nbytes = nbytes
        huge = nbytes >= _HUGE
        self._map = mmap.mmap(-1, max(nbytes, 1) + (_HUGE if huge else 0))
        self._bytes = (ctypes.c_char * len(self._map)).from_buffer(self._map)
        start = ctypes.addressof(self._bytes)
        border = _HUGE if huge else ALIGNMENT
        self._skip = -start % border
        self.address = start + self._skip
        if huge:
            in_huge_pages(start, len(self._map))

    def tensor(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any):
        """A torch tensor over a part of the block; it keeps the block alive."""
        import torch

        if self.nbytes == 0 or 0 in shape:
            return torch.empty_strided(shape, strides, dtype=dtype)
        with torch.inference_mode(False):  # else code outside inference mode could not write it
            whole = torch.frombuffer(self._map, dtype=torch.uint8)
            part = whole[self._skip + offset :]
            extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            flat = part[: extent * dtype.itemsize].view(dtype)
            return flat.as_strided(shape, strides)
