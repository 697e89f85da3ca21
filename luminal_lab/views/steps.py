"""How a kernel was derived: from one kernel per op to its final form, one rewrite at a time.

Every step exchanges one e-node for another of the *same e-class*, so each line is equal to the
one before it by what the e-graph proved; the e-node knows which rule made it. The steps are put
in an order that reads well: by iteration, an e-node before those that were built on it. They
are a path through the e-graph, not a recording of how saturation happened to go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from luminal_lab.egraph.egraph import ENCODED, EGraph, ENode, Part
from luminal_lab.egraph.values import Kernel, Value
from luminal_lab.errors import LuminalError
from luminal_lab.search.assemble import Assembler
from luminal_lab.search.candidate import Candidate
from luminal_lab.search.extract import Body, Extraction, Genome, Infeasible, Space
from luminal_lab.search.kernel_text import kernel_text
from luminal_lab.search.machine import Machine

FUSION = "fusion"
SWAPS = "-commutes"  # how the names of rules end that swap operands
_BRIDGES = 3  # how deep to look for the rewrite that made a rewrite possible


@dataclass(frozen=True)
class Step:
    """One rewrite.

    Arguments:
        rule: The rule that made the new form.
        iteration: When it did.
        before: The part that changes.
        after: What it becomes.
        whole: The kernel's value afterwards.
    """

    rule: str
    iteration: int
    before: Value
    after: Value
    whole: Value


@dataclass(frozen=True)
class Derivation:
    """The way to one kernel.

    Arguments:
        output: What is stored, such as `out0[a,b,e]`.
        written: `(name, value)`: one line per op, as the program says it.
        fused: The kernel's value when all of these are computed in place.
        steps: The rewrites.
        final: The kernel's value.
        extents: Of the axes.
    """

    output: str
    written: tuple[tuple[str, Value], ...]
    fused: Value
    steps: tuple[Step, ...]
    final: Value
    extents: Mapping[str, int] = field(default_factory=dict)


def derive(egraph: EGraph, candidate: Candidate, kernel: int = 0) -> Derivation:
    """The derivation of one kernel of a candidate.

    Arguments:
        egraph: The e-graph that the candidate was extracted from.
        candidate: A candidate of it.
        kernel: An index into `candidate.kernels`.

    Raises:
        LuminalError: when the kernel is a library call, or not of this e-graph.
    """
    if not isinstance(candidate.kernels[kernel], Kernel):
        raise LuminalError(
            f"kernel {kernel} is a library routine: it stands for an op, it was not derived",
            fix="choose a derived kernel of candidate.kernels",
        )
    space, body, names, place = _find(egraph, candidate, kernel)
    return _Path(space, body, names, place).derivation()


def _find(
    egraph: EGraph, candidate: Candidate, kernel: int
) -> tuple[Space, Body, dict[int, str], tuple[bool, ...]]:
    """The body of a kernel in its region's e-graph, and the names of the region's tensors."""
    wanted = kernel_text(candidate.kernels[kernel])
    assembler = Assembler(egraph, Machine())
    for region, stored, picks in candidate.choice:
        if region >= len(assembler.regions):
            break
        kernels = assembler.regions[region]
        try:
            extraction = kernels.space.extract(_genome(kernels.space, stored, picks))
        except (IndexError, Infeasible):  # the numbers of another e-graph
            break
        for body, step in _steps(kernels, extraction):
            if step == wanted:
                bind = next(i.bind for i in egraph.program.instances if i.region == region)
                names = {
                    t: bind.get(name, name)
                    for t, name in enumerate(kernels.space.inputs)
                    if name is not None
                }
                names.update({t: bind.get(n, n) for n, t in kernels.part.outputs})
                return kernels.space, body, names, extraction.place
    raise LuminalError(
        f"kernel {kernel} is not in this e-graph",
        fix="pass the e-graph that the candidate was found in",
    )


def _steps(kernels, extraction: Extraction) -> Iterator[tuple[Body, str]]:
    constants = kernels.constants(extraction)
    for body in extraction.bodies:
        yield body, kernels.step(body, constants).text


def _genome(space: Space, stored: tuple, picks: tuple) -> Genome:
    choice = [options[0] if options else -1 for options in space.options]
    for c, k in picks:
        choice[c] = k
    place, producer = [False] * len(choice), [p[0] if p else -1 for p in space.producers]
    for t, k in stored:
        place[t], producer[t] = True, k
    return Genome(tuple(choice), tuple(place), tuple(producer))


class _Cyclic(Exception):
    """A mixture of choices that has no finite value."""


class _Path:
    def __init__(
        self, space: Space, body: Body, names: Mapping[int, str], place: tuple[bool, ...]
    ):
        self.space, self.body, self.names, self.place = space, body, names, place
        self.part: Part = space.part
        made = self.part.classes[body.tensor].nodes[body.producer]
        self.root = made.children[0]
        self.index = made.attrs[0]
        self.final = dict(body.picks)
        self.base = {c: self._base(c) for c in range(len(self.part.classes))}
        self.state: dict[int, int] = {}

    def derivation(self) -> Derivation:
        fused = self._value(self.state)
        steps = tuple(self._steps())
        return Derivation(
            self._stored(self.body.tensor, self.index),
            tuple(self._written()),
            fused,
            steps,
            self._value(self.final),
            self.part.extents,
        )

    # ------------------------------------------------------------------------------ reading

    def _node(self, c: int, k: int) -> ENode:
        return self.part.classes[c].nodes[k]

    def name(self, t: int) -> str:
        """What a tensor is called."""
        return self.names.get(t, f"t{t}")

    def _stored(self, t: int, index: tuple) -> str:
        axes = ",".join(map(str, index))
        return f"{self.name(t)}[{axes}]" if axes else self.name(t)

    def _base(self, c: int) -> int:
        """How a class is computed before any rewrite: read if stored, else as it was made."""
        options = self.space.options[c]
        for t, k in self.space.reads[c]:
            if self.place[t] and t != self.body.tensor and c != self.root:
                return k
        if options:
            return min(options, key=lambda k: (self._node(c, k).iteration, k))
        return self.space.reads[c][0][1] if self.space.reads[c] else -1

    def _pick(self, c: int, state: Mapping[int, int]) -> int:
        return state.get(c, self.base[c])

    def _value(self, state: Mapping[int, int], root: int | None = None) -> Value:
        """The value of a class under a choice.

        Raises:
            _Cyclic: when a class would contain itself.
        """
        done: dict[int, Value] = {}
        open_: set[int] = set()
        stack = [self.root if root is None else root]
        while stack:
            c = stack[-1]
            if c in done:
                stack.pop()
                continue
            k = self._pick(c, state)
            kids = self.space.kids[c][k]
            missing = [x for x in kids if x not in done]
            if not missing:
                done[c] = self._make(c, k, [done[x] for x in kids])
                open_.discard(c)
                stack.pop()
            elif c in open_ or any(x in open_ for x in missing):
                raise _Cyclic
            else:
                open_.add(c)
                stack.extend(reversed(missing))
        return done[self.root if root is None else root]

    def _make(self, c: int, k: int, args: list[Value]) -> Value:
        node = self._node(c, k)
        attrs = node.attrs
        if node.op == "load":
            attrs = (self.name(node.children[0]), node.attrs[0])
        return Value(node.op, tuple(args), attrs, dtype=self.part.classes[c].dtype)

    def _reached(self, state: Mapping[int, int], root: int | None = None) -> dict[int, None]:
        """The classes that a choice uses, from the root down."""
        found: dict[int, None] = {}
        stack = [self.root if root is None else root]
        while stack:
            c = stack.pop()
            if c not in found:
                found[c] = None
                stack.extend(reversed(self.space.kids[c][self._pick(c, state)]))
        return found

    def _written(self) -> Iterator[tuple[str, Value]]:
        """Each op of the program that the kernel covers, as a line of its own."""
        order: list[int] = []
        opened: set[int] = set()
        stack = [self.body.tensor]
        while stack:
            t = stack[-1]
            if t not in opened:
                opened.add(t)
                stack.extend(x for x in reversed(self._op_reads(t)) if x not in opened)
            else:
                stack.pop()
                if t not in order:
                    order.append(t)
        for t in order:
            made = self._maker(t)
            if made is not None:
                yield self._stored(t, made.attrs[0]), self._op_value(made.children[0])

    def _maker(self, t: int) -> ENode | None:
        """The encoder's kernel of a tensor that this kernel computes in place."""
        if self.space.inputs[t] is not None or (self.place[t] and t != self.body.tensor):
            return None
        nodes = (n for n in self.part.classes[t].nodes if n.op == "kernel")
        return min(nodes, key=lambda n: n.iteration, default=None)

    def _op_state(self, root: int) -> dict[int, int]:
        """The choice that reads every tensor instead of computing it."""
        state = {c: r[0][1] for c, r in enumerate(self.space.reads) if r}
        options = self.space.options[root]
        if options:
            state[root] = min(options, key=lambda k: (self._node(root, k).iteration, k))
        return state

    def _op_value(self, root: int) -> Value:
        return self._value(self._op_state(root), root)

    def _op_reads(self, t: int) -> list[int]:
        made = self._maker(t)
        if made is None:
            return []
        state = self._op_state(made.children[0])
        return [
            self._node(c, self._pick(c, state)).children[0]
            for c in self._reached(state, made.children[0])
            if self._node(c, self._pick(c, state)).op == "load"
        ]

    # ------------------------------------------------------------------------------ rewriting

    def _steps(self) -> Iterator[Step]:
        at = {c: n for n, (c, _) in enumerate(reversed(self.body.picks))}
        pending = {c: k for c, k in self.final.items() if k != self.base[c]}
        while pending:
            reached = self._reached(self.state)
            ready = [c for c in pending if c in reached]
            if not ready:
                break
            c = min(ready, key=lambda c: (self._node(c, pending[c]).iteration, at[c]))
            k = pending.pop(c)
            for j in (*self._stages(c, k), k):
                yield from self._rewrite(c, j, _BRIDGES)
        if self._value(self.state) != self._value(self.final):
            before = self._value(self.state)
            self.state = dict(self.final)
            final = self._value(self.final)
            yield Step("", 0, before, final, final)

    def _stages(self, c: int, k: int) -> list[int]:
        """An earlier form of the same op in the class, when the final one refined it."""
        final, base = self._node(c, k), self._node(c, self._pick(c, self.state))
        if base.op == final.op:
            return []
        found = [
            j
            for j in self.space.options[c]
            if self._node(c, j).op == final.op and self._node(c, j).iteration < final.iteration
            and self._node(c, j).rule != final.rule
        ]  # fmt: skip
        return found[:1]

    def _rewrite(self, c: int, k: int, depth: int) -> Iterator[Step]:
        """Exchange the e-node of a class, after what made that possible."""
        node = self._node(c, k)
        here = self._reached(self.state)
        new = {x for x in self._reached({**self.state, c: k}) if x not in here}
        if depth and new:
            below = self._reached(self.state, c)
            for d in below:
                bridge = self._bridge(d, c, node, here, new)
                if bridge is not None:
                    yield from self._rewrite(d, bridge, depth - 1)
                    break
        changed = {**self.state, c: k}
        try:
            before, after = self._value(self.state, c), self._value(changed, c)
            whole = self._value(changed)
        except _Cyclic:
            return
        if before != after:
            self.state = changed
            yield Step(self._rule(c, node), node.iteration, before, after, whole)

    def _rule(self, c: int, node: ENode) -> str:
        """Who made a form; what only swapped the operands of another form does not count."""
        twins = [
            n
            for n in self.part.classes[c].nodes
            if n.op == node.op
            and n.attrs == node.attrs
            and n.iteration <= node.iteration
            and sorted(n.children) == sorted(node.children)
        ]
        made = [n.rule for n in twins if not n.rule.endswith(SWAPS)] or [node.rule]
        return made[0] if made[0] != ENCODED else FUSION

    def _bridge(
        self, d: int, c: int, node: ENode, here: Mapping[int, None], new: set[int]
    ) -> int | None:
        """An older form of a class below `c` that introduces what the new form of `c` uses."""
        if d == c or (d in self.final and self._pick(d, self.state) == self.final[d]):
            return None
        for k in self.space.options[d]:
            found = self._node(d, k)
            kids = set(self.space.kids[d][k])
            older = found.rule != ENCODED and found.iteration < node.iteration
            if older and kids & new and all(x in here or x in new for x in kids):
                return k
        return None
