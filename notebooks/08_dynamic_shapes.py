# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # One program, many sizes
#
# Sentences have lengths. A compiler that needs to know each size in advance either compiles again
# for every length, or pads all of them to the longest. Here a dimension can be a **symbol**: one
# search, one compilation, and kernels that are told their sizes when they are called.
#
# 1. **declare** what may vary, and within which bounds;
# 2. **compile once**, call with many sizes, and compare each result with PyTorch;
# 3. **read** how sizes look in the program and in the kernel's source;
# 4. **leave the bounds**, and see what you are told;
# 5. the same through **torch.compile**.

# %%
import torch

import luminal_lab as ll


def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) * 64**-0.5
    return torch.softmax(scores, dim=-1) @ v


def qkv(length, seed=0):
    make = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 4, length, 64, generator=make) for _ in range(3)]


# %% [markdown]
# ## 1. Say what may vary
#
# `dynamic_shapes` is PyTorch's own, the same as for `torch.export.export`: here dimension 2 of all
# three arguments is the length, anything from 2 to 4096. The example that you pass is not only a
# type: its length, 256, becomes the **hint**, the size that the search tunes for.

# %%
length = torch.export.Dim("length", min=2, max=4096)
sizes = tuple({2: length} for _ in range(3))
hlir = ll.capture(attention, qkv(256), dynamic_shapes=sizes)
print(hlir)

# %% [markdown]
# The symbol is `s0` (PyTorch names it). Shapes, index maps and extents may hold it, and expressions
# of it. In the text form, sizes inside index maps stand in braces.

# %%
print(hlir.table()[["op", "shape"]].to_string())

# %% [markdown]
# ### What a law may know
#
# Laws with guards about extents must hold for *every* length. A law that is false for empty sums
# asks for `(least j)`, a proven lower bound; one that needs the number itself, `(extent j)`, does
# not fire on a symbolic axis at all. Bounds decide, or nothing does; the hint is never evidence.
# [Decision 7](../docs/decisions/0007-symbolic-sizes.md) tells why.
#
# So is attention still one kernel, when the length is not known?

# %% tags=["nbval-ignore-output"]
egraph = ll.saturate(hlir)
candidates = ll.search(egraph, ll.Budget("none")).candidates  # the fastest predicted first
best = min(candidates, key=lambda c: len(c.kernels))
best

# %%
print(len(best.kernels), "kernel; one pass over the keys:", "online" in best.text())

# %% [markdown]
# ## 2. Compile once, call with any size

# %%
fn = ll.build(best)

for n in (2, 3, 7, 64, 255, 256, 1000):
    q, k, v = qkv(n, seed=n)
    exact = attention(q.double(), k.double(), v.double())
    out = fn(q, k, v)
    print(f"{n:>5}  {tuple(out.shape)}  right: {bool((out - exact).abs().max() < 1e-5)}")

# %% [markdown]
# The odd ones are the interesting ones: 7 is shorter than a tile, 255 leaves a ragged end, and 2 is
# the smallest that was allowed. A search that measures verifies each kernel at three sizes: the
# hint, the least, and an odd one in between.
#
# What does the freedom cost? Here is the same program compiled for 256 and nothing else. It can
# unroll its last loop and knows its buffers in advance. (Ratios; your machine will differ.)

# %% tags=["nbval-ignore-output"]
from luminal_lab.bench import compare

fixed = ll.compile(attention, qkv(256), budget=ll.Budget("none"))
contest = compare(
    {"any length": fn, "length 256 only": fixed, "PyTorch": attention},
    tuple(qkv(256)),
    name="attention of length 256",
)
contest.table().set_index("name")[["ms", "iqr_ms", "vs any length"]].round(3)

# %% [markdown]
# ## 3. Read the kernel
#
# Sizes arrive in one small array, before the buffers. `s0` is read from it once; bounds of loops,
# offsets and the size of the scratch memory follow.

# %% tags=["nbval-ignore-output"]
source = best.kernels[0].source("c")
lines = source.splitlines()
print("\n".join(line[:110] for line in lines if "long s0" in line or "for (long p" in line))
print("...")
print("\n".join(line[:110] for line in lines if "a4 < s0" in line or "ll_min(a4" in line))

# %% [markdown]
# The tile of 128 keys is a constant, since tiles were chosen at the hint. How many tiles there are
# is a question for the call. The last one ends at the smaller of `a4 + 128` and `s0`.
#
# Memory follows the call as well: the buffers of the program are laid out once per combination of
# sizes, and the last 64 layouts are kept.

# %% [markdown]
# ## 4. Out of bounds
#
# 5000 is longer than you said. That may be a mistake, so it is an error that says which argument,
# which dimension, and what was promised:

# %%
from luminal_lab.errors import LuminalError

try:
    fn(*qkv(5000))
except LuminalError as error:
    print(error)

# %% [markdown]
# Two arguments that share a symbol must agree. A program that only works when they do would
# otherwise read past the end of one of them:

# %%
q, k, v = qkv(10)
try:
    fn(q, k[:, :, :9], v)
except LuminalError as error:
    print(error)

# %% [markdown]
# ## 5. `torch.compile`
#
# PyTorch decides which dimensions are symbolic: those that you mark, and those that it saw change.
# Each compilation of a graph goes through the backend, so counting its calls counts compilations.

# %% tags=["nbval-ignore-output"]
from luminal_lab.capture.dynamo import backend

graphs = []


def counting(graph, inputs):
    graphs.append(graph)
    return backend(graph, inputs, effort="none")


torch._dynamo.reset()
fast = torch.compile(attention, backend=counting)
with torch.no_grad():
    first = qkv(64)
    for t in first:
        torch._dynamo.mark_dynamic(t, 2, min=2, max=4096)
    fast(*first)
    right = all(
        torch.allclose(fast(*qkv(n)), attention(*qkv(n)), atol=1e-5) for n in (2, 5, 100, 333)
    )

# %%
print("graphs compiled:", len(graphs), "- right at every length:", right)

# %% [markdown]
# ## What is left out
#
# - A symbolic dimension is at least 1: an empty tensor is out of range.
# - Kernels that take sizes are printed as C; Triton and Metal refuse them with an error.
# - What needs a *number* (`range(x.shape[0])`, a Python `if` on a size) makes PyTorch specialise.
#
# The [list of known limits](../docs/known-limits.md) has the rest.
#
# ## Exercises
#
# 1. **Two symbols.** Give queries one length and keys another. Is it still one kernel? What does
#    `hlir` print?
# 2. **The hint matters.** Capture with an example of length 8 and compile. How fast is it at 1024,
#    against the one that was tuned at 256?
# 3. **A law that needs a number.** The mean over the length divides by it. Capture
#    `x.mean(1)` with a symbolic dimension 1, and find where `s0` went.
# 4. **Count.** How many times does `torch.compile` compile if you do not mark anything, and call
#    with lengths 10, 11, 12?
