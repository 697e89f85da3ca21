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
# # Bring your own kernel
#
# A compiler that derives its kernels from laws can only find what the laws can say. Some good
# algorithms are not in their reach. Then you write the kernel, in C, and tell the compiler **what**
# it computes; whether it is used is decided by the search, like for every other kernel.
#
# The example is the running sum, `torch.cumsum`. In this notebook you will
#
# 1. **look** at what the compiler makes of it, and why that is slow;
# 2. **write** a kernel: one C file with a declaration at its head;
# 3. **state** the rule that calls it, and have the rule tested;
# 4. **let the search decide**, and see both timed;
# 5. **break** the kernel, and then the rule, and see each caught and named.

# %%
import tempfile
from pathlib import Path

import torch

import luminal_lab as ll


def running_sum(x):
    return torch.cumsum(x, -1)


x = torch.randn(128, 256, generator=torch.Generator().manual_seed(0))
hlir = ll.capture(running_sum, (x,))
print(hlir)

# %% [markdown]
# ## 1. What it is without you
#
# The language of the compiler has sums, but no loops that carry something along. So a running sum
# is captured as what it means: for each place, the sum over *all* places, of which those beyond one's
# own count as zero. That is 256 additions for each of 256 places of a row.

# %%
plain = ll.saturate(hlir)
print(plain.alternatives("out0"))

# %% [markdown]
# One form, as captured: no law knows a better one. Here is the kernel that follows from it, and its
# price by the cost model.

# %% tags=["nbval-ignore-output"]
before = ll.search(plain, ll.Budget("none")).best
before

# %% [markdown]
# ## 2. A kernel
#
# You would carry the sum along. That is a loop of C. The comment at its head **declares** it: the
# search must know what it reads and writes, what it costs, and what it is meant to compute.
#
# | line | says |
# |---|---|
# | `roles` | what its axes are to it; here rows `m` and places `n` |
# | `read`, `write` | its operands, their dtype, and their roles in order |
# | `parallel` | the role that threads share: a call does the rows from `lo` up to `hi` |
# | `cost` | operations, as an expression of the extents (bytes are counted for you) |
# | `reference` | what defines it, in PyTorch; checks are against this, in float64 |
#
# Extents and strides are constants when it is compiled: `N` is the extent of the role `n`, `X_M` the
# stride of the operand `x` along `m`. So one file serves all sizes.

# %%
folder = Path(tempfile.mkdtemp())
kernel = folder / "running_sum.c"
SOURCE = """\
// kernel: running_sum
// law: y[m, n] = x[m, 0] + ... + x[m, n]
// roles: m n
// read x: f32 m n
// write y: f32 m n
// parallel: m
// cost: vector 4*m*n
// reference: torch.cumsum(x, -1)

static void running_sum(const float *restrict x, float *restrict y, long lo, long hi) {
  for (long m = lo; m < hi; ++m) {
    float sum = 0;
    for (long n = 0; n < N; ++n) {
      sum += x[m * X_M + n * X_N];
      y[m * Y_M + n * Y_N] = sum;
    }
  }
}
"""
_ = kernel.write_text(SOURCE)
# %% [markdown]
# ## 3. A rule that calls it
#
# By itself the file does nothing. Python never picks a kernel; a **rule** says of which term it is
# another form. The left side is the term that you saw above, in the language of rules:
#
# - `(Red "add" j …)`: the sum over the axis `j`,
# - of `(Select c a b)`: `a` where `c` holds, else `b`; here `x` or 0,
# - where `(LessThan (Iota (Affine j) …) (Iota (Affine s) …))`: `j < s`, with `s` one more than one's own
#   place `i`.
#
# Index maps are text, such as `"c, a"`: `(last io)` is the last dim of the map `io` and `(lead io)` what
# comes before it. The right side is a `Lib`: the kernel's name, the tensors that it reads and at which
# maps, the map of what it stores, the axes of each role, and numbers (none here).

# %%
RULE = """
;; law: a sum over all places up to one's own is a running sum
;; class: reassociates
(rule ((= r (Red "add" j (Select (LessThan (Iota (Affine j) "i64") (Iota (Affine s) "i64"))
                                 (Load X ix)
                                 (Const 0.0 "f32"))))
       (= t (Kernel r io))
       (= p (lead ix)) (= p (lead io))            ; the same rows are read and stored
       (= j (last ix)) (= i (last io))            ; j runs along the row that is read
       (= s (+ i "+1"))                           ; up to one's own place
       (= n (extent i)) (= all (extent j)) (<= n all)
       (= rows (axes p)) (set-not-contains rows i) (set-not-contains rows j))
      ((union t (Lib "running_sum" (vec-of X) (vec-of io) io (vec-of rows (set-of i)) (vec-empty))))
      :name "call-running-sum")
"""

# %% [markdown]
# A rule is a claim, and is tested before anything may use it: on random instances of its left side, with
# the kernel's *reference* on the right. The C is not run for this.

