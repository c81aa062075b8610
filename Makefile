# Needs Python 3.10-3.13, git, a C++ compiler and make. Everything else goes into VENV.

PYTHON ?= python3
VENV ?= .venv
# More requirements for the environment, for example PINS='keras==3.10.0'. Left alone, the releases
# are those that tfdist was tested with (tfdist/_versions.py).
PINS ?= 'tensorflow<2.22' 'keras<3.16'

# The oldest Python that is supported: on the path, or of pyenv, whose shims may lead nowhere.
PYTHON310 ?= $(shell for p in python3.10 $(HOME)/.pyenv/versions/3.10.*/bin/python3.10; do \
  $$p -c 'import ensurepip, venv' 2>/dev/null && { command -v $$p; break; }; done)
FAST := tests/compat tests/test_arguments.py tests/test_validation.py tests/test_optimizer.py \
  tests/test_versions.py tests/test_saving.py tests/cluster tests/staleness tests/replay/test_log.py \
  tests/replay/test_damage.py tests/replay/test_exit.py tests/replay/test_sums.py \
  tests/compression/test_options.py tests/compression/test_bits.py tests/cli/test_doctor.py \
  tests/cli/test_run_output.py tests/parameter_server/test_failing.py \
  tests/parameter_server/test_notes.py

PYTEST = $(BIN)/python -m pytest --dist loadgroup
ALL := -m "full or not full"
IN_SHARD = $(if $(SHARD),--shard $(SHARD))
REST_CACHE := .pytest_cache/rest
# With a process of pytest-xdist, since only such a process calls a test of a group by the name that
# it failed under. Under another name pytest would not find the test, and run all others instead.
AGAIN := -n 1 -v --last-failed --last-failed-no-failures none --maxfail 5

# Of each room something that is quick and sees much, and one training with each engine.
SAMPLE := tests/compression/test_selection.py tests/equivalence/test_equivalence.py \
  tests/parameter_server/test_pipelines.py tests/processes/test_describe.py tests/replay/test_sums.py \
  tests/staleness tests/step/test_exchange.py tests/step/test_wire.py tests/strategies/test_base.py \
  tests/test_arguments.py tests/compat tests/test_optimizer.py \
  -k "not test_training_equals_one_device or IndexedSlices"

# What the names of the peers' environments begin with.
PEERS ?= .venv-peers

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.installed-docs
PIP_NEXT := .venv-next/bin/python -m pip --disable-pip-version-check
NEXT_KERAS ?= keras
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# $(call BESIDE,FOLDER,PACKAGES): the environment FOLDER, which has PACKAGES and sees those of VENV.
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
define BESIDE
@$(PYTHON) -m venv $(1)
@$(BIN)/python $(PURELIB) > $$($(1)/bin/python $(PURELIB))/base.pth
@$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2)
endef

# Hides TensorFlow's notes on start-up, not its errors.
export TF_CPP_MIN_LOG_LEVEL ?= 2

.DEFAULT_GOAL := help
.PHONY: help train check test test-full test-rest chaos lint horovod equivalence benchmark
.PHONY: benchmark-exchange benchmark-codecs benchmark-convergence benchmark-links benchmark-traffic
.PHONY: benchmark-async benchmark-snapshots benchmark-safety-nets benchmark-balance peers
.PHONY: benchmark-compiled benchmark-algorithms benchmark-local-steps benchmark-hierarchy
.PHONY: benchmark-reduction-servers benchmark-small-sums benchmark-sharding benchmark-memory decisions bench-plan scaling-chart
.PHONY: benchmark-largest-model benchmark-model-parallel benchmark-collectives benchmark-payloads
.PHONY: benchmark-elastic fault-table soak selfcheck wheel integrations browser
.PHONY: benchmark-backup-workers bench bench-full docs docs-versions
.PHONY: benchmark-parameter-server benchmark-parameter-server-scaling benchmark-embeddings
.PHONY: benchmark-pulled-weights benchmark-revisions test-oldest clean
.PHONY: test-next test-python310 test-on-python310

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-34s %s\n", $$1, $$2 }' Makefile

train: $(INSTALLED) ## train a classifier of handwritten digits on 2 replicas; results in out/digits
	$(BIN)/python examples/digits.py --strategy mirrored --devices 2 --out out/digits

check: lint ## what to run after every change: lint, pure tests, a sample of the others; 2 to 5 minutes
	$(PYTEST) -q --tier pure -n 2
	@$(BIN)/python -c 'import horovod' 2>/dev/null || \
	  echo "Horovod is not installed here (make horovod), so its job is left out"
	$(PYTEST) -q -n 2 -rs $(SAMPLE)

