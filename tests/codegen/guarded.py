"""Run kernels whose buffers end, or begin, at a page that may not be touched.

    python -m tests.codegen.guarded

Each kernel's name is printed before it runs: when the process dies, the last one did it.
"""

from __future__ import annotations

import ctypes
import mmap

import torch

from luminal_lab.egraph.values import Buffer, Kernel
from luminal_lab.hlir.dtypes import F32, I64
from tests.codegen import kernels as K
from tests.codegen.harness import Compiled, check, random_inputs

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(nbytes: int, at_end: bool) -> int:
    """The address of `nbytes` between two forbidden pages, flush with one of them."""
    whole = -(-max(nbytes, 1) // PAGE) * PAGE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = _LIBC.mmap(None, whole + 2 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    for page in (base, base + PAGE + whole):
        assert _LIBC.mprotect(page, PAGE, 0) == 0
    return base + PAGE + (whole - nbytes if at_end else 0)


def shifted(n: int, vocabulary: int, d: int, by: int) -> Kernel:
    """Rows chosen by data and moved by some columns; 0 where nothing is read."""
    ids = K.load("ids", "i", dtype=I64)
    at = K.A("j") + by
    row = K.load("table", K.A("@0"), at, args=(ids,))
    inside = K.select(K.less(K.iota(at), K.const(d, I64)), row, K.const(0.0))
    v = K.select(K.less(K.iota(at), K.const(0, I64)), K.const(0.0), inside)
    buffers = [
        Buffer("ids", (n,), I64),
        Buffer("table", (vocabulary, d), F32),
        Buffer("y", (n, d + 3), F32),
    ]
    return K.kernel([("y", ("i", "j"), v)], {"i": n, "j": d + 3}, buffers)


def every_second(m: int, n: int, padded: bool) -> Kernel:
    """Every second element of rows, from one before them where there is padding."""
    at = K.A("j") * 2 - padded
    x = K.load("x", "i", at)
    if padded:
        x = K.select(K.less(K.iota(at), K.const(0, I64)), K.const(0.0), x)
    buffers = [Buffer("x", (m, 2 * n - 1 - padded), F32), Buffer("y", (m, n), F32)]
    return K.kernel([("y", ("i", "j"), K.add(x, x))], {"i": m, "j": n}, buffers)


KERNELS = {
    "every second element": lambda: every_second(3, 40, False),
    "every second element, padded": lambda: every_second(3, 40, True),
    "convolution with a large window": lambda: K.conv(1, 2, 3, 5, 20, pad=3, k=7),
    "convolution": lambda: K.conv(2, 3, 12, 8, 9),
    "convolution without padding": lambda: K.conv(1, 4, 7, 20, 17, pad=0),
    "convolution with wide padding": lambda: K.conv(1, 2, 7, 3, 40, pad=2, k=5),
    "embedding": lambda: K.embedding(37, 11, 100),
    "narrow embedding": lambda: K.embedding(5, 2, 3),
    "columns moved left": lambda: shifted(7, 5, 37, -2),
    "columns moved right": lambda: shifted(7, 5, 37, 2),
    "softmax": lambda: K.softmax(5, 37),
    "layernorm": lambda: K.layernorm(3, 100),
    "column sums": lambda: K.reduce_columns(37, 53),
    "linear": lambda: K.linear(37, 65, 100, residual=True),
    "linear, columns first": lambda: K.linear(5, 33, 50, constant=False, rows_first=False),
    "causal attention": lambda: K.attention(1, 2, 37, 37, 16, causal="select"),
    "attention with a window": lambda: K.attention(1, 2, 70, 70, 16, causal="select", window=5),
    "attention with a mask": lambda: K.attention(2, 3, 5, 37, 40, mask=True, layout="bshd"),
}


def run(name: str, at_end: bool) -> None:
    """One kernel with all of its buffers at a forbidden page."""
    kernel = KERNELS[name]()
    compiled, inputs = Compiled(kernel), random_inputs(kernel)
    compiled(inputs)  # fills the packs
    buffers = {}
    for k, parameter in enumerate(compiled.source.params):
        memory, at, nbytes = compiled.memories[parameter]
        buffers[parameter] = guarded(nbytes, at_end)
        ctypes.memmove(buffers[parameter], at, nbytes)
        compiled.table[k] = buffers[parameter]
        memory[at - memory.data_ptr() :][:nbytes].fill_(0x5A)
    compiled.library.kernel(compiled.table, ctypes.c_long(compiled.threads))
    got = {}
    for o in kernel.outputs:
        memory, at, nbytes = compiled.memories[o.buffer]
        ctypes.memmove(at, buffers[o.buffer], nbytes)
        b = kernel.buffers[o.buffer]
        start = at - memory.data_ptr()
        flat = memory[start : start + nbytes].clone().view(torch.float32)
        got[o.buffer] = flat.reshape(b.shape)
    check(kernel, inputs, got)


if __name__ == "__main__":
    for name in KERNELS:
        for at_end in (True, False):
            print(name, "at the end of a page" if at_end else "at a page's start", flush=True)
            run(name, at_end)
    print("all right", flush=True)
