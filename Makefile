# Everything here sets itself up on a bare machine with Python 3.11, 3.12 or 3.13.
PYTHON ?= python3
VENV := .venv
# For a CPU build of PyTorch where the package index has CUDA builds: make run TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
BIN := $(VENV)/bin
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
# An environment whose Python is gone, or is another one by now, counts as none.
ifneq ($(shell $(BIN)/python -c "$(FITS)" 2>/dev/null; echo $$?),0)
$(shell rm -f $(VENV)/.installed)
endif
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION := 1
export FLWR_TELEMETRY_ENABLED := 0
# Tests start dozens of programs, each of which would compile hundreds of modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-process test-all test-docker test-flower test-versions lint docs venv clean

run: venv  ## A tour of all four methods, in two minutes.
	$(BIN)/fedgraph tour

# Two processes share the cores: threads of each that wait for those of the other would slow both down.
test test-process test-all: export OMP_NUM_THREADS := 1

test: lint  ## What every change must pass.
	$(BIN)/pytest -m "not slow and not process" -n 2 --dist loadgroup

test-process: venv  ## What starts servers, Ray or programs, or kills them, and what takes long.
	$(BIN)/pytest -m "process and not slow" -n 2 --dist loadgroup

test-all: lint  ## With the slow tests.
	$(BIN)/pytest -n 2 --dist loadgroup

test-docker: export OMP_NUM_THREADS := 1
test-docker: venv  ## The image, and compose.yaml with a run, on a container engine; as root on Debian, one is started where none runs.
	$(BIN)/pytest -m docker tests/docker --durations 0

# In an environment of its own, since the other one is that of the pinned version.
FLOWER := .venv-flower-$(VERSION)
test-flower: export OMP_NUM_THREADS := 1
test-flower:  ## What starts servers, on another version of Flower: make test-flower VERSION=1.41.0
	test -n "$(VERSION)" || { echo "name a version of Flower: make test-flower VERSION=1.41.0"; exit 2; }
	$(MAKE) venv VENV=$(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --no-deps "flwr==$(VERSION)"
	$(FLOWER)/bin/flwr --version
	$(FLOWER)/bin/pytest -m "process and not slow" -n 2 --dist loadgroup

# Where the package index has CUDA builds of PyTorch, several GB are downloaded.
RESOLUTION := lowest-direct
VERSIONS := .venv-$(RESOLUTION)
test-versions: export OMP_NUM_THREADS := 1
test-versions:  ## The tests of every change with the oldest versions that pyproject.toml allows; with RESOLUTION=highest, the newest.
	$(PYTHON) -m venv --clear $(VERSIONS)
	$(VERSIONS)/bin/python -m pip install --quiet "uv>=0.5,<1"
	$(VERSIONS)/bin/uv pip install --quiet --python $(VERSIONS)/bin/python --resolution $(RESOLUTION) -e ".[dev]"
	$(VERSIONS)/bin/uv pip list --python $(VERSIONS)/bin/python
	$(VERSIONS)/bin/pytest -m "not slow and not process" -n 2 --dist loadgroup

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
	@$(BIN)/python -c "$(FITS)" 2>/dev/null || $(PYTHON) -c "$(FITS)" || { echo "Python 3.11, 3.12 or 3.13 is needed, \
	and $(PYTHON) is $$($(PYTHON) --version 2>&1): name another one with make PYTHON=python3.12"; exit 2; }
	# One that is not there, or of a Python that does not fit or is gone, is made anew.
	$(BIN)/python -c "$(FITS)" 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"
	# First and alone: with it installed, nothing below drags in CUDA packages.
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build docs/auto_examples docs/reference/api docs/sg_execution_times.rst .mypy_cache .pytest_cache .ruff_cache
