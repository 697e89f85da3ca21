"""Metal: a block program as the text of an MSL file.

One threadgroup computes one block of the output. Every thread keeps its points of a block in
registers (`metal_layout.py`); reductions go through simdgroup shuffles and threadgroup memory,
products through tiles in threadgroup memory and simdgroup matrices. Narrow floats become float
right after each load. Points beyond an extent are skipped.

The file needs `torch.mps.compile_shader` or the CPU shim of `luminal_lab.runtime.metal_tools`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from luminal_lab.codegen import terms
from luminal_lab.codegen.block_text import BlockView, Names
from luminal_lab.codegen.metal_body import MetalBody
from luminal_lab.codegen.metal_layout import Layout
from luminal_lab.codegen.metal_values import HELPERS, type_of
from luminal_lab.codegen.tile import KernelSource, TileProgram
from luminal_lab.errors import ScheduleError

# Words of the language, functions that are called, and names that the printer itself uses.
_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        alignas auto bfloat bool break case char class const constant constexpr continue
        default device do else enum false float for half if inline int kernel long metal
        namespace operator return short signed sizeof static struct switch template this
        thread threadgroup true typedef typename uchar uint ulong union unsigned ushort
        using vertex fragment void volatile while NAN INFINITY precise fast fma max min
        abs select clamp sign tile block lane simd t exp2 log2 sin cos sqrt fmod fabs
        copysign floor half2 half4 float2 float4 int2 int4 uint2 uint3 uint4
        """,
    )
)


def render(program: TileProgram, entry: str = "kernel_0") -> KernelSource:
    """The Metal file of a block program.

    Arguments:
        program: A program of style `block`.
        entry: The kernel's name; `kernel` itself is a word of the language.

    Returns:
        Source whose `launch` holds `groups` (threadgroups), `group_size` (threads in one) and
        `args` (buffer names by slot).

    Raises:
        ScheduleError: the kernel needs a type that Metal lacks, or buffers beyond 2³¹ elements.
    """
    view = BlockView(program)
    params = tuple(dict.fromkeys((*program.reads, *program.writes)))
    for name in params:
        if terms.span(program.buffers[name]) >= 1 << 31:
            raise ScheduleError(
                f"the buffer {name!r} has more elements than a Metal int can count"
            )
    if entry in _WORDS:
        entry = f"{entry}_0"
    names = Names((*_WORDS, *HELPERS, entry))
    pointers = {b: names.new(b) for b in params}
    layout = Layout(view)
    lines = MetalBody(view, layout, names, pointers).print()
    args = [_parameter(program, b, pointers[b], k) for k, b in enumerate(params)]
    args += [
        "uint block_index [[threadgroup_position_in_grid]]",
        "uint lane_index [[thread_index_in_simdgroup]]",
        "uint simd_index [[simdgroup_index_in_threadgroup]]",
    ]
    kernel = "\n".join(
        [
            f"[[max_total_threads_per_threadgroup({layout.threads})]]",
            f"kernel void {entry}(",
            ",\n".join(f"    {a}" for a in args) + ") {",
            "  const int block = block_index, lane = lane_index, simd = simd_index;",
            "  const int t = simd * 32 + lane;",
            *lines,
            "}",
        ]
    )
    text = "#include <metal_stdlib>\n"
    if "simdgroup_float8x8" in kernel:
        text += "#include <metal_simdgroup_matrix>\n"
    text += "using namespace metal;\n"
    text += "".join(f"\n{h}" for h in _needed(kernel)) + f"\n{kernel}\n"
    groups = 1
    for loop in view.grid:
        groups *= -(-view.extents[loop.axis] // loop.step)
    launch = {
        "entry": entry,
        "groups": [groups],
        "group_size": [layout.threads],
        "args": list(params),
    }
    return KernelSource(text, entry, params, language="metal", launch=launch)


def _parameter(program: TileProgram, buffer: str, name: str, slot: int) -> str:
    const = "" if buffer in program.writes else "const "
    kind = type_of(program.buffers[buffer].dtype)
    return f"device {const}{kind}* {name} [[buffer({slot})]]"


def _needed(kernel: str) -> Iterator[str]:
    for name, helper in HELPERS.items():
        if re.search(rf"\b{name}\b", kernel):
            yield helper


__all__ = ["render"]
