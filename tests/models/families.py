"""Architectures of `transformers` chosen by script: every causal language model that a small
configuration, made by one table of names for all of them, can build and run in eager mode."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.models.cases import Case, Program
from tests.models.language import TEXT
from tests.models.wake import wake

# What configurations call their sizes, and what they are set to.
SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "head_dim": 8, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_ctx": 64,
    "n_inner": 48, "rotary_dim": 4, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
    "num_heads": 4, "ffn_dim": 48, "word_embed_proj_dim": 32, "embedding_size": 16,
    "embed_dim": 32, "ffn_hidden_size": 48, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "moe_topk": 2, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "qk_head_dim": 12, "v_head_dim": 8,
    "state_size": 4, "mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 16,
    "mamba_n_groups": 1, "mamba_expand": 2, "mamba_chunk_size": 8, "chunk_size": 8,
    "n_groups": 1, "decoder_layers": 2, "encoder_layers": 2, "decoder_attention_heads": 4,
    "encoder_attention_heads": 4, "decoder_ffn_dim": 48, "encoder_ffn_dim": 48,
    "sliding_window": 4, "attention_window": 4, "attn_head_size": 8, "emb_dim": 32,
    "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "hidden_dim": 48, "lru_width": 32,
    "conv_L_cache": 3, "block_ff_dim": 48, "attention_hidden_size": 32,
    "dim": 32, "num_key_value_groups": 2, "attention_head_dim": 8, "context_length": 64,
    "time_step_rank": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 63,
    "moe_num_experts": 4, "moe_k": 2, "num_global_layers": 1, "n_kv_heads": 2,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": None, "mlp_layer_types": None, "moe_layer_start_index": 1,
    "first_k_dense_replace": 1, "max_window_layers": 1,
}  # fmt: skip


def cases() -> Sequence[Case]:
    """One forward pass of each, but those that `language` has."""
    known = {config.removesuffix("Config").lower() for _, config, _ in TEXT.values()}
    return [
        Case("families", name)
        for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        if name.replace("-", "").replace("_", "") not in known
    ]


def program(case: Case) -> Program:
    """A small model of a family."""
    torch.manual_seed(0)
    kind = CONFIG_MAPPING[case.model]
    names = set(inspect.signature(kind).parameters) | {
        name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})
    }
    config = kind(**{k: v for k, v in SMALL.items() if k in names})
    if parameters(config) > 20_000_000:
        raise ValueError(f"the small {case.model} is not small")
    chosen = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[case.model]
    module = getattr(transformers, chosen)(config).eval()
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(2)
    wake(module)
    kwargs: dict[str, Any] = {"input_ids": torch.randint(2, 60, (2, 8))}
    if "use_cache" in inspect.signature(module.forward).parameters or getattr(
        config, "use_cache", False
    ):
        kwargs["use_cache"] = False
    return Program(module, kwargs=kwargs)


def parameters(config: Any) -> int:
    """How many numbers a model of this configuration has, without making it."""
    chosen = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
    with torch.device("meta"):
        module = getattr(transformers, chosen)(config)
    return sum(p.numel() for p in module.parameters())
