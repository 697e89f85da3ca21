"""Every candidate of a region, once each, and the proof that there is no other.

Extraction is a function of the genome that looks at few of its genes: those that the kernels
which it makes depend on. Recording which genes it asks for, in order, turns it into a decision
tree: a node is the next gene that is asked for, its branches are that gene's values, a leaf is
what extraction then gives. Every genome follows exactly one path to one leaf, since the values
on a path determine what is asked next. So a walk over all leaves meets the extraction of every
genome there is: when the walk ends, the enumeration is complete. Genes that are never asked for
are never branched on, which is what makes small spaces small.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence
from typing import Any

from luminal_lab.search.extract import Genome, Space
from luminal_lab.search.seeds import Weights, first_producers


class _Genes(MutableSequence[Any]):
    """One part of a genome: asks the walk for a gene when extraction looks at it."""

    def __init__(self, walk: _Walk, kind: str, default: Sequence[Any]):
        self.walk, self.kind, self.default = walk, kind, default
        self.forced: dict[int, Any] = {}  # what extraction itself has set

    def __len__(self) -> int:
        return len(self.default)

    def __getitem__(self, at: Any) -> Any:
        return self.forced[at] if at in self.forced else self.walk.gene(self.kind, at)

    def __setitem__(self, at: Any, value: Any) -> None:
        self.forced[at] = value

    def __iter__(self) -> Iterator[Any]:
        """The genes that are known, and defaults for those that nobody looked at."""
        known = self.walk.known
        for at, default in enumerate(self.default):
            yield self.forced.get(at, known.get((self.kind, at), default))

    def __delitem__(self, at: Any) -> None:
        raise TypeError("a genome has a gene for each class")

    def insert(self, index: int, value: Any) -> None:
        """Never: a genome has a gene for each class."""
        raise TypeError("a genome has a gene for each class")


class _Open(Genome):
    """A genome whose genes are decided when they are looked at."""

    def places(self) -> MutableSequence[bool]:
        genes: Any = self.place
        return _Genes(genes.walk, genes.kind, genes.default)

    def settled(self) -> Genome:
        return Genome(tuple(self.choice), tuple(self.place), tuple(self.producer))


class _Walk:
    """Depth first over the decision tree; a path is a list of `(gene, its values, which)`."""

    def __init__(self, space: Space):
        self.space = space
        # What is inline and the cheapest members come first, so that good leaves come early.
        nothing = (False,) * len(space.part.classes)
        self.cheapest = Weights(space).cheapest(nothing)
        self.first = first_producers(space)
        self.path: list[tuple[tuple[str, int], tuple[Any, ...], int]] = []
        self.known: dict[tuple[str, int], Any] = {}
        genes: Any = [  # they stand for tuples until the genome is settled
            _Genes(self, "choice", self.cheapest),
            _Genes(self, "place", nothing),
            _Genes(self, "producer", self.first),
        ]
        self.genome = _Open(*genes)

    def gene(self, kind: str, at: int) -> Any:
        """The value of a gene on the current path, which it may extend."""
        key = (kind, at)
        if key not in self.known:
            if len(self.known) == len(self.path):
                self.path.append((key, self._values(kind, at), 0))
            asked, values, which = self.path[len(self.known)]
            assert asked == key, "on one path extraction always asks for the same genes"
            self.known[key] = values[which]
        return self.known[key]

    def _values(self, kind: str, at: int) -> tuple[Any, ...]:
        if kind == "place":
            return (False, True) if self.space.holders.get(at) else (False,)
        if kind == "producer":
            return _first(self.space.producers[at], self.first[at])
        return _first(self.space.options[at], self.cheapest[at])

    def advance(self) -> bool:
        """Go to the next path; whether there is one."""
        self.known.clear()
        while self.path:
            key, values, which = self.path.pop()
            if which + 1 < len(values):
                self.path.append((key, values, which + 1))
                return True
        return False


def _first(values: tuple[int, ...], preferred: int) -> tuple[int, ...]:
    if preferred not in values:
        return values
    return (preferred, *(v for v in values if v != preferred))


def genomes(space: Space) -> Iterator[Genome]:
    """A genome for each path of the decision tree, until all paths were taken.

    The caller must extract a genome before it asks for the next one: its genes are decided
    while that is done. `settled()` then gives it as plain data.
    """
    walk = _Walk(space)
    while True:
        yield walk.genome
        if not walk.advance():
            return
