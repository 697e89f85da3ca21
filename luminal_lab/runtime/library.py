"""Library kernels on the CPU: routines that are called, not derived."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from luminal_lab.codegen.c_prelude import prelude
from luminal_lab.egraph.gemm import activate
from luminal_lab.egraph.library import LibraryForm, operations
from luminal_lab.errors import LuminalError
from luminal_lab.hlir import apply
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.graph import Node
from luminal_lab.hlir.sizes import c_text, largest
from luminal_lab.runtime import compiler as cc
from luminal_lab.runtime.cache import digest
from luminal_lab.runtime.native import native
from luminal_lab.runtime.program import Code, KernelCode, Routine
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.machine import Machine

if TYPE_CHECKING:
    from torch import Tensor

_GRAIN = 16_384  # operations of a hand-written kernel that are worth a thread


def library_code(kernel: LibraryKernel) -> Code:
    """How a library kernel runs here.

    Raises:
        LuminalError: for a routine that the CPU does not have.
    """
    make = _ROUTINES.get(kernel.routine)
    if make is None:
        raise LuminalError(
            f"the cpu target has no library routine {kernel.routine!r}",
            fix=f"it has {', '.join(_ROUTINES)}",
        )
    made = make(kernel)
    if isinstance(made, Routine) and kernel.symbols:
        return replace(made, sized=True)
    return made


def _custom(kernel: LibraryKernel) -> Code:
    """An ATen operator: attrs `target`, `template`, and `result`, which of its results.

    `result` is None for a single one, and a tuple for a kernel that writes several.
    """
    first = kernel.buffers[kernel.writes[0]]
    node = Node("Custom", (), first.shape, first.dtype, dict(kernel.attrs))
    wanted = kernel.attrs.get("result")
    numbers = wanted if isinstance(wanted, tuple) else (wanted,)

    def run(reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
        results = apply.call_aten(node, reads)
        for out, number in zip(writes, numbers, strict=True):
            out.copy_(apply.as_traced(node, results[number or 0], out.shape))

    return Routine(str(kernel.attrs["target"]), run)


def _gemm(kernel: LibraryKernel) -> Code:
    """A matrix product, attrs as `GemmForm`: operands A, B and perhaps D, which is added.

    In float32 it is a C function that calls the BLAS inside PyTorch, one call per batch; in
    other types, or where that BLAS is not exported, PyTorch's own product.
    """
    every = all(kernel.buffers[n].dtype is F32 for n in (*kernel.reads, *kernel.writes))
    if every and native().bind_blas():
        made = _sgemm(kernel)
        if "ll_max" not in made.text:  # a leading dimension that only a call decides
            return made
    return Routine("gemm", lambda reads, writes: _torch_product(kernel, reads, writes))


_SGEMM = """
extern void (*ll_sgemm)(const char *, const char *, const int *, const int *, const int *,
                        const float *, const float *, const int *, const float *, const int *,
                        const float *, float *, const int *);
extern void ll_parallel_for(void (*)(void *, long, long), void *, long, long, long);
"""
_ROWS = """
static void {entry}_{name}(void *ctx, long lo, long hi) {{
  char *const *b = ctx;
{sizes}  for (long r = lo; r < hi; ++r) {{
    float *c = (float *)b[{out}] + {c_row};
{body}  }}
}}
"""
_PLUS = """    const float *d = (const float *)b[2] + {d_row};
    for (long j = 0; j < {n}; ++j) c[j] = d[j * {stride}];
