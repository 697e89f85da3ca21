"""Every view of every stage, on real objects with hostile names."""

import json

import plotly.graph_objects as go
import pytest

from luminal_lab.egraph.values import Kernel, postorder
from luminal_lab.errors import LuminalError
from luminal_lab.runtime.executable import BuildStats, Executable
from luminal_lab.search.candidate import Candidate
from luminal_lab.views import candidate, derivation, executable, hlir, kernels
from luminal_lab.views import egraph as egraph_view
from luminal_lab.views import profile as profile_view
from luminal_lab.views import result as result_view
from luminal_lab.views.steps import derive
from luminal_lab.views.terms import term
from tests.views.check import check_html
from tests.views.conftest import HOSTILE


def test_hlir(attention):
    shown = check_html(hlir.to_html(attention))
    assert HOSTILE in shown
    assert "19 nodes" in shown
    assert "SumReduce r<8" in shown
    check_html(hlir.to_svg(attention))
    bundle = attention._repr_mimebundle_()
    assert bundle["text/html"] == hlir.to_html(attention)
    assert bundle["text/plain"]


def test_hlir_dot_is_golden(layers):
    lines = hlir.to_dot(layers, depth=4).source.splitlines()
    boxes = [line.strip().partition(" fillcolor")[0] for line in lines if "[label=" in line]
    assert boxes == [
        'n0 [label="x\\nf32 4×16"',
        'n1 [label="net.layer.0…5.linear ×6\\n2 nodes, 2.05 kFLOP"',
        'n2 [label="net.layer.0…5.act ×6\\n13 nodes, 712 FLOP"',
        'n3 [label="net.layer.0…5 ×6\\n1 node, 64 FLOP"',
        'n4 [label="head\\n8 nodes, 392 FLOP"',
        'n5 [label="probabilities\\n4×16"',
    ]
    arrows = [line.strip().partition(" [")[0] for line in lines if "->" in line]
    assert arrows == ["n0 -> n1", "n1 -> n2", "n0 -> n3", "n2 -> n3", "n3 -> n4", "n4 -> n5"]


def test_hlir_folds_equal_layers(layers):
    shown = check_html(hlir.to_html(layers))
    assert "net.layer.0…5.linear ×6" in shown
    assert "folded into" in shown
    assert "Inside the modules" in shown


def test_egraph(egraph, layers_egraph):
    shown = check_html(html := egraph_view.to_html(egraph))
    assert "sum-linear" in shown
    assert html == egraph._repr_mimebundle_()["text/html"]
    many = check_html(egraph_view.to_html(layers_egraph))
    assert "×6" in many
    check_html(egraph_view.to_svg(egraph))


def test_alternatives(egraph):
    last = max(egraph.parts[0].node_class)
    figure = egraph_view.alternatives(egraph, last)
    assert "online" in check_html(figure.html)
    assert "made" in check_html(figure.html)
    assert "sum-linear, iteration" in figure.text
    check_html(egraph_view.neighbourhood(egraph, last))
    constant = next(n for n, x in enumerate(egraph.parts[0].hlir.nodes) if x.op == "Constant")
    with pytest.raises(LuminalError, match="has no tensor of its own"):
        egraph_view.alternatives(egraph, constant)


def test_egraph_dot(egraph):
    source = egraph_view.to_dot(egraph).source
    assert source.count("->") > 50
    assert "sum-linear @" in source


def test_result(result):
    shown = check_html(result_view.to_html(result))
    assert "chosen, not measured" in shown
    assert f"{result.considered:,}" in shown
    assert isinstance(result_view.scatter(result), go.Figure)
    check_html(result_view.scatter_svg(result))
    check_html(result_view.pareto_svg(result))
    some = result_view.programs(result)
    best = result_view.frontier(some)
    assert [p.rank for p in some] == list(range(len(some)))
    assert not any(
        p.seconds < q.seconds and p.nbytes < q.nbytes
        for p in some
        for q in best
        if not p.rejected
    )


def test_candidate(result):
    for one in list(result.candidates)[:3]:
        shown = check_html(candidate.to_html(one))
        assert HOSTILE in shown
        check_html(candidate.to_svg(one))
        assert candidate.to_dot(one).source.count("->") >= 3
    assert result.best._repr_mimebundle_()["text/html"]


def test_equal_layers_of_a_candidate_are_drawn_once(layers_egraph):
    from luminal_lab.search.budget import Budget
    from luminal_lab.search.run import search

    best = search(layers_egraph, Budget("none", candidates=2)).best
    diagram = candidate.diagram(best)
    assert any(b.label.endswith("×6") for b in diagram.boxes)
    keys = {b.key for b in diagram.boxes}
    assert all(a.tail in keys and a.head in keys for a in diagram.arrows)
    output = next(b.key for b in diagram.boxes if b.label == "probabilities")
    assert any(a.head == output for a in diagram.arrows)


