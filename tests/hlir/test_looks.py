"""What a person sees of an Hlir: summary, tables, graph, differences."""

from __future__ import annotations

import subprocess
import sys

from luminal_lab.hlir import Graph, Hlir, Ref, Source
from luminal_lab.hlir.dtypes import F32


def mlp(scale: float = 2.0, extra: bool = False, name: str = "mlp") -> Hlir:
    g = Graph(name)
    x = g.input("x", (4, 8), F32)
    w = g.input("lin.weight", (8, 8), F32, "weight")
    g.source = Source("m.py:3 in forward", "lin", "aten.mm.default")
    a, b = x.unsqueeze(1).expand((4, 8, 8)), w.expand((4, 8, 8))
    y = (a * b).sum(2)
    g.source = Source("m.py:4 in forward", "act", "aten.mul.Tensor")
    y = y * scale
    if extra:
        y = y + x
    (z,) = g.custom("aten.abs.default", ((Ref(0),), {}), [y], [((4, 8), F32)], single=True)
    return g.finish(z)


def test_summary_fits_a_screen():
    text = repr(mlp())
    assert text.startswith("Hlir mlp: 7 nodes, 544 operations")
    assert "input     x: f32[4, 8]" in text
    assert "weights   1: 64 elements, 0.0 MB" in text
    assert "Mul 2" in text
    assert "fallbacks aten.abs.default ×1" in text
    assert len(text.splitlines()) <= 24


def test_table_and_fallbacks():
    table = mlp().table()
    assert list(table.op) == ["Input", "Input", "Mul", "SumReduce", "Constant", "Mul", "Custom"]
    assert table.loc[2, "bytes"] == 4 * 8 * 8 * 4
    assert table.loc[3, "flops"] == 256
    assert table.loc[3, "operands"] == "%2[i0, i1, r]"
    assert table.loc[5, "module"] == "act"
    rows = mlp().fallbacks()
    assert list(rows.op) == ["aten.abs.default"]
    assert list(rows.line) == ["m.py:4 in forward"]


def test_graph_has_modules_views_and_outputs():
    source = mlp().graph().source
    assert "lin.weight" in source
    assert "cluster_" in source
    assert "[i0, i2]" in source
    assert "out0" in source


def test_structural_hash_ignores_names_and_sources():
    a, b = mlp(), mlp(name="other")
    assert a.key == b.key
    assert a != b
    assert mlp(scale=3.0).key != a.key
    assert mlp(extra=True).key != a.key


def test_diff_finds_what_changed():
    same = mlp().diff(mlp())
    assert not same
    assert len(same.same) == 7
    scaled = mlp().diff(mlp(scale=3.0))
    assert scaled.changed == ((4, 4),)
    assert "- %4 f32[] = Constant {value=2.0}" in scaled.text()
    assert "+ %4 f32[] = Constant {value=3.0}" in scaled.text()
    grown = mlp().diff(mlp(extra=True))
    assert [mlp(extra=True).nodes[n].op for n in grown.added] == ["Add"]
    assert grown.removed == ()
    assert grown.changed == ((6, 7),)  # it reads another node
    assert "1 added" in repr(grown)
    assert "background:" in grown._repr_html_()


def test_mimebundle_has_text():
    assert mlp()._repr_mimebundle_()["text/plain"] == repr(mlp())


def test_the_package_imports_neither_torch_nor_pandas():
    code = (
        "import sys, luminal_lab.hlir as h;"
        "from luminal_lab.hlir import Hlir, Index, View, OPS, check, Node, regroup, parse;"
        "print(sorted({'torch', 'pandas', 'sympy', 'graphviz'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
