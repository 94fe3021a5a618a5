# `make demo` and `make test` need Python 3.11 or newer and nothing else; `make help` lists the rest.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
PYTEST := $(BIN)/python -m pytest
# A stamp carries the checksum of what was installed: another lock, or other messages to compile, is
# another stamp.
BUILT_FROM := pyproject.toml setup.py $(wildcard services/inference_store/grpc_messages/*.proto)
checksum = $(firstword $(shell cat $(1) $(BUILT_FROM) | cksum))
DEMO_STAMP := .venv/.demo-$(call checksum,requirements-demo.lock)
DEV_STAMP := .venv/.dev-$(call checksum,requirements-dev.lock)
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
TOOLS ?= docker podman buildah
SBOM ?= dist/sbom.json
IMAGE ?= inference-store:$(VERSION)
LOCK := $(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --no-annotate \
	--no-header --python-version 3.11 -q pyproject.toml

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help venv demo lock servers upstreams lint format types test unit integration e2e properties faults faults-steps \
	bench-erasure bench-ingest bench-peers bench-proxy bench-query bench-rebuild bench-scale audit image sbom chart chart-e2e \
	clean

help: ## Print every target and what it does.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(DEV_STAMP) ## Make .venv with everything that tests and development need.

demo: $(DEMO_STAMP) ## Start the whole product on this machine and feed it real detections.
	@$(BIN)/inference-store demo

lock: $(DEV_STAMP) ## Resolve the dependencies anew into the three hashed lock files.
	$(LOCK) --upgrade -o requirements.lock
	$(LOCK) --upgrade --extra demo -c requirements.lock -o requirements-demo.lock
	$(LOCK) --upgrade --extra demo --extra dev -c requirements-demo.lock -o requirements-dev.lock
	$(LOCK:pyproject.toml=benchmarks/peers/requirements.in) --upgrade -o benchmarks/peers/requirements.lock
	$(LOCK:pyproject.toml=tests/upstreams/requirements.in) --upgrade -o tests/upstreams/requirements.lock
	$(LOCK:pyproject.toml=tests/upstreams/huggingface.in) --upgrade -o tests/upstreams/huggingface.lock \
		--override tests/upstreams/huggingface-overrides.in --no-emit-package tensorflow --no-emit-package torch
	$(LOCK:pyproject.toml=tests/upstreams/kserve.in) --upgrade -o tests/upstreams/kserve.lock
	$(LOCK:pyproject.toml=tests/upstreams/triton.in) --no-deps --upgrade -o tests/upstreams/triton.lock

servers: $(DEV_STAMP) ## Fetch or build the real Kafka, MinIO and Postgres for the tests (once).
	@$(BIN)/python -m tests.servers

upstreams: $(DEV_STAMP) ## Make the model servers and clients that the proxy's tests stand before (once).
	@$(BIN)/python -m tests.upstreams

lint: $(DEV_STAMP) ## Check style and format.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(DEV_STAMP) ## Format the code and mend what can be mended.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(DEV_STAMP) ## Check the types.
	@$(BIN)/mypy -p inference_store
	@$(BIN)/mypy -p tests.servers
	@$(BIN)/mypy -p tests.upstreams
	@$(BIN)/mypy -p security
	@$(BIN)/mypy -p tests.chart
	@$(BIN)/mypy helm/describe.py

# Runs of tests, two side by side, each with servers of its own and shown when it ends.
SIDE_BY_SIDE ?= 2
define side_by_side
	@printf '%s\n' $(1) | xargs -P $(SIDE_BY_SIDE) -I{} sh -c 'said=$$(mktemp); \
		$(PYTEST) $$0 >"$$said" 2>&1; ended=$$?; \
		echo "pytest $$0"; cat "$$said"; rm -f "$$said"; exit $$ended' {}
endef

# The longest first. The proxy's are not beside e2e: both start the same model servers.
UNIT := tests --ignore=tests/integration --ignore=tests/e2e --ignore=tests/chart/e2e
ALONE := $(addprefix tests/integration/,api store ingester retention proxy)
TESTS := 'tests/e2e' $(ALONE:%='%') '$(UNIT)' 'tests/integration $(ALONE:%=--ignore=%)'
test: lint types servers upstreams ## Run every check and test but faults, faults-steps, properties and chart-e2e.
	$(call side_by_side,$(TESTS))

unit: $(DEV_STAMP) ## Run the tests that need no server; the chart's too, where helm is here.
	@$(PYTEST) $(UNIT)

integration: servers upstreams ## Run the tests of the parts on real servers.
	@$(PYTEST) tests/integration

e2e: servers upstreams ## Run the tests of the whole line on real servers.
	@$(PYTEST) tests/e2e

properties: servers upstreams ## Try all examples of the property tests, up to ten times those of `make test`.
	@$(PYTEST) $$(grep -rl "from hypothesis" tests --include=test_*.py) --hypothesis-profile=long

faults: servers upstreams ## Kill and stop everything under load, and check that nothing was lost.
	$(call side_by_side,'--faults tests/e2e/faults --ignore-glob=*/test_ingester_* --ignore-glob=*/test_steps.py' \
		'--faults $(wildcard tests/e2e/faults/test_ingester_*)')

faults-steps: servers upstreams ## Try each of five faults at each step of a deletion.
	@$(PYTEST) --faults tests/e2e/faults/deletion/test_steps.py

bench-ingest: servers ## Measure events per second and CPU per event against plain COPY.
	@$(BIN)/python -m benchmarks.ingest

# SIZE is 10k, 100k, 1m or 10m; what is loaded is kept in INFERENCE_STORE_BENCH_CACHE. RUNS: of
# each line, 50 at most; with few of them it only says whether all lines can be asked.
bench-query: servers ## Measure pages, counts and look-ups over SIZE=1m inferences, or 10m.
	@$(BIN)/python -m benchmarks.query --size $(or $(SIZE),1m) --runs $(or $(RUNS),50)
	@$(BIN)/python -m benchmarks.query.report --size $(or $(SIZE),1m)

# What is loaded, and MLflow, are kept in INFERENCE_STORE_BENCH_CACHE.
bench-peers: servers ## Measure the same questions beside JSONB with GIN, and beside MLflow.
	@$(BIN)/python -m benchmarks.peers
	@$(BIN)/python -m benchmarks.peers.report

# MINUTES: of overload; ROUNDS and SECONDS: of each measurement. Needs nginx.
bench-proxy: servers ## Measure the proxy beside no proxy and beside nginx, MINUTES=10 of overload.
	@$(BIN)/python -m benchmarks.proxy --rounds $(or $(ROUNDS),3) --seconds $(or $(SECONDS),6) \
		--minutes $(or $(MINUTES),10)
	@$(BIN)/python -m benchmarks.proxy.report

# ROWS are erased without objects, INFERENCES with three objects each; what is loaded is kept in
# INFERENCE_STORE_BENCH_CACHE.
bench-erasure: servers ## Measure erasures against plain DELETE and S3's own bulk deletes.
	@$(BIN)/python -m benchmarks.erasure --rows $(or $(ROWS),1000000) \
		--inferences $(or $(INFERENCES),100000) --rounds $(or $(ROUNDS),3)
	@$(BIN)/python -m benchmarks.erasure.report

bench-rebuild: servers ## Measure indexing again from the bucket alone beside ingesting.
	@$(BIN)/python -m benchmarks.rebuild

bench-scale: servers ## Measure 1, 2 and 4 ingesters side by side, and say what is the limit.
	@$(BIN)/python -m benchmarks.scale

audit: $(DEV_STAMP) ## Hold every locked dependency against the known vulnerabilities.
	@$(BIN)/python -m security.audit

# IMAGE names it, BASE its base; TOOLS is what is looked for; IMAGE_OPTIONS go to what is found.
image: ## Build the image with docker, podman or buildah, whichever works here.
	@for tool in $(TOOLS); do \
		if $$tool info >/dev/null 2>&1; then \
			exec $$tool build $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg VERSION=$(VERSION) \
				--build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) \
				$(IMAGE_OPTIONS) --tag $(IMAGE) .; \
		fi; \
	done; echo "None of $(TOOLS) works here: install one."; exit 1

