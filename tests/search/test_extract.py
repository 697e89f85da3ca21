"""The laws of extraction, on e-graphs that are written by hand."""

from types import SimpleNamespace

import pytest

from luminal_lab.egraph.egraph import EClass, ENode, Part
from luminal_lab.hlir.dtypes import F32
from luminal_lab.hlir.index import Index
from luminal_lab.search.extract import Genome, Infeasible, Space

AT, OTHER = Index.axis("i"), Index.axis("j")


def v(k: int, *nodes: ENode, free: str = "i") -> EClass:
    return EClass(k, "V", nodes, F32, frozenset(free))


def t(k: int, *nodes: ENode) -> EClass:
    return EClass(k, "T", nodes, F32, shape=(4,))


def part(*classes: EClass, outputs: tuple[int, ...], nodes: dict[int, int]) -> Part:
    names = tuple((f"y{n}", c) for n, c in enumerate(outputs))
    hlir = SimpleNamespace(inputs=(), nodes=(), weights={})
    return Part(0, classes, nodes, names, {"i": 4, "j": 4}, hlir, None)


def load(tensor: int, *index: Index) -> ENode:
    return ENode("load", (tensor,), (index or (AT,),))


def genome(
    space: Space, choice: dict[int, int] | None = None, stored: tuple[int, ...] = ()
) -> Genome:
    n = len(space.part.classes)
    options = [o[0] if o else -1 for o in space.options]
    for c, k in (choice or {}).items():
        options[c] = k
    producers = [p[0] if p else -1 for p in space.producers]
    return Genome(tuple(options), tuple(c in stored for c in range(n)), tuple(producers))


def chain() -> Part:
    """x -> a = exp2 x -> b = recip a; b is the output. T-classes: 0 x, 1 a, 2 b."""
    return part(
        t(0, ENode("input", (), ("x",))),
        t(1, ENode("kernel", (4,), ((AT,),))),
        t(2, ENode("kernel", (5,), ((AT,),))),
        v(3, load(0)),
        v(4, ENode("exp2", (3,)), load(1)),
        v(5, ENode("recip", (4,)), load(2)),
        outputs=(2,),
        nodes={0: 0, 1: 1, 2: 2},
    )


def test_what_is_not_stored_is_inlined():
    space = Space(chain())
    (body,) = space.extract(genome(space)).bodies
    assert body.picks == ((3, 0), (4, 0), (5, 0))
    assert body.reads == (0,)


def test_what_is_stored_is_read_but_not_in_its_own_kernel():
    space = Space(chain())
    first, second = space.extract(genome(space, stored=(1,))).bodies
    assert (first.tensor, first.picks, first.reads) == (1, ((3, 0), (4, 0)), (0,))
    assert (second.tensor, second.picks, second.reads) == (2, ((4, 1), (5, 0)), (1,))


def test_a_value_that_can_only_be_read_forces_its_tensor():
    classes = list(chain().classes)
    classes[4] = v(4, load(1))  # a at another index: no copy was made
    classes.append(v(6, ENode("exp2", (3,)), load(1)))
    classes[1] = t(1, ENode("kernel", (6,), ((AT,),)))
    space = Space(part(*classes, outputs=(2,), nodes={0: 0, 1: 1, 2: 2}))
    extraction = space.extract(genome(space))
    assert [b.tensor for b in extraction.bodies] == [1, 2]
    assert extraction.place[1]


def test_a_cycle_within_a_kernel_is_refused():
    classes = list(chain().classes)
    classes[4] = v(4, ENode("exp2", (3,)), ENode("recip", (5,)), load(1))
    space = Space(part(*classes, outputs=(2,), nodes={0: 0, 1: 1, 2: 2}))
    with pytest.raises(Infeasible, match="within a kernel"):
        space.extract(genome(space, {4: 1}))
    space.extract(genome(space, {4: 0}))


