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
# # How the search finds its candidates
#
# An e-graph holds every program that the laws can reach; running it means choosing one. This
# notebook follows that choice on a program that is small enough to see *all* candidates, so that
# each strategy can be compared with the truth.
#
# 1. **enumerate** everything, with a proof that nothing is missing;
# 2. **explore** with strategies, one of them your own;
# 3. **measure** what can still win, and let whole programs have the last word;
# 4. **replay** the search from a file, and see what it says when something differs.

# %% tags=["nbval-ignore-output"]
import random
import tempfile
from pathlib import Path

import torch
from IPython.display import SVG

import luminal_lab as ll
from luminal_lab.search import Machine, search
from luminal_lab.search.assemble import Assembler
from luminal_lab.search.region import RegionSearch
from luminal_lab.search.strategies import STRATEGIES
from luminal_lab.views.result import scatter_svg


def gate(x, w):
    return torch.sigmoid(x @ w) * x


x, w = (
    torch.randn(s, generator=torch.Generator().manual_seed(0)) for s in ((256, 128), (128, 128))
)
egraph = ll.saturate(ll.capture(gate, (x, w)))
egraph

# %% [markdown]
# ## 1. All candidates there are
#
# A candidate says for each value *which* e-node computes it, for each tensor whether it is
# *stored* or recomputed, and for each stored tensor *who makes it*. Extraction looks at few of
# these genes: those that the kernels which it makes depend on. Recording which ones it asks for
# turns it into a decision tree, and a walk over all leaves meets every candidate once.

# %% tags=["nbval-ignore-output"]
everything = search(egraph, ll.Budget("none", candidates=400), strategy="exhaustive")
print("complete:", everything.complete)
print(
    len(everything.rows),
    "candidates of",
    sorted({r.kernels for r in everything.rows}),
    "kernels",
)
everything.rejections()

# %% [markdown]
# The best and the worst, by the cost model alone. The worst one stores the products before they
# are summed: a tensor of 256 × 128 × 128 numbers.

# %% tags=["nbval-ignore-output"]
best, worst = everything.candidates[0], everything.candidates[-1]
print(len(best.calls), "kernel against", len(worst.calls))
print(best.temporaries, "bytes of temporaries against", worst.temporaries)

# %% [markdown]
# ## 2. Strategies
#
# A strategy is a generator: it looks at one genome per step. Here is how fast each of them comes
# down to the optimum that we know: genomes looked at until the best so far is within 1 %.

# %% tags=["nbval-ignore-output"]
region = Assembler(egraph, Machine()).regions[0]
optimum = everything.rows[0].predicted


def genomes_until_near(strategy, seed=0, most=2000):
    run = RegionSearch(region)
    for _ in strategy(run, random.Random(seed)):
        if run.best is not None and run.best.seconds <= 1.01 * optimum:
            return run.considered
        if run.considered >= most:
            return None
    return None


{name: genomes_until_near(strategy) for name, strategy in sorted(STRATEGIES.items())}

# %% [markdown]
# Your own strategy is a function like these. This one draws at random around one seed, and
# nothing else.


# %% tags=["nbval-ignore-output"]
def only_random(run, rng):
    seeds = run.seeds()
    while True:
        run.evaluate(run.random_genome(rng, 1.0, seeds[0].genome))
        yield


genomes_until_near(only_random)

# %% [markdown]
# `ll.search(egraph, strategy=only_random)` runs a whole search with it.
#
# ## 3. Measure what can still win
#
# Predictions only say where to look. A quick search measures the kernels of the most promising
# candidates, then those of any other whose estimate is below the best, then further *schedules*
# of all kernels near the best. A candidate's time is the sum of its kernels' times, so kernels
# and schedules are searched together at the price of a sum.

# %% tags=["nbval-ignore-output"]
result = ll.search(egraph, ll.Budget("quick", candidates=12))
result.table()[
    ["rank", "kernels", "status", "predicted_ms", "measured_ms", "program_ms", "chosen"]
]

# %% [markdown]
# The last word have whole programs: the best few are built, compared with the program as it was
# written (in float64, by no rule), and timed in turns in a process of their own. A tie goes to
# the program with fewer kernels.

# %% tags=["nbval-ignore-output"]
result.final_table()[
    ["kernels", "predicted_ms", "program_ms", "iqr_ms", "max_error", "status", "chosen"]
]

# %% [markdown]
# How well did the cost model predict? On the diagonal it is right.

# %% tags=["nbval-ignore-output"]
SVG(str(scatter_svg(result, standalone=True)))

# %% [markdown]
# All of it is remembered: the same search again measures nothing.

# %%
again = ll.search(egraph, ll.Budget("quick", candidates=12))
print(again.timings, "measurements")
print("the same candidate:", again.best.name == result.best.name)

# %% [markdown]
# ## 4. Replay
#
# A saved result holds the genes of its candidates, as data. A replay rebuilds them, in any
# process, and explores and measures nothing.

# %%
path = Path(tempfile.mkdtemp()) / "gate.result"
result.save(path)
replayed = ll.search(egraph, replay=path)
replayed.table().equals(result.table()), replayed.best == result.best

# %% [markdown]
# On another program it says what differs.

# %%
other = ll.saturate(ll.capture(lambda x, w: torch.relu(x @ w) * x, (x, w)))
try:
    ll.search(other, replay=path)
except ll.LuminalError as error:
    print(error.what)

# %% [markdown]
# ## What next
#
# - `python -m luminal_lab.bench search` does what section 1 and 3 do for ten programs: it
#   measures *every* kernel of every candidate under every schedule, and judges the search.
# - `docs/concepts/search.md` has the whole course of a search on one page.
