# `make demo` and `make test` work on a fresh clone with nothing but python3 and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# One thread for each test process, so that they do not compete for the cores. Coverage is measured, and its floor
# holds, where all tests run.
PYTEST_ARGS ?= -n 2 --cov

.DEFAULT_GOAL := help
.PHONY: help env demo test lint unit docs clean

help:
	@echo "make demo    train a small machine and draw what it learned (runs/demo)"
	@echo "make test    lint, type check, unit tests and documentation: everything that must pass"
	@echo "make lint    ruff (rules and format), the order of imports, mypy"
	@echo "make unit    the unit tests alone, with their coverage (PYTEST_ARGS='-k solver' to choose)"
	@echo "make docs    the documentation, in docs/_build/html"
	@echo "make env     the environment in .venv that all of these use"
	@echo "make clean   remove what the others made, except .venv and runs/"
	@echo "PYTHON=...   the interpreter to build the environment with (now: $(PYTHON))"

env: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo "Installing the environment in $(VENV). This happens once and takes a few minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $@

demo: $(READY)
	$(BIN)/dagfisher demo --out runs/demo

test: lint unit docs
	@echo "All passed."

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy

unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

docs: $(READY)
	$(BIN)/sphinx-build -q -E -W --keep-going -b html docs docs/_build/html
	@echo "The documentation is in docs/_build/html/index.html"

clean:
	rm -rf build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov *.egg-info
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
