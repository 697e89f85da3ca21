"""What people call things: `%12`, `v7`, `t3`, `v7.2`, an input, an output."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from luminal_lab.errors import LuminalError

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import EGraph


@dataclass(frozen=True)
class Place:
    """A place in an e-graph.

    Arguments:
        region: Which region.
        eclass: Which class of it.
        member: Which e-node of the class; None for the class.
        node: The HLIR node of the region that was meant, None when a class was.
        label: How it is called.
    """

    region: int
    eclass: int
    member: int | None = None
    node: int | None = None
    label: str = ""


def place(egraph: EGraph, what: Any, region: int | None = None) -> Place:
    """Find what a name means.

    Arguments:
        egraph: The e-graph.
        what: An HLIR node of the program (`12` or `"%12"`), a class (`"v7"`, `"t3"`), a member
            of one (`"v7.2"`), the name of an input or an output, or an object with a `place`.
        region: The region of a class; with it, a node is a node of `parts[region].hlir`.

    Raises:
        LuminalError: when there is no such thing.
    """
    if isinstance(what, Place):
        return what
    if isinstance(getattr(what, "place", None), Place):
        return what.place
    if isinstance(what, int) and not isinstance(what, bool):
        return _node(egraph, what, region)
    if isinstance(what, str):
        if found := re.fullmatch(r"%(\d+)", what):
            return _node(egraph, int(found[1]), region)
        if found := re.fullmatch(r"([vt])(\d+)(?:\.(\d+))?", what):
            return _class(egraph, found[1], int(found[2]), found[3], region or 0)
        return _named(egraph, what)
    raise LuminalError(
        f"{type(what).__name__} names nothing in an e-graph",
        fix="give an HLIR node (12 or '%12'), a class ('v7', 't3'), a member ('v7.2'), or the"
        " name of an input or an output",
    )


def _node(egraph: EGraph, node: int, region: int | None) -> Place:
    if region is None:
        for instance in egraph.program.instances:
            if node in instance.nodes:
                found = _node(egraph, instance.nodes.index(node), instance.region)
                return replace(found, label=f"%{node}")
        raise LuminalError(
            f"there is no node %{node} in any region of this program",
            fix=f"the program has nodes %0 to %{len(egraph.hlir.nodes) - 1}; inputs and what"
            " nothing uses are in no region",
        )
    part = egraph.parts[region]
    if node not in part.node_class:
        if 0 <= node < len(part.hlir.nodes):
            raise LuminalError(
                f"node %{node} ({part.hlir.nodes[node].op}) of region {region} has no tensor of"
                " its own",
                fix="constants and Iotas are computed where they are read",
            )
        raise LuminalError(
            f"there is no node %{node} in region {region}",
            fix=f"it has nodes %0 to %{len(part.hlir.nodes) - 1}",
        )
    return Place(region, part.node_class[node], None, node, f"%{node}")


def _class(egraph: EGraph, sort: str, c: int, member: str | None, region: int) -> Place:
    classes = egraph.parts[region].classes
    if not c < len(classes) or classes[c].sort.lower() != sort:
        known = [x.id for x in classes if x.sort.lower() == sort]
        near = min(known, key=lambda x: abs(x - c), default=0)
        raise LuminalError(
            f"region {region} has no class {sort}{c}",
            fix=f"{sort}{near} is one; egraph.text() lists all",
        )
    k = None if member is None else int(member)
    if k is not None and k >= len(classes[c].nodes):
        raise LuminalError(
            f"class {sort}{c} has {len(classes[c].nodes)} members, there is no number {k}"
        )
    label = f"{sort}{c}" if k is None else f"{sort}{c}.{k}"
    return Place(region, c, k, None, label)


def _named(egraph: EGraph, name: str) -> Place:
    known: dict[str, tuple[int, int]] = {}
    for instance in egraph.program.instances:
        part = egraph.parts[instance.region]
        of = dict(part.outputs)
        for c in part.classes:
            of.update({n.attrs[0]: c.id for n in c.nodes if n.op == "input"})
        for own, value in instance.bind.items():
            if own in of:
                known.setdefault(value, (instance.region, of[own]))
    if name not in known:
        close = get_close_matches(name, known, 3)
        raise LuminalError(
            f"nothing in this program is called {name!r}",
            fix=f"did you mean {' or '.join(map(repr, close))}?"
            if close
            else f"known names: {', '.join(list(known)[:8])}",
        )
    region, c = known[name]
    return Place(region, c, None, None, name)


def tensor_names(egraph: EGraph, region: int) -> dict[int, str]:
    """How the T-classes of a region are called: an input, an output, a node, or `t3`."""
    part = egraph.parts[region]
    instance = next(i for i in egraph.program.instances if i.region == region)
    bind = instance.bind if len(egraph.program.instances) == len(egraph.parts) else {}
    out: dict[int, str] = {}
    for c in part.classes:
        if c.sort == "T":
            out[c.id] = f"t{c.id}"
            for n in c.nodes:
                if n.op == "input":
                    out[c.id] = bind.get(n.attrs[0], n.attrs[0])
    for node, c in sorted(part.node_class.items()):
        if out[c] == f"t{c}":
            whole = len(egraph.program.instances) == 1
            out[c] = f"%{instance.nodes[node] if whole else node}"
    return out
