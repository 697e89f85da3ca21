"""Models in the Tensor API: layers with PyTorch's parameters, attention, decoders.

A module is called on Tensors of a `ll.Graph` and adds to it. Parameters are loaded by the names
of a `state_dict()`; blocks in a list are found as repeats and searched once.
"""

from __future__ import annotations

from luminal_lab.nn.attention import KVCache, MultiHeadAttention, Rope
from luminal_lab.nn.layers import Conv2d, Embedding, LayerNorm, Linear, RMSNorm, Sequential
from luminal_lab.nn.module import Module, ModuleList, Parameter
from luminal_lab.nn.transformer import SwiGLU, Transformer, TransformerBlock

__all__ = [
    "Conv2d",
    "Embedding",
    "KVCache",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleList",
    "MultiHeadAttention",
    "Parameter",
    "RMSNorm",
    "Rope",
    "Sequential",
    "SwiGLU",
    "Transformer",
    "TransformerBlock",
]
