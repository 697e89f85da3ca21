"""Each view says which copies of a region a row or a box stands for, and counts them."""

from __future__ import annotations

import pytest

from luminal_lab.hlir import partition
from luminal_lab.views import candidate as candidate_view
from luminal_lab.views import egraph as egraph_view
from luminal_lab.views import hlir as hlir_view
from luminal_lab.views import kernels as kernels_view

SPAN = "net.layer.0 … net.layer.5 ×6"


@pytest.fixture(scope="module")
def found(layers_egraph):
    from luminal_lab.search import Budget, search

    return search(layers_egraph, Budget("none", candidates=4)).best


def test_tables_of_a_program_name_its_regions(layers):
    frame = layers.table()
    inside = frame[frame["module"].str.startswith("net.layer.3")]
    computed = inside[(inside["op"] != "Input") & (inside["op"] != "Constant")]
    assert set(computed["region"]) == {0}
    assert set(computed["copies"]) == {6}
    assert set(computed["instance"]) == {"net.layer.3"}
    assert frame[frame["op"] == "Input"]["region"].isna().all()
    assert list(partition(layers).table()["copies"])[:6] == [6] * 6


def test_a_program_shows_its_regions(layers):
    html = hlir_view.to_html(layers)
    assert "Regions: 2 for 7 pieces" in html
    table = hlir_view.region_table(partition(layers))
    assert "net.layer.0 … net.layer.5" in table
    assert "×6" in table


def test_an_egraph_says_what_it_is_of(layers_egraph):
    html = egraph_view.to_html(layers_egraph)
    assert "copies of them in the program" in html
    assert f"Alternatives of region 0, {SPAN}" in html


def test_kernels_say_where_they_run(found):
    frame = found.table()
    layer = frame[frame["calls"] >= 6]
    assert set(layer["region"]) == {SPAN}
    assert layer["total_us"].sum() == pytest.approx(
        (layer["predicted_us"] * layer["calls"]).sum()
    )
    assert SPAN in candidate_view.to_html(found)
    figure = kernels_view.sources(found, 0, ["c"])
    assert SPAN in figure.text
    assert SPAN in figure.html


def test_the_graph_of_a_candidate_ends_in_its_output(found):
    boxes = {b.label for b in candidate_view.diagram(found).boxes}
    assert "probabilities" in boxes


def test_a_profile_folds_copies():
    from luminal_lab.runtime.profiling import CallTime, KernelTime, Profile
    from luminal_lab.search.machine import Machine

    names = ["layer.0", "layer.0", "layer.1", "layer.1", "head"]
    calls = tuple(
        CallTime(k, kernel, f"k{kernel}", name, 0.0, (1e-6,))
        for k, (kernel, name) in enumerate(zip([0, 1, 0, 1, 2], names))
    )
    kernels = tuple(
        KernelTime(k, f"k{k}", n, (n * 1e-6,), 1, 1.0, 1e-9, False)
        for k, n in enumerate((2, 2, 1))
    )
    profile = Profile("p", Machine(), calls, kernels, (5e-6,))
    frame = profile.table().set_index("name")
    assert frame.loc["k0", "region"] == "layer.0 … layer.1 ×2"
    assert frame.loc["k2", "region"] == "head"
    assert frame["us"].sum() == pytest.approx(5.0)
    graph = profile.graph().source
    assert graph.count("label=") == 3
    assert "k1 ×2" in graph


def test_nodes_of_a_graph_know_their_copy(layers):
    from luminal_lab.views import graphs

    told = [dict(n.details).get("region") for n in graphs.of_hlir(layers).nodes]
    assert "0, net.layer.2, one of ×6" in told
    assert "1, after net.layer.5" in told


def test_calls_of_one_module_are_folded(layers):
    from dataclasses import replace

    from luminal_lab.views import folding

    nodes = tuple(
        replace(n, source=replace(n.source, module=n.source.module.replace("layer.", "layer@")))
        for n in layers.nodes
    )
    called = replace(layers, nodes=nodes)
    found = folding.groups(called, folding.drawn(called), 3)
    assert max(len(g.copies) for g in found) == 6
