"""Small programs with hand-written C kernels, for tests of the runtime alone."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from luminal_lab.egraph.values import Buffer, Kernel, KernelOutput, Value
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.graph import Hlir, InputSpec, Node, Operand, OutputSpec
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.view import View
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.building import build
from luminal_lab.runtime.executable import Executable
from luminal_lab.runtime.native import native
from luminal_lab.runtime.program import Code, KernelCode, Routine
from luminal_lab.search.candidate import Call, Candidate

LOOP = """
extern void ll_parallel_for(void (*)(void *, long, long), void *, long, long, long);
"""


def pointwise(
    entry: str, reads: int, expression: str, n: int, *, overwrites: bool = True
) -> KernelCode:
    """C for `out[i] = expression` over operands `a`, `b`, ….; parameters b0, b1, …."""
    names = "abcdef"[:reads]
    loads = " ".join(f"float {c} = ((const float *)p[{k}])[i];" for k, c in enumerate(names))
    text = f"""{LOOP}
static void {entry}_body(void *ctx, long lo, long hi) {{
  char *const *p = ctx;
  for (long i = lo; i < hi; ++i) {{ {loads} ((float *)p[{reads}])[i] = {expression}; }}
}}
void {entry}(char *const *b, long threads) {{
  ll_parallel_for({entry}_body, (void *)b, {n}, 256, threads);
}}
"""
    params = tuple(f"b{k}" for k in range(reads + 1))
    return KernelCode(entry, text, params, overwrites=overwrites)


def kernel(
    op: str, reads: int, shape: tuple[int, ...], constant: tuple[int, ...] = ()
) -> Kernel:
    """The Kernel whose C `pointwise` writes: a chain of one binary op over equal indices."""
    index = tuple(Index.axis(f"i{d}") for d in range(len(shape)))
    loads = [Value("load", (), (f"b{k}", index), dtype=F32) for k in range(reads)]
    value = loads[0]
    for other in loads[1:]:
        value = Value(op, (value, other), dtype=F32)
    if reads == 1:
        value = Value(op, (value,), dtype=F32)
    buffers = {
        f"b{k}": Buffer(f"b{k}", shape, F32, constant=k in constant) for k in range(reads)
    }
    buffers[f"b{reads}"] = Buffer(f"b{reads}", shape, F32)
    out = KernelOutput(f"b{reads}", index, value)
    return Kernel((out,), buffers, {f"i{d}": n for d, n in enumerate(shape)})


def affine(
    shape: tuple[int, ...] = (64, 40), *, stride: tuple[int, ...] | None = None, **spec: Any
):
    """`x * (w * w) + x` with the square of the weight computed at build time."""
    w = torch.randn(shape)
    n = w.numel()
    rank = len(shape)
    identity = View.identity(rank)

    def node(op: str, *operands: int, **attrs: Any) -> Node:
        return Node(op, tuple(Operand(o, identity) for o in operands), shape, F32, attrs)

    nodes = (
        node("Input", name="x"),
        node("Input", name="w"),
        node("Mul", 1, 1),
        node("Mul", 0, 2),
        node("Add", 3, 0),
    )
    out = OutputSpec(Operand(4, identity), shape, "y", stride=stride, **spec)
    hlir = Hlir(
        nodes,
        (InputSpec(0, "x", "arg", 0), InputSpec(1, "w", "weight")),
        (out,),
        {"w": w},
        in_spec=tree_flatten(((w,), {}))[1],
        out_spec=tree_flatten(() if "mutates" in spec else w)[1],
        name="affine",
    )
    buffers = {name: Buffer(name, shape, F32) for name in ("x", "w", "w2", "t", "y")}
    kinds = {"x": "arg", "w": "weight", "w2": "temp", "t": "temp", "y": "output"}
    candidate = Candidate(
        hlir,
        (kernel("mul", 2, shape), kernel("add", 2, shape)),
        (
            Call(0, {"b0": "w", "b1": "w", "b2": "w2"}, at_build=True),
            Call(0, {"b0": "x", "b1": "w2", "b2": "t"}),
            Call(1, {"b0": "t", "b1": "x", "b2": "y"}),
        ),
        buffers,
        kinds,  # type: ignore[arg-type]
    )
    code: dict[int, Code] = {
        0: pointwise("k_mul", 2, "a * b", n),
        1: pointwise("k_add", 2, "a + b", n),
    }
    return candidate, code, w


def built(*args: Any, freeze: bool = True, **kwargs: Any) -> tuple[Executable, torch.Tensor]:
    """`affine`, built."""
    candidate, code, w = affine(*args, **kwargs)
    return build(candidate, freeze=freeze, code=code), w


def packed() -> tuple[Candidate, dict[int, Code], torch.Tensor]:
    """`x * (w + 1)`, where the sum is a pack buffer of the only kernel."""
    candidate, _, w = affine()
    n = w.numel()
    text = f"""
void k_packed_pack(char *const *b, long threads) {{
  for (long i = 0; i < {n}; ++i) ((float *)b[3])[i] = ((const float *)b[1])[i] + 1;
}}
void k_packed(char *const *b, long threads) {{
  float *scratch = (float *)b[4];
  for (long i = 0; i < {n}; ++i) scratch[i] = ((const float *)b[3])[i];
  for (long i = 0; i < {n}; ++i) ((float *)b[2])[i] = ((const float *)b[0])[i] * scratch[i];
}}
"""
    only = kernel("mul", 2, tuple(w.shape), constant=(1,))
    code = KernelCode("k_packed", text, ("b0", "b1", "b2"), (4 * n,), 4 * n)
    calls = (Call(0, {"b0": "x", "b1": "w", "b2": "y"}),)
    return changed(candidate, kernels=(only,), calls=calls), {0: code}, w


def changed(thing: Any, **fields: Any) -> Any:
    """`dataclasses.replace`, untyped."""
    return dataclasses.replace(thing, **fields)


def run_code(code: Code, tensors: list[torch.Tensor], writes: int = 1) -> None:
    """Run one kernel's code on tensors, those that it writes last."""
    if isinstance(code, Routine):
        code.run(tensors[:-writes], tensors[-writes:])
        return
    native()
    library = cc.load(cc.shared_library([code.unit]))
    table = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
    entry = getattr(library, code.entry)
    entry.argtypes = (ctypes.c_void_p, ctypes.c_long)
    entry(ctypes.addressof(table), torch.get_num_threads())
