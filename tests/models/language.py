"""Well-known architectures of `transformers`, tiny and with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from tests.models.cases import Case, Program
from tests.models.wake import wake

BASE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
GROUPED = {**BASE, "num_key_value_heads": 2}
ENDS = {"bos_token_id": 1, "eos_token_id": 63, "pad_token_id": 0}
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "image_size": 16, "patch_size": 4,
}  # fmt: skip
EXPERTS = {**GROUPED, "head_dim": 8, "num_experts_per_tok": 2}

# Model class, configuration class, configuration.
TEXT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    "Gemma3": (
        "Gemma3ForCausalLM", "Gemma3TextConfig",
        {**GROUPED, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "Mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 4}),
    "Phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED),
    "GPT2": (
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    ),
    "OPT": (
        "OPTForCausalLM", "OPTConfig",
        {**BASE, "ffn_dim": 48, "word_embed_proj_dim": 32},
    ),
    "Qwen3Moe": (
        "Qwen3MoeForCausalLM", "Qwen3MoeConfig",
        {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 16},
    ),
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig", {**EXPERTS, "num_local_experts": 4}),
    "Mamba": (
        "MambaForCausalLM", "MambaConfig",
        {"vocab_size": 64, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
    ),
}  # fmt: skip
OTHER: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("BertForMaskedLM", "BertConfig", BASE),
    "ViT": ("ViTForImageClassification", "ViTConfig", VISION),
    "CLIP": (
        "CLIPModel", "CLIPConfig",
        {"text_config": BASE, "vision_config": VISION, "projection_dim": 16},
    ),
    "T5": (
        "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
         "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "Whisper": (
        "WhisperForConditionalGeneration", "WhisperConfig",
        {"vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
         "decoder_ffn_dim": 48, "max_source_positions": 20, "max_target_positions": 64,
         "num_mel_bins": 8, "decoder_start_token_id": 1, "suppress_tokens": None,
         "begin_suppress_tokens": None},
    ),
}  # fmt: skip
SPEAKS = ("T5", "Whisper")  # encoders with decoders that generate
FORWARD = (
    ("forward sdpa", "float32"), ("forward eager", "float32"), ("forward sdpa", "bfloat16"),
    ("forward padded", "float32"),
)  # fmt: skip
GENERATE = ("generate dynamic", "generate static padded", "generate dynamic padded eager")


def cases() -> Sequence[Case]:
    """All models forward; those that write text, token for token."""
    out = []
    for name in (*TEXT, *OTHER):
        for mode, dtype in FORWARD:
            if not (mode == "forward padded" and name in ("ViT", "Whisper")):
                out.append(Case("language", name, mode, dtype))
        if name in TEXT or name in SPEAKS:
            out.extend(Case("language", name, mode) for mode in modes(name))
    return out


def modes(name: str) -> Sequence[str]:
    """How a model writes text: a state space has no cache of keys, a recording no padding."""
    if name == "Mamba":
        return ("generate dynamic", "generate dynamic padded")
    if name == "Whisper":
        return ("generate dynamic", "generate static", "generate dynamic eager")
    return GENERATE


def program(case: Case) -> Program:
    """A model with random weights, and a batch of two."""
    model, config, options = (TEXT | OTHER)[case.model]
    attention = "eager" if "eager" in case.mode else "sdpa"
    torch.manual_seed(0)
    if case.model not in ("ViT", "CLIP"):
        options = {**ENDS, **options}
    made = getattr(transformers, config)(**options)
    if case.model != "Mamba":
        made._attn_implementation = attention
    module = getattr(transformers, model)(made).eval()
    if case.model != "Mamba":  # its recurrence would make rounding errors grow
        spread(module)
    wake(module)
    module = module.to(getattr(torch, case.dtype))
    if "generate" in case.mode:
        return Program(module, kwargs=text(case), options=generation(case))
    kwargs = inputs(case)
    if getattr(module.config, "use_cache", False):
        kwargs["use_cache"] = False
    return Program(module, kwargs=kwargs)


def spread(module: torch.nn.Module) -> None:
    """Larger weights: with the usual ones all logits are nearly alike, and tokens hang on
    rounding."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)


def text(case: Case) -> dict[str, Any]:
    """Two prompts, or two recordings."""
    if case.model == "Whisper":
        return {"input_features": torch.randn(2, 8, 40)}
    ids = torch.randint(2, 60, (2, 6))
    mask = torch.ones_like(ids)
    if "padded" in case.mode:
        mask[1, :2] = 0
        ids[1, :2] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generation(case: Case) -> dict[str, Any]:
    """Options of `generate`: greedy, eight tokens."""
    out: dict[str, Any] = {
        "max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "disable_compile": True,
    }  # fmt: skip
    if "static" in case.mode:
        out["cache_implementation"] = "static"
    return out


def inputs(case: Case) -> dict[str, Any]:
    """Arguments of `forward`."""
    images = torch.randn(2, 3, 16, 16).to(getattr(torch, case.dtype))
    if case.model == "ViT":
        return {"pixel_values": images}
    given = text(case)
    if "padded" not in case.mode:
        given.pop("attention_mask", None)
    if case.model == "CLIP":
        return {**given, "pixel_values": images}
    if case.model in SPEAKS:
        given["decoder_input_ids"] = torch.randint(2, 60, (2, 5))
    return {
        k: v.to(getattr(torch, case.dtype)) if v.is_floating_point() else v
        for k, v in given.items()
    }
