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
# # What PyTorch said: capture and the HLIR
#
# A compiler first has to know what your program *computes*. Python does not say: `x @ w` may be
# any method of any object. **Capture** runs the module once on example inputs through PyTorch's
# own `torch.export`, and spells what it saw in eighteen primitives: the **HLIR**.
#
# In this notebook you capture a small network, find your own lines in the graph, see why a
# transpose is not an operation, and meet an operator that has no spelling.

# %%
import torch
from torch import nn

import luminal_lab as ll


class Block(nn.Module):
    """A feed-forward block with a residual connection."""

    def __init__(self, width=64):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
model = nn.Sequential(Block(), Block(), Block())
x = torch.randn(8, 64)
hlir = ll.capture(model, (x,))

# %% [markdown]
# ## Eighteen primitives
#
# Everything is made of these: five functions of one number and `Erf`, four of two numbers,
# `Select`, three reductions, `Iota` (an index as a number), `Gather` and `Scatter`, and `Cast`.
# A layer norm has no primitive of its own; it is sums, a square root and a few products.

# %%
hlir.table()["op"].value_counts().sort_index()

# %% [markdown]
# Each node knows where it came from: the module, the PyTorch operator, and the line of Python.

# %%
table = hlir.table()
table[table["module"] == "0.norm"][["op", "dtype", "shape", "aten"]]

# %% [markdown]
# ## Movement is not an operation
#
# Where is the transpose of `nn.Linear`'s weight? Nowhere: an operand is a node *and a view*, an
# index map from the reader's axes to the dimensions of what it reads. Transposing, broadcasting,
# slicing and reshaping change the map, not the data. Look for a weight that is read with its
# axes exchanged:

# %%
for n, node in enumerate(hlir.nodes):
    if node.op == "Mul" and node.source.module == "0.up":
        print(f"%{n} = Mul over axes {node.shape}")
        for operand in node.operands:
            print(f"    reads %{operand.node}{operand.view}")

# %% [markdown]
# The same with a function of your own. The result is one addition; flipping, transposing and
# slicing left no node behind.

# %% tags=["nbval-ignore-output"]
moved = ll.capture(lambda a: a.t()[:, 1:].flip(0) + 1, (torch.randn(4, 3),))
print(moved.text())

# %% [markdown]
# ## The interpreter: slow, and right
#
# The HLIR has a meaning of its own, given by an interpreter of a few hundred lines. It computes
# in float64 if you ask, and is what every generated kernel is compared with.

# %%
from luminal_lab.hlir import run

(reference,) = run(hlir, [x], compute="float64")
exact = model.double()(x.double())
print(reference.dtype, "within 1e-9 of PyTorch in float64:",
      bool((reference - exact).abs().max() < 1e-9))  # fmt: skip
_ = model.float()

# %% [markdown]
# ## Equal layers are one
#
# Our model has three equal blocks. The compiler finds them by their structure, and does the work
# of one: `regions` are what is saturated and searched, `instances` are where they are used.

# %%
from luminal_lab.hlir import partition

program = partition(hlir)
print("regions:", len(program.regions), "- instances:", len(program.instances))

# %% [markdown]
# ## What has no spelling
#
# An operator without a lowering becomes a `Custom` node that calls PyTorch at run time. It is
# never silently wrong and never an error; it is listed, with the line that asked for it.

# %% tags=["nbval-ignore-output"]
counted = ll.capture(lambda a: torch.histc(a, bins=4) / a.numel(), (torch.rand(32),))
counted.fallbacks()

# %% [markdown]
# ## Text that reads back
#
# The text form is complete: `parse` gives the same program again. Files hold it beside the
# weights; nothing in them is code.

# %%
from luminal_lab.hlir import parse

print(parse(moved.text()) == moved)

# %% [markdown]
# ## Try
#
# - Capture `torch.softmax` and find the two reductions. Which axis do they run over?
# - Capture your own model. Does `hlir.fallbacks()` list anything?
# - In a live notebook: `hlir.widget()` is the same graph to click through. Open a block with
#   Enter, search with `/`.
#
# Next: [the e-graph and its rules](02_egraph_rules.ipynb).
