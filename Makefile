# Two commands are all there is to know: `make demo` and `make test`.  Everything lands in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= auto

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint golden pytest clean

help:
	@echo "make demo    install into $(VENV) and run GEMM step by step beside NumPy"
	@echo "make test    install with the test tools, lint, check types and imports, run every test"
	@echo "make lint    ruff, mypy --strict, and the import rule"
	@echo "make golden  write the golden files of tests/golden anew (then read the diff)"
	@echo "make clean   remove $(VENV) and caches"

demo: $(VENV)/.installed
	$(BIN)/pyschedule demo

# The quick checks first, so that a slip shows within seconds.
test: lint pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Three runs, since a process that has compiled thousands of kernels takes twice as long for the next.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)
pytest: $(VENV)/.installed-dev
	$(PYTEST) --ignore=tests/contract --ignore=tests/operators $(PYTEST_ARGS)
	$(PYTEST) tests/contract $(PYTEST_ARGS)
	$(PYTEST) tests/operators $(PYTEST_ARGS)

golden: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/test_golden.py --refresh-golden

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null 2>&1 \
	  || { echo "error: no $(PYTHON) found; install Python 3.11 or newer, or run 'make PYTHON=/path/to/python3 ...'" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); pyschedule needs 3.11 or newer: run 'make PYTHON=/path/to/python3.11 ...'" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "error: $(PYTHON) cannot make a virtual environment (on Debian: install python3-venv)" >&2; exit 1; }

# A stamp is newer than what it was installed from; an unchanged pyproject.toml installs nothing again.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -q -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[cuda,dev]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
