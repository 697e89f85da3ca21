"""The workloads: one row each, with what they must move and compute, and what we aim at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Generator

Made = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Workload:
    """A function with arguments, to be timed.

    Arguments:
        name: A short name, unique.
        suite: The suite that it belongs to.
        make: From a random generator to `(function or module, arguments)`.
        bytes: Bytes that any implementation must move.
        flops: Flops of its products (0 when it is bound by memory).
        tolerance: Largest absolute error against float64.
        bars: How many times as fast as whom we want to be.
    """

    name: str
    suite: str
    make: Callable[[Generator], Made]
    bytes: int = 0
    flops: float = 0.0
    tolerance: float = 1e-4
    bars: Mapping[str, float] = field(default_factory=dict)


def _randn(generator: Generator, *shape: int) -> Any:
    import torch

    return torch.randn(*shape, generator=generator)


def _pointwise(g: Generator) -> Made:
    import torch

    n = 4096

    def scale_shift_gelu(x, w, b, r):
        return torch.nn.functional.gelu(x * w + b) + r

    return scale_shift_gelu, (_randn(g, n, n), _randn(g, n), _randn(g, n), _randn(g, n, n))


def _softmax(g: Generator) -> Made:
    import torch

    def softmax(x):
        return torch.softmax(x, -1)

    return softmax, (_randn(g, 4096, 4096),)


def _rms_norm(g: Generator) -> Made:
    import torch

    def rms_norm(x, w):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w

    return rms_norm, (_randn(g, 2048, 4096), _randn(g, 4096))


def _layer_norm(g: Generator) -> Made:
    import torch

    def layer_norm(x, w, b):
        return torch.nn.functional.layer_norm(x, (4096,), w, b)

    return layer_norm, (_randn(g, 2048, 4096), _randn(g, 4096), _randn(g, 4096))


def _linear_gelu(g: Generator) -> Made:
    import torch

    def linear_gelu(x, w, b):
        return torch.nn.functional.gelu(x @ w + b)

    return linear_gelu, (_randn(g, 1024, 1024), _randn(g, 1024, 1024), _randn(g, 1024))


def _rms_linear(g: Generator) -> Made:
    import torch

    def rms_linear(x, scale, w):
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale) @ w

    return rms_linear, (_randn(g, 1024, 1024), _randn(g, 1024), _randn(g, 1024, 1024))


def _column_sum(g: Generator) -> Made:
    def column_sum(x):
        return x.sum(0)

    return column_sum, (_randn(g, 4096, 4096),)


def _qkv(g: Generator) -> tuple[Any, Any, Any]:
    return _randn(g, 1, 12, 1024, 64), _randn(g, 1, 12, 1024, 64), _randn(g, 1, 12, 1024, 64)


def _attention(g: Generator) -> Made:
    import torch

    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) * 64**-0.5, -1) @ v

    return attention, _qkv(g)


def _causal_attention(g: Generator) -> Made:
    import torch

    def causal_attention(q, k, v):
        s = q.shape[-2]
        mask = torch.ones(s, s, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2) * 64**-0.5).masked_fill(~mask, float("-inf"))
        return torch.softmax(scores, -1) @ v

    return causal_attention, _qkv(g)


def sdpa(q, k, v, causal: bool = False):
    """PyTorch's own fused attention, the peer of the attention workloads."""
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _sentences(count: int) -> Callable[[Generator], Made]:
    def make(_: Generator) -> Made:
        from luminal_lab.demo.encoder import load_encoder, sentences, tokenize

        return load_encoder(), tuple(tokenize(sentences()[:count]))

    return make


_F32 = 4
_SQUARE = 4096 * 4096 * _F32
_ROWS = 2048 * 4096 * _F32
_GEMM = 2.0 * 1024**3
_PAIRS = 12 * 1024 * 1024 * 64  # multiply-adds of QK^T over all heads
_HEADS = 4 * 12 * 1024 * 64 * _F32

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "gelu(x*w+b)+r 4096²", "kernels", _pointwise, 3 * _SQUARE, bars={"inductor": 1.05}
    ),
    Workload("softmax 4096²", "kernels", _softmax, 2 * _SQUARE, bars={"inductor": 1.4}),
    Workload("rmsnorm 2048×4096", "kernels", _rms_norm, 2 * _ROWS, bars={"inductor": 1.1}),
    Workload("layernorm 2048×4096", "kernels", _layer_norm, 2 * _ROWS, bars={"inductor": 1.4}),
    Workload(
        "gelu(x@w+b) 1024³", "kernels", _linear_gelu, flops=_GEMM, tolerance=1e-3,
        bars={"eager": 1.8},
    ),
    Workload(
        "rmsnorm→linear 1024³", "kernels", _rms_linear, flops=_GEMM, tolerance=1e-3,
        bars={"eager": 1.8},
    ),
    Workload(
        "column sum 4096²", "kernels", _column_sum, _SQUARE, tolerance=1e-3, bars={"eager": 1.8}
    ),
    Workload(
        "attention H12 S1024 D64", "attention", _attention, _HEADS, 4.0 * _PAIRS,
        bars={"sdpa": 1.8},
    ),
    Workload(
        "causal attention H12 S1024 D64", "attention", _causal_attention, _HEADS, 2.0 * _PAIRS,
        bars={"sdpa": 2.1},
    ),
    Workload(
        "MiniLM, 32 sentences", "encoder", _sentences(32), flops=21.7e9,
        bars={"eager": 1.7, "inductor": 1.7},
    ),
    Workload(
        "MiniLM, 1 sentence", "encoder", _sentences(1), bars={"eager": 2.0, "inductor": 2.0}
    ),
)  # fmt: skip
SUITES: tuple[str, ...] = tuple(dict.fromkeys(w.suite for w in WORKLOADS))
