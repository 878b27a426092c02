# Two commands matter: `make demo` and `make test`. Both set up what they need; the second run starts at once.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
RIG_VERSIONS ?= 0.5.11 0.5.13.post1 0.5.14 0.5.23

.PHONY: demo run test check lint types imports format rig bench snapshots clean help

help:  ## Show the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(VENV)/.installed  ## Embedded cluster on this machine, then the console
	@$(BIN)/dflash-console demo $(ARGS)

run: $(VENV)/.installed  ## The console on your own configuration
	@$(BIN)/dflash-console $(ARGS)

test: $(VENV)/.installed-test  ## All tests that this machine can run; what is skipped says why
	@scripts/setup.sh test-tools
	@$(BIN)/python -m pytest $(ARGS)

check: lint types imports  ## ruff, mypy --strict, import-linter

lint: $(VENV)/.installed-test
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	@$(BIN)/mypy

imports: $(VENV)/.installed-test
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

format: $(VENV)/.installed-test  ## Format and fix what can be fixed
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

rig:  ## Real SGLang on the CPU, for the tests marked sglang (about 2 minutes and 1.5 GB a version)
	@for v in $(RIG_VERSIONS); do tests/rigs/sglang_cpu/build.sh $$v || exit 1; done

bench: $(VENV)/.installed-test  ## Print the figures that the README quotes
	@for f in benchmarks/*.py; do echo "== $$f"; $(BIN)/python $$f || exit 1; done

snapshots: $(VENV)/.installed-test  ## Accept the screens as they are now (look at them first)
	@$(BIN)/python -m pytest tests/tui -q --snapshot-update

clean:  ## Remove everything that can be made again, but the SGLang rigs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build

$(VENV)/.installed: pyproject.toml
	@scripts/setup.sh venv $(VENV) engine
	@touch $@

$(VENV)/.installed-test: pyproject.toml
	@scripts/setup.sh venv $(VENV) engine,test
	@touch $@ $(VENV)/.installed
