"""Whole models through the `torch.compile` backend, compared with eager PyTorch."""
