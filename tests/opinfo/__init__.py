"""Every operator of PyTorch's own test suite (OpInfo) against eager PyTorch; see `__main__`."""