test: lint horovod ## the test suite: lint, format, types, tests; 20 to 40 minutes
	$(PYTEST) --tier pure -n 2
	$(PYTEST) --tier graph,job,page,bench -n 3 --durations 60

test-full: lint horovod ## all tests, also those that take long and vary others; hours, or SHARD=2/16
	$(PYTEST) -n 3 $(ALL) $(IN_SHARD)

# A test that fails here runs once more without others beside it: what it needs is often only time.
test-rest: lint horovod ## the tests of test-full that `make test` leaves out; hours, or SHARD=2/16
	@rm -rf $(REST_CACHE)
	@$(PYTEST) -n 3 -m full $(IN_SHARD) -o cache_dir=$(REST_CACHE) --durations 30 || { \
	  test $$? -eq 1 && echo "These failed, and run once more, one after the other:" && \
	  $(PYTEST) $(ALL) -o cache_dir=$(REST_CACHE) $(AGAIN) && \
	  echo "Those above passed when they ran alone"; }

chaos: horovod ## random faults in elastic jobs, for SECONDS=600; prints the seed of a failure
	$(BIN)/python -m tests.elastic.chaos --seconds $(or $(SECONDS),600)

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Installs nothing when the environment has a Horovod that was built for its TensorFlow.
horovod: $(INSTALLED) ## build Horovod and install it; HOROVOD_WITH_MPI=1 builds it with MPI too
	@$(BIN)/python scripts/install_horovod.py

# Interrupted, it goes on where it was; FRESH=1 measures everything anew.
equivalence: horovod ## compare with one device; rewrites the table in docs/equivalence.md
	$(BIN)/python -m tests.equivalence.report $(if $(FRESH),--fresh)

benchmark: $(INSTALLED) ## measure the overhead of a training step
	$(BIN)/python -m benchmarks.step_overhead --update

benchmark-exchange: horovod ## measure the exchange of gradients between two processes
	$(BIN)/python -m benchmarks.exchange --update

# BENCH_OPTIONS='--new HEAD --launches 2': see benchmarks/revisions.py.
benchmark-revisions: horovod ## step time and exchange of this revision by those of OLD=...
	$(BIN)/python -m benchmarks.revisions --old $(OLD) $(BENCH_OPTIONS)

benchmark-codecs: $(INSTALLED) ## measure the time and memory of all compressors
	$(BIN)/python -m benchmarks.codecs --update

benchmark-payloads: $(INSTALLED) ## measure what decoding further payloads takes
	$(BIN)/python -m benchmarks.payloads --update

benchmark-traffic: horovod ## count the bytes of an exchange over loopback
	$(BIN)/python -m benchmarks.traffic --update

benchmark-links: horovod ## measure compressed exchanges between two hosts; needs root
	$(BIN)/python -m benchmarks.links --update

benchmark-hierarchy: horovod ## exchanges between hosts with several replicas each; needs root
	$(BIN)/python -m benchmarks.hierarchy --update

benchmark-sharding: SHARDED := --strategies multi_worker horovod
benchmark-sharding: peers ## memory, bytes and time of sharded training; needs root
	$(BIN)/python -m benchmarks.sharding $(SHARDED) pytorch --peers $(PEERS) --update --plot
	$(BIN)/python -m benchmarks.sharding $(SHARDED) pytorch --ranks 2 --accumulation-steps 1 \
	  --peers $(PEERS) --rate 1gbit --update
	$(BIN)/python -m benchmarks.sharding $(SHARDED) pytorch --model words --ranks 2 \
	  --accumulation-steps 1 --peers $(PEERS) --update
	$(BIN)/python -m benchmarks.sharding $(SHARDED) --lean --accumulation-steps 1 --update

# Interrupted, it goes on with the searches that are missing; FRESH=1 does all of them anew.
benchmark-largest-model: horovod ## largest models within a limit of memory; hours; needs root
	$(BIN)/python -m benchmarks.largest_model --update $(if $(FRESH),--fresh) $(BENCH_OPTIONS)

benchmark-memory: $(INSTALLED) ## estimated and measured memory of a training step
	$(BIN)/python -m benchmarks.memory --update

benchmark-model-parallel: $(INSTALLED) ## steps of a pipeline, and of layers in parts
	$(BIN)/python -m benchmarks.model_parallel --update

benchmark-small-sums: $(INSTALLED) ## sums of small tensors, beside TensorFlow's ring; needs root
	$(BIN)/python -m benchmarks.small_sums --update

