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
# # One kernel, three targets
#
# A kernel is a formula. How it runs (which loops, which tiles, what stays in registers) is a
# **schedule**, and how it is written down is a **renderer**: C for CPUs, Triton for NVIDIA and
# AMD GPUs, Metal for Apple's. In this notebook you take one kernel through all three, change its
# schedule, read what the compilers make of it, and edit it by hand. No GPU is needed.

# %%
import torch

import luminal_lab as ll


def layer_norm(x, weight, bias):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)


args = (torch.randn(256, 1024), torch.randn(1024), torch.randn(1024))
egraph = ll.saturate(ll.capture(layer_norm, args))
best = ll.search(egraph, ll.Budget("none")).best
kernel = best.kernels[0]
print(len(best.kernels), "kernel")

# %% [markdown]
# ## The formula
#
# This is what the kernel computes, as mathematics over named axes.

# %% tags=["nbval-ignore-output"]
from luminal_lab.views.candidate import mathematics_of

print(mathematics_of(kernel))

# %% [markdown]
# ## Three renderers
#
# The three texts come from one *tile program*: loops over blocks, loads, vector arithmetic,
# reductions, stores. C spells a block as vectors, Triton as a block tensor, Metal as what the
# threads of a group hold.

# %% tags=["nbval-ignore-output"]
from luminal_lab.views.kernels import sources

sources(best)

# %% [markdown]
# ## Schedules
#
# A kernel has a small space of schedules; the first one is derived from the formula and is
# usually close to the best. Each is *verified before it is timed*: a schedule that gave wrong
# numbers would not be ranked.

# %% tags=["nbval-ignore-output"]
import pandas as pd

from luminal_lab.codegen import schedule_space
from luminal_lab.runtime.trial import try_kernel

rows = []
for k, schedule in enumerate(schedule_space(kernel)[:6]):
    trial = try_kernel(kernel, schedule.to_data())
    m = trial.measurement
    rows.append({"schedule": k, "right": m.ok, "µs": round(m.median * 1e6, 1),
                 "unroll": schedule.unroll, "keep": schedule.keep})  # fmt: skip
pd.DataFrame(rows)

# %% [markdown]
# ## What the C compiler makes of it
#
# The inner loops should be wide vector instructions. Count them:

# %% tags=["nbval-ignore-output"]
from luminal_lab.runtime.assembly import assembly

text = assembly(kernel)
print(len(text.splitlines()), "lines, of which on wide vectors:",
      sum("zmm" in line or "ymm" in line for line in text.splitlines()))  # fmt: skip
print("\n".join(text.splitlines()[:12]))

# %% [markdown]
# ## What a GPU would get
#
# Triton compiles ahead of time for architectures that are not here. Registers, spills and shared
# memory are facts about the compiled kernel; nothing was measured on a device.

# %% tags=["nbval-ignore-output"]
from luminal_lab.runtime.assembly import gpu_reports

reports = gpu_reports(kernel, ["sm_80", "sm_90"])
for report in reports.values():
    print(report)

# %% [markdown]
# ## Edit it by hand
#
# Take the generated C, change it, try it. A change that does not alter the result is right:

# %%
from luminal_lab.runtime.trial import source_text

text = source_text(kernel)
print(try_kernel(kernel, text="/* mine */\n" + text).measurement.ok)

# %% [markdown]
# A change that does is *wrong*, and says where; it is not ranked, however fast it is.

# %%
import re

number = re.search(r"\d+\.\d+f", text)[0]
broken = try_kernel(kernel, text=text.replace(number, "0.5f")).measurement
print(broken.ok, broken.reason)

# %% [markdown]
# And one that crashes takes nothing down: kernels run in a child process.

# %%
crash = text.replace("ll_parallel_for(", "*(volatile int *)0 = 1; ll_parallel_for(")
print(try_kernel(kernel, text=crash).measurement.reason)

# %% [markdown]
# ## Try
#
# - Which schedule is fastest here? Try a matrix product instead: `lambda a, b: a @ b` has a much
#   larger space, of register tiles and blocks.
# - Capture `layer_norm` in `torch.bfloat16`. What changes in the three sources?
# - In a live notebook: `ll.Workbench(layer_norm, args)`, panel *Kernels*.
#
# Next: [profile and roofline](05_profile_roofline.ipynb).
