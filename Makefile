# Needs Python 3.10-3.13, git, a C++ compiler and make. Everything else goes into VENV.

PYTHON ?= python3
VENV ?= .venv
# More requirements for the environment, for example PINS='keras==3.10.0'.
PINS ?=

# What the names of the peers' environments begin with.
PEERS ?= .venv-peers

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.installed-docs
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Hides TensorFlow's notes on start-up, not its errors.
export TF_CPP_MIN_LOG_LEVEL ?= 2

.DEFAULT_GOAL := help
.PHONY: help train test test-full lint horovod equivalence benchmark
.PHONY: benchmark-exchange benchmark-codecs benchmark-convergence benchmark-links benchmark-traffic
.PHONY: benchmark-async peers bench bench-full docs test-oldest clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-21s %s\n", $$1, $$2 }' Makefile

train: $(INSTALLED) ## train a classifier of handwritten digits on 2 replicas; results in out/digits
	$(BIN)/python examples/digits.py --strategy mirrored --devices 2 --out out/digits

test: lint horovod ## the test suite: lint, format, types, tests
	$(BIN)/python -m pytest -n 3 --dist loadgroup --durations 120

test-full: lint horovod ## all tests, also those that take long and vary others
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "full or not full"

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Installs nothing when the environment has a Horovod that was built for its TensorFlow.
horovod: $(INSTALLED) ## build Horovod and install it; HOROVOD_WITH_MPI=1 builds it with MPI too
	@$(BIN)/python scripts/install_horovod.py

equivalence: horovod ## compare with one device; rewrites the table in README.md
	$(BIN)/python -m tests.equivalence.report

benchmark: $(INSTALLED) ## measure the overhead of a training step
	$(BIN)/python benchmarks/step_overhead.py --update-readme

benchmark-exchange: horovod ## measure the exchange of gradients between two processes
	$(BIN)/python benchmarks/exchange.py --update-readme

benchmark-codecs: $(INSTALLED) ## measure the time and memory of all compressors
	$(BIN)/python benchmarks/codecs.py --update

benchmark-traffic: horovod ## count the bytes of an exchange over loopback
	$(BIN)/python benchmarks/traffic.py --update

benchmark-links: horovod ## measure compressed exchanges between two hosts; needs root
	$(BIN)/python benchmarks/links.py --update

benchmark-convergence: $(INSTALLED) ## train three small models with all compressors
	$(BIN)/python benchmarks/convergence.py --update --plot

benchmark-async: $(INSTALLED) ## train with a slow worker, and with many workers
	$(BIN)/python benchmarks/async_stragglers.py --update --plot

peers: horovod ## install the systems that tfdist is compared with, each in its own environment
	@$(BIN)/python benchmarks/side_by_side/install_peers.py $(PEERS)

# BENCH_OPTIONS='--rounds 5' launches each system so often, --resume goes on after an interruption.
bench: peers ## side by side with the peers on rate-limited links; under 15 minutes, needs root
	$(BIN)/python -m benchmarks.side_by_side quick --peers $(PEERS) $(BENCH_OPTIONS) > /dev/null
	$(BIN)/python -m benchmarks.side_by_side.overlap
	$(BIN)/python -m benchmarks.side_by_side.report --update-readme \
	  benchmarks/results/side_by_side-quick.json

bench-full: peers ## the same with all models, systems and numbers of hosts; hours
	for plan in dense compressed target variables models scaling; do \
	  $(BIN)/python -m benchmarks.side_by_side $$plan --peers $(PEERS) $(BENCH_OPTIONS) || exit; \
	done

docs: $(DOCS_INSTALLED) ## build the documentation in docs/_build/html
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

test-oldest: ## the test suite with the oldest supported TensorFlow and Keras
	$(MAKE) test VENV=.venv-oldest PINS='tensorflow==2.20.* keras==3.10.0'

clean: ## remove the environments, caches and all output
	rm -rf .venv .venv-oldest .venv-peers-tf .venv-peers-torch out build *.egg-info docs/_build
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): setup.py
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null || \
	  { echo "tfdist needs Python 3.10-3.13, not $(PYTHON): choose with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv: install it (Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "Installing tfdist and what it needs into $(VENV): takes some minutes the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --editable '.[test]' $(PINS)
	@touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	@echo "Installing Sphinx into $(VENV)"
	@$(PIP_INSTALL) --editable '.[docs]' $(PINS)
	@touch $@
