# Everything here sets itself up on a bare machine with Python >= 3.11.
PYTHON ?= python3
VENV := .venv
# For a CPU build of PyTorch where the package index has CUDA builds: make run TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
BIN := $(VENV)/bin
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION := 1
export FLWR_TELEMETRY_ENABLED := 0

.PHONY: run test test-process test-all lint docs venv clean

run: venv  ## A tour of all four methods, in two minutes.
	$(BIN)/fedgraph tour

# Two processes share the cores: threads of each that wait for those of the other would slow both down.
test test-process test-all: export OMP_NUM_THREADS := 1

test: lint  ## What every change must pass, with one smoke of each grid.
	$(BIN)/pytest -m "not slow and not process" -n 2 --dist loadgroup

test-process: venv  ## What starts servers, Ray or programs, or kills them.
	$(BIN)/pytest -m "process and not slow" -n 2 --dist loadgroup

test-all: lint  ## With the slow tests.
	$(BIN)/pytest -n 2 --dist loadgroup

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: export OMP_NUM_THREADS := 1
docs: $(VENV)/.docs  ## The documentation, in docs/_build/html; links within it are checked.
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html

venv: $(VENV)/.installed  ## The environment alone.

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt -e ".[docs]"
	touch $@

$(VENV)/.installed: pyproject.toml .ci/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"
	# First and alone: with it installed, nothing below drags in CUDA packages.
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build docs/auto_examples docs/reference/api docs/sg_execution_times.rst .mypy_cache .pytest_cache .ruff_cache
