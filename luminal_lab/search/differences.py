"""How two candidates differ: kernels, what was merged or split, stored or recomputed."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any

from luminal_lab.search.candidate_text import difference, title
from luminal_lab.search.kernel_text import kernel_text

if TYPE_CHECKING:
    from graphviz import Digraph
    from pandas import DataFrame

    from luminal_lab.search.candidate import Candidate


class CandidateDiff(str):
    """The differences as text, with more to ask.

    Attributes:
        left, right: The candidates.
    """

    __slots__ = ("left", "right")
    left: Candidate
    right: Candidate

    def table(self) -> DataFrame:
        """One row per kernel: where it is, what became of it, what it covers, its time.

        `status`: `shared`; `merged` (it does what several kernels of the other do), `split` (it
        does a part of what one kernel of the other does), `reshaped` (they overlap otherwise),
        `rewritten` (the same nodes in another form), or `own` (nothing of the other overlaps).
        """
        import pandas as pd

        rows = [
            {"candidate": name, "kernel": k, "status": status, "with": with_,
             "computes": title(one.kernels[k]), "hlir_nodes": len(one.kernels[k].nodes),
             "predicted_us": one.predicted[k] * 1e6 if one.predicted else float("nan")}
            for name, one, found in (
                (self.left.name, self.left, compared(self.left, self.right)),
                (self.right.name, self.right, compared(self.right, self.left)),
            )
            for k, (status, with_) in enumerate(found)
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def values(self) -> DataFrame:
        """One row per HLIR node that is stored or computed differently.

        `left` and `right` say `stored`, `in place`, or `computed in n kernels`.
        """
        import pandas as pd

        sides = [treatment(c) for c in (self.left, self.right)]
        hlir = self.left.hlir
        rows = []
        for node in sorted({*sides[0], *sides[1]}):
            words = [s.get(node, "not computed") for s in sides]
            if words[0] != words[1]:
                op = hlir.nodes[node].op if hlir is not None else ""
                rows.append({"node": node, "op": op, "left": words[0], "right": words[1]})
        return pd.DataFrame(rows, columns=["node", "op", "left", "right"])

    def graph(self) -> Digraph:
        """Both candidates' kernels as boxes, with an edge where they cover the same nodes."""
        from graphviz import Digraph

        dot = Digraph("difference", graph_attr={"rankdir": "LR"}, node_attr={"shape": "box"})
        for side, one in (("a", self.left), ("b", self.right)):
            other = self.right if side == "a" else self.left
            with dot.subgraph(name=f"cluster_{side}") as part:  # type: ignore[union-attr]
                part.attr(label=f"candidate {one.name}")
                for k, (status, _) in enumerate(compared(one, other)):
                    part.node(f"{side}{k}", f"k{k} {title(one.kernels[k])}\\n{status}")
        for k, kernel in enumerate(self.left.kernels):
            for j, other in enumerate(self.right.kernels):
                if kernel_text(kernel) == kernel_text(other):
                    dot.edge(f"a{k}", f"b{j}", label="shared", dir="none")
                elif common := len(set(kernel.nodes) & set(other.nodes)):
                    dot.edge(f"a{k}", f"b{j}", label=f"{common} nodes", style="dashed",
                             dir="none")  # fmt: skip
        return dot

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = import_module("luminal_lab.views.candidate")
        return {"text/plain": str(self), "text/html": str(view.difference_html(self))}


def diff(a: Candidate, b: Candidate) -> CandidateDiff:
    """See `Candidate.diff`."""
    lines = [difference(a, b)]
    for k, (status, with_) in enumerate(compared(a, b)):
        if status in ("merged", "split"):
            verb = "does what" if status == "merged" else "is a part of"
            end = " do there" if status == "merged" else " there"
            lines.append(f"  k{k} {verb} {with_}{end}")
    found = CandidateDiff("\n".join(lines))
    found.left, found.right = a, b
    for row in found.values().to_dict("records"):
        lines.append(f"  %{row['node']} {row['op']}: {row['left']}, {row['right']} there")
    out = CandidateDiff("\n".join(lines))
    out.left, out.right = a, b
    return out


def compared(a: Candidate, b: Candidate) -> list[tuple[str, str]]:
    """For each kernel of `a`: its status, and the kernels of `b` that it has to do with."""
    texts = {kernel_text(k): j for j, k in enumerate(b.kernels)}
    out = []
    for kernel in a.kernels:
        same = texts.get(kernel_text(kernel))
        if same is not None:
            out.append(("shared", f"k{same}"))
            continue
        mine = set(kernel.nodes)
        over = [(j, set(k.nodes)) for j, k in enumerate(b.kernels) if mine & set(k.nodes)]
        names = ", ".join(f"k{j}" for j, _ in over)
        out.append((_status(mine, [n for _, n in over]), names))
    return out


def _status(mine: set[int], over: list[set[int]]) -> str:
    if not over:
        return "own"
    if any(n == mine for n in over):
        return "rewritten"
    if len(over) > 1 and sum(n <= mine for n in over) > 1:
        return "merged"
    if len(over) == 1 and mine < over[0]:
        return "split"
    return "reshaped"


def treatment(candidate: Candidate) -> dict[int, str]:
    """How each HLIR node is treated: stored, computed in place, or computed several times.

    A kernel stores the last of the nodes that it covers; nodes come in topological order.
    """
    count: Counter[int] = Counter()
    stored: set[int] = set()
    for kernel in candidate.kernels:
        count.update(kernel.nodes)
        stored |= {max(kernel.nodes)} if kernel.nodes else set()
    return {
        n: "stored" if n in stored and times == 1
        else f"computed in {times} kernels" if times > 1 else "in place"
        for n, times in count.items()
    }  # fmt: skip
