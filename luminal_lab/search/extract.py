"""From an e-graph and a genome to kernels: what is computed, from which member, what is stored.

A genome has three parts. `choice`: for each V-class, the e-node that computes it (a read of a
program input counts as computing). `place`: for each T-class, whether it is stored. `producer`:
for each stored T-class, the e-node that makes it (a derived kernel, a library product, …).

Extraction follows one law: a V-class that holds a read of a stored tensor *is* that read,
except in the tensor's own kernel. What has no other form than a read forces its tensor to be
stored.
The result is checked to be acyclic, within kernels and between them.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from luminal_lab.egraph.values import BINDERS
from luminal_lab.hlir.sizes import hint
from luminal_lab.search.order import order_classes

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import ENode, Part

COMMUTATIVE = frozenset({"add", "mul"})
PRODUCERS = frozenset({"kernel", "gemm", "library", "scatter", "custom"})
ROW_MAJOR = frozenset({"gemm", "library"})  # their strides are told for tensors that lie so


class Infeasible(Exception):
    """This genome has no program: `reason` says why, for the table of rejections."""

    def __init__(self, reason: str):
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True)
class Genome:
    """See the module's text. All three are indexed by class id; -1 where it does not apply."""

    choice: tuple[int, ...]
    place: tuple[bool, ...]
    producer: tuple[int, ...]

    def places(self) -> MutableSequence[bool]:
        """A copy of `place` that extraction adds to."""
        return list(self.place)

    def settled(self) -> Genome:
        """The genome as plain tuples."""
        return self


@dataclass(frozen=True)
class Body:
    """How one T-class is made.

    Arguments:
        tensor: The T-class that it stores.
        producer: Which of its e-nodes makes it.
        picks: `(V-class, e-node)` in topological order, arguments first; the root is last.
        reads: The T-classes that it reads, in order of first use.
        mask: Bit c is set for each class c whose choice or placement it depends on.
    """

    tensor: int
    producer: int
    picks: tuple[tuple[int, int], ...]
    reads: tuple[int, ...]
    mask: int = field(compare=False)

    @cached_property
    def _hash(self) -> int:
        return hash((self.tensor, self.producer, self.picks))

    def __hash__(self) -> int:
        return self._hash


class _Way:
    """A node of the tree of decisions that lead to the bodies of a tensor.

    Attributes:
        asks: The class that is decided next; negative where a body is complete.
        follows: What comes next, by the e-node that was decided for.
        body: The complete one.
    """

    __slots__ = ("asks", "body", "follows")

    def __init__(self) -> None:
        self.asks = -1
        self.follows: dict[int, _Way] = {}
        self.body: Body | None = None


@dataclass(frozen=True)
class Extraction:
    """The kernels of one region: a body per stored tensor, in execution order.

    Arguments:
        bodies: One per stored tensor.
        place: Whether each T-class is stored.
        memo: What has been derived from it.
    """

    bodies: tuple[Body, ...]
    place: tuple[bool, ...] = field(compare=False)
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