sbom: $(DEV_STAMP) ## Write the image's parts to dist/sbom.json (CycloneDX).
	@mkdir -p $(dir $(SBOM))
	@$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application \
		--output-reproducible --of JSON -o $(SBOM) requirements.lock
	@echo "$(SBOM): $$(grep -c '"purl"' $(SBOM)) parts"

chart: $(DEV_STAMP) ## Lint the chart and test what it renders (builds helm with Go, once).
	@tests/chart/cluster/build.sh tools
	@INFERENCE_STORE_REQUIRE_HELM=1 $(PYTEST) tests/chart --ignore=tests/chart/e2e

# With KUBECONFIG: there, with the image INFERENCE_STORE_TEST_IMAGE, and before a proxy the MLServer of
# INFERENCE_STORE_TEST_MLSERVER_IMAGE (tests/chart/cluster/mlserver-image.sh). Else on one node of its own,
# which needs root and what tests/chart/cluster/packages.sh installs.
chart-e2e: $(if $(KUBECONFIG),$(DEV_STAMP),servers) ## Install the chart on a real cluster; upgrade, kill, remove it.
	@$(if $(KUBECONFIG),,tests/chart/cluster/build.sh)
	@INFERENCE_STORE_TEST_CLUSTER=$(if $(KUBECONFIG),kubeconfig,own) $(PYTEST) tests/chart/e2e

clean: ## Remove .venv and caches; the demo's data in .inference-store stays.
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build services/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11: say make PYTHON=python3.11, or newer."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv module: install it (Debian, Ubuntu: apt install python3-venv)."; \
		exit 1; }
	@$(PYTHON) -m venv .venv

# All that the demo needs is in the development lock too.
$(DEMO_STAMP): | $(BIN)/pip
	@test -e $(DEV_STAMP) || { echo "Installing what the demo needs into .venv ..." && \
		$(PIP) --require-hashes -r requirements-demo.lock && $(PIP) --no-deps --no-build-isolation -e .; }
	@touch $@

$(DEV_STAMP): | $(BIN)/pip
	@echo "Installing what the tests need into .venv ..."
	@$(PIP) --require-hashes -r requirements-dev.lock && $(PIP) --no-deps --no-build-isolation -e .
	@touch $@
