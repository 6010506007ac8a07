# Everything runs in .venv, which is made at the first use and renewed when
# pyproject.toml or constraints.txt changes.

PYTHON ?= python3
PORT ?= 3000
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq install --constraint constraints.txt
PINS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help serve test check prove bench oracles clean

help:
	@echo 'make serve   run the example inbox on http://127.0.0.1:$(PORT)   (PORT=8080 for another port)'
	@echo 'make test    run the tests                             (ARGS="-k crash" goes to pytest)'
	@echo 'make check   lint, format and types, changing nothing'
	@echo 'make bench   measure it beside its alternatives        (ARGS="--quick" for a minute of it)'
	@echo 'make prove   kill it, freeze it, cut its power: nothing is lost (LONG=1 for a million events)'
	@echo 'make oracles hold the presets against 72 libraries, 900 MB to install (LIGHT=1 for the smaller ones)'
	@echo 'make clean   remove the environment and all caches; databases stay'

serve: .venv/.runtime
	$(BIN)/onceward serve examples/subscriptions.py --dev --port $(PORT)

test: .venv/.dev
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup $(ARGS)

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

prove: .venv/.dev
	$(BIN)/python -m prove $(if $(LONG),--long) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: bench/.venv/.ready
	bench/.venv/bin/python -m bench $(ARGS)

oracles: oracles/.venv/$(if $(LIGHT),.light,.ready)
	oracles/.venv/bin/python -m pytest oracles $(ARGS)

clean:
	rm -rf .venv bench/.venv oracles/.venv oracles/node_modules .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.runtime: $(PINS) | .venv/bin/pip
	@echo 'Installing Onceward into .venv ...'
	@$(PIP) --editable .
	@touch $@

# What the tests need includes what serving needs.
.venv/.dev: $(PINS) | .venv/bin/pip
	@echo 'Installing Onceward and its tests into .venv ...'
	@$(PIP) --editable '.[dev]'
	@touch .venv/.runtime $@

# The alternatives live apart: what they need is no business of the project's own environment.
bench/.venv/.ready: $(PINS) bench/requirements.txt bench/constraints.txt
	@echo 'Installing the alternatives into bench/.venv ...'
	@$(PYTHON) -m venv bench/.venv
	@bench/.venv/bin/python -m pip --disable-pip-version-check -qq install \
		--constraint constraints.txt --constraint bench/constraints.txt \
		--editable . --requirement bench/requirements.txt
	@touch $@

# So do the senders' libraries: all of them, or the smaller ones. Those of npm are asked where Node is.
ORACLE_PINS := $(PINS) oracles/light.txt oracles/requirements.txt oracles/constraints.txt
ORACLE_PIP := oracles/.venv/bin/python -m pip --disable-pip-version-check -qq install \
	--constraint constraints.txt --constraint oracles/constraints.txt --editable .

oracles/.venv/.light: $(ORACLE_PINS)
	@echo 'Installing the smaller libraries of senders into oracles/.venv ...'
	@$(PYTHON) -m venv oracles/.venv
	@$(ORACLE_PIP) --requirement oracles/light.txt
	@touch $@

oracles/.venv/.ready: oracles/.venv/.light oracles/package.json
	@echo 'Installing the other libraries of senders into oracles/.venv ...'
	@$(ORACLE_PIP) --requirement oracles/requirements.txt
	@if command -v npm > /dev/null; then npm install --silent --prefix oracles; \
		else echo 'Node is not installed: the libraries of npm are left out.'; fi
	@touch $@

# pip comes last into a new environment: when it is there, the environment is whole.
.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'Onceward needs Python 3.11 or newer; "$(PYTHON)" is not. Try: make PYTHON=python3.12 ...' >&2; \
		exit 1; }
	@$(PYTHON) -m venv --clear .venv