class Space:
    """The choices that one Part offers, as arrays.

    Arguments:
        part: The read-out e-graph of a region.
        strided: T-classes that do not lie row-major: no library product, whose form was read
            off the index maps, makes or reads them.

    Attributes:
        options: For each V-class, the e-nodes that can compute it.
        reads: For each V-class, `(T-class, e-node)` of its reads of tensors but inputs.
        producers: For each T-class, the e-nodes that can make it; empty for inputs.
        inputs: The input's name for each T-class that is one, else None.
        through: The same for ways to have a V-class from a stored tensor that are no way to
            compute it, such as a cast of what it was rounded to.
        level: Orders all classes: what computes a class is lower, and so is every tensor that
            the kernel of another one reads.
        rank: Orders T-classes by the program.
    """

    def __init__(self, part: Part, strided: frozenset[int] = frozenset()):
        self.part = part
        n = len(part.classes)
        if [c.id for c in part.classes] != list(range(n)):
            raise ValueError("class ids must be their positions")
        self._of_program = frozenset(part.node_class.values())
        self.inputs: list[str | None] = [None] * n
        for cls in part.classes:
            if cls.sort == "T":
                named = [e.attrs[0] for e in cls.nodes if e.op == "input"]
                self.inputs[cls.id] = named[0] if named else None
        self.options: list[tuple[int, ...]] = [()] * n
        self.reads: list[tuple[tuple[int, int], ...]] = [()] * n
        self.producers: list[tuple[int, ...]] = [()] * n
        self.kids: list[tuple[tuple[int, ...], ...]] = [()] * n
        for cls in part.classes:
            if cls.sort == "T":
                if self.inputs[cls.id] is None:
                    made = [
                        k
                        for k, e in enumerate(cls.nodes)
                        if e.op in PRODUCERS
                        and not (e.op in ROW_MAJOR and strided & {cls.id, *e.children})
                    ]
                    self.producers[cls.id] = tuple(made)
            else:
                self._read_class(cls.id, cls.nodes, cls.free)
        self._ways: dict[tuple[int, int], _Way] = {}  # equal bodies are one object
        self._choices: dict[Body, tuple[tuple[int, int], ...]] = {}
        self.through: list[tuple[tuple[int, int], ...]] = [()] * n
        self.rank = self._ranks()
        self.level = self._levels()
        self.outputs: tuple[int, ...] = tuple(
            dict.fromkeys(t for _, t in part.outputs if self.inputs[t] is None)
        )
        self.tensors: tuple[int, ...] = tuple(
            c.id for c in part.classes if c.sort == "T" and self.producers[c.id]
        )
        # Whether a class can be computed and nothing else, and the tensors that it can read.
        self._plain = [
            bool(ways) and not (read or through)
            for ways, read, through in zip(self.options, self.reads, self.through, strict=True)
        ]
        self._loads = [
            {k: e.children[0] for k, e in enumerate(cls.nodes) if e.op == "load"}
            for cls in part.classes
        ]
        self.holders: dict[int, int] = dict.fromkeys(self.tensors, 0)
        for c in range(n):
            for t, _ in (*self.reads[c], *self.through[c]):
                self.holders[t] |= 1 << c

    def _read_class(self, c: int, nodes: Sequence[ENode], free: frozenset[str]) -> None:
        options, reads, kids = [], [], []
        seen: set[tuple] = set()
        for k, e in enumerate(nodes):
            kids.append(e.children[1:] if e.op == "load" else e.children)
            if not self._bound_axes(e) <= free:
                continue  # it would read an axis that has no value here
            if e.op == "load" and self.inputs[e.children[0]] is None:
                reads.append((e.children[0], k))
                continue
            same = tuple(sorted(e.children)) if e.op in COMMUTATIVE else e.children
            key = (e.op, same, repr(e.attrs))
            if key not in seen:
                seen.add(key)
                options.append(k)
        self.options[c] = tuple(options)
        # What only a rule stores comes first, the largest first: it takes over from what it
        # contains as soon as it is stored.
        self.reads[c] = tuple(sorted(reads, key=self._precedence))
        self.kids[c] = tuple(kids)

    def _precedence(self, read: tuple[int, int]) -> tuple[bool, int]:
        t, _ = read
        if t in self._of_program:
            return True, 0
        return False, -math.prod(map(hint, self.part.classes[t].shape))

    def _bound_axes(self, e: ENode) -> frozenset[str]:
        """The axes that must have a value where the e-node is evaluated."""
        first = 1 if e.op == "load" else 0
        free: frozenset[str] = frozenset()
        for child in e.children[first:]:
            free |= self.part.classes[child].free
        if e.op == "load":
            for index in e.attrs[0]:
                free |= {a for a in index.axes if not a.startswith("@")}
        elif e.op == "iota":
            free = e.attrs[0].axes
        elif e.op in BINDERS:
            free -= {e.attrs[-1]}
        return free

    def _ranks(self) -> list[int]:
        n = len(self.part.classes)
        rank = [n + len(self.part.node_class) + c for c in range(n)]
        for node, t in sorted(self.part.node_class.items(), reverse=True):
            rank[t] = node
        return rank

    def _levels(self) -> list[int]:
        """Order the classes, and take away the options that look up that order."""
        classes = self.part.classes
        roots = [
            {classes[t].nodes[k].children[0] for k in ks if classes[t].nodes[k].op == "kernel"}
            for t, ks in enumerate(self.producers)
        ]
        terms: list[dict[int, tuple[int, ...]]] = []
        loads: list[list[tuple[int, ...]]] = []
        for c, cls in enumerate(classes):
            if cls.sort == "T":
                terms.append({k: cls.nodes[k].children for k in self.producers[c]})
                loads.append([])
            else:
                terms.append({k: self.kids[c][k] for k in self.options[c]})
                found = [(t, *self.kids[c][k]) for t, k in self.reads[c] if c not in roots[t]]
                loads.append(found)
        place, up = order_classes(terms, loads)
        for c, ks in enumerate(up):
            if ks and classes[c].sort == "V":
                self.options[c] = tuple(k for k in self.options[c] if k not in ks)
                self.reads[c] = tuple(
                    (t, k)
                    for t, k in self.reads[c]
                    if all(place[x] < place[c] for x in self.kids[c][k])
                )
        for c, ks in enumerate(up):
            if classes[c].sort == "V":
                above = [
                    (k, [x for x in terms[c][k] if place[x] >= place[c]]) for k in sorted(ks)
                ]
                self.through[c] = tuple(
                    (t, k)
                    for k, kids in above
                    if len(kids) == 1 and kids[0] != c
                    for t, _ in self.reads[kids[0]]
                )
        keys = [
            (max((place[v] for v in roots[c]), default=place[c]), 1, self.rank[c])
            if cls.sort == "T"
            else (place[c], 0, 0)
            for c, cls in enumerate(classes)
        ]
        order = {key: k for k, key in enumerate(sorted(set(keys)))}
        return [order[key] for key in keys]

    def extract(
        self, genome: Genome, base: Extraction | None = None, changed: int = -1
    ) -> Extraction:
        """The kernels that a genome describes.

        Arguments:
            genome: What to extract.
            base: An extraction of a genome that differs only at classes of `changed`; its
                bodies that do not depend on those are kept.
            changed: Bit mask of V- and T-classes that differ.

        Raises:
            Infeasible: when it is cyclic, or needs a value that has no executable form.
        """
        place = genome.places()
        if base is not None:
            for t in self.tensors:  # what the base was forced to store
                place[t] = place[t] or (base.place[t] and not changed >> t & 1)
        for t in self.outputs:
            place[t] = True
        kept = {b.tensor: b for b in base.bodies if not b.mask & changed} if base else {}
        while True:
            forced: list[int] = []
            bodies: dict[int, Body] = {}
            todo = list(reversed(self.outputs))
            while todo:
                t = todo.pop()
                if t in bodies:
                    continue
                body = kept.get(t)
                if body is None or body.producer != genome.producer[t]:
                    body = self._body(t, genome, place, forced)
                bodies[t] = body
                todo.extend(r for r in reversed(body.reads) if self.inputs[r] is None)
            new = [t for t in dict.fromkeys(forced) if not place[t]]
            if not new:
                return Extraction(self._order(bodies), tuple(place))
            grown = 0
            for t in new:
                place[t] = True
                grown |= 1 << t | self.holders[t]
            kept = {t: b for t, b in bodies.items() if not b.mask & grown}

    def _body(
        self, tensor: int, genome: Genome, place: Sequence[bool], forced: list[int]
    ) -> Body:
        k = genome.producer[tensor]
        made = self.part.classes[tensor].nodes[k]
        if made.op not in ("kernel", "scatter"):
            forced.extend(t for t in made.children if self.inputs[t] is None)
            way = self._ways.setdefault((tensor, k), _Way())
            if way.body is None:
                way.body = Body(tensor, k, (), tuple(dict.fromkeys(made.children)), 1 << tensor)
            return way.body
        roots = list(made.children)
        if made.op == "scatter":  # its destination is a tensor, and none of its values is it
            if self.inputs[roots[0]] is None:
                forced.append(roots[0])
        start = way = self._ways.setdefault((tensor, k), _Way())
        plain, choice = self._plain, genome.choice
        while (c := way.asks) >= 0:  # along decisions that were made before
            k2 = choice[c] if plain[c] else self._decide(c, tensor, genome, place, forced)
            follows = way.follows.get(k2)
            if follows is None:
                break
            way = follows
        else:
            if way.body is not None:
                return way.body
        pick: dict[int, int] = {}
        done: set[int] = set()
        picks: list[tuple[int, int]] = []
        reads: dict[int, None] = {}
        mask = 1 << tensor
        if made.op == "scatter":
            reads[roots.pop(0)] = None
        kids, loads = self.kids, self._loads
        stack = roots[::-1]
        while stack:
            c = stack.pop()
            if c < 0:  # all beneath it is done
                c = ~c
                done.add(c)
                picks.append((c, pick[c]))
                continue
            if c in pick:
                if c not in done:
                    raise Infeasible("cyclic within a kernel")
                continue
            mask |= 1 << c
            k2 = choice[c] if plain[c] else self._decide(c, tensor, genome, place, forced)
            pick[c] = k2
            if loads[c]:
                t = loads[c].get(k2)
                if t is not None:
                    reads.setdefault(t)
            stack.append(~c)
            below = kids[c][k2]
            if len(below) > 1:
                stack.extend(below[::-1])
            else:
                stack.extend(below)
        body = Body(tensor, k, tuple(picks), tuple(reads), mask)
        way = start
        for c, k2 in pick.items():  # in the order in which they were decided
            way.asks = c
            way = way.follows.setdefault(k2, _Way())
        way.body = body
        return body

    def _decide(
        self,
        c: int,
        own: int,
        genome: Genome,
        place: Sequence[bool],
        forced: list[int],
    ) -> int:
        level = self.level
        for t, k in self.reads[c]:
            if level[t] < level[own] and place[t]:
                return k
        for t, k in self.through[c]:
            if level[t] < level[own] and place[t]:
                return k
        if self.options[c]:
            return genome.choice[c]
        for t, k in self.reads[c]:
            if t != own:
                forced.append(t)
                return k
        raise Infeasible("no executable form")

    def _order(self, bodies: dict[int, Body]) -> tuple[Body, ...]:
        order: list[Body] = []
        state: dict[int, bool] = {}
        for out in self.outputs:
            stack = [out]
            while stack:
                t = stack[-1]
                if state.get(t):
                    stack.pop()
                elif t in state:
                    state[t] = True
                    order.append(bodies[t])
                    stack.pop()
                else:
                    state[t] = False
                    for r in reversed(bodies[t].reads):
                        if self.inputs[r] is None and not state.get(r):
                            if r in state:
                                raise Infeasible("cyclic between kernels")
                            stack.append(r)
        return tuple(order)

    def genes(self, extraction: Extraction) -> tuple:
        """What of a genome an extraction used, as plain data: its identity."""
        found = extraction.memo.get("genes")
        if found is None:
            stored = tuple(sorted([(b.tensor, b.producer) for b in extraction.bodies]))
            picks: dict[int, int] = {}
            for body in extraction.bodies:
                picks.update(self._chosen(body))
            found = extraction.memo["genes"] = stored, tuple(sorted(picks.items()))
        return found

    def _chosen(self, body: Body) -> tuple[tuple[int, int], ...]:
        """The picks of a body at which there was a choice."""
        known = self._choices.get(body)
        if known is None:
            known = tuple(
                (c, k)
                for c, k in body.picks
                if len(self.options[c]) > 1 and k in self.options[c]
            )
            self._choices[body] = known
        return known
