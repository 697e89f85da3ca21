"""Where a search starts: cheapest members by (perturbed) work, with given tensors stored.

Knuth's generalisation of Dijkstra's algorithm settles the classes of an e-graph in the order of
the cost of their cheapest term, so the choice that it makes is acyclic by construction.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

from luminal_lab.egraph.planes import window_axes
from luminal_lab.egraph.values import BINDERS
from luminal_lab.hlir.ops import REDUCTIONS
from luminal_lab.hlir.sizes import hint
from luminal_lab.search.cost import SPECIAL, VECTOR
from luminal_lab.search.extract import Genome, Space

if TYPE_CHECKING:
    from luminal_lab.egraph.egraph import ENode

SPECIAL_WEIGHT = 12.0  # a special function against an addition
ONLINE = 1e-3  # the work of an online reduction, where these are preferred, against its own
LAST_RESORT = 1e15  # a read of a tensor that is not to be stored


@lru_cache(maxsize=16)
def _lognormal(sigma: float) -> tuple[float, ...]:
    """The middles of 256 equally likely parts of a lognormal distribution."""
    normal = NormalDist()
    return tuple(math.exp(sigma * normal.inv_cdf((k + 0.5) / 256)) for k in range(256))


class Weights:
    """The work of each e-node: operations per point, times the points of its axes.

    Arguments:
        space: A region's choices.
    """

    def __init__(self, space: Space):
        self.space = space
        self.owner: list[int] = []  # of each entry, the class that it is a member of
        self.option: list[int] = []  # its e-node; -1 for a read of a tensor that may be stored
        self.kids: list[tuple[int, ...]] = []
        self.work: list[float] = []
        # The entries that are reads, with their tensor, where that need not be stored anyway.
        self.stored: list[tuple[int, int]] = []
        self.online: list[int] = []  # the entries that are online reductions
        classes = space.part.classes
        roots = _roots(space)
        for cls in classes:
            if cls.sort != "V":
                continue
            for k in space.options[cls.id]:
                e = cls.nodes[k]
                if e.op == "online":
                    self.online.append(len(self.work))
                self._add(cls.id, k, space.kids[cls.id][k], self._work(cls.free, e))
            read = 0.5 * self._points(cls.free)
            for t, k in space.reads[cls.id]:
                kids = space.kids[cls.id][k]
                if space.options[cls.id]:
                    self.stored.append((len(self.work), t))
                elif t in roots:  # stored for this alone: its work counts
                    kids = (*kids, roots[t])
                self._add(cls.id, -1, kids, read * self._shared(t))
            for t, k in space.through[cls.id]:
                self.stored.append((len(self.work), t))
                self._add(cls.id, -1, (), read + self._work(cls.free, cls.nodes[k]))
        self.parents: list[list[int]] = [[] for _ in classes]
        self.pending = [len(kids) for kids in self.kids]
        for i, kids in enumerate(self.kids):
            for kid in kids:
                self.parents[kid].append(i)
        self.leaves = [i for i, kids in enumerate(self.kids) if not kids]
        self._known: dict[tuple[bool, bytes], tuple[int, ...]] = {}  # what `cheapest` found

    def _add(self, owner: int, option: int, kids: tuple[int, ...], work: float) -> None:
        self.owner.append(owner)
        self.option.append(option)
        self.kids.append(kids)
        self.work.append(work)

    def _shared(self, t: int) -> float:
        """A factor that falls a little with a tensor's size.

        Of several tensors that hold a value, the largest is what most kernels share.
        """
        size = math.prod(hint(n) for n in self.space.part.classes[t].shape)
        return 1.0 - 1e-6 * math.log2(max(size, 1))

    def _points(self, axes: frozenset[str]) -> float:
        return math.prod(hint(self.space.part.extents[a]) for a in sorted(axes))

    def _work(self, free: frozenset[str], e: ENode) -> float:
        if e.op in BINDERS:
            axis = e.attrs[-1]
            body = frozenset({axis}).union(
                *(self.space.part.classes[c].free for c in e.children)
            )
            return self._points(body) * (SPECIAL_WEIGHT + 3 if e.op == "online" else 1.0)
        per_point = SPECIAL[e.op] * SPECIAL_WEIGHT if e.op in SPECIAL else VECTOR.get(e.op, 1.0)
        return per_point * self._points(free) + 1e-3

    def cheapest(
        self,
        place: Sequence[bool],
        rng: random.Random | None = None,
        sigma: float = 0.0,
        online: bool = False,
    ) -> tuple[int, ...]:
        """The option of each class whose term is the least work.

        Arguments:
            place: The T-classes that are stored, and read wherever they can be.
            rng: Source of the perturbation.
            sigma: Spread of the lognormal factor on each e-node's work; 0 for none.
            online: Whether to prefer online reductions wherever there are any.
        """
        if rng is not None and sigma > 0:
            return self._cheapest(place, rng, sigma, online)
        key = online, bytes([place[t] for _, t in self.stored])  # all that decides
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._cheapest(place, None, 0.0, online)
        return found

    def _cheapest(
        self, place: Sequence[bool], rng: random.Random | None, sigma: float, online: bool
    ) -> tuple[int, ...]:
        owner, option, kids, parents = self.owner, self.option, self.kids, self.parents
        pending = self.pending.copy()
        cost: list[float | None] = [None] * len(parents)
        choice = [-1] * len(parents)
        if rng is not None and sigma > 0:
            factor = _lognormal(sigma)
            draws = rng.randbytes(len(self.work))
            work = [w * factor[d] for w, d in zip(self.work, draws)]
        else:
            work = self.work.copy()
        for i in self.online if online else ():
            work[i] *= ONLINE
        for i, t in self.stored:
            if not place[t]:
                work[i] = LAST_RESORT
        heap = [(work[i], i) for i in self.leaves]
        heapq.heapify(heap)
        pop, push = heapq.heappop, heapq.heappush
        while heap:
            d, i = pop(heap)
            c, k = owner[i], option[i]
            if choice[c] < 0 <= k:
                choice[c] = k
            if cost[c] is not None:
                continue
            cost[c] = d
            for p in parents[c]:
                left = pending[p] = pending[p] - 1
                if left:
                    continue
                o = owner[p]
                if choice[o] < 0 and (option[p] >= 0 or cost[o] is None):
                    total = work[p]
                    for x in kids[p]:
                        total += cost[x]  # type: ignore[operator]
                    push(heap, (total, p))
        for c, options in enumerate(self.space.options):
            if options and choice[c] < 0:
                choice[c] = options[0]
        return tuple(choice)


def encoder_choice(space: Space) -> tuple[int, ...]:
    """The option that the program itself wrote: of each class the encoder's e-node."""
    out = []
    for c, options in enumerate(space.options):
        nodes = space.part.classes[c].nodes
        out.append(min(options, key=lambda k: (nodes[k].iteration, k), default=-1))
    return tuple(out)


