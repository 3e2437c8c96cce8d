# One command each; every target makes .venv when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two threads on a busy two-core machine were ten times slower than one.
export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false
# What one process has compiled, the others don't compile again.
unexport PYTHONDONTWRITEBYTECODE
# Streams are as most users have them.
unexport PYTHONUNBUFFERED
# More than there are cores: many tests wait.
JOBS ?= 3
FAST := not soak and not slow

.PHONY: demo test test-oldest matrix matrix-debian trackers recipes peers docs package lint types contracts pytest slow soak bench device format clean

# Nothing is compiled before it is imported: it would take longer than installing, and is five times what tests import.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]' -c constraints.txt
	touch $(READY)

demo: $(READY)  ## train a tiny model that leaks, show who holds what grows
	$(BIN)/forgather-mem demo

test: $(READY)  ## what CI runs; the checks of the source beside the tests, of which some wait
	$(MAKE) --no-print-directory --jobs=2 pytest lint types contracts

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

contracts: $(READY)
	$(BIN)/lint-imports
	$(BIN)/python .ci/budget.py

# What all tests import is compiled once, else each worker would do it, all at the same time.
$(VENV)/.collected: $(READY)
	$(BIN)/python -m pytest -q --collect-only -m "$(FAST)" > $@

pytest: $(VENV)/.collected
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "$(FAST)"

slow: $(VENV)/.collected  ## the tests that `test` leaves out: half of the processor time, a twentieth of the tests
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "slow and not soak"

OLDEST := .venv-oldest

$(OLDEST)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OLDEST)
	grep -v -i -E '^(transformers|huggingface_hub|tokenizers|hf-xet|accelerate)==' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --no-compile --editable '.[dev]' -c $(OLDEST)/constraints.txt \
		'transformers==4.46.*' 'huggingface-hub<1' accelerate
	touch $@

test-oldest: $(OLDEST)/.ready  ## the suite with the oldest transformers that is supported
	$(OLDEST)/bin/python -m pytest -q -n $(JOBS) --dist worksteal -m "not soak"

matrix:  ## the suite on each Python, with newest and oldest transformers and torch; PYTHONS="3.11 3.12", ARGS=tests/test_load.py
	JOBS=$(JOBS) PYTHONS="$(PYTHONS)" .ci/matrix $(ARGS)

matrix-debian:  ## the suite on Debian's Pythons and CPU torch (3.13 with 2.6, 3.14 with 2.14); needs root and debootstrap
	JOBS=$(JOBS) RELEASES="$(RELEASES)" .ci/matrix-debian $(ARGS)

TRACKERS := .venv-trackers

# trackio asks for an older pillow than matplotlib's
$(TRACKERS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TRACKERS)
	grep -v -i -E '^pillow==' constraints.txt > $(TRACKERS)/constraints.txt
	$(TRACKERS)/bin/python -m pip install --quiet --no-compile --editable '.[dev]' -c $(TRACKERS)/constraints.txt \
		wandb mlflow-skinny sqlalchemy alembic comet_ml trackio mcp
	touch $@

trackers: $(TRACKERS)/.ready  ## W&B, MLflow, Comet, trackio and the MCP client, with their real packages, offline
	$(TRACKERS)/bin/python -m pytest -q tests/with_trackers tests/cli/test_mcp.py

RECIPES := .venv-recipes
# A checkout of github.com/jdinalt/forgather, which is no package
FORGATHER ?= ../forgather

$(RECIPES)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RECIPES)
	$(RECIPES)/bin/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(RECIPES)/bin/python -m pip install --quiet --no-compile --editable '.[dev]' -c constraints.txt --group recipes
	$(RECIPES)/bin/python -m pip uninstall --quiet --yes torchvision  # that of the index is for CUDA: transformers fails
	touch $@

recipes: $(RECIPES)/.ready  ## recipes with the real packages, then docs/frameworks.md: half an hour; ARGS="--only Keras"
	HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 RAY_USAGE_STATS_ENABLED=0 $(RECIPES)/bin/python -m pytest -q tests/test_docs.py tests/test_slurm.py -k "recipes or slurm"
	FORGATHER=$(abspath $(FORGATHER)) $(RECIPES)/bin/python benchmarks/frameworks $(ARGS)

PEERS := .venv-peers

# Composer has no release for this torch; what peers ask for beside it may differ from what was tested
$(PEERS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(PEERS)/bin/python -m pip install --quiet --editable '.[lightning]' -c constraints.txt --group peers
	touch $@

peers: $(PEERS)/.ready  ## the same tasks with other tools: about an hour on two cores; writes benchmarks/results/peers.md
	$(PEERS)/bin/python benchmarks/peers $(ARGS)

SITE := .venv-docs

# The site needs what reads docstrings, not what the docstrings are about
$(SITE)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --no-compile --upgrade pip -c constraints.txt
	$(SITE)/bin/python -m pip install --quiet --no-compile --group docs -c constraints.txt
	touch $@

docs: $(SITE)/.ready  ## the documentation in site/, every link checked; to look at it: python -m http.server -d site
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs --quiet build --strict

package: $(READY)  ## the wheel and the source archive in dist/
	$(BIN)/python -m build --no-isolation

soak: $(READY) trackers slow  ## `slow`, and what is long: faults at random moments, millions of samples; needs chromium and chromedriver
	$(BIN)/python -m pytest -q -m soak
	NEEDS_BROWSER=1 $(BIN)/python -m pytest -q tests/page/test_assets.py
	HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -q tests/config tests/formats tests/page/test_data.py tests/planning/loop tests/reporting

bench: $(READY)  ## side by side with the peers; prints ratios
	for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# Where there is an accelerator there is often no network: nothing is installed, python3 has what it needs
DEVICE_PYTHON ?= $(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON))
ONLY ?=

device:  ## on a machine with an accelerator: all that needs one, in under 8 minutes; ONLY="oom cost" for some parts
	$(DEVICE_PYTHON) benchmarks/device.py $(if $(ONLY),--only $(ONLY)) $(ARGS)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(OLDEST) .venv-matrix $(TRACKERS) $(RECIPES) $(PEERS) $(SITE) build dist site out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
