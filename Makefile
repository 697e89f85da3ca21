# Luminal Lab. `make help` lists the targets. Everything runs in .venv, which the first target
# that needs it creates; a stamp file remembers each step, so nothing is done twice.

VENV := .venv
PY   := $(VENV)/bin/python
# The constraints hold the one torch version that everything is tested with.
TORCH := $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)
EXTRAS := notebook,models,gpu,distributed,dev

# What a caller may set: a Python (3.11 or newer), more pip options for the torch step (such as
# the index of CPU builds on a machine whose default build is for CUDA), workers, pytest options.
PYTHON ?=
TORCH_PIP_ARGS ?=
JOBS ?= 2
ARGS ?=

PIP := $(PY) -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-slow agree opinfo fuzz models binder lint format lab docs docs-serve bench clean distclean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	 || sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1: \2/p' $(MAKEFILE_LIST)

# ------------------------------------------------------------------------------- environment
$(VENV)/.stamp-python:
	@set -e; chosen=""; \
	for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	  then chosen="$$candidate"; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	  echo "make: no Python >= 3.11 with the venv module found; install one (on Debian: python3 python3-venv) or pass PYTHON=/path/to/python" >&2; exit 1; fi; \
	echo "make: creating $(VENV) with $$("$$chosen" --version)"; \
	"$$chosen" -m venv $(VENV)
	@touch $@

# torch alone and pinned: any later step then finds it satisfied and pulls in no other build.
$(VENV)/.stamp-torch: $(VENV)/.stamp-python constraints.txt
	@echo "make: installing $(TORCH)"
	@$(PIP) -c constraints.txt $(TORCH_PIP_ARGS) "$(TORCH)"
	@touch $@

$(VENV)/.stamp-install: pyproject.toml constraints.txt $(VENV)/.stamp-torch
	@echo "make: installing luminal-lab[$(EXTRAS)] and what it needs"
	@$(PIP) -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

setup: $(VENV)/.stamp-install  ## create .venv with everything in it

# --------------------------------------------------------------------------------- main jobs
demo: setup  ## compile and run a real sentence encoder, and write demo-report.html
	$(PY) -m luminal_lab demo $(ARGS)

test: setup  ## run the test suite (without the tests marked slow)
	$(PY) -m pytest -n $(JOBS) --dist loadscope $(ARGS)

test-slow: setup  ## run the tests marked slow, but those of `make agree` and `make opinfo`
	$(PY) -m pytest -m slow --ignore tests/search/test_agree.py --ignore tests/opinfo/test_quarter.py -n $(JOBS) --dist loadscope $(ARGS)

agree: setup  ## check that random candidates of every kind of program agree (half an hour)
	$(PY) -m pytest -m slow tests/search/test_agree.py -n $(JOBS) $(ARGS)

opinfo: setup  ## run a fixed quarter of the table of PyTorch's operators (two minutes)
	$(PY) -m pytest -m slow tests/opinfo/test_quarter.py -n $(JOBS) $(ARGS)

fuzz: setup  ## compile random programs and compare them with eager PyTorch (five minutes)
	$(PY) -m tests.fuzz --seeds 0:200 --jobs $(JOBS) $(ARGS)

models: setup  ## run whole models of transformers and timm against eager PyTorch (an hour)
	@$(PIP) --no-deps -c constraints.txt timm pillow
	$(PY) -m tests.models $(ARGS)

binder: setup  ## check Binder's files, and measure the memory of each notebook (ten minutes)
	$(PY) binder/check.py $(ARGS)

lint: setup  ## ruff, import-linter and pyright
	@status=0; \
	for tool in "ruff format --check ." "ruff check ." "lint-imports --no-logo" "pyright"; do \
	  echo "$$tool"; $(VENV)/bin/$$tool || status=1; \
	done; exit $$status

format: setup  ## format the code and apply the safe fixes
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

lab: setup  ## open JupyterLab on the tour
	$(VENV)/bin/jupyter lab --LabApp.default_url=/lab/tree/notebooks/00_tour.ipynb $(ARGS)

docs docs-serve: export NO_MKDOCS_2_WARNING := 1
docs: setup  ## build the site into site/ (strict)
	$(PY) -m mkdocs build --strict --quiet $(ARGS)

docs-serve: setup  ## serve the site on this machine and rebuild it on change
	$(PY) -m mkdocs serve $(ARGS)

bench: setup  ## run the benchmark suites (arguments in ARGS)
	$(PY) -m luminal_lab bench $(ARGS)

clean:  ## remove what the targets wrote, keep .venv
	rm -rf site build dist demo-report.html .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find luminal_lab tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove .venv too
	rm -rf $(VENV)
