"""How often a model is compiled while its sizes change; how long capturing a large one takes.

Each case has a bound; a case that needs more is wrong, whatever it computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers

import luminal_lab as ll
from tests.models.cases import Case, Program
from tests.models.language import GROUPED, spread
from tests.models.wake import wake

# Compilations that a case may take.
BOUNDS = {"sizes seq": 1, "sizes batch+seq": 1, "cache growing": 3, "cache static": 2}
RANGE = (2, 64)
SPEED = "speed capture"
SLOWER = 1.5  # times what PyTorch's part takes alone


def cases() -> Sequence[Case]:
    """A tiny Llama, and one of the size of SmolLM2-135M for the speed of capture."""
    return [
        *(Case("traces", "Llama", mode) for mode in BOUNDS),
        Case("traces", "SmolLM2-135M", SPEED),
    ]


def program(case: Case) -> Program:
    """A model with random weights; the ways below call it."""
    torch.manual_seed(0)
    shape: dict[str, Any] = GROUPED
    if case.mode == SPEED:
        shape = {
            "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "max_position_embeddings": 8192, "tie_word_embeddings": True,
        }  # fmt: skip
    config = transformers.LlamaConfig(**shape)
    module = transformers.LlamaForCausalLM(config).eval()
    if case.mode != SPEED:
        spread(module)
        wake(module)
    return Program(module)


def sizes(made: Program, case: Case, compiler: Any) -> list[torch.Tensor]:
    """Sequences of 4, 6, 9 and then of 20 lengths; one out of range must be refused."""
    call = compiler(made.module) if compiler else made.module
    both = case.mode == "sizes batch+seq"
    shapes = [(2, 4), (3, 6), (5, 9), *((2 + k % 5, 2 + 3 * k) for k in range(20))]

    def run(b: int, s: int) -> torch.Tensor:
        x = torch.arange(b * s).view(b, s) * 7 % 64
        torch._dynamo.mark_dynamic(x, 1, min=RANGE[0], max=RANGE[1])
        if both:
            torch._dynamo.mark_dynamic(x, 0, min=2, max=16)
        return call(x, use_cache=False).logits.clone()

    with torch.no_grad():
        out = [run(b if both else 2, s) for b, s in shapes]
        if compiler:
            try:
                run(2, RANGE[1] + 1)
            except Exception as error:
                if f"{RANGE[1] + 1} not in range" not in str(error):
                    raise
            else:
                raise AssertionError("a size out of range was taken")
    return out


def cache(made: Program, case: Case, compiler: Any) -> list[torch.Tensor]:
    """A prompt, then token by token with a cache that grows, or one of fixed size."""
    module: Any = made.module
    call = compiler(module) if compiler else module
    static = case.mode == "cache static"
    held: Any = (
        transformers.StaticCache(config=module.config, max_cache_len=80)
        if static
        else transformers.DynamicCache(config=module.config)
    )
    x, at, out = torch.arange(10).view(2, 5), 0, []
    with torch.no_grad():
        for step in range(64 if static else 10):
            where = torch.arange(at, at + x.shape[1])[None]
            result = call(x, past_key_values=held, position_ids=where, use_cache=True)
            out.append(result.logits.clone())
            at += x.shape[1]
            x = (torch.arange(2).view(2, 1) * 31 + step) % 64  # the same tokens for both
    return out


def speed(made: Program, case: Case, compiler: Any) -> list[torch.Tensor]:
    """Seconds of CPU: `torch.export` with PyTorch's decompositions, or our capture."""
    args, kwargs = (torch.arange(16)[None],), {"use_cache": False}

    def alone() -> Any:
        exported = torch.export.export(made.module, args, kwargs, strict=False)
        return exported.run_decompositions()

    def ours() -> Any:
        return ll.capture(made.module, args, kwargs)

    def timed(run: Callable[[], Any]) -> float:
        begun = time.process_time()
        run()
        return time.process_time() - begun

    with torch.no_grad():
        return [torch.tensor(min(timed(ours if compiler else alone) for _ in range(2)))]