# %%
ll.check_rule(RULE, kernels=kernel)

# %% [markdown]
# ## 4. The search decides
#
# Rules and kernels are given together. (`rules="folder/my.egg"` would do as well: the kernels that lie
# beside a rule file are found.) Now the output has two forms:

# %%
egraph = ll.saturate(hlir, rules=[RULE, kernel])
print(egraph.alternatives("out0"))

# %% [markdown]
# A `Budget("quick")` compiles, verifies and times the best ones. A kernel that is called is compiled and
# run in a process of its own, as the derived ones are, and compared with the program in float64.

# %% tags=["nbval-ignore-output"]
result = ll.search(egraph, ll.Budget("quick"))
result

# %% [markdown]
# `result.best` is what was fastest just now, and on a busy machine that is partly luck. The rest of this notebook
# takes the candidate that the cost model ranks first, to tell you the same story every time.

# %%
best = result.candidates[0]
print([type(k).__name__ for k in best.kernels])

# %% [markdown]
# It is yours. Is it right, and by how much is it faster?

# %%
fast = ll.build(best)
print((fast(x) - running_sum(x.double())).abs().max() < 1e-3)

# %% tags=["nbval-ignore-output"]
from luminal_lab.bench import compare

contest = compare(
    {"derived": ll.build(before), "yours": fast, "PyTorch": running_sum},
    (x,),
    name="running sum",
)
contest.table().set_index("name")[["ms", "iqr_ms", "vs derived"]].round(4)

# %% [markdown]
# And it is part of the algebra like any other form. Ask why the two are equal:

# %%
derived, called = egraph.alternatives("out0").members
print(egraph.explain(derived, called))

# %% [markdown]
# The rule asks nothing of the program around it. Here are two running sums of different sizes, between
# other ops:


# %%
def larger(x, y):
    return torch.cumsum(x * 2, -1), torch.relu(torch.cumsum(y, -1))


args = (x, torch.ones(30, 40))
two = ll.search(
    ll.saturate(ll.capture(larger, args), rules=[RULE, kernel]), ll.Budget("none")
).best
print(sorted(type(k).__name__ for k in two.kernels))
for found, expected in zip(ll.build(two)(*args), larger(*args)):
    print(tuple(found.shape), bool((found - expected).abs().max() < 1e-3))

# %% [markdown]
# ## 5. Break it
#
# A bug in the kernel: it adds each number *after* it has stored the sum. The declaration still says what
# it should do, so the rule is true; the C is not.

# %%
wrong = folder / "wrong.c"
lines = SOURCE.splitlines(keepends=True)
add, store = (next(k for k, line in enumerate(lines) if s in line) for s in ("+=", "= sum;"))
lines[add], lines[store] = lines[store], lines[add]
wrong.write_text("".join(lines))
print("".join(lines[9:]))

# %% [markdown]
# The search runs it, sees that it is wrong, and says which rule brought it in. What remains is the derived
# kernel: a wrong kernel costs you time, never a wrong result.

# %%
survivor = ll.search(ll.saturate(hlir, rules=[RULE, wrong]), ll.Budget("quick"))
print([reason for reason in survivor.rejected if reason.startswith("wrong")])
print("called:", any(type(k).__name__ == "LibraryKernel" for k in survivor.best.kernels))

# %% [markdown]
# And a bug in the rule: *up to one's own* became *up to the one after*. The kernel is right, but it is not
# that. The test finds an instance on which the two sides differ, and `saturate` refuses the rule:

# %%
from luminal_lab.errors import RuleError

false = RULE.replace('"+1"', '"+2"')
print(ll.check_rule(false, kernels=kernel))

# %%
try:
    ll.saturate(hlir, rules=[false, kernel])
except RuleError as error:
    print(str(error).splitlines()[0])

# %% [markdown]
# ## Exercises
#
# 1. **Backwards.** `torch.flip(torch.cumsum(torch.flip(x, [-1]), -1), [-1])` sums from the end. Which forms
#    does it have with your rule? Does it need a rule of its own?
# 2. **A better kernel.** Long rows, few of them: threads share `m`, so one row uses one core. Write a kernel
#    that walks several rows at once (`X_M` is the stride from one to the next). Change `kernel:` to another
#    name, state a second rule, and let the search choose.
# 3. **Along another dim.** Capture `torch.cumsum(x, 0)`. Does your rule fire? Ask
#    `egraph.why_not("call-running-sum", "out0")`, and state a rule for it: the kernel can stay as it is.
# 4. **One that ships.** `kernels/c/softmax_rows.c` and `rules/targets/cpu.egg` are a softmax written by hand
#    and its rule. Does it win against the derived one on your machine, and at which sizes?
#
# To go on: [all that a declaration may say](../docs/howto/bring-a-kernel.md),
# [how rules are written](../docs/howto/add-a-rule.md), and
# [what happens to a wrong rule](11_debug_a_wrong_rule.ipynb).