benchmark-collectives: horovod ## sums, gathers and sums of parts between hosts; needs root
	$(BIN)/python -m benchmarks.collectives --update

benchmark-reduction-servers: horovod ## sums by reducers, beside rings on slow links; needs root
	$(BIN)/python -m benchmarks.reduction_servers --update

benchmark-convergence: $(INSTALLED) ## train three small models with all compressors
	$(BIN)/python -m benchmarks.convergence --update --plot

benchmark-async: $(INSTALLED) ## train with a slow worker, and with many workers
	$(BIN)/python -m benchmarks.async_stragglers --update --plot

benchmark-parameter-server: $(INSTALLED) ## updates per second, beside TensorFlow's own loop
	$(BIN)/python -m benchmarks.parameter_server --update

benchmark-parameter-server-scaling: $(INSTALLED) ## the same with more workers and servers; needs root
	$(BIN)/python -m benchmarks.parameter_server_scaling

benchmark-pulled-weights: $(INSTALLED) ## bytes of an update on a parameter server; needs root
	$(BIN)/python -m benchmarks.pulled_weights --update

benchmark-embeddings: $(INSTALLED) ## memory of a large embedding on parameter servers; needs root
	$(BIN)/python -m benchmarks.large_embeddings --update

benchmark-snapshots: $(INSTALLED) ## what a snapshot of parameter servers costs
	$(BIN)/python -m benchmarks.snapshots --update

benchmark-safety-nets: horovod ## measure what keeps several processes equal; 10 GB of memory
	$(BIN)/python -m benchmarks.safety_nets --update
	$(BIN)/python -m tfdist run -n 2 --strategy multi_worker -m benchmarks.agreement

benchmark-backup-workers: $(INSTALLED) ## a synchronous step on a parameter server, one slow worker
	$(BIN)/python -m benchmarks.backup_workers --update

# Interrupted, it goes on with the rows that are missing; FRESH=1 runs all of them anew.
fault-table: horovod ## what faults do to jobs, in docs/elastic.md and faults.md; hours; needs root
	$(BIN)/python -m tests.faults.table --update $(if $(FRESH),--fresh)

benchmark-elastic: horovod ## the cost of an elastic job, and of a lost rank; needs root
	$(BIN)/python -m benchmarks.elastic --update

soak: horovod ## what a long elastic job uses after many deaths and joins; half an hour; needs root
	$(BIN)/python -m benchmarks.soak --update

# Interrupted, it goes on with the jobs that are missing; FRESH=1 measures all of them anew.
benchmark-local-steps: peers ## local steps on slow links: time, bytes, loss; 90 minutes; needs root
	$(BIN)/python -m benchmarks.local_steps --update --plot --peers $(PEERS) \
	  $(if $(FRESH),--fresh) $(BENCH_OPTIONS)

benchmark-balance: horovod ## step time with a slow rank: even and balanced parts
	$(BIN)/python -m benchmarks.balance --update

# Interrupted, it goes on with the jobs that are missing; FRESH=1 measures all of them anew.
benchmark-algorithms: horovod ## all-reduces by several algorithms on several links; an hour; needs root
	$(BIN)/python -m benchmarks.algorithms --update --plot $(if $(FRESH),--fresh) \
	  --rows benchmarks/results/algorithms.md $(BENCH_OPTIONS)

benchmark-compiled: horovod ## step time with jit_compile=True, on one device and on replicas
	$(BIN)/python -m benchmarks.compiled --update
	$(BIN)/python -m benchmarks.compiled --rate 1gbit --update

peers: horovod ## install the systems that tfdist is compared with, each in its own environment
	@$(BIN)/python benchmarks/side_by_side/install_peers.py $(PEERS)

# BENCH_OPTIONS='--rounds 5' launches each system so often, --resume goes on after an interruption.
bench: peers ## side by side with the peers on rate-limited links; under 15 minutes, needs root
	$(BIN)/python -m benchmarks.side_by_side quick --peers $(PEERS) $(BENCH_OPTIONS) > /dev/null
	$(BIN)/python -m benchmarks.side_by_side.overlap
	$(BIN)/python -m benchmarks.side_by_side.report benchmarks/results/side_by_side-quick.json

bench-full: peers ## the same with all models, systems and numbers of hosts; hours
	for plan in dense compressed target variables models peers scaling; do \
	  $(BIN)/python -m benchmarks.side_by_side $$plan --peers $(PEERS) $(BENCH_OPTIONS) || exit; \
	done

bench-plan: $(INSTALLED) ## predict what "side_by_side predicted" has measured, and compare
	$(BIN)/python -m benchmarks.plan_accuracy --update

