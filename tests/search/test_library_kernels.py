"""Kernels that are called, not derived: by a rule only, verified and timed like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import luminal_lab as ll
from luminal_lab.egraph.library import declared
from luminal_lab.egraph.soundness import check_rule
from luminal_lab.errors import RuleError
from luminal_lab.search.assemble import Assembler
from luminal_lab.search.candidate import LibraryKernel
from luminal_lab.search.execute import run_candidate
from luminal_lab.search.machine import Machine
from luminal_lab.search.region import RegionSearch

SHIFT = """// kernel: {name}
// law: y = x + 1
// roles: n
// read x: f32 n
// write y: f32 n
// unit: x.n y.n
// parallel: n
// cost: vector n
// reference: x + 1
static void {name}(const float *x, float *y, long lo, long hi) {{
  for (long n = lo; n < hi; ++n) y[n] = x[n] + {by};
}}
"""
RULE = """
;; law: x+1 is a kernel written by hand
;; class: exact
(rule ((= t (Kernel (Add (Load X i) (Const 1.0 d)) i)) (= "f32" (stores X)) (= f (axes i)))
      ((union t (Lib "{name}" (vec-of X) (vec-of i) i (vec-of f) (vec-empty))))
      :name "call-{name}")
"""


def softmax(x):
    return torch.softmax(x, -1)


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def called(egraph: ll.EGraph, name: str) -> ll.Candidate:
    """The best seed, with every tensor that the kernel `name` can make made by it."""
    assembler = Assembler(egraph, Machine())
    region = RegionSearch(assembler.regions[0])
    one = region.seeds()[0]
    for t in region.space.tensors:
        for k in region.space.producers[t]:
            node = region.space.part.classes[t].nodes[k]
            if node.op == "library" and node.attrs[0].name == name:
                moved = region.moved(one, ("producer", t, k))
                one = moved if moved is not None and region.calls_library(moved) else one
    assert region.calls_library(one), f"nothing calls {name}"
    return assembler.candidate([one.extraction])


@pytest.mark.parametrize("shape", [(512, 384), (7, 129), (2, 3, 4), (5, 17)])
def test_a_kernel_written_by_hand_is_an_alternative(shape):
    x = torch.randn(shape) * 4
    candidate = called(ll.saturate(ll.capture(softmax, (x,))), "softmax_rows")
    found = ll.build(candidate)(x)
    assert (found - softmax(x.double())).abs().max() < 1e-6
    again = ll.Candidate.parse(candidate.text(), candidate.hlir)
    assert (ll.build(again)(x) == found).all()


def test_one_program_may_call_it_at_several_sizes():
    args = (torch.randn(6, 40), torch.randn(5, 129))
    hlir = ll.capture(lambda x, y: (torch.softmax(x, -1), torch.softmax(y, -1)), args)
    candidate = called(ll.saturate(hlir), "softmax_rows")
    assert len([k for k in candidate.kernels if isinstance(k, LibraryKernel)]) == 2
    for x, found in zip(args, ll.build(candidate)(*args)):
        torch.testing.assert_close(found, torch.softmax(x, -1), rtol=1e-6, atol=1e-7)


def test_it_treats_special_values_as_pytorch_does():
    inf, nan = float("inf"), float("nan")
    rows = [[1.0, 2.0, 3.0], [-inf, 0.0, 1.0], [-inf] * 3, [inf, 1.0, 2.0], [nan, 1.0, 2.0]]
    x = torch.tensor([*rows, [0.0, 100.0, -100.0], [3e38, -3e38, 0.0]])
    candidate = called(ll.saturate(ll.capture(softmax, (x,))), "softmax_rows")
    found = ll.build(candidate)(x)
    torch.testing.assert_close(found, softmax(x), equal_nan=True, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("heads", [(4, 4), (1, 1)])
def test_attention_of_the_library_is_an_alternative(heads):
    torch.manual_seed(0)
    args = [torch.randn(2, heads[0], n, 32) for n in (24, 40, 40)]
    candidate = called(ll.saturate(ll.capture(attention, args)), "sdpa")
    want = attention(*[x.double() for x in args])
    assert (ll.build(candidate)(*args) - want).abs().max() < 1e-5
    names = [s.name for s in candidate.hlir.inputs]
    (exact,) = run_candidate(candidate, dict(zip(names, args))).values()
    assert (exact - want).abs().max() < 1e-9


def test_a_users_kernel_beside_a_users_rule(tmp_path: Path):
    (tmp_path / "shift.c").write_text(SHIFT.format(name="shift", by="1.0f"))
    (tmp_path / "shift.egg").write_text(RULE.format(name="shift"))
    x = torch.randn(40, 50)
    egraph = ll.saturate(ll.capture(lambda x: x + 1, (x,)), rules=tmp_path / "shift.egg")
    assert (ll.build(called(egraph, "shift"))(x) == x + 1).all()
    result = ll.search(egraph, ll.Budget("quick"))
    records = [r for text, r in result.records.items() if "call library" in text]
    assert [r.measurement.ok for r in records] == [True]


def test_a_wrong_kernel_names_the_rule_that_calls_it(tmp_path: Path):
    kernel = tmp_path / "shift.c"
    kernel.write_text(SHIFT.format(name="bad_shift", by="2.0f"))
    x = torch.randn(40, 50)
    rules = [RULE.format(name="bad_shift"), kernel]
    egraph = ll.saturate(ll.capture(lambda x: x + 1, (x,)), rules=rules)
    result = ll.search(egraph, ll.Budget("quick"))
    (reason,) = [r for r in result.rejected if r.startswith("wrong")]
    assert "call-bad_shift" in reason
    assert (ll.build(result.best)(x) == x + 1).all()


def test_a_call_that_no_stride_suits_is_dropped(tmp_path: Path):
    (tmp_path / "shift.c").write_text(SHIFT.format(name="shift", by="1.0f"))
    x = torch.randn(40, 50)
    hlir = ll.capture(lambda x: x[:, ::2] + 1, (x,))
    egraph = ll.saturate(hlir, rules=[RULE.format(name="shift"), tmp_path / "shift.c"])
    assert not any(n.op == "library" for c in egraph.parts[0].classes for n in c.nodes)


def test_a_kernel_that_is_not_there_is_an_error():
    with pytest.raises(RuleError, match=r"no kernel 'nowhere.c'"):
        ll.saturate(ll.capture(lambda x: x + 1, (torch.randn(4),)), rules=["nowhere.c"])


def test_a_rule_that_calls_what_nothing_declares_is_an_error():
    x = torch.randn(4, 4)
    with pytest.raises(RuleError, match="calls the kernel 'nowhere'"):
        ll.saturate(ll.capture(lambda x: x + 1, (x,)), rules=RULE.format(name="nowhere"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("// reference: x + 1\n", "", "lacks reference"),
        ("// read x: f32 n", "// read x: float n", "'float' is no dtype"),
        ("// parallel: n", "// parallel: m", "'m' is none of its roles"),
        ("// law:", "// lore:", "'lore' is none of"),
    ],
)
def test_a_head_that_is_not_understood_says_so(old, new, said):
    source = SHIFT.format(name="shift", by="1.0f")
    with pytest.raises(RuleError, match=said):
        declared(source.replace(old, new), "shift.c")


def test_a_rule_that_calls_the_wrong_kernel_is_false():
    check = check_rule("""
    ;; law: an exponential is a softmax (it is not)
    ;; class: exact
    (rule ((= t (Kernel (Exp2 (Load X i)) i)) (= "f32" (stores X)) (= f (axes i)))
          ((union t (Lib "softmax_rows" (vec-of X) (vec-of i) i (vec-of (set-empty) f)
                         (vec-empty)))) :name "wrong-softmax")""")
    assert check.failure is not None
    assert "softmax_rows" in str(check.failure)


def test_a_rule_may_put_index_expressions_together(tmp_path: Path):
    kernel = tmp_path / "running.c"
    kernel.write_text("""// kernel: running
