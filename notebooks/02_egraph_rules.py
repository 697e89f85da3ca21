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
# # Teach the compiler a law
#
# All that this compiler knows about mathematics stands in `rules/*.egg`: laws such as
# *a·b = b·a*. There is no other place where it could know anything. So when it misses something
# that you know, you do not patch a pass; you state a law.
#
# Here is a case. A *low-rank adapter* (LoRA) multiplies by a matrix that is itself a thin
# product, `a @ b`. Written as below it first makes a matrix of a million numbers, and then uses
# it once. Everyone who took a course in algorithms knows what to do. The compiler does not, yet.
# In this notebook you will
#
# 1. **look** at what it finds by itself;
# 2. **state** one law, and have it tested before anything uses it;
# 3. **watch** the law work, iteration by iteration;
# 4. **ask** why two programs are equal, and what the law bought;
# 5. **ask** why a rule did *not* fire where you thought it would.

# %%
import torch

import luminal_lab as ll


def adapter(x, a, b):
    return x @ (a @ b)


def numbers(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


x, a, b = numbers(0, 64, 1024), numbers(1, 1024, 8), numbers(2, 8, 1024)
hlir = ll.capture(adapter, (x, a, b))
print(hlir)

# %% [markdown]
# ## 1. What the built-in laws find
#
# A matrix product is a `Mul` and a `SumReduce`, so the program is a sum of products, twice. Its
# [e-graph](../docs/concepts/egraph.md) is small:

# %% tags=["nbval-ignore-output"]
before = ll.saturate(hlir)
before

# %% tags=["nbval-ignore-output"]
plain = ll.search(before, ll.Budget("none")).best
plain

# %% [markdown]
# Two kernels: the first stores the million numbers of `a @ b`, the second multiplies by them. All
# other candidates are worse. (`Budget("none")` ranks by the cost model alone, which takes a moment
# and gives the same answer on every machine; [notebook 03](03_search_candidates.ipynb) measures.)
#
# How many multiplications is that, and how many are they in the other order?

# %%
n, k, r, m = 64, 1024, 8, 1024
as_written, other_way = k * r * m + n * k * m, n * k * r + n * r * m
print(f"x @ (a @ b): {as_written:,} products")
print(f"(x @ a) @ b: {other_way:,} products, {as_written / other_way:.0f} times fewer")

# %% [markdown]
# ## 2. One law
#
# *x·(a·b) = (x·a)·b* could be stated for matrices. But the compiler has no matrices, only sums of
# products, and it has laws for these already: a factor **leaves** a sum that does not depend on
# it, and sums are exchanged where that helps. What is missing is the first step, which makes
# things look worse before they get better: a factor must **enter** a sum.
#
# > *x · Σⱼ bⱼ  =  Σⱼ x · bⱼ*, where *x* does not depend on *j*
#
# Rules are written in egglog's language. A variable matches anything; `(Red "add" j b)` is the sum
# of `b` over the axis `j`. The two comments are not decoration: `law` says in words what you
# claim, and `class` how exactly it holds. Sums in another order round differently, so this law
# `reassociates`.

# %%
# %load_ext luminal_lab

# %% [markdown]
# `%%rules NAME` reads the cell, checks types, and **tests each rule on random instances** of its
# left side, both sides computed in float64, before anything may use it.

# %%
# %%rules mine
;; law: a factor that does not depend on j enters a sum over j
;; class: reassociates
(rewrite (Mul x (Red "add" j b)) (Red "add" j (Mul x b))
  :when ((= f (free x)) (set-not-contains f j)
         (= n (least j)) (> n 0)
         (= d (dtype x)) (wide d))
  :name "factor-in")

# %% [markdown]
# Each premise after `:when` is a **guard**. Most wrong rules are right rules without a guard:
#
# | guard | without it |
# |---|---|
# | `(set-not-contains f j)` | a factor that *does* depend on j would be captured by the sum |
# | `(> n 0)` | over an empty axis the left side is x·0, which is NaN for an infinite x; the right side is 0 |
# | `(wide d)` | half-precision sums would be reordered, which costs digits |
#
# A rule must parse, too. Errors point at the place:

# %%
from luminal_lab.errors import RuleError

try:
    ll.check_rule("""
;; law: a misspelt one
;; class: exact
(rewrite (Mul x (Sum j b)) (Sum j (Mul x b)) :name "misspelt")""")
except RuleError as error:
    print(error)

# %% [markdown]
# ## 3. Watch it work
#
# `ll.saturate(hlir, rules="mine")` would do it all at once. With `step=True` it becomes an iterator
# that runs one iteration at a time. Each line below is a new form: the class that gained it, the
# form, and the rule that made it. Read `Σ_b` as "sum over axis b".

# %%
steps = ll.saturate(hlir, rules="mine", step=True)
for step in steps:
    print(step)

# %% [markdown]
# Follow the story: `factor-in` fires in iteration 2 and makes a product of three; `mul-associates`
# regroups it; in iteration 3 `sum-exchange`, a built-in law, swaps the two sums so that a factor
# can leave the inner one. That is *(x·a)·b*. Your law made the first move and the laws that were
# there did the rest.
#
# The growth curve flattens after four iterations. A law that keeps growing would show here first.

# %% tags=["nbval-ignore-output"]
steps

# %% [markdown]
# Who fired how often? Most of the hundred laws have nothing to say about this program.

# %%
after = steps.egraph
fired = after.table()[["rule", "law", "class", "matches", "new e-nodes"]]
print(fired.query("`new e-nodes` > 0").drop(columns="law").to_string(index=False))

# %% [markdown]
# ## 4. What did it buy?

# %% tags=["nbval-ignore-output"]
candidates = ll.search(after, ll.Budget("none")).candidates  # the fastest predicted first
best = min(candidates, key=lambda c: len(c.kernels))
best

# %% [markdown]
# Now it is one kernel, and the million numbers are gone. By which laws does it equal what you
# wrote? `explain` gives the chain, one rewrite at a time; yours is number 4.

# %%
why = after.explain("out0", best.kernels[0])
print(why)

# %% [markdown]
# A program carries the loosest class of the laws on its way. It decides how closely results are
# compared with the float64 reference when the search verifies a kernel.

# %%
print(why.tolerance)

# %% [markdown]
# And the clock? The fastest of a hundred runs each, in turns.
# ([Notebook 05](05_profile_roofline.ipynb) shows how to compare fairly.)

# %% tags=["nbval-ignore-output"]
from time import perf_counter

programs = {"as written": ll.build(plain), "with one law more": ll.build(best)}
fastest = dict.fromkeys(programs, float("inf"))
for _ in range(100):
    for name, program in programs.items():
        started = perf_counter()
        program(x, a, b)
        fastest[name] = min(fastest[name], perf_counter() - started)
for name, seconds in fastest.items():
    print(f"{name:20}{seconds * 1e3:8.3f} ms")

# %% [markdown]
# ## 5. Why did it not fire?
#
# A friend has an adapter with a nonlinearity in the middle. The law does not help there, and
# should not. `why_not` says what was missing: the first premise that does not hold, at the term
# that came closest.


# %%
def bent(x, a, b):
    return x @ torch.relu(a @ b)


program = ll.capture(bent, (x, a, b))
other = ll.saturate(program, rules="mine")
product = max(n for n, node in enumerate(program.nodes) if node.op == "Mul")
print(other.why_not("factor-in", product))

# %% [markdown]
# Where a rule *did* fire, the same question tells when, and what it gave:

# %%
print(after.why_not("factor-in", 5))

# %% [markdown]
# ## Exercises
#
# 1. **Three in a row.** Capture `x @ (a @ b @ c)` with thin `a`, `c`. Which order wins, and how
#    many forms of the output are there (`after.alternatives("out0")`)?
# 2. **Take a guard away.** Remove `(set-not-contains f j)` and run the `%%rules` cell. What does the
#    test say? [Notebook 11](11_debug_a_wrong_rule.ipynb) is about such rules.
# 3. **A law of your own.** √a·√b = √(a·b) saves a root in a cosine similarity. What must be proved
#    about a and b? (The check will tell you.)
# 4. **It exists already.** `rules/optional/distribution.egg` has this law and three more that are
#    off by default, because they can grow an e-graph without end:
#    `ll.saturate(hlir, rules="distribution")`. Compare the growth curves on your own model.
#
# To go on: [how rules are written](../docs/howto/add-a-rule.md),
# [all the questions you can ask](../docs/howto/ask-why.md), and the
# [concept page on e-graphs](../docs/concepts/egraph.md).