"""
# NaN stays: it is not below 0.
_ACT = {
    "relu": "    for (long j = 0; j < {n}; ++j) c[j] = c[j] < 0 ? 0 : c[j];\n",
    "gelu": "    long j = 0;\n"
    "    for (; j + W <= {n}; j += W) {{\n"
    "      vf v = ll_ld_f32(c + j);\n"
    "      ll_st_f32(c + j, 0.5f * v * (1.0f + ll_erf(v * 0.707106781f)));\n"
    "    }}\n"
    "    for (; j < {n}; ++j) c[j] = 0.5f * c[j] * (1.0f + ll_erf_s(c[j] * 0.707106781f));\n",
}
_CALL = """
void {entry}(char *const *b, long threads) {{
  (void)threads;
{sizes}  const int m = {n}, n = {m}, k = {k}, lda = {ldb}, ldb = {lda}, ldc = {ldc};
  const float alpha = {alpha}, beta = {beta};
{fill}{loops}
    ll_sgemm("{tb}", "{ta}", &m, &n, &k, &alpha, (const float *)b[1] + {b_offset}, &lda,
             (const float *)b[0] + {a_offset}, &ldb, &beta,
             (float *)b[{out}] + {c_offset}, &ldc);
{finish}}}
"""


def _sgemm(kernel: LibraryKernel) -> KernelCode:
    """C of the product. The BLAS is column-major: it computes C^T = B^T A^T."""
    at = kernel.attrs
    m, n, k = (at[x] for x in "mnk")
    (am, ak), (bk, bn), (cm, _) = at["a"], at["b"], at["c"]
    ta, lda = ("N", am) if ak == 1 or k == 1 else ("T", ak)
    tb, ldb = ("N", bk) if bn == 1 or n == 1 else ("T", bn)
    batch: Sequence[Sequence[int]] = at["batch"]
    symbols = kernel.symbols

    def c(x: Any) -> str:
        return c_text(x, lambda s: f"s_{s.name}")

    loops = "".join(
        f"  for (long i{d} = 0; i{d} < {c(loop[0])}; ++i{d})\n" for d, loop in enumerate(batch)
    )

    def offset(column: int) -> str:
        terms = [f"i{d} * {c(loop[column])}" for d, loop in enumerate(batch)]
        return " + ".join(terms) or "0"

    def row(steps: Sequence[Any], step: Any) -> str:
        """Where row r of all, counted over the batch, begins."""
        terms, below = [f"r % {c(m)} * {c(step)}"], m
        for loop, stride in zip(reversed(batch), reversed(steps)):
            terms.append(f"r / {c(below)} % {c(loop[0])} * {c(stride)}")
            below *= loop[0]
        return " + ".join(reversed(terms))

    plus, act = at["plus"], at["act"]
    rows = m
    for loop in batch:
        rows *= loop[0]
    entry = "gemm_" + digest(repr(sorted(at.items())))[:12]
    fields = {
        "entry": entry,
        "m": c(m),
        "n": c(n),
        "k": c(k),
        "ta": ta,
        "tb": tb,
        "lda": c(largest(lda, 1, k if ta == "N" else m)),
        "ldb": c(largest(ldb, 1, n if tb == "N" else k)),
        "ldc": c(largest(cm, 1, n)),
        "alpha": repr(at["alpha"]),
        "beta": "0" if plus is None else repr(at["beta"]),
        "out": 2 if plus is None else 3,
        "loops": loops,
        "c_row": row([loop[3] for loop in batch], cm),
        "a_offset": offset(1),
        "b_offset": offset(2),
        "c_offset": offset(3),
        "sizes": "".join(
            f"  const long s_{s.name} = ((const long *)b[{len(kernel.reads) + 1}])[{j}];\n"
            for j, s in enumerate(symbols)
        ),
        "fill": "",
        "finish": "",
    }
    text = _SGEMM
    share = "  ll_parallel_for({entry}_{name}, (void *)b, {rows}, 64, threads);\n"
    if plus is not None:
        *steps, dm, dn = plus
        body = _PLUS.format(d_row=row(steps, dm), stride=c(dn), n=c(n))
        text += _ROWS.format(**fields, name="plus", body=body)
        fields["fill"] = share.format(entry=entry, name="plus", rows=c(rows))
    if act:
        text += _ROWS.format(**fields, name=act, body=_ACT[act].format(n=c(n)))
        fields["finish"] = share.format(entry=entry, name=act, rows=c(rows))
    text += _CALL.format(**fields)
    names = tuple(s.name for s in symbols)
    width = replace(Machine(), vector_bytes=cc.cpu().vector_bytes)
    helpers = prelude(width) if act == "gelu" else ""
    params = (*kernel.reads, *kernel.writes)
    return KernelCode(entry, text, params, prelude=helpers, sizes=names)


def _torch_product(
    kernel: LibraryKernel, reads: Sequence[Tensor], writes: Sequence[Tensor]
) -> None:
    import torch

    at = kernel.attrs
    m, n, k = at["m"], at["n"], at["k"]
    sizes = [row[0] for row in at["batch"]]
    strides = [[row[column] for row in at["batch"]] for column in (1, 2, 3)]
    a = reads[0].as_strided((*sizes, m, k), (*strides[0], *at["a"]))
    b = reads[1].as_strided((*sizes, k, n), (*strides[1], *at["b"]))
    out = writes[0].as_strided((*sizes, m, n), (*strides[2], *at["c"]))
    result = torch.matmul(a, b)
    if at["alpha"] != 1.0:
        result *= at["alpha"]
    if at["plus"] is not None:
        result += at["beta"] * reads[2].as_strided((*sizes, m, n), at["plus"])
    out.copy_(activate(at["act"], result))


def _library(kernel: LibraryKernel) -> Code:
    """A kernel with a declaration: written by hand, or a routine of PyTorch."""
    form = LibraryForm(**kernel.attrs)
    if form.source:
        return _hand_written(kernel, form)
    return Routine(form.name, lambda reads, writes: _attention(form, reads, writes))


def _hand_written(kernel: LibraryKernel, form: LibraryForm) -> KernelCode:
    """The file, with its extents and strides as macros, and an entry that shares the work.

    Its names become the entry's: a program may call it at several sizes.
    """
    said = form.declaration
    entry = f"{form.name}_{digest(repr(kernel.attrs))[:8]}"
    macros: dict[str, str] = {r.upper(): f"{n}L" for r, n in form.sizes().items()}
    for operand, strides in zip(said.operands, form.strides):
        for role in operand.roles:
            (step,) = strides[said.roles.index(role)]
            macros[f"{operand.name}_{role}".upper()] = f"{step}L"
    macros |= {f"NUMBER{k}": repr(value) for k, value in enumerate(form.numbers)}
    given = [f"(void *)b[{k}]" for k in range(len(said.operands))]
    n = form.sizes()[said.parallel]
    per_point = sum(operations(form).values()) / max(n, 1)
    grain = max(1, math.ceil(_GRAIN / max(per_point, 1.0)))
    text = "\n".join([
        "extern void ll_parallel_for(void (*)(void *, long, long), void *, long, long, long);",
        *(f"#define {name} {value}" for name, value in macros.items()),
        re.sub(rf"\b{re.escape(form.name)}(?=_|\b)", f"{entry}_of", said.source),
        *(f"#undef {name}" for name in macros),
        f"static void {entry}_part(void *ctx, long lo, long hi) {{",
        "  char *const *b = ctx;",
        f"  {entry}_of({', '.join(given)}, lo, hi);",
        "}",
        f"void {entry}(char *const *b, long threads) {{",
        f"  ll_parallel_for({entry}_part, (void *)b, {n}, {grain}, threads);",
        "}",
    ])  # fmt: skip
    return KernelCode(entry, text, (*kernel.reads, *kernel.writes))


def _attention(form: LibraryForm, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
    import torch

    said = form.declaration
    views = [form.view(k, t) for k, t in enumerate((*reads, *writes))]
    query, key, value, out = (_four(v) for v in views)
    scale = form.numbers[0] * math.log(2)
    assert said.name == "sdpa"
    out.copy_(torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale))


def _four(x: Tensor) -> Tensor:
    """Two batch dims, as the routine likes them."""
    while x.dim() < 4:
        x = x.unsqueeze(0)
    return x


_ROUTINES: Mapping[str, Callable[[LibraryKernel], Code]] = {
    "custom": _custom,
    "gemm": _gemm,
    "library": _library,
}
