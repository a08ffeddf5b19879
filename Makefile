# Everything from nothing but python3 and make. Each target sets up what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MPICH := .stacks/mpich
OPENMPI := .stacks/openmpi

LOCK := $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --no-emit-index-url --no-emit-options --strip-extras

.PHONY: demo test check bench lock clean

# Intel MPI with its benchmarks stands beside us; MPICH owns files of the same names, hence a prefix of its own.
$(VENV)/.done: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Fabric Sweep needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "python3 cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.stacks/%/.done: requirements-%.lock
	$(PYTHON) -m venv .stacks/$*
	.stacks/$*/bin/python -m pip install --quiet --require-hashes --requirement $<
	@touch $@

demo: $(VENV)/.done $(MPICH)/.done
	$(BIN)/sweep plan examples/laptop.toml
	$(BIN)/sweep run examples/laptop.toml --archive sweep-archive
	$(BIN)/sweep sql --archive sweep-archive @examples/laptop.sql

test: $(VENV)/.done $(MPICH)/.done $(OPENMPI)/.done
	$(BIN)/python -m pytest

check: $(VENV)/.done
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.done $(MPICH)/.done
	$(BIN)/python tests/performance/bench.py

# Pins every package with its hashes; run it to move to newer versions.
lock: pyproject.toml
	$(LOCK) --extra dev --output-file requirements.lock pyproject.toml
	$(LOCK) --output-file requirements-mpich.lock requirements-mpich.in
	$(LOCK) --output-file requirements-openmpi.lock requirements-openmpi.in

clean:
	rm -rf $(VENV) .stacks build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
