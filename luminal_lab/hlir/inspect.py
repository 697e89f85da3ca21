"""What a person looks at: the one-screen summary, tables, and the drawn graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from luminal_lab.hlir.graph import Dim, Hlir, Node
from luminal_lab.hlir.literals import show_shape
from luminal_lab.hlir.ops import OPS, REDUCTIONS
from luminal_lab.hlir.text import view_text

if TYPE_CHECKING:
    import graphviz
    import pandas

    from luminal_lab.runtime.profiling import Profile

_SHOWN = 8  # inputs and outputs that the summary lists


def size(shape: Sequence[Dim]) -> int | None:
    """The number of elements; None when a dim is symbolic."""
    return math.prod(shape) if all(isinstance(d, int) for d in shape) else None


def flops(node: Node) -> int | None:
    """Arithmetic operations: one per element, or per reduced element; none to move data."""
    if OPS[node.op].family not in ("unary", "binary", "select", "cast", "reduce"):
        return 0
    return size((*node.shape, node.attrs["extent"]) if node.op in REDUCTIONS else node.shape)


def summary(hlir: Hlir) -> str:
    """One screen of text."""
    kinds = {kind: [s for s in hlir.inputs if s.kind == kind] for kind in _KINDS}
    work = [flops(n) for n in hlir.nodes]
    total = "symbolic" if None in work else f"{sum(w or 0 for w in work):,}"
    lines = [f"Hlir {hlir.name}: {len(hlir.nodes)} nodes, {total} operations"]
    for name, (low, high) in hlir.symbols.items():
        lines.append(f"  symbol    {name} in [{low}, {high}]")
    for spec in kinds["arg"][:_SHOWN]:
        lines.append(f"  input     {spec.name}: {_kind(hlir.nodes[spec.node])}")
    lines += _more("inputs", len(kinds["arg"]))
    for kind in ("weight", "constant"):
        if kinds[kind]:
            count, unit = _amount(hlir, [s.node for s in kinds[kind]])
            lines.append(f"  {kind + 's':<9} {len(kinds[kind])}: {count}, {unit}")
    counts = sorted(Counter(n.op for n in hlir.nodes).items(), key=lambda c: (-c[1], c[0]))
    shown = [f"{op} {count}" for op, count in counts]
    for k in range(0, len(shown), 8):
        lines.append(f"  {'ops' if k == 0 else '':<9} {', '.join(shown[k : k + 8])}")
    for out in hlir.outputs[:_SHOWN]:
        dtype = hlir.nodes[out.value.node].dtype
        role = f" (written into {out.mutates})" if out.mutates else ""
        lines.append(f"  output    {out.name}: {dtype}{show_shape(out.shape)}{role}")
    lines += _more("outputs", len(hlir.outputs))
    custom = Counter(n.attrs["target"] for n in hlir.nodes if n.op == "Custom")
    told = ", ".join(f"{target} ×{count}" for target, count in sorted(custom.items()))
    lines.append(f"  fallbacks {told or 'none'}")
    return "\n".join(lines)


_KINDS = ("arg", "weight", "constant")


def _kind(node: Node) -> str:
    return f"{node.dtype}{show_shape(node.shape)}"


def _more(what: str, count: int) -> list[str]:
    return [f"            … {count} {what} in all"] if count > _SHOWN else []


def _amount(hlir: Hlir, nodes: Sequence[int]) -> tuple[str, str]:
    sizes = [(size(hlir.nodes[n].shape) or 0, hlir.nodes[n].dtype.bytes) for n in nodes]
    elements = sum(count for count, _ in sizes)
    return f"{elements:,} elements", f"{sum(a * b for a, b in sizes) / 1e6:,.1f} MB"


def table(hlir: Hlir) -> pandas.DataFrame:
    """One row per node: id, op, shape, dtype, operands, bytes, flops, origin, and region.

    Bytes are those of the result if it were stored; both numbers are NA for symbolic shapes.
    The last columns say in which region a node is saturated, how often that region comes, and
    in which copy of it the node is; they are empty for inputs and for what every user copies.
    """
    import pandas

    from luminal_lab.hlir.regions import partition

    program = partition(hlir)
    homes = program.homes()
    copies = [len(program.names(k)) for k in range(len(program.regions))]
    rows = []
    for n, node in enumerate(hlir.nodes):
        elements = size(node.shape)
        rows.append(
            {
                "id": n,
                "op": node.op,
                "shape": show_shape(node.shape),
                "dtype": node.dtype.name,
                "operands": ", ".join(f"%{o.node}{view_text(o.view)}" for o in node.operands),
                "bytes": None if elements is None else elements * node.dtype.bytes,
                "flops": flops(node),
                "module": node.source.module,
                "line": node.source.line,
                "aten": node.source.aten,
                "region": homes[n][0] if n in homes else None,
                "copies": copies[homes[n][0]] if n in homes else None,
                "instance": homes[n][1] if n in homes else "",
            }
        )
    columns = [
        "id",
        "op",
        "shape",
        "dtype",
        "operands",
        "bytes",
        "flops",
        "module",
        "line",
        "aten",
        "region",
        "copies",
        "instance",
    ]
    frame = pandas.DataFrame(rows, columns=columns)
    numbers = ("bytes", "flops", "region", "copies")
    return frame.astype(dict.fromkeys(numbers, "Int64")).set_index("id")


def fallbacks(hlir: Hlir, profile: Profile | None = None) -> pandas.DataFrame:
    """One row per call of an ATen operator that has no lowering; see `Hlir.fallbacks`."""
    import pandas

    rows, seen = [], set()
    for n, node in enumerate(hlir.nodes):
        call = (
            (node.attrs["target"], node.attrs.get("call", n)) if node.op == "Custom" else None
        )
        if call and call not in seen:
            seen.add(call)
            rows.append(
                {
                    "id": n,
                    "op": node.attrs["target"],
                    "reason": node.attrs.get("reason", "it has no lowering"),
                    "line": node.source.line,
                    "module": node.source.module,
                }
            )
    columns = ["id", "op", "reason", "line", "module"]
    if profile is not None:
        columns += ["us", "share"]
        spent = {row["name"]: (0.0, 0.0) for row in profile.rows()}
        for row in profile.rows():
            us, share = spent[row["name"]]
            spent[row["name"]] = us + row["us"], share + row["share"]
        calls = Counter(row["op"] for row in rows)
        for row in rows:
            us, share = spent.get(row["op"], (math.nan, math.nan))
            row["us"], row["share"] = us / calls[row["op"]], share / calls[row["op"]]
    return pandas.DataFrame(rows, columns=columns).set_index("id")


_COLOURS = {
    "source": "#eef2f7",
    "unary": "#fdf6d8",
    "binary": "#fdf6d8",
    "select": "#fdf6d8",
    "cast": "#f3ecfb",
    "reduce": "#fde4d9",
    "index": "#dff1e4",
    "custom": "#fbd5d5",
}


def graph(hlir: Hlir) -> graphviz.Digraph:
    """The graph as a `graphviz.Digraph`, whose source needs no `dot` program.

    Nodes are grouped by module; an edge shows the view where it is not the identity.
    """
    import graphviz

    dot = graphviz.Digraph(hlir.name, node_attr={"fontname": "Helvetica", "fontsize": "10"})
    dot.attr("node", shape="box", style="rounded,filled", color="#8b95a5")
    dot.attr("edge", fontname="Helvetica", fontsize="8", color="#8b95a5")
    specs = {s.node: s for s in hlir.inputs}
    groups: dict[str, list[int]] = {}
    for n, node in enumerate(hlir.nodes):
        groups.setdefault(node.source.module if node.op != "Input" else "", []).append(n)
    for k, (module, members) in enumerate(groups.items()):
        inner = dot.subgraph(name=f"cluster_{k}" if module else None)
        assert inner is not None  # without a graph as argument it is a context manager
        with inner as sub:
            if module:
                sub.attr(label=module, color="#c4cbd6", fontname="Helvetica", fontsize="9")
            for n in members:
                node = hlir.nodes[n]
                title = specs[n].name if n in specs else _title(node)
                family = OPS[node.op].family
                shape = "ellipse" if node.op == "Input" else "box"
                sub.node(
                    f"n{n}",
                    _escape(f"{title}\n%{n} {_kind(node)}"),
                    fillcolor=_COLOURS[family],
                    shape=shape,
                )
    for n, node in enumerate(hlir.nodes):
        for o in node.operands:
            plain = o.view.is_identity
            dot.edge(f"n{o.node}", f"n{n}", label="" if plain else _escape(view_text(o.view)))
    for k, out in enumerate(hlir.outputs):
        dot.node(f"o{k}", _escape(out.name), shape="ellipse", fillcolor="#dce9fb")
        plain = out.value.view.is_identity
        label = "" if plain else _escape(view_text(out.value.view))
        dot.edge(f"n{out.value.node}", f"o{k}", label=label)
    return dot


def _title(node: Node) -> str:
    for key in ("value", "index", "target", "mode"):
        if key in node.attrs:
            return f"{node.op} {node.attrs[key]}"
    return f"{node.op} over r<{node.attrs['extent']}" if node.op in REDUCTIONS else node.op


def _escape(label: str) -> str:
    import graphviz

    return graphviz.escape(label).replace("\n", "\\n")


def mimebundle(hlir: Hlir) -> dict[str, Any]:
    """Text, and HTML where the views are installed."""
    from importlib import import_module, util

    bundle = {"text/plain": summary(hlir)}
    if util.find_spec("luminal_lab.views.hlir") is not None:
        bundle["text/html"] = import_module("luminal_lab.views.hlir").to_html(hlir)
    return bundle
