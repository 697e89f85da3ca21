"""Decoders in the manner of Llama: RMSNorm, rotary attention, SwiGLU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luminal_lab.nn.attention import KVCache, MultiHeadAttention, Rope
from luminal_lab.nn.layers import Embedding, Linear, RMSNorm
from luminal_lab.nn.module import Module
from luminal_lab.tensor.tensor import Tensor


class SwiGLU(Module):
    """`down(silu(gate x) * up x)`.

    Arguments:
        width: Size of the last dim.
        hidden: Size between the products.
        dtype: Of the parameters.
    """

    def __init__(self, width: int, hidden: int, dtype: Any = "f32"):
        super().__init__()
        self.gate_proj = Linear(width, hidden, False, dtype)
        self.up_proj = Linear(width, hidden, False, dtype)
        self.down_proj = Linear(hidden, width, False, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return self.down_proj(self.gate_proj(x).silu() * self.up_proj(x))


class TransformerBlock(Module):
    """`x + attention(norm x)`, then `x + mlp(norm x)`; named as Llama's layers.

    Arguments:
        width, heads, kv_heads, head_dim: As for `MultiHeadAttention`.
        hidden: Of the SwiGLU.
        eps: Of the norms.
        rope: Rotary positions.
        dtype: Of the parameters.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        eps: float = 1e-6,
        rope: Rope | None = None,
        dtype: Any = "f32",
    ):
        super().__init__()
        self.self_attn = MultiHeadAttention(
            width, heads, kv_heads, head_dim, rope=rope, dtype=dtype
        )
        self.mlp = SwiGLU(width, hidden, dtype)
        self.input_layernorm = RMSNorm(width, eps, dtype)
        self.post_attention_layernorm = RMSNorm(width, eps, dtype)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        position: Tensor | None = None,
    ) -> Tensor:
        """As `MultiHeadAttention.forward`."""
        x = x + self.self_attn(self.input_layernorm(x), mask, cache, position)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(Module):
    """A decoder: token ids (b, s) -> logits (b, s, words).

    Its parameters are named as those of Hugging Face's Llama, see `load_llama`.

    Arguments:
        words: Size of the vocabulary.
        width, heads, hidden, kv_heads, head_dim, eps, dtype: As for `TransformerBlock`.
        layers: Number of blocks.
        base: Of the rotary positions.
    """

    def __init__(
        self,
        words: int,
        width: int,
        heads: int,
        hidden: int,
        layers: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        eps: float = 1e-6,
        base: float = 10000.0,
        dtype: Any = "f32",
    ):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim, self.dtype = head_dim or width // heads, dtype
        self.embed_tokens = Embedding(words, width, dtype)
        rope = Rope(self.head_dim, base)
        self.layers = [
            TransformerBlock(width, heads, hidden, kv_heads, head_dim, eps, rope, dtype)
            for _ in range(layers)
        ]
        self.norm = RMSNorm(width, eps, dtype)
        self.lm_head = Linear(width, words, False, dtype)

    def forward(
        self,
        ids: Tensor,
        caches: Sequence[KVCache] | None = None,
        position: Tensor | None = None,
    ) -> Tensor:
        """Logits of the next word at each place.

        Arguments:
            ids: (b, s) integers.
            caches: One for each layer, see `caches`.
            position: With caches, the position of the first id (a 0-d integer).
        """
        x = self.embed_tokens(ids)
        for k, layer in enumerate(self.layers):
            x = layer(x, None, caches[k] if caches else None, position)
        return self.lm_head(self.norm(x))

    def caches(self, batch: int, length: int) -> list[KVCache]:
        """An empty cache for each layer."""
        return [
            KVCache(batch, self.kv_heads, length, self.head_dim, self.dtype)
            for _ in self.layers
        ]

    def load_llama(self, values: Any) -> None:
        """Take the state_dict of Hugging Face's `LlamaForCausalLM`, tied embeddings too.

        Raises:
            TensorError: when names or shapes do not fit.
        """
        plain = {
            n.removeprefix("model."): v for n, v in values.items() if "rotary_emb" not in n
        }
        plain.setdefault("lm_head.weight", plain.get("embed_tokens.weight"))
        self.load_state_dict(plain)