// law: y[m, n] = x[m, 0] + ... + x[m, n]
// roles: m n
// read x: f32 m n
// write y: f32 m n
// parallel: m
// cost: vector 4*m*n
// reference: torch.cumsum(x, -1)
static void running(const float *x, float *y, long lo, long hi) {
  for (long m = lo; m < hi; ++m)
    for (long n = 0; n < N; ++n)
      y[m * Y_M + n * Y_N] = x[m * X_M + n * X_N] + (n ? y[m * Y_M + (n - 1) * Y_N] : 0.0f);
}
""")
    rule = """
;; law: a sum over all places up to one's own is a running sum
;; class: reassociates
(rule ((= r (Red "add" j (Select (LessThan (Iota (Affine j) "i64") (Iota (Affine s) "i64"))
                                 (Load X ix) (Const 0.0 "f32"))))
       (= t (Kernel r io)) (= p (lead ix)) (= p (lead io)) (= j (last ix)) (= i (last io))
       (= s (+ i "+1")) (= n (extent i)) (= all (extent j)) (<= n all) (= rows (axes p))
       (set-not-contains rows i) (set-not-contains rows j))
      ((union t (Lib "running" (vec-of X) (vec-of io) io (vec-of rows (set-of i)) (vec-empty))))
      :name "call-running")"""
    found = ll.check_rule(rule, kernels=kernel)
    assert found.ok, found
    assert found.fired
    assert "running m=" in str(ll.check_rule(rule.replace('"+1"', '"+2"'), kernels=kernel))
    x = torch.randn(8, 15)
    hlir = ll.capture(lambda x: torch.cumsum(x, -1), (x,))
    candidate = called(ll.saturate(hlir, rules=[rule, kernel]), "running")
    torch.testing.assert_close(ll.build(candidate)(x), torch.cumsum(x, -1))
