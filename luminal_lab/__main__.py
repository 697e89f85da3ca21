"""`python -m luminal_lab` is the command line."""

from luminal_lab.cli import main

raise SystemExit(main())
