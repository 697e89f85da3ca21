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
# # Debug a wrong rule
#
# In a compiler that searches, one wrong law is worse than a bug in one pass: it makes programs
# *equal* that are not, and the search then finds the fastest of them. Wrong programs are often very
# fast. So nothing here is believed. There are three nets, and in this notebook you walk a wrong
# rule through all of them, on purpose:
#
# 1. **the check** tests the rule by itself, before anything uses it;
# 2. **verification** compares every kernel with a float64 reference before it is ranked;
# 3. **the explanation** shows the false equation in the middle of an otherwise sound proof.
#
# Then you repair the rule.

# %%
import torch

import luminal_lab as ll
from luminal_lab.errors import LuminalError

# %load_ext luminal_lab

# %% [markdown]
# ## A law that looks right
#
# Attention scales its scores, `max(0.125 * s)`. Why not scale after the maximum, on a number
# instead of on a row? *The largest of k·x is k times the largest x.* You try it on your model; it
# works; you write it down.

# %%
LAW = """
;; law: the largest of k*x is k times the largest x
;; class: exact
(rewrite (Red "max" j (Mul x (Const k d))) (Mul (Red "max" j x) (Const k d))
  :name "max-scaled")
"""

# %% [markdown]
# (Before you read on: is it right?)
#
# ## Net 1: the check
#
# `check_rule` draws random instances of the left side, rewrites them, and computes both sides.

# %%
verdict = ll.check_rule(LAW)
print(verdict)

# %% [markdown]
# There it is, in the smallest instance that shows it: **k = −2**. The largest of −2·x is −2 times
# the *smallest* x. Every test with a positive scale passed, as it did on your model.
#
# The same check guards every door. Saturating with it is refused:

# %%
row = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
least = ll.capture(lambda x: x.amin(-1), (row,))
try:
    ll.saturate(least, rules=LAW)
except LuminalError as error:
    print(type(error).__name__)
    print(error)

# %% [markdown]
# ## Force it past
#
# `check=False` (or `%%rules NAME --force`) uses a rule as it is. Somebody will do that some day, at
# night, because the law is "obviously true" and the deadline is near.
#
# The program is `x.amin(-1)`. Nobody wrote a negative scale; but there is no minimum among the
# primitives, so capture spells it with a maximum:

# %%
for n, node in enumerate(least.nodes):
    print(f"%{n} {node.op}")

# %% [markdown]
# *min x = −max(−x)*, and −1 is a scale. With the false law, −max(−x) = −(−max x) = max x: **the
# minimum equals the maximum**, and the maximum is one pass over the row without a product. It is
# the cheapest program in the e-graph:

# %%
spoiled = ll.saturate(least, rules=LAW, check=False)
cheapest = ll.search(spoiled, ll.Budget("none")).best
wrong = ll.build(cheapest)(row)
print("it computes the minimum:", torch.equal(wrong, row.amin(-1)))
print("it computes the maximum:", torch.equal(wrong, row.amax(-1)))

# %% [markdown]
# (A search with effort `"none"` trusts the cost model and verifies nothing. It is for looking.)
#
# ## Net 2: verification
#
# A search that measures also verifies. Each kernel runs on random inputs and must give what the
# program gives in float64. Fast and wrong does not win:

# %% tags=["nbval-ignore-output"]
result = ll.search(spoiled, ll.Budget("quick", candidates=8))
result.rejections()

# %%
right = ll.build(result.best)(row)
print("the best is the minimum:", torch.equal(right, row.amin(-1)))
print("to blame:", sorted({r.rule for r in result.rows if r.status == "rejected"}))

# %% [markdown]
# The rejected case names the rule, and carries the smallest instance on which that rule is
# false. If three people had added twenty rules, you would know whom to ask:

# %%
case = next(c for c in result.rejections().cases("wrong") if c.rule)
print(case.rule)
print(case.instance)

# %% [markdown]
# How was it found? Each piece of the wrong kernel is compared with what its e-class should be, from
# the inside out. Where the first one differs, the rules that made that form are put through the
# check of net 1, and the first that is false is named. True rules that merely built on the
# falsehood are not accused.
#
# ## When nothing is left
#
# Sometimes a false law spoils every candidate. Min-max normalisation uses both ends of a row. With
# the law the two are *one* class, so any candidate takes one value for both, and divides by zero.
# The search does not hand you the least bad one:


