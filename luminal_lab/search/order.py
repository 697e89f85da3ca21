"""An order of the classes of a region along which nothing is computed from itself.

An e-graph has cycles: when rounding to bf16 and back is dropped, the value before it holds the
cast of the value after it. Of each cycle the classes are ordered by how soon they can be
computed. An e-node that looks up that order is no way to *compute* its class; but when what it
looks up to is stored, it is a way to read it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence


def order_classes(
    terms: Sequence[dict[int, tuple[int, ...]]], loads: Sequence[Sequence[tuple[int, ...]]]
) -> tuple[list[int], list[set[int]]]:
    """A place for each class, and for each class its e-nodes that look up that order.

    Arguments:
        terms: For each class, the children of each of its e-nodes that compute it (or make it).
        loads: For each class, `(tensor, index classes…)` of its reads of tensors of others.

    Returns:
        The places: every class comes after what its other e-nodes and its reads need; and the
        e-nodes that need a class at the same place or after it.
    """
    edges = [
        list(dict.fromkeys(x for way in (*ways.values(), *read) for x in way))
        for ways, read in zip(terms, loads, strict=True)
    ]
    place = [0] * len(terms)
    up: list[set[int]] = [set() for _ in terms]
    count = 0
    for found in components(edges):
        cyclic = len(found) > 1 or found[0] in edges[found[0]]
        order = settled(found, terms, loads) if cyclic else found
        for c in order:
            place[c] = count
            count += 1
        for c in order if cyclic else ():
            up[c] = {
                k for k, kids in terms[c].items() if any(place[x] >= place[c] for x in kids)
            }
    return place, up


def components(edges: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The strongly connected components of a graph, each after those that it leads to.

    Arguments:
        edges: For each vertex the vertices that it leads to.
    """
    number = [0] * len(edges)  # in order of discovery, from 1; 0 for not yet
    low = [0] * len(edges)
    on_stack = [False] * len(edges)
    stack: list[int] = []
    count = 0
    for start in range(len(edges)):
        if number[start]:
            continue
        path = [(start, iter(edges[start]))]
        while path:
            v, rest = path[-1]
            if not number[v]:
                count += 1
                number[v] = low[v] = count
                stack.append(v)
                on_stack[v] = True
            for w in rest:
                if not number[w]:
                    path.append((w, iter(edges[w])))
                    break
                if on_stack[w]:
                    low[v] = min(low[v], number[w])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[v])
                if low[v] == number[v]:
                    found = []
                    while not found or found[-1] != v:
                        found.append(stack.pop())
                        on_stack[found[-1]] = False
                    yield found


def settled(
    members: Sequence[int],
    terms: Sequence[dict[int, tuple[int, ...]]],
    loads: Sequence[Sequence[tuple[int, ...]]],
) -> list[int]:
    """The classes of one component, those first that need the fewest others of it."""
    inside = set(members)
    waiting: dict[int, list[tuple[int, int]]] = {}
    missing: dict[tuple[int, int], int] = {}
    heap: list[tuple[int, int, int]] = []
    for c in sorted(members):
        for k, kids in terms[c].items():
            below = inside.intersection(kids)
            missing[c, k] = len(below)
            for kid in sorted(below):
                waiting.setdefault(kid, []).append((c, k))
            if not below:
                heap.append((0, k, c))
    heapq.heapify(heap)
    order: dict[int, None] = {}
    # Where nothing more can be computed, a class has to be read, if it can be.
    spare = iter(sorted(members, key=lambda c: (not loads[c], c)))
    while len(order) < len(inside):
        if not heap:
            heap.append((0, 0, next(c for c in spare if c not in order)))
        depth, _, c = heapq.heappop(heap)
        if c in order:
            continue
        order[c] = None
        for parent, k in waiting.get(c, ()):
            missing[parent, k] -= 1
            if not missing[parent, k] and parent not in order:
                heapq.heappush(heap, (depth + 1, k, parent))
    return list(order)
