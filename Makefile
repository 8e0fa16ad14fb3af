# Two commands for a newcomer: `make demo` and `make test`. Both make what they need in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python infra/install.py
# Where it is set, every process compiles a thousand modules again: six seconds of each start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint types unit exercise exercise-containers docs papers record dist ui clean

demo: $(VENV)/.installed
	@$(BIN)/congruence demo

# The types are checked beside the tests: one reads files while the other waits for servers.
test: lint
	@$(MAKE) --no-print-directory -j 2 types unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

unit: $(VENV)/.installed-dev
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m 'not exercise'

# Takes longer than the tests: commands stopped and killed in every stage, with an MLflow that hangs, and a slow machine;
# worked examples on public data, and the papers' experiments at sizes of seconds.
exercise: $(VENV)/.installed-dev
	$(BIN)/pytest -m exercise

# Builds the image, starts compose.yaml and kills its containers; needs root or Docker, and a machine with little else to do.
# One part of it: make exercise-containers ONLY="image start safety".
exercise-containers: $(VENV)/.installed-dev
	$(BIN)/python tests/containers $(if $(ONLY),--only $(ONLY))

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --site-dir build/docs
	@echo "open build/docs/index.html"

# The papers' experiments, some ten minutes of one core: the tables and pictures of docs/papers.md. DATA names the folder of public data.
papers: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python docs/papers $(if $(DATA),--data $(DATA))

# Kinds of models on tables, judged: docs/record.md. It goes on where it was cut off. DATA as above.
record: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python docs/record $(if $(DATA),--data $(DATA))

# The same commit gives the same bytes.
dist: $(VENV)/.installed-dev
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --quiet --no-isolation --outdir build/dist

ui: $(VENV)/.installed
	@$(BIN)/congruence ui

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("congruence needs Python 3.11 or newer; run: make PYTHON=python3.11 demo") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@$(INSTALL) images
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(INSTALL) images dev
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@$(INSTALL) images docs
	@touch $@

clean:
	rm -rf $(VENV) .congruence build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
