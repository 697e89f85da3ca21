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
# # Deriving flash attention
#
# FlashAttention was found by people. Here it is *derived*: four laws of arithmetic, none of which
# mentions attention, are enough. The [tour](00_tour.ipynb) shows that it happens; this notebook
# shows *why*, law by law, and takes laws away to see what breaks.

# %%
import torch

import luminal_lab as ll


def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) * 64**-0.5
    return torch.softmax(scores, dim=-1) @ v


qkv = [torch.randn(1, 4, 512, 64, generator=torch.Generator().manual_seed(i)) for i in range(3)]
hlir = ll.capture(attention, qkv)
egraph = ll.saturate(hlir)
candidates = ll.search(egraph, ll.Budget("none")).candidates  # the fastest predicted first
best = min(candidates, key=lambda c: len(c.kernels))
print(len(best.kernels), "kernel from", len(hlir.nodes), "nodes")

# %% [markdown]
# ## Law 1: reading what a kernel stored is computing it in place
#
# Every operation starts as a kernel of its own: it computes a value over axes and stores it. The
# only fusion rule there is says that a load of a stored value is that value. It is one equation,
# and it fuses anything with anything.

# %% tags=["nbval-ignore-output"]
fusion = [r for r in egraph.rules if r.file.endswith("fusion.egg")]
for rule in fusion:
    print(rule.law)
    print(rule.text)

# %% [markdown]
# With this law alone attention is one kernel already, and a terrible one: each output element
# would compute its row of scores again. The other laws make it cheap.
#
# ## Law 2: a factor that does not depend on *j* leaves a sum over *j*
#
# In softmax·V, the output is Σⱼ (eⱼ / d)·vⱼ, where the denominator d is the same for all j. The
# division leaves the sum. Now the numerator Σⱼ eⱼ·vⱼ and the denominator Σⱼ eⱼ are two sums over
# the same j, side by side.

# %%
print(egraph.rule("sum-linear").law)

# %% [markdown]
# ## Law 3: exponentials relative to a maximum can be summed online
#
# Here is the heart of it. Σⱼ 2^(c·(sⱼ − max s))·wⱼ seems to need the maximum first. Instead carry
# the largest s so far, and rescale what was summed when it grows. Check it by hand: after each
# element the running total is what it should be relative to the maximum *so far*.

# %%
s, w = [0.5, 3.0, -1.0, 4.5, 2.0], [1.0, 2.0, 3.0, 4.0, 5.0]
largest, total = float("-inf"), 0.0
for k, (s_k, w_k) in enumerate(zip(s, w), 1):
    new = max(largest, s_k)
    total = total * 2 ** (largest - new) + 2 ** (s_k - new) * w_k
    largest = new
    direct = sum(2 ** (a - max(s[:k])) * b for a, b in zip(s[:k], w[:k]))
    print(k, largest, round(total, 6), round(direct, 6))

# %%
print(egraph.rule("online").law)
print(egraph.rule("online-one").law)

# %% [markdown]
# ## Law 4: products may be regrouped
#
# The scale 1/8, the log₂e of the exponential, the order of factors: the online law wants them in
# one shape, and commutativity and associativity of multiplication bring them there.

# %%
for name in ("mul-commutes", "mul-associates"):
    print(egraph.rule(name).law)

# %% [markdown]
# ## The derivation
#
# This is the chain from the captured formula to the kernel, one rewrite at a time.

# %% tags=["nbval-ignore-output"]
from luminal_lab.views.derivation import derivation

derivation(egraph, best)

# %% [markdown]
# ## Take a law away
#
# A copy of the rules without the online laws: is one pass still found? The e-graph holds no
# online sum then, so every candidate reads the keys at least twice.

# %%
from luminal_lab.egraph import Limits

online = [n.op for part in egraph.parts for c in part.classes for n in c.nodes].count("online")
exact_only = ll.saturate(hlir, limits=Limits(tolerance="exact"))
without = [n.op for p in exact_only.parts for c in p.classes for n in c.nodes].count("online")
print("online sums in the e-graph:", online > 0, "- with exact laws only:", without)

# %% [markdown]
# (Online sums reorder floating-point additions; so does every fast kernel. `tolerance="exact"`
# asks for laws that do not, and then there is no flash attention.)
#
# ## The same laws, other programs
#
# Nobody wrote a rule for these, and each is one kernel:


# %%
def causal(q, k, v):
    scores = q @ k.transpose(-1, -2) * 64**-0.5
    n = scores.shape[-1]
    mask = torch.ones(n, n, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ v


def weighted(x, w):
    return (torch.softmax(x, -1) * w).sum(-1)


x, row = torch.randn(64, 512), torch.randn(512)
programs = {
    "causal attention": (causal, qkv),
    "softmax": (lambda a: torch.softmax(a, -1), [x]),
    "log-sum-exp": (lambda a: torch.logsumexp(a, -1), [x]),
    "softmax, weighted sum": (weighted, [x, row]),
}
for name, (fn, args) in programs.items():
    found = ll.search(ll.saturate(ll.capture(fn, args)), ll.Budget("none")).candidates
    print(f"{name}: {min(len(c.kernels) for c in found)} kernel")

# %% [markdown]
# ## And it is right
#
# Not because we say so: kernels are compared with float64.

# %%
out = ll.build(best)(*qkv)
exact = attention(*(t.double() for t in qkv))
print("within 1e-5 of float64:", bool((out - exact).abs().max() < 1e-5))

# %% [markdown]
# ## Try
#
# - Multiply the scores by −1 before the softmax. The online law demands c > 0; what happens?
# - Add a bias per key to the scores, or ALiBi slopes. Still one kernel?
# - Write a law of your own: [notebook 02](02_egraph_rules.ipynb).