def test_what_can_only_be_computed_from_itself_is_refused():
    classes = list(chain().classes)
    classes[4] = v(4, ENode("recip", (5,)), load(1))  # 1/(1/a)
    space = Space(part(*classes, outputs=(2, 1), nodes={0: 0, 1: 1, 2: 2}))
    with pytest.raises(Infeasible):
        space.extract(genome(space))


def test_rounding_that_is_dropped_leaves_a_way_to_read_and_none_to_compute():
    """a = exp2(x) or wide(b), b = narrow(a): b is read in place of a, and never makes it."""
    classes = list(chain().classes)
    classes[4] = v(4, ENode("cast", (5,)), ENode("exp2", (3,)), load(1))
    classes[5] = v(5, ENode("cast", (4,)), ENode("cast", (5,)), load(2))
    classes.append(v(6, ENode("sqrt", (4,)), load(7)))
    classes.append(t(7, ENode("kernel", (6,), ((AT,),))))
    space = Space(part(*classes, outputs=(7, 2), nodes={0: 0, 1: 1, 2: 2, 3: 7}))
    assert space.options[4] == (1,)
    assert space.through[4] == ((2, 0),)
    bodies = {b.tensor: b for b in space.extract(genome(space)).bodies}
    assert bodies[2].reads == (0,)  # made of x
    assert bodies[7].reads == (2,)  # sqrt(wide(b)), b read
    alone = Space(part(*classes, outputs=(7,), nodes={0: 0, 1: 1, 2: 2, 3: 7}))
    (body,) = alone.extract(genome(alone)).bodies
    assert body.reads == (0,)
    both = genome(alone, stored=(1, 2))
    assert {b.tensor for b in alone.extract(both).bodies} == {1, 7}


def test_a_value_without_any_form_is_refused():
    classes = list(chain().classes)
    classes[4] = v(4, load(1))
    space = Space(part(*classes, outputs=(2,), nodes={0: 0, 1: 1, 2: 2}))
    with pytest.raises(Infeasible, match="no executable form"):
        space.extract(genome(space))


def test_reads_of_axes_that_a_class_lacks_are_no_options():
    classes = list(chain().classes)
    classes[3] = v(3, load(0), load(0, OTHER))
    space = Space(part(*classes, outputs=(2,), nodes={0: 0, 1: 1, 2: 2}))
    assert space.options[3] == (0,)


def test_commuted_twins_are_one_option():
    classes = list(chain().classes)
    twins = (ENode("mul", (3, 5)), ENode("mul", (5, 3)), ENode("add", (3, 3)))
    classes.append(v(6, *twins))
    space = Space(part(*classes, outputs=(2,), nodes={0: 0, 1: 1, 2: 2}))
    assert space.options[6] == (0, 2)


def test_of_two_tensors_with_one_value_only_one_reads_the_other():
    classes = list(chain().classes)
    classes[5] = v(5, ENode("recip", (4,)), load(2), load(6))
    classes.append(t(6, ENode("kernel", (5,), ((AT,),))))
    space = Space(part(*classes, outputs=(6, 2), nodes={0: 0, 1: 1, 2: 2, 3: 6}))
    bodies = {b.tensor: b for b in space.extract(genome(space)).bodies}
    assert bodies[6].reads == (2,)
    assert bodies[2].reads == (0,)


def test_a_flip_keeps_the_bodies_that_it_does_not_concern():
    classes = list(chain().classes)
    classes += [t(6, ENode("kernel", (7,), ((AT,),))), v(7, ENode("sqrt", (3,)), load(6))]
    space = Space(part(*classes, outputs=(2, 6), nodes={0: 0, 1: 1, 2: 2, 3: 6}))
    base = space.extract(genome(space))
    changed = 1 << 1 | space.holders[1]
    flipped = genome(space, stored=(1,))
    quick, slow = space.extract(flipped, base, changed), space.extract(flipped)
    assert quick == slow
    assert any(b is c for b in base.bodies for c in quick.bodies if b.tensor == 6)
    assert space.genes(quick) == space.genes(slow) != space.genes(base)
