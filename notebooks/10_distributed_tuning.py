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
# # Tuning on several workers
#
# A search compiles many kernels and times each of them. Compiling can go on anywhere; timing
# must be left alone. This notebook runs one search on this machine, then on a dask cluster of
# two workers, kills a worker in the middle, and compares the results.
#
# The cluster here is two processes on this machine. With `Client("tcp://scheduler:8786")` it
# is as many machines as you have; nothing else changes.

# %%
import os
import signal
import warnings

import torch
from distributed import Client, LocalCluster

import luminal_lab as ll

warnings.filterwarnings("ignore", module="distributed")


def gated(x, a, b, c):
    """A gated unit and a softmax: small, so that compiling takes longer than running."""
    return torch.softmax(torch.nn.functional.silu(x @ a) * (x @ b) @ c, dim=-1)


x, a, b, c = (torch.randn(s) for s in ((24, 32), (32, 48), (32, 48), (48, 32)))
egraph = ll.saturate(ll.capture(gated, (x, a, b, c)))
budget = ll.Budget("quick", candidates=3)

# %% [markdown]
# ## On this machine
#
# Without an executor, kernels are generated and compiled by a pool of processes, one for each
# core. Then they are timed one by one, and while one is timed nothing else of this search, or
# of any other search on this machine, is compiled or timed.
#
# Measurements are remembered in a database. So that each of the searches below starts from
# nothing, each gets a database in memory; `ll.search` takes yours.

# %% tags=["nbval-ignore-output"]
from luminal_lab.runtime import CpuTarget
from luminal_lab.search import Database, search

with CpuTarget() as target:
    here = search(egraph, budget, 0, target, database=Database(":memory:"))
here.table()[["rank", "genome", "kernels", "status"]]

# %% [markdown]
# ## On two workers
#
# A batch of kernels goes to a worker as plain data: the kernel's text, its schedule, and how
# its random inputs are made. One of them looks like this:

# %% tags=["nbval-ignore-output"]
print(next(iter(here.records)))

# %% [markdown]
# In your own code this is `ll.search(egraph, budget, executor=client)`.

# %%
options = {"dashboard_address": None, "silence_logs": "CRITICAL"}
cluster = LocalCluster(n_workers=2, threads_per_worker=1, **options)
client = Client(cluster)
with CpuTarget(executor=client) as target:
    there = search(egraph, budget, 0, target, database=Database(":memory:"))

columns = ["region", "instances", "rank", "genome", "kernels"]
there.table()[columns].equals(here.table()[columns])

# %% [markdown]
# Times of different machines are not comparable. Each worker says what its machine is, and
# only those that are like the searching one take part. Here both are:

# %%
from luminal_lab.runtime.cpu import fingerprint

theirs = set(client.run(fingerprint, CpuTarget().threads).values())
len(theirs), CpuTarget().fingerprint() in theirs

# %% [markdown]
# ## Killing a worker
#
# As soon as the first kernel has come back, one of the two workers is killed. What it was
# working on is measured again; the result is the same.

# %% tags=["nbval-ignore-output"]
killed = []


def kill(event):
    """Kill a worker after the first measurement."""
    if event.stage == "measure" and not killed:
        killed.append(min(client.run(os.getpid).values()))
        os.kill(killed[0], signal.SIGKILL)


with CpuTarget(executor=client) as target:
    again = search(egraph, budget, 0, target, kill, database=Database(":memory:"))

# %%
len(killed), again.table()[columns].equals(here.table()[columns])

# %% tags=["nbval-ignore-output"]
client.close()
cluster.close()

# %% [markdown]
# ## Where predictions come from
#
# What is worth measuring is decided by predicted times, and those by a handful of rates of the
# machine that were measured once. Rates that were taken while something else was running are
# marked as disturbed, and measured again later; `luminal-lab calibrate` does it at once.

# %% tags=["nbval-ignore-output"]
from luminal_lab.runtime.calibration import calibration

print(calibration())