def first_producers(space: Space) -> tuple[int, ...]:
    """The derived kernel of each T-class where there is one, else what there is."""
    out = []
    for t, options in enumerate(space.producers):
        nodes = space.part.classes[t].nodes
        out.append(min(options, key=lambda k: (nodes[k].op != "kernel", k), default=-1))
    return tuple(out)


def reductions_stored(space: Space) -> tuple[bool, ...]:
    """Store the result of every HLIR reduction that something in this region reads."""
    place = [False] * len(space.part.classes)
    for node, t in sorted(space.part.node_class.items()):
        if space.part.hlir.nodes[node].op in REDUCTIONS and space.inputs[t] is None:
            place[t] = True
    return tuple(place)


def sums_and_images(space: Space) -> tuple[bool, ...]:
    """Store whole sums, and what is read through windows.

    A sum over several axes is several reductions, of which only the last has a result worth
    storing. What a window slides over would be computed again for each place of the window.
    """
    part = space.part
    place = list(reductions_stored(space))
    nodes = part.hlir.nodes
    users: dict[int, list[int]] = {}
    for k, node in enumerate(nodes):
        for operand in node.operands:
            users.setdefault(operand.node, []).append(k)
    for node, t in sorted(part.node_class.items()):
        readers = [nodes[k] for k in users.get(node, ())]
        if len(readers) == 1 and readers[0].op == nodes[node].op and place[t]:
            place[t] = False
    for cls in part.classes:
        for e in cls.nodes:
            if e.op == "load" and any(window_axes(i, part.extents) for i in e.attrs[0]):
                t = e.children[0]
                place[t] = place[t] or bool(space.producers[t])
    for t in space.outputs:
        place[t] = True
    return tuple(place)


