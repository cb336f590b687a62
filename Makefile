# Every target makes and reuses .venv, so that each is the only command needed on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint types fuzz bench bench-page docs clean

demo: $(INSTALLED)  ## Show in minutes why this matters.
	$(BIN)/sia demo

test: lint types  ## Lint, types and tests.
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

CASES ?= 100000
SECONDS ?= inf
SEED ?= 1000000
fuzz: $(INSTALLED)  ## Random contracts: make fuzz SECONDS=600, make fuzz CASES=1 SEED=123.
	$(BIN)/python tests/fuzz_contracts.py --cases $(CASES) --seconds $(SECONDS) --seed $(SEED)

TIMINGS := benchmarks/results/attention.csv
RATIOS := benchmarks/results/ratios.csv
BENCH ?=
bench: $(INSTALLED)  ## The op side by side with its rivals, on an idle machine: make bench BENCH=--resume.
	$(BIN)/python -m pytest tests/attention -q -x -n auto --dist worksteal
	$(BIN)/sia bench --output $(TIMINGS) $(BENCH)
	$(BIN)/sia bench ratios --output $(RATIOS)
	$(MAKE) bench-page

bench-page: $(INSTALLED)  ## The figures and the page, from what is recorded.
	$(BIN)/sia bench plot --results $(TIMINGS) --output docs
	$(BIN)/sia bench page --results $(TIMINGS) --ratios $(RATIOS) --output docs/benchmark.md

docs: $(VENV)/.installed-docs  ## The documentation as a web site in site/.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

$(VENV)/.installed-docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist site demo-output benchmark-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
