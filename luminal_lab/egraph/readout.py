"""The child's tables → canonical e-classes.

Class ids do not depend on egglog's numbers: classes with an encoder term come in the order of
their first one, the others in the order of their structure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from luminal_lab.egraph.egraph import ENCODED, EClass, ENode
from luminal_lab.egraph.encode import Encoding
from luminal_lab.egraph.gemm import Stored, gemm_form
from luminal_lab.egraph.language import MARKS, SIGNATURES, unstamp
from luminal_lab.egraph.library import (
    LIBRARY,
    Declaration,
    LibraryForm,
    library_form,
    shipped_kernels,
)
from luminal_lab.egraph.planes import plane_axes, planes_outermost, window_axes
from luminal_lab.egraph.rulebook import RuleInfo
from luminal_lab.egraph.steps import is_gathered
from luminal_lab.egraph.values import BINDERS, numbers_text
from luminal_lab.errors import RuleError
from luminal_lab.hlir.dtypes import DTYPES
from luminal_lab.hlir.index import Index
from luminal_lab.hlir.ops import BINARY, UNARY
from luminal_lab.hlir.sizes import Dim

Tables = Mapping[str, Sequence[Sequence[Any]]]
Raw = tuple[str, tuple[int, ...], tuple[Any, ...]]  # op, child e-classes, attributes
Source = tuple[str, tuple[Any, ...]]  # a constructor and the columns of its row
_PLAIN = {*UNARY, *BINARY, "Select"}


@dataclass
class _Reader:
    tables: Tables
    encoding: Encoding
    rules: Sequence[RuleInfo]
    extents: Mapping[str, Dim]
    kernels: Mapping[str, Declaration]
    indices: dict[str, tuple[Index, ...]] = field(default_factory=dict)
    affine: dict[int, Index] = field(default_factory=dict)
    axes_of_planes: frozenset[str] | None = None

    def index(self, text: str) -> tuple[Index, ...]:
        if text not in self.indices:
            known = self.encoding.indices.get(text)
            parts = text.split(", ") if text else []
            self.indices[text] = known or tuple(Index.parse(p) for p in parts)
        return self.indices[text]

    def planes(
        self, index: tuple[Index, ...], shape: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """The order of dims of a tensor that is seen through windows."""
        if self.axes_of_planes is None:
            self.axes_of_planes = self._planes()
        if not self.axes_of_planes or len(shape) != len(index):
            return None
        maps = tuple(self.encoding.indices.values())
        return planes_outermost(index, shape, self.axes_of_planes, maps)

    def _planes(self) -> frozenset[str]:
        """The axes of all windows, and those along which is stored what a window slides over.

        A window that skips points has other axes than the tensor that it slides over.
        """
        # Masks compare expressions like j - i too; what they say lies nowhere.
        reads = [*self.tables.get("Load", ()), *self.tables.get("LoadAt", ())]
        extents = self.encoding.extents
        maps = [self.index(text) for text in dict.fromkeys(row[1] for row in reads)]
        found = set(plane_axes(maps, extents))
        seen: dict[int, set[int]] = {}  # dims of tensors that windows slide over
        for tensor, text in dict.fromkeys((row[0], row[1]) for row in reads):
            for d, i in enumerate(self.index(text)):
                if len(i.terms) > 1 and window_axes(i, extents):
                    seen.setdefault(tensor, set()).add(d)
        for _, text, tensor in self.tables.get("Kernel", ()):
            index = self.index(text)
            for d in seen.get(tensor, ()):
                found |= index[d].axes
        return frozenset(found)

    def read_index_terms(self) -> None:
        """The index expression of each e-class of sort Ix (they are never united)."""
        for text, out in self.tables.get("Affine", ()):
            self.affine[out] = self.index(text)[0]
        for number, out in self.tables.get("Number", ()):
            self.affine[out] = Index.num(number)
        pending = [
            (op, row) for op in ("Plus", "Times", "Rem") for row in self.tables.get(op, ())
        ]
        while pending:
            left = [(op, row) for op, row in pending if not self._index_term(op, row)]
            if len(left) == len(pending):
                return
            pending = left

    def _index_term(self, op: str, row: Sequence[Any]) -> bool:
        a, b, out = row
        known = self.affine
        if op == "Plus" and a in known and b in known:
            known[out] = known[a] + known[b]
        elif op == "Times" and b in known:
            known[out] = known[b] * a
        elif op == "Rem" and a in known:
            known[out] = known[a].mod(b, self.extents)
        else:
            return False
        return True

    def raw(self, op: str, args: Sequence[Any]) -> Raw | None:
        """An e-node with egglog's class numbers; None for a Gemm that no library takes."""
        if op in _PLAIN:
            return op.lower(), tuple(args), ()
        match op:
            case "Const":
                return "const", (), (float(args[0]),)
            case "NegZero":
                return "const", (), (-0.0,)
            case "Int":
                return "const", (), (bool(args[0]) if args[1] == "bool" else args[0],)
            case "Iota":
                return "iota", (), (self.affine[args[0]],)
            case "Table":
                return "table", (args[1],), (numbers_text(args[0]),)
            case "Cast":
                return "cast", (args[0],), ()
            case "Red":
                return "red", (args[2],), (args[0], args[1])
            case "Carry":
                return "carry", tuple(args[2:]), (args[0], args[1])
            case "Online":
                return "online", tuple(args[1:]), (args[0],)
            case "Load":
                return "load", (args[0],), (self.index(args[1]),)
            case "LoadAt":
                return "load", (args[0], *args[2]), (self.index(args[1]),)
            case "Input":
                return "input", (), (args[0],)
            case "Kernel":
                return "kernel", (args[0],), (self.index(args[1]),)
            case "Planes":
                return "planes", (args[0],), (self.index(args[1]),)
            case "Custom":
                return "custom", tuple(args[1]), (args[0],)
            case "Scatter":
                mode, into, value, points, index, at = args
                attrs = (mode, self.index(points), self.index(index))
                return "scatter", (into, value, *at), attrs
            case "Gemm":
                a, ia, b, ib, ic, k, alpha, act = args
                return "gemm", (a, b), (ia, ib, None, ic, tuple(k), alpha, 1.0, act)
            case "Lib":
                name, tensors, maps, ic, roles, numbers = args
                return "library", tuple(tensors), (name, maps, ic, roles, numbers)
            case "GemmPlus":
                a, ia, b, ib, d, id_, ic, k, alpha, beta, act = args
                return "gemm", (a, b, d), (ia, ib, id_, ic, tuple(k), alpha, beta, act)
        raise AssertionError(op)

    def library(
        self,
        attrs: tuple[Any, ...],
        tensors: Sequence[int],
        shapes: Mapping[int, tuple[Dim, ...]],
        dtypes: Mapping[int, str],
    ) -> LibraryForm | None:
        """What a call of a kernel that is not derived needs to know."""
        name, maps, ic, roles, numbers = attrs
        if name not in self.kernels:
            raise RuleError(
                f"a rule calls the kernel {name!r}, which nothing declares",
                fix=f"pass its file too; known are {', '.join(sorted(self.kernels))}",
            )
        stored = [
            Stored(shapes.get(t, ()), self.index(i)) for t, i in zip(tensors, (*maps, ic))
        ]
        names = [dtypes[t] for t in tensors]
        said = self.kernels[name]
        return library_form(said, stored, names, roles, numbers, self.extents)

    def nodes(self) -> Iterator[tuple[str, int, Raw, tuple[int, int], Source]]:
        """`(sort, class, e-node, (iteration, rule number), table row)` for every row."""
        for op, signature in SIGNATURES.items():
            if signature.sort not in ("V", "T"):
                continue
            stamps = {_key(row[:-1]): row[-1] for row in self.tables.get(f"by_{op}", ())}
            for row in self.tables.get(op, ()):
                made = unstamp(stamps.get(_key(row[:-1]), 0))
                raw = self.raw(op, row[:-1])
                if raw is not None:
                    yield signature.sort, row[-1], raw, made, (op, tuple(row[:-1]))


