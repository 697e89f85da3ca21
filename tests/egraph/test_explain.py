"""Explanations: every link is an instance of its rule, and the replay is the e-graph."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from egglog.bindings import EggSmolError
from egglog.bindings import EGraph as Egglog

import luminal_lab as ll
from luminal_lab.egraph.audit import inputs_for
from luminal_lab.egraph.egraph import EGraph
from luminal_lab.egraph.explain import COPY, Explanation, Link
from luminal_lab.egraph.language import TRACED
from luminal_lab.egraph.program import quote
from luminal_lab.egraph.replay import Replay, programme
from luminal_lab.egraph.rulebook import load_rules, rule_info, rulebook
from luminal_lab.egraph.saturate import saturate
from luminal_lab.egraph.sexpr import forms
from luminal_lab.egraph.soundness import _book, rules_in
from luminal_lab.egraph.terms import Term, index_map, rebuilt, subterms
from luminal_lab.egraph.witness import Witness, witness
from luminal_lab.errors import LuminalError
from tests.egraph.programs import PROGRAMS, program
from tests.egraph.test_stepping import Layers

slow = pytest.mark.slow
SOME = ["attention", "rmsnorm-linear", "logsumexp"]
MORE = ["window", "split-keys", "key-cache", "causal", "embed", "integers", "conv", "images"]
BOTH = [*SOME, *(pytest.param(name, marks=slow) for name in MORE)]


@cache
def saturated(name: str) -> EGraph:
    return saturate(program(name)[0])


def labels(egraph: EGraph) -> Iterator[tuple[str, str]]:
    """The first member of each class with every other one."""
    for c in egraph.parts[0].classes:
        sort = c.sort.lower()
        for k in range(1, len(c.nodes)):
            yield f"{sort}{c.id}.0", f"{sort}{c.id}.{k}"


def follows(found: Explanation) -> bool:
    """Whether each link leads from one whole term to the next, and the last one to the end."""
    now = found.left
    for link in found.links:
        if link.before not in set(subterms([now])):
            return False
        everywhere = rebuilt(now, {link.before: link.after})
        if link.whole != everywhere and not one_place(now, link):
            return False
        now = link.whole
    return now == found.right


def one_place(now: Term, link: Link) -> bool:
    """Whether the new term is the old one with one occurrence exchanged."""
    if now == link.before and link.whole == link.after:
        return True
    if now.op != link.whole.op or len(now.args) != len(link.whole.args):
        return False
    differ = [(a, b) for a, b in zip(_flat(now), _flat(link.whole)) if a != b]
    if len(differ) != 1 or not all(isinstance(x, Term) for x in differ[0]):
        return False
    inner = Link(**{**link.__dict__, "whole": differ[0][1]})
    return one_place(differ[0][0], inner)


def _flat(term: Term) -> list:
    return [x for a in term.args for x in (a if isinstance(a, tuple) else (a,))]


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_replay_comes_to_the_same_e_graph(name: str) -> None:
    egraph = saturated(name)
    found = witness(egraph, 0)  # raises when an e-node is missing
    last = egraph.parts[0].report.iterations[-1]
    assert sum(len(found.replay.store.tables[op].values) for op in TRACED) == last.rows
    assert len(set(found.number)) == last.classes


@pytest.mark.parametrize("name", BOTH)
def test_every_member_is_explained_and_every_link_is_true(name: str) -> None:
    egraph = saturated(name)
    buffers = inputs_for(egraph.parts[0].hlir, 1)
    for a, b in labels(egraph):
        found = egraph.explain(a, b)
        assert found.links, (a, b)
        assert follows(found), (a, b)
        errors = found.verify(buffers)
        worst = max(errors)
        assert worst < 1e-9, (a, b, found.links[errors.index(worst)].rule, worst)


# ------------------------------------------------------------------ egglog says so, too


def spelled(a: object) -> str:
    """A literal or a set of axes, as egglog reads it."""
    if isinstance(a, frozenset):
        return f"(set-of {' '.join(map(quote, sorted(a)))})" if a else "(set-empty)"
    return quote(a) if isinstance(a, str) else repr(a)


def loaded(run: Callable[[str], None], term: Term, names: dict[Term, str]) -> str:
    """Load a term part by part (shared parts once); how egglog calls it."""
    for t in subterms([term]):
        if t in names:
            continue
        parts = []
        for a in t.args:
            if isinstance(a, Term):
                parts.append(names[a])
            elif isinstance(a, tuple):
                inner = " ".join(names[x] if isinstance(x, Term) else spelled(x) for x in a)
                parts.append(f"(vec-of {inner})" if a else "(vec-empty)")
            else:
                parts.append(spelled(a))
        text = f"({' '.join([t.op, *parts])})"
        if t.sort == "Ix":
            names[t] = text
            continue
        names[t] = f"({'nid' if t.sort == 'V' else 'tid'} {len(names)})"
        run(f"(set {names[t]} {text})")
    return names[term]


@cache
def terms_of(found: Witness) -> dict[Term, int]:
    """The replay's terms."""
    return {found.term(t): t for t in range(len(found.replay.terms))}


