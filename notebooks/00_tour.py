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
# # From a formula to a kernel
#
# Attention is three lines of PyTorch: a matrix product, a softmax, a matrix product. Written
# that way it moves a matrix of *sequence × sequence* numbers through memory again and again.
# The kernel that everybody uses instead, known as FlashAttention, reads the keys and values
# once and never stores that matrix. People found it by hand.
#
# Luminal Lab has no attention kernel and no attention pattern. It knows a handful of laws of
# arithmetic, such as "a factor that does not depend on *j* leaves a sum over *j*". In this
# notebook the one-pass kernel follows from them, and you can look at every step on the way:
#
# 1. **capture**: PyTorch becomes a graph of primitive operations, the *HLIR*;
# 2. **saturate**: laws grow it into an *e-graph*, which holds every program they can reach;
# 3. **search**: candidates are drawn from it, *checked*, and timed;
# 4. **look**: how the winner follows from the formula, rule by rule, and its source for CPUs,
#    NVIDIA GPUs and Apple GPUs;
# 5. **run** it, and compare with PyTorch's own fused attention.
#
# It takes about a minute. All outputs are saved, so you can also just read.

# %%
import torch

import luminal_lab as ll

# %% [markdown]
# ## 1. Capture: what is there to compute?
#
# Here is attention as a textbook has it: four heads, 1024 queries and keys, 64 numbers each.


# %%
def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) * 64**-0.5
    return torch.softmax(scores, dim=-1) @ v


shape = (1, 4, 1024, 64)  # batch, heads, sequence, width of a head
q, k, v = (torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(3))
hlir = ll.capture(attention, (q, k, v))

# %% [markdown]
# `ll.capture` asks PyTorch for the graph and spells it in eighteen primitives. A matrix product
# is a `Mul` followed by a `SumReduce`; softmax is a maximum, an exponential, a sum and a
# division. Transposing, broadcasting and slicing are not operations at all: an operand says at
# which *index* it is read. Rest the pointer on a box to see its shape, its cost, and the line of
# Python that it came from.

# %% tags=["nbval-ignore-output"]
hlir

# %% [markdown]
# The same as plain text. Every stage object has such a form, and tables besides:
# `hlir.table()`, `hlir.text()`, `hlir.save(path)`.

# %%
print(hlir)

# %% [markdown]
# What would it cost to run this as it stands, one kernel per operation? Each result would be
# written to memory and read back by the next operation.

# %%
results = hlir.table().query("op not in ('Input', 'Constant')")["bytes"]
inputs = hlir.table().query("op == 'Input'")["bytes"]
print(f"{len(results)} operations write {results.sum() / 1e9:.2f} GB;")
print(f"inputs and output together are {(inputs.sum() + results.iloc[-1]) / 1e6:.0f} MB")

# %% [markdown]
# ## 2. Saturate: everything that is equal
#
# A compiler usually rewrites a program step by step, and each step forgets the program before
# it; a wrong turn cannot be undone. An **e-graph** forgets nothing. It keeps *classes* of equal
# expressions: applying the law *a·b = b·a* adds *b·a* to the class that holds *a·b*; both stay.
# Laws are applied until nothing new appears (the graph is *saturated*). Only then does anyone
# choose.
#
# The laws are the files in `rules/`. This is the one that lets a factor leave a sum:

# %%
egraph = ll.saturate(hlir)
print(egraph.rule("sum-linear").law)

# %% tags=["nbval-ignore-output"]
print(egraph.rule("sum-linear").text)

# %% [markdown]
# And this is all that is special about exponentials. A sum over *j* of 2^(s[j] − max s) · w[j]
# seems to need two passes: one to find the maximum, one to sum. It can be had in **one pass**
# that carries the largest *s* so far, and rescales what it has summed whenever that grows:

# %%
print(egraph.rule("online").law)


def online_sum(s, w):
    """Sum over j of 2**(s[j] - max(s)) * w[j], reading each element once."""
    largest, total = float("-inf"), 0.0
    for s_j, w_j in zip(s, w):
        new = max(largest, s_j)
        total = total * 2 ** (largest - new) + 2 ** (s_j - new) * w_j
        largest = new
    return total


s, w = [0.5, 3.0, -1.0, 4.5, 2.0], [1.0, 2.0, 3.0, 4.0, 5.0]
in_two_passes = sum(2 ** (s_j - max(s)) * w_j for s_j, w_j in zip(s, w))
print(online_sum(s, w), in_two_passes)

# %% [markdown]
# Neither law mentions attention. Here is the e-graph that they and their companions grow from
# our program. The growth curve flattens: there is nothing left to say.

# %% tags=["nbval-ignore-output"]
egraph

# %% [markdown]
# Pick any node of the program and ask for its alternatives. This is the *output*, the last sum
# over the keys. The captured form is one among several equal ones, and some of them are
# `online`: they compute it in one pass.

# %% tags=["nbval-ignore-output"]
from luminal_lab.views.egraph import alternatives

output = max(egraph.parts[0].node_class)
alternatives(egraph, output)

# %% [markdown]
# ## 3. Search: choose, check, time
#
# A *candidate* picks one member of each class, and decides which results are stored and which
# are computed in place: some candidates have thirteen kernels, some have one. The search
# explores them with a cost model, then compiles the promising ones, **compares their results
# with a float64 reference**, and times those that are right. A kernel that is wrong is
# rejected, and the rule that made it is named.

