"""The notebooks are the tests; their paired scripts are not collected (nor run) for doctests."""

collect_ignore_glob = ["*.py"]
