import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luminal_lab.views.layout import GAP_X, layered
from luminal_lab.views.svg import MAX_BOXES, Arrow, Box, Diagram, draw, to_digraph
from tests.views.check import check_html
from tests.views.conftest import HOSTILE


@st.composite
def graphs(draw_):
    n = draw_(st.integers(0, 25))
    node = st.integers(0, max(n - 1, 0))
    sizes = [(draw_(st.floats(10, 200)), draw_(st.floats(10, 60))) for _ in range(n)]
    edges = draw_(st.lists(st.tuples(node, node), max_size=50)) if n else []
    return sizes, edges


@given(graphs())
def test_boxes_do_not_overlap_and_edges_end_at_their_boxes(graph):
    sizes, edges = graph
    placed = layered(sizes, edges)
    assert placed == layered(sizes, edges)
    for i, ((x, y), (w, h)) in enumerate(zip(placed.centres, sizes)):
        assert x - w / 2 >= -0.1
        assert x + w / 2 <= placed.width + 0.1
        for (x2, y2), (w2, h2) in zip(placed.centres[:i], sizes[:i]):
            apart_x = abs(x - x2) >= (w + w2) / 2 + GAP_X - 0.1
            apart_y = abs(y - y2) >= (h + h2) / 2 - 0.1
            assert apart_x or apart_y
    for (u, v), path in zip(edges, placed.paths):
        if u == v:
            assert path == ()
            continue
        for end, point in ((u, path[0]), (v, path[-1])):
            assert point[0] == pytest.approx(placed.centres[end][0])
            assert abs(point[1] - placed.centres[end][1]) == pytest.approx(sizes[end][1] / 2)


def test_forward_edges_go_down():
    placed = layered([(50, 20)] * 4, [(0, 1), (1, 3), (0, 2), (2, 3)])
    y = [c[1] for c in placed.centres]
    assert y[0] < y[1] == y[2] < y[3]


def test_a_chain_is_straight():
    placed = layered([(50, 20)] * 5, [(k, k + 1) for k in range(4)])
    assert len({round(x, 3) for x, _ in placed.centres}) == 1


def test_three_hundred_nodes_are_drawn_in_time():
    edges = [(max(0, k - step), k) for k in range(1, 300) for step in (1, 7, 40)]
    start = time.perf_counter()
    layered([(80, 30)] * 300, edges)
    assert time.perf_counter() - start < 20  # a hang, not a figure


def test_drawing():
    boxes = (Box("a", HOSTILE, HOSTILE, f"{HOSTILE}\n2", "accent"), Box("b", "b", kind="mark"))
    diagram = Diagram(HOSTILE, boxes, (Arrow("a", "b", HOSTILE, dashed=True), Arrow("a", "c")))
    shown = check_html(draw(diagram))
    assert HOSTILE in shown
    standalone = draw(diagram, standalone=True)
    check_html(standalone)
    assert 'xmlns="http://www.w3.org/2000/svg"' in standalone


def test_large_drawings_say_what_they_hide():
    boxes = tuple(Box(str(k), str(k)) for k in range(4113))
    shown = check_html(draw(Diagram("many", boxes, ())))
    assert f"showing {MAX_BOXES} of 4,113 nodes" in shown


def test_an_empty_drawing():
    check_html(draw(Diagram("nothing", (), ())))


def test_dot():
    boxes = (
        Box("a", "<script>", title="x\ny"),
        Box("b", 'say "hi"\\n', "f32 2×3", kind="buffer"),
    )
    dot = to_digraph(Diagram("two\nlines", boxes, (Arrow("a", "b", "v"),), "showing 2 of 3"))
    lines = [line.strip() for line in dot.source.splitlines()]
    assert [line for line in lines if "->" in line or "[label=" in line] == [
        'n0 [label="<script>" fillcolor="#f6f8fa" tooltip="x\\ny"]',
        'n1 [label="say \\"hi\\"\\\\n\\nf32 2×3" fillcolor=white '
        'style="rounded,filled,dashed" tooltip="say \\"hi\\"\\\\n"]',
        "n0 -> n1 [tooltip=v]",
    ]