def _key(args: Sequence[Any]) -> str:
    return repr(args)


def extents_of(tables: Tables, encoding: Encoding) -> dict[str, Dim]:
    """The extents of all axes: the encoder's, and those that rules made."""
    made = {row[0]: row[1] for row in tables.get("extent", ())}
    return {**encoding.extents, **{axis: made[axis] for axis in sorted(made)}}


def read_classes(
    tables: Tables,
    encoding: Encoding,
    rules: Sequence[RuleInfo],
    keep_all: bool = False,
    kernels: Mapping[str, Declaration] | None = None,
) -> tuple[tuple[EClass, ...], dict[int, int], dict[int, int], dict[str, int]]:
    """Canonical e-classes.

    Arguments:
        tables: What the child sent.
        encoding: The terms that were loaded.
        rules: The rules, for the names in provenance.
        keep_all: Keep e-nodes that cannot be executed too (a check of rules must see them).
        kernels: Hand-written kernels by name, for calls of them.

    Returns:
        The classes; the class of each encoder V term and T term; and how many e-nodes were left
        out, by reason.
    """
    found = read_rows(tables, encoding, rules, kernels)
    nid = {row[0]: found.number[row[1]] for row in tables.get("nid", ())}
    tid = {row[0]: found.number[row[1]] for row in tables.get("tid", ())}
    dropped: dict[str, int] = {}
    if found.lost:
        dropped["duplicates, and products that no library takes"] = found.lost
    classes = found.classes if keep_all else executable(found.classes, dropped)
    return classes, nid, tid, dropped