def test_difference(result):
    figure = candidate.difference(result.candidates[0], result.candidates[1])
    check_html(figure.html)
    assert figure.text


def test_kernel_sources(one_pass, monkeypatch):
    monkeypatch.setattr(
        Candidate,
        "source",
        lambda self, kernel, language="c": f"{language} {HOSTILE}",
    )
    figure = kernels.sources(one_pass)
    shown = check_html(figure.html)
    for name in ("C", "Triton", "Metal"):
        assert name in shown
    assert f"triton {HOSTILE}" in figure.text


def test_every_listed_kernel_has_three_sources(result):
    for one in list(result.candidates)[:2]:
        for k in range(len(one.kernels)):
            figure = kernels.sources(one, k)
            check_html(figure.html)
            assert "not available" not in figure.text


def test_a_missing_source_says_why(one_pass, monkeypatch):
    def refuse(self, kernel, language="c"):
        raise LuminalError("no such thing", fix="another")

    monkeypatch.setattr(Candidate, "source", refuse)
    assert kernels.source_text(one_pass, 0, "c").startswith("// not available: no such thing")
    assert "#   try: another" in kernels.source_text(one_pass, 0, "triton")


def test_derivation_of_one_pass_attention(egraph, one_pass):
    found = derive(egraph, one_pass)
    assert len(found.written) == 13
    rules = [s.rule for s in found.steps]
    assert "sum-linear" in rules
    assert "online" in rules
    assert rules.index("mul-associates") < rules.index("sum-linear") < rules.index("online")
    assert "" not in rules
    assert found.steps[-1].whole == found.final
    assert term(found.final).count("online") == 2
    figure = derivation.derivation(egraph, one_pass)
    shown = check_html(figure.html)
    assert "a factor that does not depend on j leaves a sum over j" in shown
    assert HOSTILE in shown
    assert figure.text.startswith("as the program says it:")


def test_every_step_keeps_the_value(egraph, one_pass):
    """Each line of a derivation computes the same numbers as the one before it."""
    import torch

    from luminal_lab.egraph.evaluate import evaluate

    found = derive(egraph, one_pass)
    inputs = {
        spec.name: torch.randn(egraph.hlir.nodes[spec.node].shape, dtype=torch.float64)
        for spec in egraph.hlir.inputs
    }
    values = [found.fused, *(s.whole for s in found.steps), found.final]
    (first, axes), *rest = evaluate(values, found.extents, inputs)
    for (got, order), step in zip(rest, [*found.steps, None]):
        aligned = got.permute([order.index(a) for a in axes])
        torch.testing.assert_close(aligned, first, rtol=1e-9, atol=1e-9, msg=str(step))


def test_derivations_of_all_listed_candidates(egraph, result):
    for one in result.candidates:
        for k, kernel in enumerate(one.kernels):
            if not isinstance(kernel, Kernel):
                continue  # it was called, not derived
            found = derive(egraph, one, k)
            assert found.written
            check_html(derivation.derivation(egraph, one, k).html)


def test_ops_are_written_before_they_are_read(egraph, result):
    for one in result.candidates:
        if not isinstance(one.kernels[0], Kernel):
            continue
        found = derive(egraph, one)
        known: set[str] = set()
        made = {name.partition("[")[0] for name, _ in found.written}
        for name, value in found.written:
            reads = {v.attrs[0] for v in postorder([value]) if v.op == "load"}
            assert reads & made <= known
            known.add(name.partition("[")[0])


def test_derivation_refuses_another_e_graph(layers_egraph, one_pass):
    with pytest.raises(LuminalError):
        derive(layers_egraph, one_pass)


def test_executable(one_pass):
    exe = Executable(one_pass, None, BuildStats(0.1, 0.2, 1, 2, 3), True)
    shown = check_html(executable.to_html(exe))
    assert HOSTILE in shown


def test_ceilings_run_from_left_to_right_and_meet(profile):
    figure = profile_view.roofline(profile)
    lines = {t.name: (t.x, t.y) for t in figure.data if t.mode == "lines"}
    flat = next(y for name, (_, y) in lines.items() if name.startswith("products"))
    for name, (x, y) in lines.items():
        assert x[0] < x[1]
        if name.startswith(("memory", "last-level")):
            assert y[0] < y[1] == pytest.approx(flat[0])


def test_profile(profile):
    shown = check_html(profile_view.to_html(profile))
    assert HOSTILE in shown
    assert "not credible" in shown
    for figure in (profile_view.timeline(profile), profile_view.roofline(profile)):
        assert isinstance(figure, go.Figure)
        json.loads(figure.to_json())
    check_html(profile_view.timeline_svg(profile, standalone=True))
    check_html(profile_view.roofline_svg(profile, standalone=True))
    assert profile._repr_mimebundle_()["text/html"]
