"""Layered drawing of directed graphs, in the manner of Sugiyama, Tagawa and Toda (1981).

Nodes come in reading order, and an edge that points back in it is drawn upwards: this breaks
all cycles. Layers are longest paths, pulled tight; long edges get a dummy point per layer;
layers are ordered by barycentres; and each layer's coordinates are the isotonic regression of
where its neighbours pull it, subject to the gaps. Everything is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]

GAP_X, GAP_Y = 22.0, 30.0
DUMMY_WIDTH = 6.0
MAX_DUMMIES = 6000  # beyond it, long edges are drawn straight
SWEEPS = 12


@dataclass(frozen=True)
class Placed:
    """Where everything goes.

    Arguments:
        centres: The middle of each node.
        paths: For each edge, the points it passes, in its own direction; a self-loop has none.
        width, height: Of the whole drawing, whose origin is the top left corner.
    """

    centres: tuple[Point, ...]
    paths: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def layered(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Placed:
    """Place nodes top to bottom along the edges.

    Arguments:
        sizes: Width and height of each node, in reading order.
        edges: `(from, to)` pairs of positions in `sizes`; duplicates are allowed.
    """
    n = len(sizes)
    if not n:
        return Placed((), tuple(() for _ in edges), 0.0, 0.0)
    down = [(min(e), max(e)) for e in edges if e[0] != e[1]]
    rank = _ranks(n, down)
    widths = [w for w, _ in sizes]
    chains: list[list[int]] = []  # the points of each drawn edge, downwards
    layer_of = list(rank)
    straight = sum(rank[v] - rank[u] - 1 for u, v in down) > MAX_DUMMIES
    known: dict[tuple[int, int], list[int]] = {}
    links: dict[tuple[int, int], int] = {}
    for u, v in down:
        chain = known.get((u, v))
        if chain is None:
            chain = [u]
            if not straight:
                for layer in range(rank[u] + 1, rank[v]):
                    layer_of.append(layer)
                    widths.append(DUMMY_WIDTH)
                    chain.append(len(layer_of) - 1)
            chain.append(v)
            known[(u, v)] = chain
        chains.append(chain)
        for pair in pairwise(chain):
            links[pair] = links.get(pair, 0) + 1
    layers = _order(layer_of, sorted(links))
    xs = _coordinates(layers, widths, links, n)
    heights = [max((sizes[v][1] for v in layer if v < n), default=0.0) for layer in layers]
    tops, y = [], 0.0
    for h in heights:
        tops.append(y)
        y += h + GAP_Y
    ys = [tops[layer] + heights[layer] / 2 for layer in layer_of]
    left = min(xs[v] - widths[v] / 2 for v in range(len(xs)))
    xs = [x - left for x in xs]
    paths: list[tuple[Point, ...]] = []
    drawn = iter(chains)
    for u, v in edges:
        if u == v:
            paths.append(())
            continue
        chain = next(drawn)
        a, b = chain[0], chain[-1]
        points = [
            (xs[a], ys[a] + sizes[a][1] / 2),
            *((xs[d], ys[d]) for d in chain[1:-1]),
            (xs[b], ys[b] - sizes[b][1] / 2),
        ]
        paths.append(tuple(reversed(points) if u > v else points))
    width = max(xs[v] + widths[v] / 2 for v in range(len(xs)))
    return Placed(tuple(zip(xs[:n], ys[:n])), tuple(paths), width, y - GAP_Y)


def _ranks(n: int, down: Sequence[tuple[int, int]]) -> list[int]:
    """Longest paths from the sources; then what has fewer inputs than outputs moves down."""
    succ: list[list[int]] = [[] for _ in range(n)]
    pred: list[list[int]] = [[] for _ in range(n)]
    for u, v in down:
        succ[u].append(v)
        pred[v].append(u)
    missing = [len(p) for p in pred]
    order = [v for v in range(n) if not missing[v]]
    for u in order:
        for v in succ[u]:
            missing[v] -= 1
            if not missing[v]:
                order.append(v)
    rank = [0] * n
    for v in order:
        rank[v] = max((rank[u] + 1 for u in pred[v]), default=0)
    for u in reversed(order):
        if succ[u] and len(set(pred[u])) < len(set(succ[u])):
            rank[u] = min(rank[v] for v in succ[u]) - 1
    low = min(rank)
    return [r - low for r in rank]


def _order(layer_of: Sequence[int], links: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Order each layer so that few links cross."""
    above: list[list[int]] = [[] for _ in layer_of]
    below: list[list[int]] = [[] for _ in layer_of]
    for u, v in links:
        below[u].append(v)
        above[v].append(u)
    layers: list[list[int]] = [[] for _ in range(max(layer_of) + 1)]
    seen = [False] * len(layer_of)
    for root in sorted(range(len(layer_of)), key=lambda v: (layer_of[v], v)):
        stack = [root]
        while stack:
            v = stack.pop()
            if not seen[v]:
                seen[v] = True
                layers[layer_of[v]].append(v)
                stack.extend(reversed(below[v]))
    at = [0.0] * len(layer_of)

    def settle(layer: list[int]) -> None:
        for k, v in enumerate(layer):
            at[v] = float(k)

    for layer in layers:
        settle(layer)
    best, fewest = [list(x) for x in layers], _crossings(layers, below, at)
    for sweep in range(SWEEPS):
        towards = above if sweep % 2 == 0 else below
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            pull = {
                v: sum(at[u] for u in towards[v]) / len(towards[v]) if towards[v] else at[v]
                for v in layer
            }
            layer.sort(key=pull.__getitem__)
            settle(layer)
        crossings = _crossings(layers, below, at)
        if crossings < fewest:
            best, fewest = [list(x) for x in layers], crossings
        if not fewest:
            break
    return best