@dataclass(frozen=True)
class Found:
    """All e-classes of some tables.

    Arguments:
        classes: With the e-nodes that cannot be executed, too.
        sources: The row of each e-node, class by class.
        number: The id of each of the tables' own classes.
        lost: How many rows are no e-node.
    """

    classes: tuple[EClass, ...]
    sources: tuple[tuple[Source, ...], ...]
    number: Mapping[int, int]
    lost: int


def read_rows(
    tables: Tables,
    encoding: Encoding,
    rules: Sequence[RuleInfo],
    kernels: Mapping[str, Declaration] | None = None,
) -> Found:
    """`read_classes`, with the rows that the e-nodes were read from."""
    known = {**LIBRARY, **shipped_kernels(), **(kernels or {})}
    reader = _Reader(tables, encoding, rules, extents_of(tables, encoding), known)
    reader.read_index_terms()
    members: dict[int, list[tuple[Raw, tuple[int, int], Source]]] = {}
    sorts: dict[int, str] = {}
    for sort, out, raw, made, source in reader.nodes():
        members.setdefault(out, []).append((raw, made, source))
        sorts[out] = sort
    nid: dict[int, int] = {row[0]: row[1] for row in tables.get("nid", ())}
    tid: dict[int, int] = {row[0]: row[1] for row in tables.get("tid", ())}
    order = _order(members, [nid[n] for n in sorted(nid)], [tid[n] for n in sorted(tid)])
    new = {old: k for k, old in enumerate(order)}
    free = {row[0]: frozenset(row[1]) - MARKS for row in tables.get("free", ())}
    dtypes = {row[0]: row[1] for row in (*tables.get("dtype", ()), *tables.get("stores", ()))}
    shapes: dict[int, tuple[Dim, ...]] = {}
    for n, c in sorted(tid.items()):
        shapes.setdefault(c, encoding.tensors[n].shape)
    for old, made in members.items():
        for (op, _, attrs), *_ in made if old not in shapes else ():
            if op == "kernel":  # a tensor that a rule made: its map covers a box
                shapes[old] = _shape(attrs[0], reader.extents)
    for old in order:
        if old not in dtypes:
            raise _untyped(members[old][0], rules)
    beside: dict[int, set[int]] = {}
    for s, t, *_ in tables.get("beside", ()):
        beside.setdefault(s, set()).add(t)
    classes, sources = [], []
    for k, old in enumerate(order):
        nodes = _enodes(members[old], new, reader, shapes, dtypes, old)
        sources.append(tuple(source for _, source in nodes))
        classes.append(
            EClass(
                k,
                "V" if sorts[old] == "V" else "T",
                tuple(node for node, _ in nodes),
                DTYPES[dtypes[old]],
                free.get(old, frozenset()),
                shapes.get(old, ()),
                tuple(sorted(new[t] for t in beside.get(old, ()) if t in new)),
            )
        )
    lost = sum(len(members[old]) for old in order) - sum(len(c.nodes) for c in classes)
    return Found(tuple(classes), tuple(sources), new, lost)


def _untyped(
    member: tuple[Raw, tuple[int, int], Source], rules: Sequence[RuleInfo]
) -> RuleError:
    (op, _, attrs), (_, rule), _ = member
    name = rules[rule - 1].name if rule else ENCODED
    return RuleError(
        f"the rule {name!r} made a {op} of {attrs} that has no dtype",
        where=f"{rules[rule - 1].file}:{rules[rule - 1].line}" if rule else None,
        fix="an index map that a rule writes needs (set (axes …)), an op one dtype",
    )


def _shape(index: Sequence[Index], extents: Mapping[str, Dim]) -> tuple[Dim, ...]:
    return tuple(i.bounds(extents)[1] + 1 for i in index)


def _order(
    members: Mapping[int, Sequence[tuple[Raw, tuple[int, int], Source]]],
    values: Sequence[int],
    tensors: Sequence[int],
) -> list[int]:
    """The classes: with an encoder term in its order, then level by level by structure."""
    placed = {c: k for k, c in enumerate(dict.fromkeys([*tensors, *values]))}
    while len(placed) < len(members):
        found = []
        for c, nodes in members.items():
            if c in placed:
                continue
            keys = [
                (op, tuple(placed[x] for x in children), repr(attrs))
                for (op, children, attrs), *_ in nodes
                if all(x in placed for x in children)
            ]
            if keys:
                found.append((min(keys), c))
        if not found:
            break
        for _, c in sorted(found):
            placed[c] = len(placed)
    return list(placed)


