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
# # Is it fast, and could it be faster?
#
# A time by itself says little. In this notebook you compare a compiled program with PyTorch in a
# fair contest, see where its time goes kernel by kernel, and set each kernel against what *this
# machine* was measured to do. If a kernel is already at the ceiling, no search will help it.

# %%
import torch

import luminal_lab as ll


class MLP(torch.nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
model, x = MLP().eval(), torch.randn(512, 256)
fn = ll.compile(model, (x,), budget=ll.Budget("none"))
with torch.no_grad():
    print("within 1e-4 of eager:", bool((fn(x) - model(x)).abs().max() < 1e-4))

# %% [markdown]
# ## A fair contest
#
# Contestants take turns in random order, in one process, on the same inputs, with a warm
# allocator. The table has medians and spreads; correctness is checked *after* the timing.

# %% tags=["nbval-ignore-output"]
from luminal_lab.bench import compare

contest = compare({"eager": model, "luminal_lab": fn}, (x,), name="MLP",
                  reference=lambda: model.double()(x.double()))  # fmt: skip
model.float()
contest.table().set_index("name")[["ms", "iqr_ms", "error", "vs eager"]].round(6)

# %% [markdown]
# ## Where the time goes
#
# The profile reads a clock around every kernel call. `overhead` is what no kernel accounts for:
# checking arguments, making outputs.

# %% tags=["nbval-ignore-output"]
profile = ll.profile(fn, (x,))
profile

# %% [markdown]
# ## The roofline
#
# A kernel must move its operands and do its arithmetic. The machine's bandwidth and peak were
# *measured*, not looked up; they are the two ceilings. A kernel's **intensity** (arithmetic per
# byte) says which one it meets.

# %%
machine = profile.machine
ridge = machine.dot_flops / machine.bandwidth
print("measured ceilings are positive:", machine.bandwidth > 0, machine.dot_flops > 0)
print("a product of 512×256 and 256×1024 is bound by", end=" ")
flops, nbytes = 2 * 512 * 256 * 1024, 4 * (512 * 256 + 256 * 1024 + 512 * 1024)
print("arithmetic" if flops / nbytes > ridge else "memory")

# %% tags=["nbval-ignore-output"]
profile.table()[["name", "calls", "us", "iqr_us", "GB/s", "GF/s", "floor_us"]].round(1)

# %% [markdown]
# A kernel that is *faster than memory* is not a miracle but a mistake of the measurement, and is
# flagged as such.

# %%
print("flagged:", int(profile.table()["faster than memory"].sum()))

# %% [markdown]
# ## Take it elsewhere
#
# The timeline is also a trace that Chrome and [Perfetto](https://ui.perfetto.dev) open.

# %%
from luminal_lab.views.profile import trace

events = trace(profile)["traceEvents"]
print(len(events) - 1 == len(profile.calls), sorted(events[-1])[:4])

# %% [markdown]
# ## Try
#
# - Make the batch smaller: `torch.randn(1, 256)`. Which ceiling binds now? How large is the
#   overhead's share?
# - Compare with `torch.compile(model)` in the same contest.
# - Search instead of trusting the cost model: `ll.Budget("quick")`. Did it find anything?
