# Everything on a fresh machine: `make tour` (the main job), `make test` (at most four minutes on two cores) and
# `make test-all` (five to nine: then also what is marked slow, and more random examples).
# Each target installs into .venv first; nothing outside it is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
TOUR := $(PYTEST) suites/tour --cudamem -p no:randomly
# What one process compiles, the next ones read: tests start a hundred.
export PYTHONDONTWRITEBYTECODE =

.PHONY: verdicts tour test test-all lint docs test-gpu test-full bench clean

tour: $(READY)
	$(TOUR)

test: $(VENV)/.compiled
	$(BIN)/python -m compileall -q cudamem_testing fixtures
	$(PYTEST) -q -n 2 -m "not slow" --record-durations
	$(TOUR)

test-all: test
	HYPOTHESIS_PROFILE=all $(PYTEST) -q -n 2 --dist loadfile --no-loadscope-reorder -m "slow or hypothesis"

test-full: $(READY)
	HYPOTHESIS_PROFILE=full $(PYTEST) -q
	$(TOUR)

test-gpu: $(READY)
	CUDAMEM_REQUIRE_GPU=1 $(PYTEST) -q
	$(TOUR) --cudamem-device=cuda

bench: $(READY)
	$(BIN)/python -m suites.benchmarks
	$(BIN)/python -m suites.benchmarks.replay
	$(BIN)/python -m suites.benchmarks.snapshots
	$(BIN)/python -m suites.benchmarks.soak

verdicts: $(READY)
	$(BIN)/python -m suites.zoo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPY_NUM_WORKERS=2 $(BIN)/mypy
	$(BIN)/mypy fixtures/typed_use.py
	PYTHONPATH=. $(BIN)/lint-imports

# The site, into site/; its samples are checked by tests (python -m suites.guide writes them, suites.pictures draws).
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q -f .ci/mkdocs.yml

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	touch $@

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

# Native parts: compiled once, so that no test waits for that, and the times of tests are their own.
$(VENV)/.compiled: $(READY)
	$(BIN)/python -m suites.compiled
	touch $@

clean:
	rm -rf $(VENV)
