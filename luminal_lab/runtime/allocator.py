"""The allocator's settings, for everything that is timed."""

from __future__ import annotations

import ctypes
import sys


def warm_allocator() -> bool:
    """Let freed memory stay with the process, for everybody who is timed.

    By default glibc maps each large tensor anew and returns it when it is freed: a fresh 64 MB
    output costs 16,000 page faults in every call, which is more than most kernels. This sets
    `M_MMAP_MAX=0` and `M_TRIM_THRESHOLD=2 GiB` for the rest of the process (as a server that
    reuses its buffers would see it); the environment variables `MALLOC_MMAP_MAX_=0` and
    `MALLOC_TRIM_THRESHOLD_=2147483647` do the same.

    Returns:
        Whether the allocator takes such settings (glibc does).
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    m_trim_threshold, m_mmap_max = -1, -4
    return bool(mallopt(m_mmap_max, 0) and mallopt(m_trim_threshold, 2**31 - 1))