def confirmed(egraph: EGraph, link: Link) -> bool:
    """Whether egglog, given one side of a link alone, makes it equal to the other by the rule.

    The facts that other rules derive are derived by these rules; what the class of a part is
    known to depend on is stated.
    """
    found = witness(egraph, 0)
    given, made = (link.before, link.after) if link.forward else (link.after, link.before)
    every = [f for file, text in egraph.sources for f in forms(text, file)]
    (form,) = [f for f in rules_in(every) if rule_info(f, "").name == link.rule]
    info = egraph.rule(link.rule)
    book = _book(info, form, list(egraph.sources), every)
    e = Egglog()

    def run(text: str) -> None:
        e.run_program(*e.parse_program(text))

    for loadable in book.forms:
        run(loadable.text)
    for axis, n in egraph.parts[0].extents.items():
        run(f"(set (extent {quote(axis)}) {n})")
        run(f"(set (least {quote(axis)}) {n})")
    parts = subterms([given])
    maps = {a for t in parts for a in t.args if isinstance(a, str)}
    for text in sorted(
        maps | {a for t in subterms([made]) for a in t.args if isinstance(a, str)}
    ):
        try:
            axes = sorted({x for i in index_map(text) for x in i.axes if not x.startswith("@")})
        except LuminalError:
            continue  # a dtype, not an index map
        members = f"(set-of {' '.join(map(quote, axes))})" if axes else "(set-empty)"
        run(f"(set (axes {quote(text)}) {members})")
    names: dict[Term, str] = {}
    loaded(run, given, names)
    known = terms_of(found)
    for t in parts:
        if t.sort == "T":
            run(f"(set (stores {names[t]}) {quote(t.dtype)})")
            holds = found.replay.store.tables["holds"].values.get(
                (found.replay.find(known[t]),)
            )
            if holds is not None:
                run(f"(set (holds {names[t]}) {spelled(holds)})")
        elif t.sort == "V" and t in known:
            root = found.replay.find(known[t])
            free = sorted(found.replay.store.tables["free"].values[(root,)])
            axes = f"(set-of {' '.join(map(quote, free))})" if free else "(set-empty)"
            run(f"(set (free {names[t]}) {axes})")
    run("(run-schedule (saturate analysis))")
    rulesets = " ".join(f"(run {name})" for name, _ in book.rulesets)
    for _ in range(3):  # the lemmas first
        run(f"(run-schedule (seq {rulesets} (saturate analysis)))")
    try:
        run(f"(check (= {names[given]} {loaded(run, made, names)}))")
    except EggSmolError as failed:
        if "Check failed" not in str(failed):
            raise
        return False
    return True


@pytest.mark.parametrize("name", BOTH)
def test_egglog_confirms_the_links(name: str) -> None:
    egraph = saturated(name)
    rng = random.Random(name)
    some = list(labels(egraph))
    seen: dict[tuple, Link] = {}
    for a, b in rng.sample(some, min(25, len(some))):
        for link in egraph.explain(a, b).links:
            if link.rule != COPY:
                seen.setdefault((link.rule, link.forward, link.before.op), link)
    assert seen
    for link in seen.values():
        assert confirmed(egraph, link), (link.rule, link.before, link.after)


# ----------------------------------------------------------------------------- arguments


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


@pytest.fixture(scope="module")
def searched():
    args = tuple(torch.randn(1, 2, 16, 8) for _ in range(3))
    egraph = ll.saturate(ll.capture(attention, args))
    return egraph, ll.search(egraph, ll.Budget("none"))


