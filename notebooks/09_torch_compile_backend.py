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
# # One line: the `torch.compile` backend
#
# You need not know any of the stages to use them. `torch.compile(model, backend="luminal_lab")`
# hands PyTorch's own captured graphs to the compiler, forward and backward, and PyTorch keeps
# everything else: graph breaks, guards, recompilation, autograd.

# %%
import torch

import luminal_lab  # noqa: F401

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 4)
)
fast = torch.compile(model, backend="luminal_lab", options={"effort": "none"})
x = torch.randn(16, 32)
with torch.no_grad():
    print("same as eager:", torch.allclose(fast(x), model(x), atol=1e-5))

# %% [markdown]
# ## Training
#
# The backward graph is compiled with the same rules. Here is the network trained for a few steps
# twice, from the same start: once as it is, once compiled.


# %%
start = {k: v.clone() for k, v in model.state_dict().items()}


def train(forward, steps=8):
    """Losses of a few steps of AdamW from the same start, on the same data."""
    model.load_state_dict(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        batch = torch.randn(16, 32, generator=data)
        loss = (forward(batch) - batch[:, :4]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


eager, compiled = train(model), train(fast)
print("losses agree:", all(abs(a - b) < 1e-4 * abs(a) for a, b in zip(eager, compiled)))
print("and fall:", compiled[-1] < compiled[0])

# %% [markdown]
# ## Weights may change
#
# A compiled program shares its weights with the module. Loading other ones is noticed at the
# next call; what was packed or computed from the old ones is made again.

# %%
with torch.no_grad():
    before = fast(x)
    model[0].weight.mul_(2.0)
    after = fast(x)
    print("noticed:", not torch.allclose(before, after))
    print("right:", torch.allclose(after, model(x), atol=1e-4))

# %% [markdown]
# ## Graph breaks are PyTorch's
#
# What PyTorch cannot trace stays Python. Both halves around it are compiled.


# %% tags=["nbval-ignore-output"]
def with_a_break(a):
    b = torch.relu(a) * 2
    if float(b.sum()) > 0:  # depends on the data: a graph break
        return torch.softmax(b, -1)
    return b


broken = torch.compile(with_a_break, backend="luminal_lab", options={"effort": "none"})
print(torch.allclose(broken(x), with_a_break(x), atol=1e-6))

# %% [markdown]
# ## Options
#
# `options={"effort": "none" | "quick" | "full", "seconds": 30, "seed": 0}` say how much to search.
# `"none"` trusts the cost model and compiles in about a second; `"quick"` measures.
#
# ## Try
#
# - `torch._dynamo.explain(with_a_break)(x)` tells where the break is.
# - Compile your own model and compare: notebook [05](05_profile_roofline.ipynb) shows how to do
#   that fairly.