def laws_sums(space: Space) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """The sums that no op of the program makes, and the program's own that are parts of them.

    Laws make such sums where products share an operand: what several kernels would compute is
    read of one tensor. Nothing is won before all of its parts are.
    """
    part = space.part
    written = set(part.node_class.values())
    made, parts = [False] * len(part.classes), [False] * len(part.classes)
    roots = _roots(space)
    for t, root in roots.items():
        if t not in written and any(e.op == "red" for e in part.classes[root].nodes):
            made[t] = True
    for t, root in roots.items():
        parts[t] = t in written and any(made[of] for of, _ in space.reads[root])
    return tuple(made), tuple(parts)


def _roots(space: Space) -> dict[int, int]:
    """For each tensor that a kernel makes, the class of what it holds."""
    roots: dict[int, int] = {}
    for t in space.tensors:
        for k in space.producers[t]:
            e = space.part.classes[t].nodes[k]
            if e.op == "kernel":
                roots.setdefault(t, e.children[0])
    return roots


def everything_stored(space: Space) -> tuple[bool, ...]:
    """Store every tensor: one kernel per HLIR op."""
    stored = set(space.tensors)
    return tuple(c in stored for c in range(len(space.part.classes)))


def seed_genomes(space: Space, weights: Weights) -> list[Genome]:
    """The starting points, the most promising first.

    1. Whole sums stored and what is read through windows, cheapest members given that; left out
       where it is the next.
    2. As 1 and as 6, with the members that the program itself wrote: laws of arithmetic are
       then taken up one by one, where they pay.
    3. Every HLIR reduction stored, cheapest members given that.
    4. The same tensors stored where they still are read, but members chosen as if nothing were,
       and online reductions wherever a law made one.
    5. As 4, with the cheapest members.
    6. Nothing stored that need not be.
    7. The program as it was written, one kernel per op.
    8. As 1 and as 6, with the sums stored that laws made in place of their parts.
    """
    producers = first_producers(space)
    nothing = (False,) * len(space.part.classes)
    reductions = reductions_stored(space)
    inline = weights.cheapest(nothing)
    images = sums_and_images(space)
    first = (
        [] if images == reductions else [Genome(weights.cheapest(images), images, producers)]
    )
    made, parts = laws_sums(space)
    shared = []
    for base in (images, nothing) if any(made) else ():
        place = tuple((b or m) and not p for b, m, p in zip(base, made, parts))
        for online in (True, False) if weights.online else (False,):
            shared.append(Genome(weights.cheapest(place, online=online), place, producers))
    written = encoder_choice(space)
    return [
        *first,
        Genome(written, images, producers),
        Genome(written, nothing, producers),
        Genome(weights.cheapest(reductions), reductions, producers),
        Genome(weights.cheapest(nothing, online=True), reductions, producers),
        Genome(inline, reductions, producers),
        Genome(inline, nothing, producers),
        Genome(written, everything_stored(space), producers),
        *shared,
    ]
