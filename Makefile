# The commands of the README. Each target first runs the set-up, which takes a moment when nothing is missing.
CORES ?= $(shell nproc)
# Passed to Snakemake as --config, for example: make all SCALE=paper CONFIG="key=value ..."
SCALE ?=
CONFIG ?=
# Which tests: make test LAYER=full has those of every build, guests and power cuts too. Or what pytest is given instead:
# make test TESTS="tests/workflow/test_packaging.py -k conda"
LAYER ?=
TESTS ?=
# Checks and benchmarks, by the words their names begin with: make check CHECKS="ruff mypy", make bench BENCH=goodput
CHECKS ?=
BENCH ?=

# The environment's own Python starts fastest; a fresh clone has only the system's, and a half-made environment counts for
# none: this is looked up before .venv/bin is on the PATH.
ifndef PYTHON
PYTHON := $(shell test -f .venv/set-up.json && .venv/bin/python -IS -c "" 2>/dev/null \
	&& echo .venv/bin/python || command -v python3 || echo python3)
endif
# Programs keep caches in the home directory. A user without one, or with one that cannot be written, gets one below build/.
ifneq ($(shell test -n "$$HOME" && test -d "$$HOME" && test -w "$$HOME" && echo yes),yes)
$(shell echo "make: the home directory '$$HOME' cannot be written; caches go to build/home" >&2; mkdir -p "$(CURDIR)/build/home" 2>/dev/null)
# where rustup keeps the toolchains of this user
ifneq ($(wildcard $(HOME)/.rustup),)
export RUSTUP_HOME ?= $(HOME)/.rustup
endif
export PATH := $(PATH):$(HOME)/.cargo/bin
export HOME := $(CURDIR)/build/home
endif
# Set-up links Rust and Go into .toolchains/bin where the machine's own do not serve. Debian keeps tc, ethtool and
# tcpdump where a user's PATH does not look; rustup's cargo is on the PATH of new shells only.
export PATH := $(CURDIR)/.toolchains/bin:$(CURDIR)/.venv/bin:$(PATH):$(HOME)/.cargo/bin:/usr/local/sbin:/usr/sbin:/sbin

# Images for containers often set this. Every process of the workflow would compile the clone's modules again.
unexport PYTHONDONTWRITEBYTECODE

set-up = $(PYTHON) tools/set_up.py
settings = $(if $(SCALE),scale=$(SCALE)) $(CONFIG)
snakemake = .venv/bin/snakemake --cores $(CORES)
with-settings = $(if $(strip $(settings)),--config $(settings))
# how often something is killed, tried with hostile input (together more than 100 000 times) and taken out of the code
thorough = QUICBED_LAYER=full QUICBED_KILLS=$${QUICBED_KILLS:-40} QUICBED_INPUTS=$${QUICBED_INPUTS:-10000} \
	QUICBED_MUTATIONS=$${QUICBED_MUTATIONS:-all}
layer = $(if $(filter full,$(LAYER)),$(thorough))
pytest = $(layer) .venv/bin/python -m pytest
in-parallel = -n $(CORES) --durations-min=2

.PHONY: help all figures archive test test-builds test-units check bench docs lab setup locks clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

all: ## build, measure, analyse: everything, into artifacts/ (needs root)
	@$(set-up) all
	@$(snakemake) all $(with-settings)

figures: ## draw every table, figure and the report from the shipped reference data
	@$(set-up) figures
	@$(snakemake) figures $(with-settings)

# Results are made anew, of the commit alone: nothing that an earlier one drew may lie among them, nor anything drawn
# from a local copy of published data.
archive: ## write the archive to deposit: sources, reference data, report, checksums
	@$(set-up) figures
	@.venv/bin/quicbed archive --check
	@rm -rf artifacts/reference
	@$(snakemake) figures --config "published={}" "pictures=[svg,pdf,png]"
	@.venv/bin/quicbed archive

test: ## run the tests (needs root)
	@$(set-up) test
	$(if $(layer),@$(set-up) lab)
ifneq ($(strip $(TESTS)),)
	@$(pytest) $(TESTS)
else
	@failed=; $(MAKE) --no-print-directory --jobs=2 test-units test-builds || failed=1; \
	$(pytest) $(in-parallel) --dist loadgroup --no-loadscope-reorder --durations=20 \
		$(if $(layer),tests/full) tests/workflow tests/built || failed=1; test -z "$$failed"
endif

# Those that need nothing of what is built, beside the builds that the others need; one that fails does so in its tests.
test-units:
	@$(pytest) $(in-parallel) --durations=0 tests/unit

test-builds:
	@mkdir -p logs; began=$$(date +%s); $(snakemake) --keep-going \
		$$($(layer) PYTHONPATH=tests/support .venv/bin/python -m sample) >logs/test-builds.log 2>&1 \
		|| echo "some builds could not be made; see logs/test-builds.log"; \
	echo "builds that the tests need: $$(($$(date +%s) - began)) s"

check: ## check formats, lint, types and prose
	@$(set-up) check
	@.venv/bin/python tools/check.py $(CHECKS)

bench: ## run the benchmarks (needs root)
	@$(set-up) bench
	@$(snakemake) builds
	@.venv/bin/python -m benchmarks $(if $(BENCH),--only $(BENCH))

docs: ## build the documentation as a website, artifacts/docs/index.html
	@$(set-up) docs
	@.venv/bin/quicbed generate
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --strict
	@echo "Documentation: open artifacts/docs/index.html"

# Of the whole clone, so that its pages and figures are in reach too.
lab: ## open the notebooks in JupyterLab
	@$(set-up) lab
	@.venv/bin/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --FileContentsManager.preferred_dir=notebooks

setup: ## only install Debian packages and the Python environment (needs root)
	@$(set-up) setup

locks: ## recompile requirements/*.in to hash-locked *.txt
	@$(set-up) check
	@tools/compile_locks

clean: ## remove build/ and artifacts/, never the runs in raw/ (finished builds: quicbed store prune)
	rm -rf build artifacts
