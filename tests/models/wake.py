"""Random weights that a model's results depend on, as those of a trained model do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def wake(module: nn.Module, call: Callable[[], Any] | None = None) -> None:
    """Make results depend on all weights and on the input.

    What is drawn as one number everywhere (heads and last layers of 0, scales of 1e-5, norms of
    1, biases of 0) is drawn with noise. The module is left in evaluation mode.

    Arguments:
        call: Runs the module on its input. The statistics of batch norms become those of that
            input, and what is kept between calls is made by the new weights.
    """
    noise = torch.Generator().manual_seed(0)
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    module.eval()
    with torch.no_grad():
        for p in module.parameters():
            if p.is_floating_point() and p.numel() and (p == p.flatten()[0]).all():
                p += 0.1 * torch.randn(p.shape, generator=noise)
        if call is None:
            return
        for m in norms:
            m.reset_running_stats()
            m.momentum = None
            m.train()
        call()
        for m in norms:
            m.running_var.clamp_(min=0.1)  # else what is the same for all of `x` explodes
        module.train().eval()
        call()