# %% tags=["nbval-ignore-output"]
def normalise(x):
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return (x - low) / (high - low)


both = ll.saturate(ll.capture(normalise, (row,)), rules=LAW, check=False)
try:
    ll.search(both, ll.Budget("quick", candidates=4))
except LuminalError as error:
    what, *instance = str(error).splitlines()
    print(what.partition(":")[0])
    print("\n".join(instance))

# %% [markdown]
# ## Net 3: the explanation
#
# An e-graph that proves too much can be asked for the proof. `explain` links two terms by single
# rewrites: here from the program's output to the kernel that computes the maximum.

# %%
proof = spoiled.explain("out0", cheapest.kernels[0])
print(proof)

# %% [markdown]
# One of these links is false, and the file and line stand beside it. `verify` computes both sides of
# each link in float64 and says which:

# %%
print("false links:", [k for k, error in enumerate(proof.verify(), 1) if error > 1e-6])

# %% [markdown]
# ## Repair it
#
# The law needs a guard: *for a positive k*. `%%rules NAME` checks the cell as it registers it.

# %%
REPAIRED = """
;; law: the largest of k*x is k times the largest x, for a positive k
;; class: exact
(rewrite (Red "max" j (Mul x (Const k d))) (Mul (Red "max" j x) (Const k d))
  :when ((> k 0.0)) :name "max-scaled")
"""
print(ll.check_rule(REPAIRED))

# %% [markdown]
# You did not think of that, and neither did I. For **k = ∞** a zero in the row gives ∞·0, which is
# NaN, and a NaN wins a maximum; on the other side the zero has lost before it is scaled. An `exact`
# law must hold for infinities, too. Say what you meant: a *finite* positive k. (egglog has no
# symbol for infinity: the largest float will do.)

# %%
# %%rules repaired
;; law: the largest of k*x is k times the largest x, for a positive and finite k
;; class: exact
(rewrite (Red "max" j (Mul x (Const k d))) (Mul (Red "max" j x) (Const k d))
  :when ((> k 0.0) (< k 1e300)) :name "max-scaled")

# %% [markdown]
# Now it stands. Where it does not apply, it says so itself:

# %%
sound = ll.saturate(least, rules="repaired")
print(sound.why_not("max-scaled", 3))

# %% [markdown]
# And both programs are right again:

# %%
for name, fn in (("minimum", lambda x: x.amin(-1)), ("normalise", normalise)):
    egraph = ll.saturate(ll.capture(fn, (row,)), rules="repaired")
    best = ll.search(egraph, ll.Budget("none")).best
    print(name, torch.allclose(ll.build(best)(row), fn(row), atol=1e-6))

# %% [markdown]
# (This law ships with the compiler, guard and all: `ll.check_rule("max-scale")`. Every built-in rule
# goes through the check in the test suite, and a second test removes one guard at a time and
# expects the check to fail.)
#
# ## What each net can and cannot do
#
# | net | sees | does not see |
# |---|---|---|
# | check | rules that are false on small random instances, also for inf, NaN and empty axes | a law that fails only on values that are hardly ever drawn |
# | verification | any kernel that differs from the reference on random inputs, whatever the reason: a rule, the code generator, the compiler | an error that those inputs do not show |
# | explanation | which link of a chain is false | a mistake outside the rules |
#
# The check does not prove a law; it fails to refute it. Write the guard that *proves* what you need.
#
# ## Exercises
#
# 1. Which of these are false, and for which instance? Guess first, then ask `ll.check_rule`:
#    - √(x·x) = x
#    - log₂(a·b) = log₂ a + log₂ b
#    - a sum over j of `x·y` is `x` times the sum of `y`
# 2. Repair √(x·x) = x without a guard: what is the right-hand side for any x? (`Select` and
#    `LessThan` are at hand.)
# 3. Make a law that is false only for one value, such as x = 7. Does the check find it? Does
#    verification? What does that say about tests?
#
# To go on: [add a rule](../docs/howto/add-a-rule.md), [ask why](../docs/howto/ask-why.md), the
# [search page](../docs/concepts/search.md) on how kernels are verified.
