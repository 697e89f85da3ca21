"""Triton: a block program as the text of a Python module.

One program instance computes one block of the output. An axis is a scalar (block of one point)
or a vector `tl.arange`; a block has one dimension per wide axis, always in the same order.
Points beyond an extent are masked in loads and stores, and hold the identity where they would
be reduced. Narrow floats become float32 right after each load. Products of blocks are `tl.dot`.

The text is a complete module: helpers, the kernel, and `LAUNCH` (grid, constants, warps). It is
compiled ahead of time and interpreted with `luminal_lab.runtime.triton_tools`.
"""

from __future__ import annotations

import pprint
import re
from typing import Any

from luminal_lab.codegen.block_text import BlockView, Names, compute_dtype
from luminal_lab.codegen.tile import KernelSource, Loop, TileProgram, walk
from luminal_lab.codegen.triton_body import BODY_NAMES, HELPERS, TritonBody

POINTERS = {
    "f64": "*fp64", "f32": "*fp32", "f16": "*fp16", "bf16": "*bf16", "f8e4m3": "*fp8e4nv",
    "f8e5m2": "*fp8e5", "i64": "*i64", "i32": "*i32", "i16": "*i16", "i8": "*i8", "u8": "*u8",
    "bool": "*i1",
}  # fmt: skip


def render(
    program: TileProgram, entry: str = "kernel", *, precision: str = "tf32x3"
) -> KernelSource:
    """The Triton module of a block program.

    Arguments:
        program: A program of style `block`.
        entry: The kernel's name.
        precision: How `tl.dot` multiplies float32. `tf32x3` is three tensor-core products
            with errors near float32's own; `ieee` works on AMD too, without tensor cores.

    Returns:
        Source whose `launch` holds `grid`, `args` (buffer names in order), `signature`,
        `constexprs`, `num_warps` and `num_stages`.
    """
    view = BlockView(program)
    params = tuple(dict.fromkeys((*program.reads, *program.writes)))
    names = Names((*BODY_NAMES, *HELPERS, entry, "LAUNCH"))
    pointers = {b: names.new(f"{b}_ptr") for b in params}
    blocks = {a: names.new(f"BLOCK_{a.upper()}") for a in view.order if view.wide(a)}
    body = TritonBody(view, names, pointers, blocks, precision)
    lines = body.print()
    launch = _launch(view, entry, params, pointers, blocks)
    args = [*pointers.values(), *(f"{b}: tl.constexpr" for b in blocks.values())]
    head = f"def {entry}({', '.join(args)}):"
    if len(head) > 96:
        head = f"def {entry}(\n    " + ",\n    ".join(args) + ",\n):"
    kernel = "\n".join(["@triton.jit", head, *lines])
    text = "import triton\nimport triton.language as tl\n"
    for name, helper in HELPERS.items():
        if re.search(rf"\b{name}\b", kernel):
            text += f"\n\n{helper}"
    text += f"\n\n{kernel}\n\n\nLAUNCH = {pprint.pformat(launch, sort_dicts=False, width=92)}\n"
    return KernelSource(text, entry, params, language="triton", launch=launch)


def _launch(
    view: BlockView,
    entry: str,
    params: tuple[str, ...],
    pointers: dict[str, str],
    blocks: dict[str, str],
) -> dict[str, Any]:
    programs = 1
    for loop in view.grid:
        programs *= -(-view.extents[loop.axis] // loop.step)
    signature = {pointers[b]: POINTERS[view.program.buffers[b].dtype.name] for b in params}
    signature |= dict.fromkeys(blocks.values(), "constexpr")
    warps, stages = _warps(view)
    return {
        "entry": entry,
        "grid": [programs],
        "args": list(params),
        "signature": signature,
        "constexprs": {name: view.block(axis) for axis, name in blocks.items()},
        "num_warps": warps,
        "num_stages": stages,
    }


def _warps(view: BlockView) -> tuple[int, int]:
    """Warps by the widest block, one stage more where a loop over products can be pipelined."""
    nodes = list(walk(view.program.body))
    widest = 1
    for local in view.program.locals:
        widest = max(widest, view.points(view.local_axes(local)))
    for node, _ in nodes:
        value = getattr(node, "value", None)
        if value is not None and not getattr(node, "dot", False):
            widest = max(widest, view.points(view.sort(value.free)))
    dots = [path for node, path in nodes if getattr(node, "dot", False)]
    pipelined = any(isinstance(p, Loop) and p.kind == "serial" for path in dots for p in path)
    if dots:
        held = sum(view.points(view.local_axes(n)) for n in view.program.locals)
        return (8 if held > 2 << 12 else 4), 3 if pipelined else 2
    warps = 4
    while warps < 16 and widest > 1024 * warps:
        warps *= 2
    if widest <= 512:
        warps = max(1, widest // 128)
    return warps, 2


__all__ = ["POINTERS", "compute_dtype", "render"]
