# Two commands matter on a fresh machine: `make demo` and `make test`. Everything they need is installed first.
SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PYTHON ?= python3
PYTEST_ARGS ?=
# With bytecode files neither each process that a test starts compiles Penstock, nor each process of pytest all tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup java demo check test test-slow test-all test-interop test-oldest environments test-spark-lines test-spark-35 test-spark-oldest test-lakehouse test-pythons bench bench-quick bench-others model coverage screenshots soak format docs site test-site clean

help: # the ten targets that people use; the matrices are in noxfile.py: nox -l
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) java ## create .venv, install everything, find or install a Java runtime for Spark

# The distributions of this repository, and what is installed of each: all editable, in one environment, by one call of
# pip, the library first: an older pip looks on PyPI for what it has not read yet.
EDITABLE := --editable '.[dev]' --editable ./local --editable ./simulator --editable ./examples/demonstration

$(STAMP): pyproject.toml local/pyproject.toml simulator/pyproject.toml examples/demonstration/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Penstock needs Python 3.11 or later; '$(PYTHON)' is older. Name a newer one: make PYTHON=python3.12"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { echo "Cannot create a virtual environment: install your system's python3-venv package."; exit 1; }
	@echo "installing into $(VENV) ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(PY) -m pip install --quiet --disable-pip-version-check $(EDITABLE)
	@touch $@

java:
	@bash tools/ensure_java.sh

demo: setup ## the main job: 336,776 flights through Kinesis and Spark, with a reshard and a kill
	@$(PY) -m penstock demo

check: $(STAMP) ## what CI runs before the tests: lint, types, import rules, docs in step
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports
	@$(PY) tools/check_docs.py
	@$(PY) tools/public_types.py

# At most four processes: each that runs Spark tests has a JVM, too. A file stays in one process.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
FILES := --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PARALLEL ?= -n $(CORES) $(FILES)
# Many of the quick tests wait: one process more than there are cores.
PARALLEL_QUICK ?= -n $(shell echo $$(($(CORES) + 1))) $(FILES)
# The slow ones without Spark wait more. With Spark each process has a JVM and its Python workers.
PARALLEL_SLOW ?= -n $(shell echo $$(($(CORES) * 2 + 1))) $(FILES) --maxprocesses 8

test: setup ## the tests that need no minutes, a few with Spark among them; nothing is fetched while they run
	@$(PY) -m pytest $(PARALLEL_QUICK) $(PYTEST_ARGS) -m "not slow and not soak and not interop"

# Micro-batches driven by the program are killed on Spark 3.5 (`make test-spark-35`), the line that needs them.
OTHER_SPARKS := --deselect tests/spark_batches/test_killed.py

test-slow: setup site # what `make test` leaves out: Spark, kills, demo, examples, other people's servers, the built site
	@$(PY) tools/spark_classes.py
	@$(PY) -m pytest $(PARALLEL_SLOW) $(PYTEST_ARGS) -m "slow and not spark and not soak"
	@$(PY) -m pytest $(PARALLEL) $(OTHER_SPARKS) $(PYTEST_ARGS) -m "slow and spark and not soak"

# The tests wait more than they compute. The report tells the versions, and why records came twice in mixed fleets.
test-interop: setup site # real SDKs, KCL workers, the KPL and kclpy: Maven, npm, Go and PyPI, built into build/interop, with a report there; a stranger's first day
	@$(PY) -m pytest $(PARALLEL) --timeout 1200 --junitxml build/interop/report.xml -o junit_family=xunit1 $(PYTEST_ARGS) -m interop tests/interop tests/distributions

test-all: test test-slow ## all tests but the long runs

# Without what needs Spark (the sink's task writer among it) or the demo's data, without workers in processes of their own, and
# without the embedded server's own tests: its extra asks for a newer boto3 than the library does. Of the core, which is the
# same with every version, only what protobuf encodes, and values that no other of these tests makes.
OLDEST := .venv-oldest
OLDEST_CORE := tests/core/test_aggregation.py tests/core/writing tests/core/reading/test_shard_reader.py \
	tests/core/batches/test_query_shards.py tests/core/batches/test_offsets.py tests/core/queueing
