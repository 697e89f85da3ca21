"""Why a rule did not fire: egglog itself confirms every claim."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from egglog.bindings import EGraph as Egglog

import luminal_lab as ll
from luminal_lab.egraph.egraph import EGraph
from luminal_lab.egraph.encode import encode
from luminal_lab.egraph.program import commands
from luminal_lab.egraph.saturate import saturate
from luminal_lab.egraph.why_not import WhyNot
from luminal_lab.egraph.witness import book_of
from luminal_lab.errors import LuminalError, RuleError
from tests.egraph.programs import program


@cache
def saturated(name: str) -> EGraph:
    return saturate(program(name)[0])


class Oracle:
    """The saturated e-graph in egglog, where premises can be put to the test."""

    def __init__(self, egraph: EGraph):
        self.egraph, part = egraph, egraph.parts[0]
        self.engine = Egglog()
        encoding = encode(part.hlir, egraph.limits.copies)
        book = book_of(egraph)
        for form in book.forms:
            self.run(form.text)
        for command in commands(encoding):
            self.run(command)
        self.run("(run-schedule (saturate analysis) (run encoded))")
        for iteration in range(1, part.report.iterations[-1].number + 1):
            self.run(f"(set (now) {iteration})")
            for name, cap in book.rulesets:
                run = f"(run {name})"
                if cap is not None:
                    run = f"(let-scheduler s (back-off :match-limit {cap})) (run-with s {name})"
                self.run(f"(run-schedule {run} (saturate analysis))")
            self.run("(run-schedule (run stamp))")
        nid, tid = self._classes(encoding)
        self.term = {**{c: f"(nid {v})" for v, c in nid}, **{c: f"(tid {t})" for t, c in tid}}
        self.count = 0

    def _classes(self, encoding):
        from luminal_lab.egraph.evidence import evidence

        found = evidence(self.egraph, 0)
        number = found.found.number
        tables = found.store.tables
        return (
            [(k[0], number[v]) for k, v in tables["nid"].values.items()],
            [(k[0], number[v]) for k, v in tables["tid"].values.items()],
        )

    def run(self, text: str):
        return self.engine.run_program(*self.engine.parse_program(text))

    def holds(self, atoms, root: tuple[str, int] | None) -> bool:
        """Whether something satisfies all of some atoms at a class."""
        self.count += 1
        name = f"oracle{self.count}"
        facts = [a.replace("unit.", "unit_").replace("t.", "t_") for a in atoms]
        facts = [f for f in facts if f]
        if root is not None:
            facts.insert(0, f"(= {root[0]} {self.term[root[1]]})")
        self.run(f"(ruleset {name}) (relation hit-{name} (i64))")
        self.run(f"(rule ({' '.join(facts)}) ((hit-{name} 1)) :ruleset {name})")
        self.run(f"(run-schedule (run {name}))")
        (out,) = self.run(f"(print-size hit-{name})")
        return "1" in str(out)


def confirmed(oracle: Oracle, found: WhyNot) -> None:
    """The failing premise fails, and those before it hold."""
    if found.root is not None and found.root[1] not in oracle.term:
        return  # a class that rules made: it has no name among the encoder's terms
    if found.fired:
        assert oracle.holds(found.atoms, found.root), found
        return
    assert not oracle.holds(found.atoms[: found.satisfied + 1], found.root), found
    if found.satisfied:
        assert oracle.holds(found.atoms[: found.satisfied], found.root), found
    if found.because is not None:
        confirmed(oracle, found.because)


def asked(egraph: EGraph, names, nodes):
    for rule in names:
        for node in nodes:
            try:
                yield egraph.why_not(rule, node, 0)
            except LuminalError as error:
                if "is about" not in str(error):
                    raise


@pytest.mark.parametrize("name", ["attention", "integers", "split-keys"])
def test_every_claim_is_confirmed_by_egglog(name: str) -> None:
    egraph = saturated(name)
    oracle = Oracle(egraph)
    nodes = sorted(egraph.parts[0].node_class)
    rng = random.Random(name)
    verdicts: dict[str, int] = {}
    for rule in egraph.rules:
        for found in asked(egraph, [rule.name], rng.sample(nodes, 2)):
            confirmed(oracle, found)
            verdicts[found.status] = verdicts.get(found.status, 0) + 1
            assert found.rule == rule
            assert found.said
            assert (found.failing is None) == found.fired
            assert rule.name in repr(found)
            assert found.table().shape[0] == len(found.premises)
    assert verdicts["fails"] > 50
    assert verdicts["fired"] + verdicts.get("known", 0) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["window", "key-cache", "conv", "logsumexp", "embed", "bf16"])
def test_every_claim_at_every_node_is_confirmed_by_egglog(name: str) -> None:
    egraph = saturated(name)
    oracle = Oracle(egraph)
    nodes = sorted(egraph.parts[0].node_class)
    for found in asked(egraph, [r.name for r in egraph.rules], nodes):
        confirmed(oracle, found)


# ------------------------------------------------------------------------------ single cases


def why(rule: str, node: int | str, fn, *args, rules=None) -> WhyNot:
    return saturate(ll.capture(fn, args), rules=rules).why_not(rule, node)


def test_a_guard_on_axes() -> None:
    found = why("max-constant", "out0", lambda x: x.amax(-1), torch.randn(3, 4))
    assert found.failing is not None
    assert found.failing.text == "(set-not-contains f j)"
    assert "f is {" in found.failing.said
    assert 'j is "' in found.failing.said


def test_a_constant_that_is_another_one() -> None:
    found = why("mul-one", "out0", lambda x: x * 3.0, torch.randn(4))
    assert found.failing is not None
    assert "1.0 is asked for, and it is 3" in found.failing.said


def test_a_dtype_family() -> None:
    x = torch.randn(4, dtype=torch.bfloat16)
    found = why("mul-associates", "out0", lambda x: x * x * x.abs(), x)
    assert [p.text for p in found.premises if p.state == "fails"] == ["(wide d)"]
    assert 'd is "bf16"' in found.failing.said  # type: ignore[union-attr]


def test_a_fact_that_another_rule_derives() -> None:
    args = torch.randn(3, 4), torch.randn(4, 5)
    found = why("online", "out0", lambda a, b: a @ b, *args)
    assert found.failing is not None
    assert "(shifted e j s c)" in found.failing.text
    assert found.because is not None
    assert found.because.rule.name in ("shifted", "shifted-scaled")
    assert "Exp2" in found.because.said


def test_a_rule_that_fired_says_when_and_what() -> None:
    found = why("mul-commutes", "out0", lambda x: x * 3.0, torch.randn(4))
    assert found.status == "fired"
    assert found.iteration == 1
    assert "(Mul (Const 3.0" in found.said
    again = why("mul-one", "out0", lambda x: x * 1.0, torch.randn(4))
    assert again.fired
    assert again.iteration == 1


def test_a_rule_that_was_held_back() -> None:
    capped = """
    ;; cap: 0
    ;; law: a*b*c = c*(a*b)
    ;; class: exact
    (rewrite (Mul (Mul a b) c) (Mul c (Mul a (Mul b (Const 1.0 d)))) :when ((= d (dtype a)))
      :name "never-run")
    """
    found = why("never-run", "out0", lambda x: x * x * x.abs(), torch.randn(4), rules=capped)
    assert found.status == "held back"
    assert "capped" in found.said


def test_a_users_rule_with_arithmetic() -> None:
    mine = """
    ;; law: x*c = x*c for whole numbers above 10
    ;; class: exact
    (rewrite (Mul x (Const c d)) (Mul (Const c d) x)
      :when ((> (* c 2.0) 20.0) (= k (to-i64 c)) (!= k 12)) :name "large")
    """

    def at(c: float) -> WhyNot:
        return why("large", "out0", lambda x: x * c, torch.randn(4), rules=mine)

    assert "(* c 2.0) is 6" in at(3.0).failing.said  # type: ignore[union-attr]
    assert at(12.0).failing.text == "(!= k 12)"  # type: ignore[union-attr]
    assert at(13.0).fired


def test_what_is_not_there_is_refused() -> None:
    egraph = saturated("softmax")
    with pytest.raises(RuleError, match="did you mean 'sum-linear'"):
        egraph.why_not("sum-liner", 1)
    value = next(c for c in egraph.parts[0].classes if c.sort == "V" and not c.free)
    with pytest.raises(LuminalError, match="is about tensors, and v"):
        egraph.why_not("gemm", f"v{value.id}")
    with pytest.raises(LuminalError, match="no node %77"):
        egraph.why_not("online", 77)


def test_it_shows_itself() -> None:
    found = saturated("softmax").why_not("gemm", "out0")
    bundle = found._repr_mimebundle_()
    assert "gemm.egg" in bundle["text/html"]
    assert "does not fire" in bundle["text/plain"]
