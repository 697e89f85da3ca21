"""Every candidate computes the program; a rule that says otherwise is caught and named."""

import pytest
import torch

from luminal_lab.errors import SearchError
from luminal_lab.hlir import run
from luminal_lab.search import Budget, sample, search
from luminal_lab.search.assemble import Assembler
from luminal_lab.search.execute import run_candidate, run_kernel
from luminal_lab.search.machine import Machine
from luminal_lab.search.region import RegionSearch
from luminal_lab.search.verify import RegionVerifier
from tests.search.fake import FakeTarget
from tests.search.models import saturated, small

UNSOUND = """
;; law: a wrong one: a root is a half
;; class: exact
(rewrite (Sqrt x) (Mul x (Const 0.5 d)) :when ((= d (dtype x))) :name "wrong-root")
"""

UNITES = """
;; law: a wrong one: the reciprocal of a root is the root
;; class: exact
(rewrite (Recip (Sqrt x)) (Sqrt x) :name "wrong-union")
"""


@pytest.mark.parametrize("name", ["attention", "block"])
def test_200_random_candidates_agree_with_the_reference(name):
    egraph = saturated(name)
    _, args = small(name)
    want = run(egraph.hlir, args)
    specs = [s for s in egraph.hlir.inputs if s.kind == "arg"]
    inputs = {s.name: args[s.position] for s in specs}
    candidates = sample(egraph, 200, seed=1)
    assert len({c.choice for c in candidates}) == 200
    assert {len(c.kernels) for c in candidates} >= {2, 3, 4, 5}
    assert sum("online" in c.text() for c in candidates) >= 20
    for candidate in candidates:
        got = run_candidate(candidate, inputs)
        for spec, value in zip(egraph.hlir.outputs, want):
            torch.testing.assert_close(got[spec.name], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["causal", "block", "layernorm"])
def test_all_kernels_of_sound_rules_pass_verification(name):
    egraph = saturated(name)
    assembler = Assembler(egraph, Machine())
    region = RegionSearch(assembler.regions[0])
    verifier = RegionVerifier(egraph, assembler.regions[0], 0)
    for one in region.seeds():
        for step in assembler.regions[0].steps(one.extraction):
            inputs, expected = verifier.job(step)
            got = run_kernel(step.kernel, inputs)
            for buffer, want in expected.items():
                assert want.check(got[buffer])[0] == "", step.text
            assert verifier.blame(step) == ""


def test_an_unsound_rule_is_caught_and_named():
    egraph = saturated("layernorm", rules=UNSOUND)
    target = FakeTarget()
    result = search(egraph, Budget("quick"), target=target, database=_nothing())
    wrong = [r for r in result.rows if r.reason == "wrong"]
    assert wrong
    assert {r.rule for r in wrong} == {"wrong-root"}
    table = result.rejections().set_index("reason")["count"]
    assert table["wrong (rule wrong-root)"] == len(wrong)
    assert "wrong-root" not in {rule for k in result.best.kernels for rule in k.rules}


def test_a_rule_that_unites_terms_of_the_program_is_named_too():
    """It leaves no e-node that bears its name, and here no right candidate either."""
    egraph = saturated("layernorm", rules=UNITES)
    with pytest.raises(SearchError, match="wrong-union"):
        search(egraph, Budget("quick"), target=FakeTarget(), database=_nothing())


def test_when_all_members_agree_no_rule_is_blamed():
    """Then the generated code is wrong."""
    egraph = saturated("gelu")
    target = FakeTarget(spoil=lambda kernel, got: {n: g + 1 for n, g in got.items()})
    with pytest.raises(SearchError, match="wrong") as caught:
        search(egraph, Budget("quick"), target=target, database=_nothing())
    assert "rule" not in str(caught.value)


def _nothing():
    from luminal_lab.search import Database

    return Database(":memory:")
