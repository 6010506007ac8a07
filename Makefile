# Everything runs in .venv, which is created on first use and updated when
# pyproject.toml or constraints.txt changes.

PYTHON ?= python3
PORT ?= 3000
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq install --constraint constraints.txt
PINS := pyproject.toml constraints.txt

# LOWEST_TESTED and HIGHEST_TESTED of store/postgres/driver.py.
PSYCOPG_VERSIONS := 3.2.3 3.3.9
DRIVERS := $(if $(OLDEST),$(firstword $(PSYCOPG_VERSIONS)),$(PSYCOPG_VERSIONS))
# The oldest psycopg is tested together with the oldest of these, the newest with the pinned ones.
OLDEST_SERVER := uvicorn==0.30 httptools==0.6.4
DRIVER_TESTS := tests/unit/test_psycopg_contract.py tests/conformance/test_postgres_waiting.py \
	tests/conformance/test_frozen_database.py \
	tests/conformance/test_record.py tests/conformance/test_claim.py \
	tests/unit/test_uvicorn_contract.py tests/unit/test_connection.py \
	tests/integration/test_server_limits.py

# The tests start hundreds of processes, and each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help serve test test-all nightly nightly-tests check drivers prove prove-edge mutants bench oracles clean

help:
	@echo 'make serve   run the demo inbox on http://127.0.0.1:$(PORT)      (PORT=8080 for another port)'
	@echo 'make test    run the tests                             (ARGS="-k crash" goes to pytest)'
	@echo 'make check   check lint, formatting and types'
	@echo 'make nightly run what takes hours: tests/nightly, drivers, oracles, prove LONG=1, mutants'
	@echo 'make test-all run everything: check, test, nightly'
	@echo 'make drivers test with the oldest and the newest supported psycopg and uvicorn (OLDEST=1: the oldest)'
	@echo 'make bench   measure Onceward beside its alternatives  (ARGS=refresh renews docs/benchmarks.md)'
	@echo 'make prove   kill, freeze, cut the power; check that nothing is lost (LONG=1: a million events)'
	@echo 'make prove-edge compare the HTTP server with h11, attack it    (ARGS="--only framing" for one stage)'
	@echo 'make mutants mutate the core one line at a time; list what no test kills (ARGS="--only work/worker.py")'
	@echo 'make oracles check the presets against 72 libraries, 900 MB       (LIGHT=1 for the small ones)'
	@echo 'make clean   remove environments and caches; databases stay'

serve: .venv/.runtime
	$(BIN)/onceward serve examples/subscriptions.py --dev --port $(PORT)

# The runners take the files in the order of tests/conftest.py: those that take longest first.
test: .venv/.dev
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-all:
	$(MAKE) check
	$(MAKE) test
	$(MAKE) nightly

# A part that fails does not keep the others from running. Each part takes other ARGS.
nightly:
	$(MAKE) --keep-going nightly-tests drivers oracles prove mutants LONG=1 ARGS=

nightly-tests: .venv/.dev
	$(BIN)/python -m pytest tests/nightly tests/acceptance tests/integration --every-store --numprocesses 2 $(ARGS)

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

drivers: $(DRIVERS:%=.venv-drivers/%/.ready)
	@for version in $(DRIVERS); do echo "psycopg $$version"; \
		.venv-drivers/$$version/bin/python -m pytest --numprocesses 2 $(DRIVER_TESTS) $(ARGS) || exit 1; done

prove: .venv/.dev
	$(BIN)/python -m prove $(if $(LONG),--long) $(if $(SEED),--seed $(SEED)) $(ARGS)

prove-edge: .venv/.dev
	$(BIN)/python -m prove.edge $(if $(SEED),--seed $(SEED)) $(ARGS)

mutants: .venv/.dev
	$(BIN)/python -m mutants $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: bench/.venv/.ready
	bench/.venv/bin/python -m bench $(or $(ARGS),run)

oracles: oracles/.venv/$(if $(LIGHT),.light,.ready)
	oracles/.venv/bin/python -m pytest oracles $(ARGS)

clean:
	rm -rf .venv .venv-drivers bench/.venv oracles/.venv oracles/node_modules .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.runtime: $(PINS) | .venv/bin/pip
	@echo 'Installing Onceward into .venv ...'
	@$(PIP) --editable .
	@touch $@

# The dev dependencies include the runtime ones.
.venv/.dev: $(PINS) | .venv/bin/pip
	@echo 'Installing Onceward and its tests into .venv ...'
	@$(PIP) --editable '.[dev]'
	@touch .venv/.runtime $@

# All versions as pinned, except psycopg's and, with the oldest one, the server's.
.venv-drivers/%/.ready: $(PINS)
	@echo 'Installing psycopg $* into .venv-drivers/$* ...'
	@$(PYTHON) -m venv .venv-drivers/$*
	@grep -vE '^(psycopg(-binary)?|uvicorn|httptools)==' constraints.txt > .venv-drivers/$*/constraints.txt
	@.venv-drivers/$*/bin/python -m pip --disable-pip-version-check -qq install \
		--constraint .venv-drivers/$*/constraints.txt \
		--editable '.[dev]' 'psycopg[binary]==$*' \
		$(if $(filter $(firstword $(PSYCOPG_VERSIONS)),$*),$(OLDEST_SERVER),$(shell grep -E '^(uvicorn|httptools)==' constraints.txt))
	@touch $@

# The peers have their own environment, so that their dependencies do not constrain ours.
bench/.venv/.ready: $(PINS) bench/requirements.txt bench/constraints.txt
	@echo 'Installing the alternatives into bench/.venv ...'
	@$(PYTHON) -m venv bench/.venv
	@bench/.venv/bin/python -m pip --disable-pip-version-check -qq install \
		--constraint constraints.txt --constraint bench/constraints.txt \
		--editable . --requirement bench/requirements.txt
	@touch $@

# So do the providers' libraries: all of them, or the small ones. npm's need Node.
ORACLE_PINS := $(PINS) oracles/light.txt oracles/requirements.txt oracles/constraints.txt
ORACLE_PIP := oracles/.venv/bin/python -m pip --disable-pip-version-check -qq install \
	--constraint constraints.txt --constraint oracles/constraints.txt --editable .

oracles/.venv/.light: $(ORACLE_PINS)
	@echo 'Installing the small provider libraries into oracles/.venv ...'
	@$(PYTHON) -m venv oracles/.venv
	@$(ORACLE_PIP) --requirement oracles/light.txt
	@touch $@

oracles/.venv/.ready: oracles/.venv/.light oracles/package.json
	@echo 'Installing the other provider libraries into oracles/.venv ...'
	@$(ORACLE_PIP) --requirement oracles/requirements.txt
	@if command -v npm > /dev/null; then npm install --silent --prefix oracles; \
		else echo 'Node is not installed: skipping the npm libraries.'; fi
	@touch $@

# venv installs pip last: if pip exists, the environment is complete.
.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'Onceward needs Python 3.11 or newer; "$(PYTHON)" is not. Try: make PYTHON=python3.12 ...' >&2; \
		exit 1; }
	@$(PYTHON) -m venv --clear .venv