def test_from_the_program_to_a_kernel(searched) -> None:
    egraph, result = searched
    found = egraph.explain("out0", result.best.kernels[0])
    assert follows(found)
    assert {"online", "fusion"} <= {x.rule for x in found.links}
    assert max(found.verify()) < 1e-12
    assert found.tolerance == "reassociates"
    assert [r["rule"] for r in found.table().to_dict("records")] == [
        x.rule for x in found.links
    ]
    assert "online_d" in repr(found)
    assert set(found._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_every_kernel_of_many_candidates_is_explained(searched) -> None:
    egraph, _ = searched
    for candidate in ll.sample(egraph, 12, seed=3):
        for kernel in candidate.kernels:
            if getattr(kernel, "origin", None) is None:
                continue
            t = f"t{kernel.origin.tensor}"
            found = egraph.explain(t, kernel)
            assert follows(found)
            assert max(found.verify(), default=0.0) < 1e-12


def test_what_is_not_equal_is_refused(searched) -> None:
    egraph, result = searched
    with pytest.raises(LuminalError, match="no rule makes %13 and out0 equal"):
        egraph.explain(13, "out0")
    with pytest.raises(LuminalError, match="called 'out'") as caught:
        egraph.explain("out", "v1")
    assert "did you mean 'out0'" in str(caught.value)
    with pytest.raises(LuminalError, match="there is no node %99"):
        egraph.alternatives(99)
    with pytest.raises(LuminalError, match="has no tensor of its own"):
        egraph.alternatives(5)
    with pytest.raises(LuminalError, match="names nothing"):
        egraph.explain(2.5, "out0")
    again = ll.Candidate.parse(result.best.text(), result.best.hlir)
    with pytest.raises(LuminalError, match="does not know the e-graph"):
        egraph.explain("out0", again.kernels[0])


def test_alternatives_say_who_made_each_form_and_when(searched) -> None:
    egraph, _ = searched
    found = egraph.alternatives(18)
    rules = {m.rule for m in found.members}
    assert {"encode", "sum-linear"} <= rules
    assert all((m.iteration == 0) == (m.rule == "encode") for m in found.members)
    table = found.table()
    assert list(table["rule"]) == [m.rule for m in found.members]
    assert all(table["law"])
    made = next(m for m in found.members if m.rule == "sum-linear")
    assert "sum-linear" in {x.rule for x in egraph.explain(18, made).links}
    assert made.place.label in repr(found)


def test_a_saved_e_graph_explains_itself(searched, tmp_path) -> None:
    egraph, _ = searched
    egraph.save(tmp_path / "e")
    again = ll.load(tmp_path / "e")
    mine, theirs = (x.explain("out0", "t15.1") for x in (egraph, again))
    assert mine.links == theirs.links


def test_users_rules_take_part() -> None:
    mine = """
    (relation double (V V))
    ;; law: x + x is twice x
    ;; class: exact
    (rule ((= e (Add x x))) ((double e x)) :name "is-double")
    ;; law: twice x is 2*x
    ;; class: exact
    (rule ((double e x) (= d (dtype x)) (floating d))
          ((union e (Mul (Const 2.0 d) x))) :name "doubled")
    """
    egraph = saturate(ll.capture(lambda x: x + x, (torch.ones(3),)), rules=mine)
    value = egraph.classes_of(1 if 1 in egraph.parts[0].node_class else 0)[-1]
    k = next(k for k, n in enumerate(value.nodes) if n.rule == "doubled")
    found = egraph.explain("out0", f"v{value.id}.{k}")
    assert [x.rule for x in found.links] == ["doubled"]
    assert found.links[0].facts[0].rule == "is-double"
    assert confirmed(egraph, found.links[0])


def test_regions_are_told_apart() -> None:
    egraph = ll.saturate(ll.capture(Layers(), (torch.randn(2, 8),)))
    assert len(egraph.parts) > 1
    last = len(egraph.hlir.nodes) - 1
    found = egraph.alternatives(last)
    assert found.region == len(egraph.parts) - 1
    for m in found.members:
        if m.place.eclass == found.members[0].place.eclass:
            assert follows(egraph.explain(found.members[0], m))
    inner = egraph.program.instances[1].nodes[-1]
    with pytest.raises(LuminalError, match="regions are saturated one by one"):
        egraph.explain(inner, last)


def test_a_chain_between_two_terms_needs_no_more_rules_than_there_are() -> None:
    book = rulebook(load_rules().sources, only=["mul-commutes"])
    replay = Replay(programme(book), ['(set (nid 0) (Const 1.0 "f32"))'])
    assert not replay.step()
