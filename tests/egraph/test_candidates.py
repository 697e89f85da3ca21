"""Whatever extraction picks must equal the program: random candidates, and whole e-graphs."""

from __future__ import annotations

import pytest
import torch

from luminal_lab.egraph.audit import audit
from luminal_lab.egraph.process import Limits
from luminal_lab.egraph.saturate import saturate
from tests.egraph.programs import (
    PROGRAMS,
    expected_of,
    inputs_of,
    program,
    random_candidate,
    worst,
)

EXACT = [name for name in PROGRAMS if name != "bf16"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_candidates_equal_the_program(name: str) -> None:
    hlir, args = program(name)
    egraph = saturate(hlir)
    inputs = inputs_of(egraph, args)
    expected = expected_of(egraph, args)
    tolerance = 2e-2 if name == "bf16" else 1e-9
    seen = set()
    for seed in range(200 if name == "attention" else 40):
        candidate = random_candidate(egraph.parts[0], seed)
        seen.add(candidate.genome)
        for output, got in candidate.run(inputs).items():
            assert worst(got, expected[output]) < tolerance, (name, seed, output)
    assert len(seen) > 3


@pytest.mark.parametrize("name", EXACT)
def test_all_members_of_all_classes_agree(name: str) -> None:
    hlir, args = program(name)
    egraph = saturate(hlir, limits=Limits(tolerance="reassociates"))
    (part,) = egraph.parts
    found = audit(part, inputs_of(egraph, args))
    assert found == [], [(d.rule, d.error) for d in found]


def test_a_wrong_rule_is_caught_and_named() -> None:
    wrong = """
    ;; law: a sum over j of products is the product of the sums (it is not)
    ;; class: reassociates
    (rewrite (Red "add" j (Mul a b)) (Mul (Red "add" j a) (Red "add" j b)) :name "wrong-sum")
    """
    hlir, args = program("attention")
    egraph = saturate(hlir, rules=wrong, limits=Limits(rows=3000))
    found = audit(egraph.parts[0], inputs_of(egraph, args))
    assert "wrong-sum" in {d.rule for d in found}


def test_hostile_inputs_keep_their_nans() -> None:
    # Fully masked rows: -inf everywhere gives NaN in those rows and nowhere else.
    hlir, args = program("masked")
    mask = torch.full((2, 1, 1, 6), float("-inf"))
    mask[0, ..., :3] = 0
    egraph = saturate(hlir)
    inputs = inputs_of(egraph, (*args[:3], mask))
    ((output, expected),) = expected_of(egraph, (*args[:3], mask)).items()
    assert expected[1].isnan().all()
    assert not expected[0].isnan().any()
    for seed in range(20):
        got = random_candidate(egraph.parts[0], seed).run(inputs)[output]
        assert worst(got, expected) < 1e-9
