# Every target sets up what it needs in .venv, once; see tools/bootstrap.py. PYTHON=/path/to/python chooses another Python,
# TORCH=2.11.0 another torch, in an environment of its own.
PYTHON ?= python3
TORCH ?=
export TORCH
VENV := .venv$(if $(TORCH),-torch-$(TORCH))
VENV_PYTHON := $(VENV)/bin/python
BOOTSTRAP = @command -v $(PYTHON) >/dev/null || { echo "no '$(PYTHON)' found: install Python 3.10 or newer"; exit 1; }; \
	$(PYTHON) tools/bootstrap.py
# One thread a process: several ranks share this machine. Plugins of an outer Python stay out of the test run.
TEST_ENV := OMP_NUM_THREADS=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
# Extra arguments, such as: make test ARGS="-k view -x"
ARGS ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: demo test lint types bench docs help clean

demo: ## train a small transformer on 2 gloo processes in three ways; print the gains, write a timeline page
	$(BOOTSTRAP) run
	@$(VENV)/bin/counterpoint demo $(ARGS)

test: ## run the tests
	$(BOOTSTRAP) test
	@$(TEST_ENV) $(VENV_PYTHON) -m pytest -p _hypothesis_pytestplugin $(ARGS)

lint: ## check style and formatting
	$(BOOTSTRAP) lint
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

types: ## check types, strictly over src
	$(BOOTSTRAP) types
	@$(VENV_PYTHON) -m mypy $(ARGS)

bench: ## print every benchmark's table at a quick size; ARGS=--full for the sizes in the documentation
	$(BOOTSTRAP) run
	@$(VENV_PYTHON) benchmarks/run.py $(ARGS)

docs: ## build the documentation into site/
	$(BOOTSTRAP) docs
	@$(VENV_PYTHON) -m mkdocs build --strict --quiet && echo "built site/index.html"

clean: ## remove .venv and everything that was built
	@rm -rf .venv .venv-torch-* build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
