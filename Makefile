# One environment for everything, made once in $(VENV) and again when its ingredients change.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
STAMP := $(VENV)/.installed
# The demonstration's and the tests' matrices are small: a second thread gains little, and $(JOBS)
# test processes with several threads each would only fight over the cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## train, analyze and certify small networks, and name the report (ARGS=--open opens it)
	$(ONE_THREAD) $(BIN)/curvescope demo $(ARGS)

test: $(STAMP) ## run all tests and doctests
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) $(ARGS)

lint: $(STAMP) ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## format the code and repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench ## measure products beside other libraries
	$(BIN)/python benchmarks/products.py $(ARGS)

docs: $(VENV)/.docs ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

clean: ## remove the environment, the site and the caches
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache

# torch goes first and pinned, so that no other requirement can choose a different build of it.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.bench $(VENV)/.docs: $(VENV)/.%: $(STAMP)
	$(PIP) -e '.[$*]'
	@touch $@
