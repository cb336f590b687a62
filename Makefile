# Every target creates or reuses .venv, so each is the only command needed on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PACKAGING := pyproject.toml constraints.txt setup.py MANIFEST.in
OP := src/scale_invariant_attention/attention
RELEASE := build/release
KERNELS := build_kernels.py $(wildcard $(OP)/csrc/*)

.PHONY: demo test pytest test-slow test-kernels test-gpu lint types fuzz fuzz-files fuzz-triton fuzz-context sanitize sanitize-threads bench bench-page pages docs pretrained release-files dist clean

demo: $(INSTALLED)  ## Show why this matters, in minutes.
	$(BIN)/sia demo

test: $(INSTALLED)  ## Lint, types and tests, in parallel.
	$(MAKE) --jobs=2 lint types pytest

pytest: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist worksteal

test-slow: $(INSTALLED)  ## The tests that take minutes, which `make test` skips.
	$(BIN)/python -m pytest -m slow

test-kernels: $(INSTALLED)  ## Compile all Triton kernels for their targets, and count instructions.
	$(BIN)/python -m pytest -m "slow or not slow" tests/attention/test_triton_compiled.py

# The tests of the op and of the model run on the CPU as ever, and in addition on the backends of the GPU.
test-gpu: $(INSTALLED)  ## Everything that a GPU can be tested with; without one it fails and says so.
	$(BIN)/python -m pytest --on cuda -n 4 --dist worksteal tests/attention tests/model tests/gpu

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

CASES ?= 100000
SECONDS ?= inf
SEED ?= 1000000
# For example RECORD=results/fuzzing.json.
RECORD ?=
recorded = $(if $(RECORD),--record $(RECORD))
fuzz: $(INSTALLED)  ## Random contracts: make fuzz SECONDS=600, make fuzz CASES=1 SEED=123.
	$(BIN)/python tests/fuzz_contracts.py --cases $(CASES) --seconds $(SECONDS) --seed $(SEED) $(recorded)

FILE_CASES ?= 20000
FILE_SEED ?= 0
fuzz-files: $(INSTALLED)  ## Damaged models, checkpoints, shards, records: make fuzz-files FILE_CASES=100000.
	$(BIN)/python tests/fuzz_files.py --cases $(FILE_CASES) --seed $(FILE_SEED) $(recorded)

TRITON_CASES ?= 5000
fuzz-triton: $(INSTALLED)  ## Random contracts on the Triton kernels, in Triton's interpreter.
	TRITON_INTERPRET=1 $(BIN)/python tests/support/triton_contracts.py $(SEED) $(TRITON_CASES)

CONTEXT_CASES ?= 2000
fuzz-context: $(INSTALLED)  ## Random contracts cut over 2, 3 and 4 processes.
	OMP_NUM_THREADS=1 $(BIN)/python tests/support/context_parallel_contracts.py $(SEED) $(CONTEXT_CASES)

# The same contracts, with kernels that stop at the first invalid memory access, undefined operation or data race.
# Python is not built with GCC's sanitizers, so their runtime is preloaded, and the C++ library with it: without the
# latter, the first exception that torch throws would end the process.
preload = LD_PRELOAD="$$($(CXX) -print-file-name=$(1)) $$($(CXX) -print-file-name=libstdc++.so)"
sanitize sanitize-threads: SECONDS = 300
sanitize: build/sanitize/_kernels.so  ## Five minutes of random contracts, or make sanitize SECONDS=60.
	$(call preload,libasan.so) ASAN_OPTIONS=detect_leaks=0 \
	UBSAN_OPTIONS=print_stacktrace=1 SIA_KERNELS=$(abspath $<) \
	$(BIN)/python tests/fuzz_contracts.py --cases $(CASES) --seconds $(SECONDS) --seed $(SEED) \
		--name $@ $(recorded)

sanitize-threads: build/thread-sanitize/_kernels.so
	$(call preload,libtsan.so) \
	TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1 SIA_KERNELS=$(abspath $<) \
	$(BIN)/python tests/fuzz_contracts.py --cases $(CASES) --seconds $(SECONDS) --seed $(SEED) \
		--threads 3 --name $@ $(recorded)

build/sanitize/_kernels.so: SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all
build/thread-sanitize/_kernels.so: SANITIZERS := -fsanitize=thread
build/sanitize/_kernels.so build/thread-sanitize/_kernels.so: $(KERNELS) | $(INSTALLED)
	CXX="$(CXX)" $(BIN)/python build_kernels.py --output $@ \
		--flags "$(SANITIZERS) -fno-omit-frame-pointer -O1 -g"

TIMINGS := benchmarks/results/attention.csv
RATIOS := benchmarks/results/ratios.csv
MODELS := benchmarks/results/models.csv
BENCH ?=
bench: $(INSTALLED)  ## The op against its rivals, on an idle machine. To resume: make bench BENCH=--resume.
	$(BIN)/python -m pytest tests/attention -q -x -n auto --dist worksteal
	$(BIN)/sia bench --output $(TIMINGS) $(BENCH)
	$(BIN)/sia bench ratios --output $(RATIOS)
	$(BIN)/sia bench models --output $(MODELS)
	$(MAKE) bench-page

bench-page: $(INSTALLED)  ## The figures and the page, from recorded results.
	$(BIN)/sia bench plot --results $(TIMINGS) --output docs
	$(BIN)/sia bench page --results $(TIMINGS) --ratios $(RATIOS) --models $(MODELS) --output docs/benchmark.md

pages: $(INSTALLED)  ## The pages and figures that are made from the records in results/.
	$(BIN)/sia reproduce page --readme README.md --gallery docs/gallery.md
	$(BIN)/sia reproduce leaderboard-page
	$(BIN)/sia reproduce images-page
	$(BIN)/sia figures --output docs/figures --formats png --page docs/figures.md

docs: $(VENV)/.installed-docs  ## Build the documentation site in site/.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is in site/. To read it: $(PYTHON) -m http.server -d site, then open http://localhost:8000"

# Trains the runs that are missing first, for a quarter of an hour each on an idle core.
pretrained: $(INSTALLED)  ## Package recorded runs as pretrained models, in pretrained/.
	$(BIN)/sia reproduce pretrained

# The files of a release have no folders.
release-files:  ## Copy the pretrained models to build/release/files, as a release has them.
	rm -rf $(RELEASE)/files
	mkdir -p $(RELEASE)/files
	for file in pretrained/*/*.*; do cp $$file $(RELEASE)/files/$$(echo $$file | cut -d/ -f2-3 | tr / -); done

# The tools have a small environment of their own: a machine that builds wheels needs nothing else.
TOOLS := $(abspath $(RELEASE))/tools/.venv/bin
ATTEND := import torch, scale_invariant_attention as sia; \
	sia.scale_invariant_attention(*torch.randn(3, 1, 2, 100, 64), backend="cpu")
dist: $(RELEASE)/tools/.installed  ## Build sdist and wheel, check both, and try the wheel in an empty environment.
	rm -rf dist $(RELEASE)/built $(RELEASE)/empty
	SIA_REQUIRE_KERNELS=1 $(TOOLS)/python -m build --outdir $(RELEASE)/built
	mkdir dist && cp $(RELEASE)/built/*.tar.gz dist
ifeq ($(shell uname),Linux)
	PATH="$(TOOLS):$$PATH" auditwheel repair --wheel-dir dist $(RELEASE)/built/*.whl
else
	cp $(RELEASE)/built/*.whl dist
endif
	$(TOOLS)/twine check --strict dist/*
	$(PYTHON) -m venv $(RELEASE)/empty/.venv
	$(RELEASE)/empty/.venv/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd $(RELEASE)/empty && .venv/bin/sia doctor && .venv/bin/python -c '$(ATTEND)'
	ls -l dist

$(RELEASE)/tools/.installed: pyproject.toml
	$(PYTHON) -m venv $(RELEASE)/tools/.venv
	$(TOOLS)/python -m pip install --quiet --upgrade pip
	$(TOOLS)/python -m pip install --quiet --group release
	touch $@

# Installing compiles the kernels too. If only their sources changed, only they are recompiled.
$(INSTALLED): $(PACKAGING) $(KERNELS)
	$(if $(filter $(PACKAGING),$?),$(INSTALL),$(BIN)/python build_kernels.py)
	touch $@

define INSTALL
@echo "Installing the package and its tools into $(VENV): torch and others, several minutes at first."
$(PYTHON) -m venv $(VENV)
$(BIN)/python -m pip install --quiet --upgrade pip
$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
endef

# The site needs neither the tools for tests nor Hugging Face's libraries.
$(VENV)/.installed-docs: pyproject.toml constraints.txt
	@echo "Installing the package and the tools of the site into $(VENV): several minutes at first."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist site demo-output benchmark-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f $(OP)/_kernels.so $(OP)/_kernels_missing.txt
