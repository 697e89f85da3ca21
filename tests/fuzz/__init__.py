"""Random programs of PyTorch calls, compiled and compared with eager PyTorch."""
