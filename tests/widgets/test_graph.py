"""The graph view: its data, and what a browser makes of it with mouse and keyboard."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import luminal_lab as ll
from luminal_lab.errors import LuminalError
from luminal_lab.views import graphs
from luminal_lab.widgets import GraphView, graph_widget

DRAWN = "model.get('drawn') > 0"


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Tower(torch.nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block() for _ in range(layers)])
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.fixture(scope="module")
def tower() -> Any:
    return ll.capture(Tower(), (torch.ones(8, 16),))


@pytest.fixture(scope="module")
def egraph(tower: Any) -> Any:
    return ll.saturate(tower)


# ------------------------------------------------------------------------------------- data


def test_equal_layers_are_copies_of_the_first(tower: Any) -> None:
    data = graphs.of_hlir(tower)
    group = {g.key: g for g in data.groups}
    assert group["layers.0"].copies == 4
    assert group["layers.3"].twin == "layers.0"
    assert group["layers.3"].parent == "layers"
    node = {n.key: n for n in data.nodes}
    second = [n for n in data.nodes if n.group.startswith("layers.1")]
    assert second
    assert all(n.twin for n in second)
    for n in second:  # weights too
        assert node[n.twin].group == n.group.replace("layers.1", "layers.0")
        assert node[n.twin].sub == n.sub
    assert json.loads(json.dumps(data.to_data()))["title"] == data.title


def test_every_edge_has_its_ends(tower: Any, egraph: Any) -> None:
    best = ll.search(egraph, ll.Budget("none")).best
    many = [graphs.of_hlir(tower), graphs.of_candidate(best)]
    many += [graphs.of_part(p) for p in egraph.parts]
    for data in many:
        keys = {n.key for n in data.nodes}
        assert len(keys) == len(data.nodes)
        assert all(e.tail in keys and e.head in keys for e in data.edges)
        groups = {g.key for g in data.groups} | {""}
        assert all(n.group in groups for n in data.nodes)
        assert all(g.parent in groups for g in data.groups)


def test_measured_seconds_become_an_overlay(tower: Any) -> None:
    data = graphs.of_hlir(tower, {5: {"seconds": 1e-3}})
    assert data.overlays[0].key == "seconds"


def test_it_falls_back_to_text_and_a_static_picture(tower: Any) -> None:
    bundle = graph_widget(tower)._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/plain"].startswith("GraphView(Graph of Tower")
    assert "<svg" in data["text/html"]


def test_a_selection_names_hlir_nodes(tower: Any) -> None:
    view = graph_widget(tower)
    inside = view.hlir_of("layers.0")
    assert inside
    view.select_hlir(set(inside))
    assert set(view.highlighted) >= {f"n{n}" for n in inside}


def test_what_has_no_graph_is_refused() -> None:
    with pytest.raises(LuminalError, match="no graph view of a int"):
        graph_widget(3)


# ---------------------------------------------------------------------------------- browser


def test_equal_layers_are_folded_and_open(show: Any, tower: Any) -> None:
    page = show(graph_widget(tower))
    page.wait_for_function(DRAWN)
    page.click("[data-key='layers']")
    page.click("aside button:has-text('Open group')")
    page.wait_for_selector("[data-key='layers.0']")
    assert "×4" in page.text_content("[data-key='layers.0']")
    assert page.locator("[data-key='layers.1']").count() == 0
    page.uncheck("input[type=checkbox]")
    page.wait_for_selector("[data-key='layers.3']")


def test_the_keyboard_alone_is_enough(show: Any, tower: Any) -> None:
    page = show(graph_widget(tower))
    page.wait_for_function(DRAWN)
    page.focus("svg.canvas")
    page.keyboard.press("ArrowDown")
    first = page.evaluate("model.get('selected')")
    assert first
    page.keyboard.press("/")
    page.keyboard.type("sumreduce")
    assert "found" in page.inner_text(".note")
    page.keyboard.press("Enter")
    page.wait_for_function(f"model.get('selected') !== {first!r}")
    chosen = page.evaluate("model.get('selected')")
    assert "SumReduce" in page.text_content(f"[data-key='{chosen}']")
    page.keyboard.press("Escape")
    page.keyboard.press("t")
    assert page.locator(".rows tbody tr").count() > 10
    before = page.inner_text(".status")
    page.keyboard.press("o")
    page.wait_for_function(f"document.querySelector('.status').textContent !== {before!r}")
    page.keyboard.press("Escape")
    assert page.evaluate("model.get('selected')") == ""


def test_an_overlay_says_its_number(show: Any, tower: Any) -> None:
    page = show(graph_widget(tower, overlay="flops"))
    page.wait_for_function(DRAWN)
    assert "FLOP" in page.text_content("[data-key='layers'] .sub")


def test_names_from_a_model_are_text(show: Any) -> None:
    evil = '<img src=x onerror="document.title=1">"\\'
    data = graphs.GraphData(
        evil, (graphs.Node(evil, evil, evil, group=evil, details=((evil, evil),)),), (),
        (graphs.Group(evil, evil, details=((evil, evil),)),), open=(evil,),
    )  # fmt: skip
    page = show(GraphView(data))
    page.wait_for_function(DRAWN)
    page.click(".node")
    page.wait_for_timeout(100)
    assert page.title() == "A widget"
    assert page.locator("img").count() == 0


def test_a_large_graph_says_what_it_hides(show: Any) -> None:
    n = 5000
    nodes = tuple(graphs.Node(f"n{k}", f"Mul {k}", "f32 8") for k in range(n))
    edges = tuple(graphs.Edge(f"n{k - 1 - k % 7}", f"n{k}") for k in range(8, n))
    page = show(GraphView(graphs.GraphData("Large", nodes, edges)))
    page.wait_for_function(DRAWN)
    assert "showing 300 of 5,000" in page.inner_text(".status")
    took = page.evaluate(
        "() => { const t = performance.now(); const s = document.querySelector('input');"
        " s.value = 'mul 4999'; s.dispatchEvent(new Event('input'));"
        " return performance.now() - t; }"
    )
    assert took < 5000  # `test_bars` holds what is promised
    assert page.inner_text(".note").startswith("1 found")


def test_a_dead_kernel_still_gets_a_drawing(show: Any, tower: Any) -> None:
    page = show(graph_widget(tower))
    page.evaluate(
        "globalThis.dead = true; globalThis.__luminalLab.library = null;"
        "globalThis.__luminalLab.worker = null; model.set('drawn', 0);"
        "model.set('data', model.get('data') + ' ')"
    )
    said = "document.querySelector('.status').textContent.includes('without Graphviz')"
    page.wait_for_function(said)
    page.wait_for_function(DRAWN)


@pytest.mark.parametrize("kind", ["SVG", "PNG", "DOT", "JSON"])
def test_export(show: Any, tower: Any, kind: str) -> None:
    page = show(graph_widget(tower))
    page.wait_for_function(DRAWN)
    with page.expect_download() as download:
        page.select_option("select[aria-label=Export]", kind)
    body = download.value.path().read_bytes()
    begins = {"SVG": b"<svg", "PNG": b"\x89PNG", "DOT": b"digraph", "JSON": b"{"}
    assert body.startswith(begins[kind])
    assert download.value.suggested_filename == f"graph-of-tower.{kind.lower()}"


def test_no_serious_accessibility_violation(show: Any, tower: Any) -> None:
    axe = pytest.importorskip("axe_core_python.sync_playwright")
    page = show(graph_widget(tower))
    page.wait_for_function(DRAWN)
    page.keyboard.press("t")
    found = axe.Axe().run(page)["violations"]
    bad = [v["id"] for v in found if v["impact"] in ("serious", "critical")]
    assert not bad
