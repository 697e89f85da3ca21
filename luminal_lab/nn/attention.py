"""Attention with grouped heads, rotary positions and a cache of keys and values."""

from __future__ import annotations

from typing import Any

from luminal_lab.errors import TensorError
from luminal_lab.nn.layers import Linear
from luminal_lab.nn.module import Module
from luminal_lab.tensor.calls import known_dtype
from luminal_lab.tensor.tensor import Tensor, cat


class Rope(Module):
    """Rotary positions: halves of a head are turned by angles that grow with the position.

    Arguments:
        dim: Size of a head, even.
        base: Of the wave lengths.
    """

    def __init__(self, dim: int, base: float = 10000.0):
        super().__init__()
        if dim % 2:
            raise TensorError(f"a head of {dim} elements has no halves")
        self.dim, self.base = dim, base

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn (…, s, dim) by positions (s,); the angles are computed in float32."""
        import torch

        steps = torch.arange(0, self.dim, 2, dtype=torch.int64).float() / self.dim
        inverse = x.graph.constant(1.0 / self.base**steps)
        angles = positions.cast("f32").unsqueeze(-1) * inverse  # (s, dim/2)
        angles = cat([angles, angles], -1)
        cos, sin = angles.cos().cast(x.dtype), angles.sin().cast(x.dtype)
        a, b = x.chunk(2, -1)
        return x * cos + cat([-b, a], -1) * sin


class KVCache:
    """Keys and values of earlier positions, which programs read and update.

    The tensors belong to the cache, not to a program: a program for a whole prompt and one for
    single tokens may share it. Positions beyond those written are never read.

    Arguments:
        batch: Number of sequences.
        heads: Number of key heads.
        length: Positions that fit.
        dim: Size of a head.
        dtype: Of keys and values.
    """

    def __init__(self, batch: int, heads: int, length: int, dim: int, dtype: Any = "f32"):
        import torch

        kind = getattr(torch, known_dtype(dtype).torch_name)
        self.length = length
        self.keys, self.values = (
            torch.zeros(batch, heads, length, dim, dtype=kind) for _ in range(2)
        )

    def update(
        self, name: str, k: Tensor, v: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values (b, heads, s, dim) at positions (s,); all there are."""
        out = []
        for tensor, new, part in ((self.keys, k, "keys"), (self.values, v, "values")):
            held = k.graph.parameter(f"{name}.{part}", tensor, tuple(tensor.shape), new.dtype)
            if held.dtype != new.dtype or held.shape[:2] != new.shape[:2]:
                raise TensorError(f"{new} does not fit the cache {held}")
            index = positions.reshape(1, 1, -1, 1).expand(new.shape)
            stored = held.scatter(2, index, new)
            held.assign(stored)
            out.append(stored)
        return out[0], out[1]


class MultiHeadAttention(Module):
    """Attention of a sequence to itself, (b, s, width) -> (b, s, width).

    Arguments:
        width: Size of the last dim.
        heads: Number of query heads.
        kv_heads: Number of key heads, each serves a group of query heads; `heads` when None.
        head_dim: Size of a head; width/heads when None.
        bias: Whether the projections have one.
        causal: Whether a position sees earlier ones only.
        rope: Rotary positions for queries and keys.
        dtype: Of the parameters.

    Its projections are `q_proj`, `k_proj`, `v_proj` and `o_proj`, as in Llama.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        causal: bool = True,
        rope: Rope | None = None,
        dtype: Any = "f32",
    ):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim, self.causal = head_dim or width // heads, causal
        if heads % self.kv_heads:
            raise TensorError(f"{heads} query heads in {self.kv_heads} groups")
        self.q_proj = Linear(width, heads * self.head_dim, bias, dtype)
        self.k_proj = Linear(width, self.kv_heads * self.head_dim, bias, dtype)
        self.v_proj = Linear(width, self.kv_heads * self.head_dim, bias, dtype)
        self.o_proj = Linear(heads * self.head_dim, width, bias, dtype)
        self._rope = rope

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        position: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Arguments:
            x: (b, s, width)
            mask: Broadcasts to (b, heads, s, keys): a bool (True takes part) or what is added.
            cache: Keys and values of earlier calls; this call's are stored in it.
            position: With a cache, the position of the first row (a 0-d integer).
        """
        q, k, v = (
            p(x).split_dims(-1, self.head_dim).transpose(1, 2)  # (b, h, s, d)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        g, s = x.graph, x.shape[1]
        positions = g.arange(s)
        if position is not None:
            positions = positions + position.cast("i64")
        if self._rope is not None:
            q, k = self._rope(q, positions), self._rope(k, positions)
        causal = self.causal
        if cache is not None:
            if position is None:
                raise TensorError("a cache needs the position of the first row")
            k, v = cache.update(f"{self.path or 'attention'}.cache", k, v, positions)
            written = g.iota((s, cache.length), 1) <= positions.unsqueeze(-1)
            if not causal:
                raise TensorError("a cache serves causal attention only")
            mask = written if mask is None else _both(written, mask)
            causal = False
        out = q.attention(k, v, mask, causal=causal)
        return self.o_proj(out.transpose(1, 2).flatten(2, 3))


def _both(written: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype.kind == "bool":
        return written & mask
    return written.where(mask, float("-inf"))