# %% tags=["nbval-ignore-output"]
result = ll.search(egraph, ll.Budget("quick", seconds=15, candidates=12), seed=0)
result

# %% [markdown]
# `result.best` is the fastest candidate that was right. Measurements are noisy on a busy machine,
# and a close rival may win there. To tell you the same story every time, the rest of this
# notebook takes the candidate that the cost model ranks first.

# %% tags=["nbval-ignore-output"]
best = result.candidates[0]
print(len(best.kernels), "kernel")

# %% [markdown]
# ## 4. Look: how did that come about?
#
# It is one kernel. Where did it come from? Each line below is equal to the one before,
# because the e-graph holds both in one class; the rule that says so stands beside it, with its
# source. (Which of these rules were tried when, the search does not care: this is *a* path from
# the formula to the kernel, told in a readable order.)

# %% tags=["nbval-ignore-output"]
from luminal_lab.views.derivation import derivation

derivation(egraph, best)

# %% [markdown]
# The division by the softmax's denominator left the sum over the keys, which made both sums
# "a sum of exponentials relative to a maximum", which `online` turns into one pass each. They
# share the running maximum, so they share the loop. That is FlashAttention, and nobody told it.

# %% tags=["nbval-ignore-output"]
from luminal_lab.views.steps import derive

rules = {step.rule for step in derive(egraph, best).steps}
print(sorted(rules & {"sum-linear", "online", "online-one"}))

# %% [markdown]
# ### Why does it win?
#
# Not because it is one kernel, but because of what it leaves out. The first table sets it
# against the program as it was captured, with a kernel for each operation, and against the best
# that fusion alone makes of it, when no law is used. What each writes to memory and reads back
# is most of the story.

# %% tags=["nbval-ignore-output"]
result.why(best)

# %% [markdown]
# ### The same kernel in three languages
#
# From the formula and a *schedule* (tile sizes, loop order, what to keep in registers) one
# lowering makes a program over tiles, and three printers write it down: C for this machine,
# Triton for NVIDIA and AMD GPUs, Metal for Apple's.

# %% tags=["nbval-ignore-output"]
from luminal_lab.views.kernels import sources

sources(best)

# %% [markdown]
# ### The road not taken
#
# Every other candidate can be looked at in the same way. Here is one with more kernels, beside
# ours: it stores the matrix of scores, and the buffer for that is 16 MiB.

# %% tags=["nbval-ignore-output"]
from luminal_lab.views.candidate import difference

other = next(c for c in result.candidates if len(c.kernels) > 1)
difference(best, other)

# %% [markdown]
# ## 5. Run it
#
# `ll.build` compiles the candidate to a shared library. What comes back is called like the
# function that we captured.

# %%
fn = ll.build(best)
out = fn(q, k, v)

exact = attention(q.double(), k.double(), v.double())
print(out.shape, out.dtype)
print("within 1e-4 of float64:", bool((out - exact).abs().max() < 1e-4))

# %% [markdown]
# Is it fast? The contenders take turns in random order, on the same inputs, in one process; the
# medians are compared. `F.scaled_dot_product_attention` is the fused kernel that PyTorch ships.

# %% tags=["nbval-ignore-output"]
from luminal_lab.bench import compare

contest = compare(
    {
        "three lines of PyTorch": attention,
        "PyTorch's fused kernel": torch.nn.functional.scaled_dot_product_attention,
        "derived kernel": fn,
    },
    (q, k, v),
    name="attention, 4 heads, 1024 × 1024 × 64",
)
contest.table().set_index("name")[["ms", "iqr_ms", "vs PyTorch's fused kernel"]].round(2)

# %% [markdown]
# Where does its time go? The roofline sets the kernel against what this machine was measured to
# do: the closer a kernel is to the ceilings, the less there is left to gain.

# %% tags=["nbval-ignore-output"]
ll.profile(fn, (q, k, v))

# %% [markdown]
# ## What to try next
#
# - **Click through it**: run `ll.Workbench(attention, (q, k, v))` in a new cell, press *Run
#   all*, then *Why this one?* All of the above is there, and can be changed: rules, budgets,
#   schedules, and the source of the kernel.
# - **Make it causal**: add `scores = scores.masked_fill(mask, float("-inf"))` with
#   `mask = torch.ones(1024, 1024, dtype=torch.bool).triu(1)` made inside `attention`. Is it still
#   one kernel?
# - **Take a law away**: what is the best candidate when the e-graph has no `online`? Look at
#   `other` above, then at `result.table()`.
# - **Something else entirely**: `torch.nn.functional.layer_norm`, `torch.logsumexp`, an MLP with
#   SwiGLU. The laws know nothing of attention, so they should have something to say.
# - **Just use it**: `fn = ll.compile(module, args)` does all of the above, and so does
#   `torch.compile(module, backend="luminal_lab")`.
# - **Go on**: the [laws behind it](06_deriving_flash_attention.ipynb), [a law of your
#   own](02_egraph_rules.ipynb), [a kernel of your own](07_bring_your_own_kernel.ipynb), or a
#   [false law](11_debug_a_wrong_rule.ipynb) and how it is caught.