def _enodes(
    raws: Sequence[tuple[Raw, tuple[int, int], Source]],
    new: Mapping[int, int],
    reader: _Reader,
    shapes: Mapping[int, tuple[Dim, ...]],
    dtypes: Mapping[int, str],
    own: int,
) -> tuple[tuple[ENode, Source], ...]:
    found: dict[tuple, tuple[tuple, ENode, Source]] = {}
    for (op, children, attrs), (iteration, rule), source in raws:
        if any(c not in new for c in children):
            continue
        if op == "gemm":
            ia, ib, id_, ic, k, alpha, beta, act = attrs
            texts: list[str] = [i for i in (ia, ib, id_, ic) if i is not None]
            stored = [
                Stored(shapes.get(c, ()), reader.index(i))
                for c, i in zip((*children, own), texts)
            ]
            form = gemm_form(
                stored[0], stored[1], stored[-1], k, reader.extents,
                stored[2] if id_ is not None else None, alpha=alpha, beta=beta, act=act,
            )  # fmt: skip
            if form is None:
                continue
            attrs = (form,)
        elif op == "library":
            form = reader.library(attrs, (*children, own), shapes, dtypes)
            if form is None:
                continue
            attrs = (form,)
        if op == "planes":
            index: Any = attrs[0]
            order = reader.planes(index, shapes.get(own, ()))
            if order is None:
                continue
            attrs = (*attrs, order)
        node = ENode(
            op,
            tuple(new[c] for c in children),
            attrs,
            reader.rules[rule - 1].name if rule else ENCODED,
            iteration,
        )
        key = (op, node.children, repr(attrs))
        order = (iteration, rule, *key)
        if key not in found or order < found[key][0]:
            found[key] = (order, node, source)
    kept = sorted(found.values(), key=lambda item: item[0])
    return tuple((node, source) for _, node, source in kept)


def executable(classes: Sequence[EClass], dropped: dict[str, int]) -> tuple[EClass, ...]:
    """Drop e-nodes that read an axis which their class lacks, and what needs them."""
    alive = {c.id: [n for n in c.nodes if _bound(n, c, classes)] for c in classes}
    unbound = sum(len(c.nodes) - len(alive[c.id]) for c in classes)
    done = _computable(alive)
    out = []
    orphans = 0
    for c in classes:
        kept = tuple(n for n in alive[c.id] if done.issuperset(n.children))
        orphans += len(alive[c.id]) - len(kept)
        out.append(replace(c, nodes=kept))
    if unbound:
        dropped["reads an axis that its class does not depend on"] = unbound
    if orphans:
        dropped["needs a class without executable e-nodes"] = orphans
    return tuple(out)


def _computable(alive: Mapping[int, Sequence[ENode]]) -> set[int]:
    """The classes that have an e-node all of whose children are such classes."""
    waiting: dict[int, list[tuple[int, int]]] = {}
    missing: dict[tuple[int, int], int] = {}
    ready: list[int] = []
    for c, nodes in alive.items():
        for k, n in enumerate(nodes):
            below = set(n.children)
            missing[c, k] = len(below)
            for x in below:
                waiting.setdefault(x, []).append((c, k))
            if not below:
                ready.append(c)
    done: set[int] = set()
    while ready:
        c = ready.pop()
        if c in done:
            continue
        done.add(c)
        for user in waiting.get(c, ()):
            missing[user] -= 1
            if not missing[user]:
                ready.append(user[0])
    return done


def node_free(node: ENode, classes: Sequence[EClass]) -> frozenset[str]:
    """The axes that an e-node reads, given what its children depend on."""
    free: frozenset[str] = frozenset()
    for c in node.children:
        free |= classes[c].free
    if node.op in BINDERS:
        return free - {node.attrs[-1]}
    if node.op == "iota":
        return node.attrs[0].axes
    if node.op == "load":
        for i in node.attrs[0]:
            free |= {a for a in i.axes if not is_gathered(a)}
    return free


def _bound(node: ENode, c: EClass, classes: Sequence[EClass]) -> bool:
    if node.op in ("kernel", "planes"):
        stored = frozenset().union(*(i.axes for i in node.attrs[0])) if node.attrs[0] else ()
        return classes[node.children[0]].free.issubset(stored)
    if node.op == "scatter":
        points = frozenset().union(*(i.axes for i in node.attrs[1]))
        return all(classes[v].free <= points for v in node.children[1:])
    return c.sort == "T" or node_free(node, classes) <= c.free
