# Two commands for a newcomer: `make demo` and `make test`. Both make what they need in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test lint types unit ui check-gpu-packages clean

demo: $(VENV)/.installed
	@$(BIN)/congruence demo

test: lint types unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

unit: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

ui: $(VENV)/.installed
	@$(BIN)/congruence ui

# Downloads some two gigabytes into a folder that it removes again; needs no card.
check-gpu-packages: $(VENV)/.installed
	$(BIN)/python tests/gpu/prove check-packages

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("congruence needs Python 3.11 or newer; run: make PYTHON=python3.11 demo") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .congruence build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
