"""Compile a kernel, run it between canaries, and compare it with float64."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import torch

from luminal_lab import codegen
from luminal_lab.egraph.evaluate import evaluate
from luminal_lab.egraph.values import Kernel, postorder
from luminal_lab.hlir.apply import torch_dtype
from luminal_lab.hlir.dtypes import DType
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.native import native
from luminal_lab.search.execute import run_kernel
from luminal_lab.search.machine import Machine

MACHINE = Machine(
    vector_bytes=cc.cpu().vector_bytes, registers=32 if cc.cpu().vector_bytes == 64 else 16
)
GUARD = 4096


class Compiled:
    """A kernel in memory."""

    def __init__(self, kernel: Kernel, schedule=None, machine: Machine = MACHINE):
        native()
        self.kernel = kernel
        self.program = codegen.lower(kernel, schedule, machine)
        codegen.verify(self.program)
        self.source = codegen.render(self.program, "c", "kernel", machine.threads)
        text = codegen.prelude(machine) + self.source.text
        path = cc.shared_library([cc.Unit("kernel", text)])
        self.library = cc.load(path)
        self.threads = machine.threads

    def arena(self, nbytes: int) -> torch.Tensor:
        return torch.full((nbytes + 2 * GUARD + 64,), 0x5A, dtype=torch.uint8)

    def pointer(self, memory: torch.Tensor) -> int:
        base = memory.data_ptr() + GUARD
        return -(-base // 64) * 64

    def prepare(self, inputs: Mapping[str, torch.Tensor]):
        kernel, source = self.kernel, self.source
        self.memories: dict[str, tuple[torch.Tensor, int, int]] = {}
        pointers = []
        for k, name in enumerate(source.params):
            b = kernel.buffers[name]
            strides = b.element_strides
            n = 1 + sum((d - 1) * s for d, s in zip(b.shape, strides)) if b.numel else 0
            memory = self.arena(n * b.dtype.bytes)
            at = self.pointer(memory)
            self.memories[name] = (memory, at, n * b.dtype.bytes)
            if name in inputs:
                flat = view(memory, at, b.dtype, (n,), (1,))
                if b.numel:
                    flat.as_strided(b.shape, strides).copy_(inputs[name])
            pointers.append(at)
            del k
        for p in source.packs:
            memory = self.arena(p.nbytes)
            self.memories[p.name] = (memory, self.pointer(memory), p.nbytes)
            pointers.append(self.pointer(memory))
        if source.workspace_bytes:
            memory = self.arena(source.workspace_bytes)
            memory.fill_(0xFF)  # NaN everywhere: nothing may rely on it
            memory[:GUARD] = 0x5A
            memory[-GUARD:] = 0x5A
            self.memories["workspace"] = (memory, self.pointer(memory), source.workspace_bytes)
            pointers.append(self.pointer(memory))
        self.table = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
        if source.packs:
            self.library.kernel_pack(self.table, ctypes.c_long(self.threads))

    def call(self) -> None:
        self.library.kernel(self.table, ctypes.c_long(self.threads))

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.prepare(inputs)
        before = {n: self.memories[n][0].clone() for n in inputs}
        self.call()
        for name, (memory, at, nbytes) in self.memories.items():
            start = at - memory.data_ptr()
            if name in inputs:
                assert torch.equal(memory, before[name]), f"{name} was written"
            low, high = memory[: min(start, GUARD)], memory[start + nbytes :]
            high = high[-GUARD:] if name == "workspace" else high
            assert (low == 0x5A).all(), f"written before {name}"
            assert (high == 0x5A).all(), f"written after {name}"
        out = {}
        for o in self.kernel.outputs:
            b = self.kernel.buffers[o.buffer]
            memory, at, _ = self.memories[o.buffer]
            if b.numel:
                out[o.buffer] = view(memory, at, b.dtype, b.shape, b.element_strides).clone()
            else:
                out[o.buffer] = torch.empty(b.shape, dtype=torch_dtype(b.dtype))
        return out


def view(memory: torch.Tensor, at: int, dtype: DType, shape, strides) -> torch.Tensor:
    start = at - memory.data_ptr()
    tail = memory[start:]
    tail = tail[: tail.numel() // dtype.bytes * dtype.bytes]
    if tail.storage_offset() % dtype.bytes:
        raise AssertionError("misaligned")
    return tail.view(torch_dtype(dtype)).as_strided(
        shape, strides, tail.storage_offset() // dtype.bytes
    )


TOLERANCE = {"f64": 1e-9, "f32": 2e-5, "f16": 4e-3, "bf16": 2e-2, "f8e4m3": 0.2, "f8e5m2": 0.4}


def expected(kernel: Kernel, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the float64 evaluator gives for each output buffer."""
    out = {}
    if any(o.scatter for o in kernel.outputs):
        return run_kernel(kernel, inputs)
    values = evaluate([o.value for o in kernel.outputs], kernel.extents, inputs)
    for o, (value, order) in zip(kernel.outputs, values, strict=True):
        b = kernel.buffers[o.buffer]
        full = torch.zeros(b.shape, dtype=value.dtype)
        if not b.numel:
            out[o.buffer] = full
            continue
        axes = sorted(frozenset().union(*(i.axes for i in o.index)) | o.value.free)
        shape = [kernel.extents[a] for a in axes]
        value = value.reshape([kernel.extents[a] if a in order else 1 for a in axes])
        grid = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij") if shape else ()
        at = tuple(
            torch.as_tensor(i.evaluate(dict(zip(axes, grid)))).expand(shape) for i in o.index
        )
        if at:
            full[at] = value.expand(shape)
        else:
            full = value.reshape(())
        out[o.buffer] = full
    return out