def _crossings(
    layers: Sequence[Sequence[int]], below: Sequence[Sequence[int]], at: Sequence[float]
) -> int:
    """Pairs of links that cross, counted with a Fenwick tree per layer."""
    total = 0
    for k, layer in enumerate(layers[:-1]):
        width = len(layers[k + 1])
        tree = [0] * (width + 1)
        added = 0
        for v in layer:
            ends = sorted(int(at[w]) for w in below[v])
            for end in ends:
                i, seen = end + 1, 0
                while i:
                    seen += tree[i]
                    i &= i - 1
                total += added - seen
            for end in ends:
                i = end + 1
                while i <= width:
                    tree[i] += 1
                    i += i & -i
                added += 1
    return total


def _coordinates(
    layers: Sequence[Sequence[int]],
    widths: Sequence[float],
    links: dict[tuple[int, int], int],
    real: int,
) -> list[float]:
    """The x of each point: neighbours pull, dummies of long edges pull hardest."""
    near: list[list[tuple[int, float]]] = [[] for _ in widths]
    for (u, v), many in links.items():
        weight = (1.0 if u < real else 2.0) * (1.0 if v < real else 2.0) * min(many, 4)
        near[u].append((v, weight))
        near[v].append((u, weight))
    xs = [0.0] * len(widths)
    for layer in layers:
        x = -sum(widths[v] + GAP_X for v in layer) / 2
        for v in layer:
            xs[v] = x + widths[v] / 2
            x += widths[v] + GAP_X
    level = {v: k for k, layer in enumerate(layers) for v in layer}
    for sweep in range(2 * SWEEPS):
        way = range(len(layers)) if sweep % 2 == 0 else range(len(layers) - 1, -1, -1)
        side = -1 if sweep % 2 == 0 else 1
        last = sweep >= SWEEPS
        for k in way:
            wanted, weights = [], []
            for v in layers[k]:
                pulls = [p for p in near[v] if last or (level[p[0]] - k) * side > 0]
                total = sum(w for _, w in pulls)
                wanted.append(sum(xs[u] * w for u, w in pulls) / total if pulls else xs[v])
                weights.append(total if pulls else 0.05)
            for v, x in zip(layers[k], _spread(layers[k], widths, wanted, weights)):
                xs[v] = x
    return xs


def _spread(
    layer: Sequence[int],
    widths: Sequence[float],
    wanted: Sequence[float],
    weights: Sequence[float],
) -> list[float]:
    """Positions nearest to `wanted` (weighted squares) that keep order and gaps."""
    offsets, x = [], 0.0
    for i, v in enumerate(layer):
        if i:
            x += (widths[layer[i - 1]] + widths[v]) / 2 + GAP_X
        offsets.append(x)
    blocks: list[list[float]] = []  # [mean, weight, count]; pool adjacent violators
    for want, weight, offset in zip(wanted, weights, offsets):
        blocks.append([want - offset, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, w, c = blocks.pop()
            b = blocks[-1]
            b[0] = (b[0] * b[1] + mean * w) / (b[1] + w)
            b[1] += w
            b[2] += c
    flat = [mean for mean, _, c in blocks for _ in range(int(c))]
    return [m + o for m, o in zip(flat, offsets)]
