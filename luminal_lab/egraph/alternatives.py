"""All forms of one value: its e-class, who made each member, and when."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.egraph import ENCODED, EClass, ENode
from luminal_lab.egraph.names import Place, place
from luminal_lab.egraph.show import name_of, node_text

if TYPE_CHECKING:
    import pandas as pd

    from luminal_lab.egraph.egraph import EGraph


@dataclass(frozen=True)
class Member:
    """One member of an e-class.

    Arguments:
        place: Where it is; `egraph.explain(a.members[0], a.members[2])` takes it.
        enode: The e-node.
        text: Its op over the names of classes.
        rule: The rule that made it first, `"encode"` for the program itself.
        law: The law of that rule.
        iteration: When; 0 for the program itself.
    """

    place: Place
    enode: ENode
    text: str
    rule: str
    law: str
    iteration: int

    def __repr__(self) -> str:
        made = "as captured" if self.rule == ENCODED else f"{self.rule} @{self.iteration}"
        return f"{self.place.label} = {self.text}   ; {made}"


@dataclass(frozen=True)
class Alternatives:
    """The e-classes of a node, with their members.

    Arguments:
        title: What was asked.
        region: Its region.
        classes: Of an HLIR node: its tensor, then the value that it stores. Of a class: itself.
        members: All members, class by class, first made first.
    """

    title: str
    region: int
    classes: tuple[EClass, ...]
    members: tuple[Member, ...]
    _egraph: Any = None

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, k: int) -> Member:
        return self.members[k]

    def table(self) -> pd.DataFrame:
        """One row per member: class, member, form, rule, law, iteration."""
        import pandas as pd

        part = self._egraph.parts[self.region]
        view = import_module("luminal_lab.views.egraph")
        rows = [
            {
                "class": name_of(part, m.place.eclass),
                "member": m.place.label,
                "form": view.form(part, m.enode),
                "rule": m.rule,
                "iteration": m.iteration,
                "law": m.law,
            }
            for m in self.members
        ]
        return pd.DataFrame(
            rows, columns=["class", "member", "form", "rule", "iteration", "law"]
        )

    def text(self) -> str:
        """One line per member."""
        return import_module("luminal_lab.views.egraph").alternatives_text(self)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        view = import_module("luminal_lab.views.egraph")
        return {"text/plain": self.text(), "text/html": str(view.alternatives_html(self))}


def alternatives(egraph: EGraph, what: Any, region: int | None = None) -> Alternatives:
    """See `EGraph.alternatives`."""
    at = place(egraph, what, region)
    part = egraph.parts[at.region]
    own = part.classes[at.eclass]
    classes = egraph.classes_of(at.node, at.region) if at.node is not None else (own,)
    laws = {r.name: r.law for r in egraph.rules}
    members = []
    for c in classes:
        for k, node in enumerate(c.nodes):
            label = f"{name_of(part, c.id)}.{k}"
            members.append(
                Member(
                    Place(at.region, c.id, k, None, label),
                    node,
                    node_text(part, node),
                    node.rule,
                    laws.get(node.rule, "the program as it was captured"),
                    node.iteration,
                )
            )
    op = f" {part.hlir.nodes[at.node].op}" if at.node is not None else ""
    where = f" of region {at.region}" if len(egraph.parts) > 1 else ""
    return Alternatives(f"{at.label}{op}{where}", at.region, classes, tuple(members), egraph)