OLDEST_TESTS := $(OLDEST_CORE) tests/aws tests/contract/ports tests/producer tests/consumer tests/cli
OLDEST_WITHOUT := --ignore=tests/consumer/test_processes.py --ignore=tests/producer/test_task_writer.py

test-oldest: # the tests that need no Spark, with the oldest versions that pyproject.toml allows
	@$(PYTHON) tools/oldest_versions.py $(OLDEST)
	@$(OLDEST)/bin/python -m pytest -p no:cacheprovider $(PARALLEL_QUICK) $(PYTEST_ARGS) -m "not slow and not spark and not soak and not interop" \
		$(OLDEST_TESTS) $(OLDEST_WITHOUT)

# Each line of Spark in an environment of its own, over .venv. 4.0.2 is the Spark of Amazon EMR's releases 8.
SPARK_LINES := 4.0.2 4.1.* 4.2.* 4.3.*
SPARK_OLDEST := $(firstword $(SPARK_LINES))
SPARK_TESTS := tests/spark tests/spark_kills
# What differs between the lines: the source in a session, queries by the reader's calls, and a program that is killed.
# The longest first. An archive of its classes would take more CPU time than its few JVMs save.
SPARK_OLDEST_TESTS := "tests/spark_kills/test_kills.py::test_no_kill_loses_repeats_or_reorders_a_record[five kills]" \
	tests/spark/session/test_sink.py tests/spark/session/test_lines.py tests/spark/session/test_smoke.py \
	tests/spark/queries/test_reader.py tests/spark/queries/test_without_starts.py tests/spark/test_engine.py
# The py4j of older lines leaves its sockets to the garbage collector.
SPARK_WARNINGS := -W "ignore:unclosed <socket:ResourceWarning"

test-spark-lines: setup # the Spark tests with every line of Spark that is served, each in an environment of its own
	@for line in $(SPARK_LINES); do \
		folder=".venv-spark-$${line%.\*}"; \
		$(PY) tools/spark_lines.py "$$folder" "$$line" && \
		"$$folder/bin/python" -m pytest -p no:cacheprovider $(PARALLEL) $(SPARK_WARNINGS) $(PYTEST_ARGS) -m "not soak" $(SPARK_TESTS) \
			|| exit 1; \
	done

test-spark-35: setup # micro-batches driven by the program, on Spark 3.5
	@$(PY) tools/spark_lines.py .venv-spark-3.5 '3.5.*'
	@.venv-spark-3.5/bin/python -m pytest -p no:cacheprovider $(PARALLEL) $(SPARK_WARNINGS) $(PYTEST_ARGS) tests/spark_batches

test-spark-oldest: setup # a selection of the Spark tests, with the oldest Spark that is served
	@$(PY) tools/spark_lines.py .venv-spark-$(SPARK_OLDEST) $(SPARK_OLDEST)
	@.venv-spark-$(SPARK_OLDEST)/bin/python -m pytest -p no:cacheprovider $(PARALLEL_QUICK) $(SPARK_WARNINGS) $(PYTEST_ARGS) $(SPARK_OLDEST_TESTS)

# The newest line for which both lakes have releases; LAKE_SPARK=4.0.2 has other ones (docs/lakehouse.md).
LAKE_SPARK := 4.1.*

test-lakehouse: setup # the recipes for Delta Lake and Iceberg and deliveries, also into S3, killed; their jars come from Maven Central into build/lakehouse
	@$(PY) tools/spark_lines.py ".venv-spark-$(LAKE_SPARK:.*=)" '$(LAKE_SPARK)'
	@for folder in lakehouse s3a; do ".venv-spark-$(LAKE_SPARK:.*=)/bin/python" -m pytest -p no:cacheprovider $(SPARK_WARNINGS) $(PYTEST_ARGS) -m interop tests/$$folder || exit 1; done

# They are built while other tests wait: CI begins it early, and the three runs find them ready.
environments: $(STAMP) # the environments of test-oldest, test-spark-oldest and test-spark-35
	@$(PYTHON) tools/oldest_versions.py $(OLDEST)
	@$(PY) tools/spark_lines.py .venv-spark-$(SPARK_OLDEST) $(SPARK_OLDEST)
	@$(PY) tools/spark_lines.py .venv-spark-3.5 '3.5.*'

