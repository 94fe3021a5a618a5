# `make demo` and `make test` need Python 3.11 to 3.14 and nothing else; `make help` lists the rest.

PYTHON ?= python3
# Of Python 3, as in pyproject.toml: for a newer one not every locked package has a wheel.
OLDEST := 11
NEWEST := 14
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
# Installs a lock and this clone, and shows how far it is.
INSTALL := PYTHONPATH=services $(BIN)/python -m inference_store.local.installing
PYTEST := $(BIN)/python -m pytest
# A stamp carries the checksum of what was installed: another lock, or other messages to compile, is
# another stamp.
BUILT_FROM := pyproject.toml client/pyproject.toml setup.py $(wildcard services/inference_store/grpc_messages/*.proto)
checksum = $(firstword $(shell cat $(1) $(BUILT_FROM) | cksum))
DEMO_STAMP := .venv/.demo-$(call checksum,requirements-demo.lock)
DEV_STAMP := .venv/.dev-$(call checksum,requirements-dev.lock)
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
TOOLS ?= docker podman buildah
DIST ?= dist
SBOM ?= $(DIST)/sbom.json
# The api serves what lies here, if the package has no docs of its own. The stamp says that all of it is built.
SITE := build/docs
SITE_STAMP := $(SITE)/.complete
SITE_SOURCES := requirements-build.lock README.md CHANGELOG.md compose.yaml compose.proxy.yaml \
	$(wildcard docs/* docs/*/* docs/*/*/* examples/* helm/inference-store/README.md helm/inference-store/examples/*)
# npm itself writes it.
CONSOLE_STAMP := console/node_modules/.package-lock.json
IMAGE ?= inference-store:$(VERSION)
LOCK := $(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --no-annotate \
	--no-header --python-version 3.11 -q pyproject.toml
PINS := requirements-tools.txt
# Of an environment, its requirements, and options: the versions, without hashes.
pin = @printf '\n\# [$(1)]\n' >>$(PINS) && \
	$(filter-out --generate-hashes,$(LOCK:pyproject.toml=$(2))) --upgrade $(3) >>$(PINS)
LOCK_BUILD := $(filter-out pyproject.toml,$(LOCK)) --group build --group docs
# The demo takes only pictures and texts from scikit-image and scikit-learn: nothing that computes.
UNUSED := $(addprefix --no-emit-package ,imageio joblib lazy-loader narwhals networkx scipy threadpoolctl tifffile)

# Compiled modules are kept: each of a run's processes would compile them again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help venv demo docs reference console console-test screenshots lock servers upstreams readers lint weight format types workflows hooks test nightly nightly-here unit unit-pythons golden integration kills citus e2e properties mutations mutants faults faults-cold faults-steps \
	bench-once bench-api bench-citus bench-console bench-erasure bench-evaluation bench-export bench-ingest bench-proxy bench-query bench-scale audit image sbom wheel client-wheel chart-package version notes chart chart-e2e release-rehearsal \
	clean

help: ## Print every target and what it does.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(DEV_STAMP) ## Make .venv with everything that tests and development need.

# PORT: of the REST API, given with the command alone; a PORT that is set in a shell is another program's.
# The docs are built beside it, by what CPU it leaves.
demo: $(DEMO_STAMP) ## Start the whole product on this machine and feed it real detections; PORT=8081 for another port.
	@echo "Starting the demo ..."
	@trap : INT; nice -n 19 $(MAKE_COMMAND) --no-print-directory $(SITE_STAMP) >/dev/null 2>&1 & docs=$$!; \
	$(BIN)/inference-store demo $(if $(filter command line,$(origin PORT)),--port $(PORT)); \
	code=$$?; kill $$docs 2>/dev/null; exit $$code

docs: $(DEV_STAMP) ## Build the docs as a site in build/docs; a broken link fails it.
	@$(STEP) $@ $(MAKE) --no-print-directory $(SITE_STAMP)
	@echo "$(SITE)/index.html"

$(SITE_STAMP): $(SITE_SOURCES) | $(DEMO_STAMP)
	@echo "Building the docs ..."
	@test -e $(DEV_STAMP) || $(PIP) --no-deps --no-compile --require-hashes -r requirements-build.lock
	@rm -rf $(SITE).new
	@$(BIN)/python -m sphinx -q -W -E -d build/doctrees docs $(SITE).new
	@touch $(SITE).new/$(notdir $@)
	@rm -rf $(SITE)
	@mv $(SITE).new $(SITE)

reference: $(DEV_STAMP) ## Write the tables of the docs again that are lists of the code.
	@$(BIN)/python -m docs.describe

# The npm of .venv: it needs no Node of the machine, and is the same everywhere.
NPM := PATH="$(abspath $(BIN)):$$PATH" npm --prefix console --no-audit --no-fund
console: $(CONSOLE_STAMP) ## Build the console's committed files again, from console/.
	@$(NPM) run --silent check
	@$(NPM) run --silent build

$(CONSOLE_STAMP): console/package-lock.json | $(DEV_STAMP)
	@$(NPM) ci --silent --ignore-scripts

screenshots: $(SITE_STAMP) $(DEV_STAMP) ## Make the pictures of the console in the docs again, from a demo.
	@$(BIN)/python -m tests.console.screenshots docs/how-to

lock: $(DEV_STAMP) ## Resolve the dependencies again into the hashed lock files.
	$(LOCK) --upgrade --extra client --extra parquet -o requirements.lock
	$(LOCK) --upgrade --group build --extra client --extra parquet --extra demo $(UNUSED) -c requirements.lock -o requirements-demo.lock
	$(LOCK) --upgrade --group build --group docs --extra client --extra parquet --extra demo --extra dev -c requirements-demo.lock -o requirements-dev.lock
	$(LOCK_BUILD) --upgrade -c requirements-demo.lock -o requirements-build.lock
	@echo "# The packages of the tests' model servers, clients and readers, a section for each environment. \`make lock\` writes it." >$(PINS)
	$(call pin,mlserver,tests/upstreams/requirements.in)
	$(call pin,huggingface,tests/upstreams/huggingface.in,--override tests/upstreams/huggingface-overrides.in \
		--no-emit-package tensorflow --no-emit-package torch)
	$(call pin,kserve,tests/upstreams/kserve.in)
	$(call pin,triton,tests/upstreams/triton.in,--no-deps)
	$(call pin,readers,tests/readers/requirements.in,--override tests/readers/overrides.in --no-emit-package fiftyone-db \
		--no-emit-package opencv-python --no-emit-package torch --no-emit-package torchvision)

servers: $(DEV_STAMP) ## Fetch or build the real Kafka, MinIO and Postgres for the tests (once).
	@$(BIN)/python -m tests.servers

upstreams: $(DEV_STAMP) ## Make the model servers and clients that the proxy's tests stand before (once).
	@$(BIN)/python -m tests.upstreams

readers: $(DEV_STAMP) ## Make the programs that read what the store exports (once).
	@$(BIN)/python -m tests.readers

lint: $(DEV_STAMP) ## Check style, format and weight, and that rooms import one way.
	@$(STEP) $@ sh -c '$(BIN)/ruff check . && $(BIN)/ruff format --check . && \
		{ said=$$($(BIN)/lint-imports --no-cache) || { echo "$$said"; false; }; } && \
		{ said=$$($(BIN)/python -m tests.runs.weight) || { echo "$$said"; false; }; }'

weight: $(DEV_STAMP) ## Print what each room weighs beside its budget.
	@$(BIN)/python -m tests.runs.weight

format: $(DEV_STAMP) ## Format the code and mend what can be mended.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(DEV_STAMP) ## Check the types of all Python here.
	@$(STEP) $@ $(BIN)/mypy

# A script that only a workflow runs is checked here: nothing else here runs it.
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
workflows: $(DEV_STAMP) ## Lint the workflows of .github with actionlint, which needs Go, and zizmor.
	@$(STEP) $@ sh -c 'CGO_ENABLED=0 go run $(ACTIONLINT) && $(BIN)/zizmor --quiet --offline --persona pedantic .github'

hooks: $(DEV_STAMP) ## Have git check style, format and types before each commit.
	@$(BIN)/pre-commit install

# WORKERS of pytest share one set of servers; a test that has a server of its own stays on one worker.
# A worker that crashes ends the run: with another in its place xdist may wait for ever.
WORKERS ?= 3
WORKING = $(PYTEST) -n $(WORKERS) --max-worker-restart 0 --dist loadgroup --no-header -q
# Notes what each step took, where INFERENCE_STORE_TEST_STEPS names a file.
STEP := $(BIN)/python -m tests.runs.steps

# RING=landing adds what every landing runs beside it, RING=nightly what `make nightly` runs: see
# docs/how-to/tests.md.
RING ?= test
test: lint types docs unit integration ## Run what every change needs: style, types, docs, units, parts on real servers.

# Each worker imports and collects all units, for half a minute of CPU.
unit: WORKERS := 2
unit: $(DEV_STAMP) ## Run the tests that need no server.
	@$(STEP) $@ $(WORKING) --ring $(RING) tests/unit

golden: $(DEV_STAMP) ## Write the golden files again, after a change of what they hold.
	@INFERENCE_STORE_TEST_WRITE_GOLDEN=1 $(PYTEST) -q tests/unit/golden

# PYTHONS names interpreters, or is `all` for Debian's python3, those on PATH and pyenv's. What they need
# is kept in INFERENCE_STORE_PYTHONS_CACHE.
unit-pythons: $(DEV_STAMP) ## Run the unit tests under the newest Python here, or PYTHONS=all, or PYTHONS="python3.12 ...".
	@$(STEP) $@ env OLDEST=$(OLDEST) NEWEST=$(NEWEST) tests/pythons.sh $(PYTHONS)

PARTS := tests/integration
BEYOND := $(filter-out test,$(RING))
integration: servers $(if $(BEYOND),upstreams) $(if $(filter nightly,$(RING)),readers) ## Run the tests of the parts on real servers, without kills, faults and the long ones.
	@$(if $(BEYOND),tests/chart/cluster/build.sh tools)
	@$(if $(BEYOND),INFERENCE_STORE_REQUIRE_HELM=1) $(STEP) $@ $(WORKING) $(PARTS) --ring $(RING) \
		$(if $(BEYOND),--faults tests/e2e tests/chart --ignore=tests/chart/e2e) \
		$(if $(filter nightly,$(RING)),tests/unit/test_wheel.py)

# KILL names one failpoint; KILLS=each tries each in a world of its own.
kills: servers ## Kill the services at one failpoint after another, on real servers.
	@$(STEP) $@ $(WORKING) -m kills $$(grep -rl "mark.kills" tests/integration tests/e2e)

nightly: $(DEV_STAMP) ## Run all that landings run in part, on a clone of the last commit: an hour.
	@tests/runs/nightly.sh

# Its steps, in this tree and with RING=nightly.
nightly-here: integration console-test citus bench-once unit-pythons workflows chart-e2e

e2e: servers upstreams readers ## Run the tests of the whole line, before real model servers, and with real readers.
	@$(STEP) $@ $(WORKING) tests/e2e --ignore=tests/e2e/faults

# The tests of a file look at the same store and browser, whose loop no other test may share.
console-test: servers $(CONSOLE_STAMP) ## Look at the console in a real browser, and build its files again.
	@$(NPM) run --silent check
	@$(STEP) $@ $(WORKING) tests/console $(if $(BEYOND),--ring $(RING))

# There is no package of Citus in Debian: CITUS names a folder whose build.sh installs it beside Debian's Postgres.
CITUS ?=
citus: servers ## Run what a cluster could break on Citus: INFERENCE_STORE_TEST_CITUS_DSN, or three nodes here.
	@$(STEP) $@ $(BIN)/python -m tests.runs.citus "$(CITUS)" $(WORKING) $(if $(BEYOND),--ring $(RING))

properties: servers ## Try all examples of the property tests, up to ten times those of the other runs.
	@$(PYTEST) $$(grep -rl "from hypothesis" tests --include=test_*.py) --hypothesis-profile=long

mutations: servers ## Break each promise of a list once, and show that its test sees it.
	@$(BIN)/python -m tests.mutations

# ROOM is a folder of services/inference_store; N mutants, chosen by SEED.
mutants: $(DEV_STAMP) ## Break ROOM at N=50 random places, and show which of them the units see.
	@$(BIN)/python -m tests.mutations.mutants "$(ROOM)" --number $(or $(N),50) --seed $(or $(SEED),1)

# The files with such tests: each worker would import all others for nothing.
FAULTS := own_(postgres|kafka|minio)|mark\.faults|import faults
faults: servers upstreams ## Kill and stop everything under load, and check that nothing was lost.
	@$(STEP) $@ $(WORKING) --faults -m faults --ignore=$(FAULTS_STEPS) tests/e2e/faults \
		$$(grep -rlE "$(FAULTS)" tests/e2e tests/integration --include="test_*.py" --exclude-dir=faults)

faults-cold: servers ## Repeat the kills at every failpoint with processes that start cold.
	@INFERENCE_STORE_TEST_COLD=1 KILLS=each $(STEP) $@ $(WORKING) --faults -m kills tests/integration tests/e2e/faults

FAULTS_STEPS := tests/e2e/faults/deletion/test_steps.py
faults-steps: servers ## Let a server die, and place a hold, at each step of a deletion.
	@$(STEP) $@ $(WORKING) --faults $(FAULTS_STEPS)

# INFERENCES with a label each, and BOXES, true and predicted together.
bench-evaluation: servers ## Measure loading INFERENCES labels beside an ingester, and their evaluation.
	@$(BIN)/python -m benchmarks.evaluation --inferences $(or $(INFERENCES),1000000) \
		--boxes $(or $(BOXES),100000)

bench-once: servers ## Load and ask every line of the query benchmark once, whatever time it takes.
	@$(STEP) $@ $(MAKE) --no-print-directory bench-query SIZE=100k RUNS=1

bench-export: servers ## Measure what a stream of all inferences costs in each format, over SIZE=100k.
	@$(BIN)/python -m benchmarks.export --size $(or $(SIZE),100k)

bench-ingest: servers ## Measure events per second and CPU per event against plain COPY.
	@$(BIN)/python -m benchmarks.ingest

# SIZE is 10k, 100k, 1m or 10m; what is loaded is kept in INFERENCE_STORE_BENCH_CACHE. RUNS: of
# each line, 50 at most; with few of them it only says whether all lines can be asked.
bench-query: servers ## Measure pages, counts and look-ups over SIZE=1m inferences, or 10m.
	@$(BIN)/python -m benchmarks.query --size $(or $(SIZE),1m) --runs $(or $(RUNS),50)

# MINUTES: of overload; ROUNDS and SECONDS: of each measurement. Needs nginx.
bench-proxy: servers ## Measure the proxy beside no proxy and beside nginx, MINUTES=10 of overload.
	@$(BIN)/python -m benchmarks.proxy --rounds $(or $(ROUNDS),3) --seconds $(or $(SECONDS),6) \
		--minutes $(or $(MINUTES),10)

# ROWS are erased without objects, INFERENCES with three objects each, PACKED in segments and loose;
# what is loaded is kept in INFERENCE_STORE_BENCH_CACHE.
bench-erasure: servers ## Measure erasures against plain DELETE, S3's bulk deletes, and packed beside loose ones.
	@$(BIN)/python -m benchmarks.erasure --rows $(or $(ROWS),1000000) \
		--inferences $(or $(INFERENCES),100000) --packed $(or $(PACKED),20000) \
		--rounds $(or $(ROUNDS),3)

# Citus has to be installed beside Postgres here; what is loaded is kept in INFERENCE_STORE_BENCH_CACHE.
bench-citus: servers ## Measure the same questions on one node and on a Citus of three, over SIZE=1m inferences.
	@$(BIN)/python -m benchmarks.citus --size $(or $(SIZE),1m) --runs $(or $(RUNS),30)

bench-scale: servers ## Measure 1, 2 and 4 ingesters side by side, and say what is the limit.
	@$(BIN)/python -m benchmarks.scale

bench-api: servers ## Measure a request's way through the api beside a bare route, and beside hostile bodies.
	@$(BIN)/python -m benchmarks.api

# What is loaded is kept in INFERENCE_STORE_BENCH_CACHE.
bench-console: servers ## Measure the console's budgets in a real browser over SIZE=100k inferences, or 10m.
	@$(BIN)/python -m benchmarks.console --size $(or $(SIZE),100k)

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

# Its files carry the time of the commit: built again, it is the same, byte for byte.
wheel: $(DEV_STAMP) ## Build the wheel into dist, with the migrations, the compiled gRPC messages and the docs.
	@rm -rf build/lib build/bdist.*
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || date +%s) $(PIP:install=wheel) \
		--no-deps --no-build-isolation --wheel-dir $(DIST) .
	@echo $(DIST)/inference_store-$(VERSION)-py3-none-any.whl

client-wheel: $(DEV_STAMP) ## Build the wheel of the Python client into dist.
	@rm -rf client/build
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || date +%s) $(PIP:install=wheel) \
		--no-deps --no-build-isolation --wheel-dir $(DIST) ./client
	@echo $(DIST)/inference_store_client-$(VERSION)-py3-none-any.whl

# HELM: the one that `make chart` builds, else the one on PATH.
HELM ?= $(firstword $(wildcard $(HOME)/.cache/inference-store/cluster/helm) helm)
chart-package: ## Package the chart into dist, with this version.
	@mkdir -p $(DIST)
	@$(HELM) package helm/inference-store --version $(VERSION) --app-version $(VERSION) --destination $(DIST)

version: ## Print the version, which stands in pyproject.toml.
	@echo $(VERSION)

notes: ## Print the notes of this version's release, from the CHANGELOG.
	@awk -v version='$(VERSION)' '/^## / { ours = $$2 == version; next } ours { print; n++ } \
		END { if (!n) { print "CHANGELOG.md has no section " version > "/dev/stderr"; exit 1 } }' CHANGELOG.md

chart: $(DEV_STAMP) ## Lint the chart and test what it renders (builds helm with Go, once).
	@tests/chart/cluster/build.sh tools
	@INFERENCE_STORE_REQUIRE_HELM=1 $(STEP) $@ $(WORKING) tests/chart --ignore=tests/chart/e2e

# With KUBECONFIG: there, with the image INFERENCE_STORE_TEST_IMAGE, and before a proxy the MLServer of
# INFERENCE_STORE_TEST_MLSERVER_IMAGE (tests/chart/cluster/mlserver-image.sh). Else on one node of its own,
# which needs root and what tests/chart/cluster/packages.sh installs.
chart-e2e: $(if $(KUBECONFIG),$(DEV_STAMP),servers) ## Install the chart on a real cluster; upgrade, kill, remove it.
	@$(if $(KUBECONFIG),,tests/chart/cluster/build.sh)
	@INFERENCE_STORE_TEST_CLUSTER=$(if $(KUBECONFIG),kubeconfig,own) $(STEP) $@ $(PYTEST) -q tests/chart/e2e \
		$(if $(BEYOND),--ring $(RING))

# Root, buildah and Go: see tests/chart/cluster/packages.sh.
release-rehearsal: $(DEV_STAMP) ## Build, push, sign, verify and install a release, with a registry on this machine.
	@tests/chart/cluster/release.sh

clean: ## Remove .venv and caches; the demo's data in .inference-store stays.
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build services/*.egg-info client/src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, $(OLDEST)) <= sys.version_info[:2] <= (3, $(NEWEST)))' || \
		{ echo "$(PYTHON) is not Python 3.$(OLDEST) to 3.$(NEWEST): say make PYTHON=python3.$(OLDEST), or another of these."; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv module: install it (Debian, Ubuntu: apt install python3-venv)."; \
		exit 1; }
	@echo "Making .venv ..."
	@$(PYTHON) -m venv .venv & while kill -0 $$! 2>/dev/null; do sleep 1; printf .; done; echo; wait $$!

# All that the demo needs is in the development lock too.
$(DEMO_STAMP): | $(BIN)/pip
	@test -e $(DEV_STAMP) || { echo "Installing what the demo needs into .venv ..." && \
		$(INSTALL) requirements-demo.lock; }
	@touch $@

$(DEV_STAMP): | $(BIN)/pip
	@echo "Installing what the tests need into .venv ..."
	@$(INSTALL) requirements-dev.lock
	@touch $@