def check(kernel: Kernel, inputs: Mapping[str, torch.Tensor], got, scale: float = 1.0) -> float:
    """Compare with float64; the tolerance is that of the narrowest float that takes part."""
    names = {v.dtype.name for v in postorder(kernel.values())}
    floats = [n for n in TOLERANCE if n in names]
    worst = 0.0
    for name, want in expected(kernel, inputs).items():
        dtype = kernel.buffers[name].dtype
        actual = got[name]
        if not dtype.is_float:
            wrong = (actual != want.to(actual.dtype)).sum().item()
            # an integer that a float decides may fall on either side
            allowed = want.numel() // 50 + 1 if floats else 0
            assert wrong <= allowed, f"{name}: {wrong} of {want.numel()} differ"
            continue
        tolerance = max(TOLERANCE[n] for n in {*floats, dtype.name}) * scale
        want, actual = want.double(), actual.double()
        size = (
            want.nan_to_num(0, 0, 0).abs().amax().clamp(min=1e-20).item() if want.numel() else 1
        )
        torch.testing.assert_close(actual, want, rtol=0, atol=tolerance * size, equal_nan=True)
        if want.numel():
            worst = max(worst, ((actual - want).nan_to_num(0, 0, 0).abs() / size).max().item())
    return worst


def random_inputs(kernel: Kernel, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random tensors; what indexes a buffer is within its bounds."""
    g = torch.Generator().manual_seed(seed)
    limit: dict[str, int] = {}
    for v in postorder(kernel.values()):
        if v.op == "load":
            for k, a in enumerate(v.args):
                if a.op == "load":
                    dim = next(d for d, i in enumerate(v.attrs[1]) if f"@{k}" in i.axes)
                    limit[a.attrs[0]] = kernel.buffers[v.attrs[0]].shape[dim]
    out = {}
    for name in kernel.reads():
        b = kernel.buffers[name]
        kind = torch_dtype(b.dtype)
        if b.dtype.kind == "bool":
            out[name] = torch.rand(b.shape, generator=g) < 0.7
        elif b.dtype.is_int:
            low, high = (0, limit[name]) if name in limit else (0, 5)
            if b.dtype.kind == "int" and name not in limit:
                low = -4
            out[name] = torch.randint(low, high, b.shape, generator=g).to(kind)
        else:
            out[name] = torch.randn(b.shape, generator=g).to(kind)
    return out


__all__ = ["MACHINE", "Compiled", "check", "expected", "random_inputs"]