# The Pythons that are served beside the oldest one, which `make test` runs with; each with the oldest Spark and the newest.
PYTHONS := 3.12 3.13
PYTHON_TESTS := tests/test_public_names.py tests/spark/session/test_smoke.py

test-pythons: java # import, batch and stream with every Python that is served, where this machine has it
	@for version in $(PYTHONS); do \
		python=$$($(PYTHON) tools/find_python.py $$version) || continue; \
		below=".venv-python-$$version"; \
		$(MAKE) --no-print-directory PYTHON="$$python" VENV="$$below" "$$below/.installed" || exit 1; \
		for line in $(SPARK_OLDEST) $(lastword $(SPARK_LINES)); do \
			folder=".venv-spark-$${line%.\*}-python-$$version"; \
			"$$below/bin/python" tools/spark_lines.py "$$folder" "$$line" && \
			"$$folder/bin/python" -m pytest -p no:cacheprovider $(SPARK_WARNINGS) $(PYTEST_ARGS) $(PYTHON_TESTS) \
				|| exit 1; \
		done; \
	done

screenshots: setup # the pictures of the dashboard in docs/, with a browser that is on the machine
	@PENSTOCK_SCREENSHOTS=1 $(PY) -m pytest -q -p no:cacheprovider tests/cli/overview/test_browser.py -k pictures

soak: setup ## the long runs: more kills, more load, more seeds of the simulator
	@$(PY) tools/soak_seeds.py
	@$(PY) tools/soak_queue.py
	@$(PY) tools/soak_delivery.py
	@$(PY) -m pytest $(PYTEST_ARGS) -m soak
	@$(PY) model/traces.py --seeds 0:2000
	@$(PY) model/traces.py --seeds 0:1000 --kind queries

model: setup # check the models of the leases and the batches: every order of events within their bounds
	@$(PY) model/check.py

# Without the slow tests: a branch that one seed in hundreds takes wants a test of its own.
coverage: setup # branches of the core that no quick test takes: a few, most of them in sizing and delivering
	@$(PY) -m pytest -q -r fE $(PARALLEL) --cov=penstock.core --cov-branch --cov-report=term-missing:skip-covered \
		--cov-fail-under=97 $(PYTEST_ARGS) -m "not slow and not soak and not spark and not interop"

# Fifteen minutes on two cores at most. awslabs' connector takes part if PENSTOCK_BENCH_AWSLABS_JARS names its jars.
bench: setup ## measure speed, CPU and memory beside peers, and write docs/performance.md and README's table
	@$(PY) bench/run.py

bench-quick: setup # a few rows of it, one turn each, into build/bench
	@$(PY) bench/run.py --quick

bench-others: setup # what has no peer or takes longer: fan-out, flow control, memory of dense aggregates and of a Spark query, 1,000 shards, recordings, SQL, deliveries, the simulator's speed; aiokpl and MiniStack
	@for name in fan_out pushing fourth_reader flow quota_writers consumer_memory bill consumer_bill many_shards spark_memory recording sql simulator others; do echo "bench/$$name.py"; $(PY) bench/$$name.py || exit 1; done

docs: $(STAMP) ## write the generated parts of the documentation
	@$(PY) tools/check_docs.py --write

# In an environment of its own: nothing else needs these packages. With --quiet no warning would count as an error.
SITE := .venv-site
SITE_PACKAGES := 'mkdocs-material>=9.6' 'mkdocstrings[python]>=0.30'

site: ## build the documentation as a site into build/site; every link and anchor must lead somewhere
	@test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	@$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check $(SITE_PACKAGES)
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict
	@echo "build/site/index.html"

test-site: site $(STAMP) # search, links to other hosts, tables and Markdown twins of the built site; needs node, and a browser for the tables
	@$(PY) -m pytest -q -p no:cacheprovider $(PYTEST_ARGS) tests/site

format: $(STAMP) ## format the code
	@$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

clean: # remove what make created
	@rm -rf $(VENV) $(OLDEST) $(SITE) .venv-spark-* .venv-python-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build artifacts spark-warehouse