scaling-chart: $(INSTALLED) ## predict how far training scales: table and chart of docs/scaling.md
	$(BIN)/python -m benchmarks.scaling_chart --update --plot

decisions: $(INSTALLED) ## write the table of strategies and situations into docs/planning.md
	$(BIN)/python -m benchmarks.decisions --update

selfcheck: $(INSTALLED) ## train eight small models on two devices and on one, and compare
	$(BIN)/python -m tfdist.testing.selfcheck

# The environment of the tests, and packages beside it that tfdist does not need.
integrations: horovod ## KerasHub, KerasTuner, MLflow, W&B, Ray, Slurm, manifests of Kubernetes; 15 minutes
	$(call BESIDE,.venv-integrations,keras-hub keras-tuner mlflow wandb 'ray[train]' kubernetes-validate)
	.venv-integrations/bin/python -m pytest -v -rs tests/examples/test_manifest_schemas.py
	$(PYTEST) -v -rs tests/integrations $(ALL)

# An environment of its own, as above. GitHub's machines have a Chrome.
browser: $(INSTALLED) ## read a run's report in Chromium, which apt installs where it is missing
	@command -v chromium || command -v google-chrome || command -v chrome || \
	  { apt-get update && apt-get install --yes chromium; } || \
	  { echo "There is no Chromium: install it (Debian: apt install chromium)" >&2; exit 1; }
	$(call BESIDE,.venv-browser,playwright)
	.venv-browser/bin/python -m pytest -v -rs tests/watch/test_browser.py

# The wheel is made from the source archive, so that nothing of an older build gets into it.
wheel: $(INSTALLED) ## build the source archive and the wheel, and check what they install; in dist
	$(PIP_INSTALL) build check-jsonschema
	$(BIN)/python -m build --outdir dist
	TFDIST_TEST_DIST=dist $(PYTEST) -q -rs tests/test_release.py tests/test_workflow.py $(ALL)

docs: $(DOCS_INSTALLED) ## build the documentation of this version, with search, in docs/_build/html
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

docs-versions: $(DOCS_INSTALLED) ## a site of each release and of main, in docs/_build/versions
	$(BIN)/python docs/versions.py

test-oldest: ## the test suite with the oldest supported TensorFlow and Keras
	$(MAKE) test VENV=.venv-oldest PINS='tensorflow==2.20.* keras==3.10.0'

# In an environment of its own, which is brought up to date each time. tf_keras, which tests hand to
# tfdist to be refused, asks for the TensorFlow of its own number: pip says so, and goes on. Keras is
# installed anew and alone, as a TensorFlow before its release brings a nightly Keras, which pip puts
# into the folder of the other one. NEXT_KERAS=keras-nightly tries that one.
test-next: ## a fast part of the tests on the newest TensorFlow and Keras, pre-releases too
	@$(MAKE) --no-print-directory .venv-next/.installed VENV=.venv-next PINS=
	$(PIP_NEXT) install --quiet --pre --upgrade tensorflow
	$(PIP_NEXT) uninstall --quiet --yes keras keras-nightly
	$(PIP_NEXT) install --quiet --pre --no-deps $(NEXT_KERAS)
	.venv-next/bin/python -m tfdist doctor --private > .venv-next/private.txt || \
	  { grep '^!\|attributes,' .venv-next/private.txt; exit 1; }
	.venv-next/bin/python -m pytest -q -n 2 --dist loadgroup $(FAST)

# The parts of the suite that meet the library of the oldest Python: arguments, options, files,
# errors, the command line, compressors, a fit on two devices and one with parameter servers. Horovod
# is not built for it. Where there is no such Python, mypy has checked the package as for 3.10.
test-python310: $(INSTALLED) ## the static check for Python 3.10, and a fast part of the tests on it
	@$(BIN)/mypy --python-version 3.10
	@if test -n "$(PYTHON310)"; then $(MAKE) --no-print-directory test-on-python310; \
	  else echo "There is no Python 3.10 here (PYTHON310=...): checked with mypy only"; fi

test-on-python310:
	@$(MAKE) --no-print-directory .venv-3.10/.installed PYTHON=$(PYTHON310) VENV=.venv-3.10
	.venv-3.10/bin/python -m pytest -q -n 2 --dist loadgroup $(FAST)

clean: ## remove the environments, caches and all output
	rm -rf .venv .venv-oldest .venv-next .venv-3.10 .venv-peers-tf .venv-peers-torch .venv-integrations .venv-browser out build dist *.egg-info docs/_build
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
