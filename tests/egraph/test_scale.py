"""What grows with the layers of a program, and what does not; what is said of a stop."""

from functools import cache

import pytest

from luminal_lab.bench.saturation import llama
from luminal_lab.egraph.encode import encode
from luminal_lab.egraph.process import Limits
from luminal_lab.egraph.saturate import saturate
from luminal_lab.egraph.stops import held_back
from luminal_lab.hlir.graph import Hlir
from luminal_lab.hlir.regions import partition


@cache
def program(layers: int) -> Hlir:
    return llama(layers, sequence=6, width=12, heads=3, groups=1, hidden=20)


def whole(layers: int) -> Hlir:
    (region,) = partition(program(layers), regions=False).regions
    return region.hlir


def test_many_layers_cost_what_two_cost():
    two, nine = saturate(program(2)), saturate(program(9))
    assert [p.size for p in two.parts] == [p.size for p in nine.parts]
    assert len(nine.program.instances) == len(two.program.instances) + 7
    assert "× 9 (layers.0, …, layers.8)" in repr(nine)
    assert "× 9 (layers.0, …, layers.8)" in nine.text()
    assert "(× 9)" in nine.report


def test_a_program_that_is_taken_whole_is_encoded_in_linear_size():
    one, four, eight = (encode(whole(n)) for n in (1, 4, 8))
    per_layer = (len(eight.values) - len(four.values)) / 4
    assert per_layer < 2 * len(one.values)
    assert (eight.counts.copies - four.counts.copies) / 4 < 3 * one.counts.copies
    assert four.counts.skipped == eight.counts.skipped == 0


def test_a_program_that_is_taken_whole_saturates_in_linear_size():
    three, six = (saturate(program(n), regions=False) for n in (3, 6))
    assert len(six.parts) == len(six.program.instances) == 1
    assert six.size < 2.5 * three.size


def test_a_blow_up_ends_with_a_stop_that_is_explained():
    """Addition without order or grouping explodes on the residual stream."""
    explosive = """
    ;; law: (a+b)+c = a+(b+c)
    ;; class: reassociates
    (birewrite (Add (Add a b) c) (Add a (Add b c)) :name "grow")
    """
    egraph = saturate(
        program(5), rules=explosive, limits=Limits(rows=6000, seconds=60), regions=False
    )
    (part,) = egraph.parts
    assert part.report.stopped in ("row limit", "iteration limit")
    assert "Missing: what further iterations would find" in egraph.report
    assert part.size > 1000  # what was reached is there


@pytest.mark.parametrize("cap", [20, 200, 100000])
def test_a_capped_rule_that_is_skipped_is_named_with_what_is_missing(cap):
    capped = f"""
    ;; cap: {cap}
    ;; law: (a*b)*c = b*(a*c) behind a cap
    ;; class: reassociates
    (rewrite (Mul (Mul a b) c) (Mul b (Mul a c)) :name "capped-rule")
    """
    egraph = saturate(program(1), rules=capped, limits=Limits(iterations=4))
    held = {h.rule.name: h.iterations for h in held_back(egraph.parts[0], egraph.rules)}
    told = [line for line in egraph.report.splitlines() if "capped-rule" in line]
    if cap == 20:  # more than that at once
        assert "never ran" in told[0]
    elif cap == 200:
        assert held["capped-rule"]
        assert "was skipped in iteration" in told[0]
        assert "behind a cap" in told[0]
    else:
        assert not any("skipped" in line or "never ran" in line for line in told)
        assert "capped-rule" not in held
