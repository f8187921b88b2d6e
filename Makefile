# `make help` lists the targets. They use .venv only and change nothing else on the machine.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
INSTALLED_DEV := .venv/.installed-dev
OLDEST_PYTHON ?= python3.10
OLDEST := .venv-oldest

.DEFAULT_GOAL := help
.PHONY: help install install-dev demo test test-fast test-oldest check format smoke docs faults slurm fuzz bench recipes matrix screenshots ablation sizes clean

help: ## List the targets
	@grep -hE '^[A-Za-z0-9_-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([^:]+):.*## (.*)/  make \1\t\2/' | expand -t 20

# Folders of wheels that pip is configured with. Without one, torch is a CPU build if there is no GPU: other builds are
# several GB. uv is faster than pip, and does not read pip's configuration.
WHEELS = $(shell $(PYTHON) -m pip config list | sed -n "s/^.*find-links='\(.*\)'$$/\1/p" | sort -u)
HAS_GPU = $(shell command -v nvidia-smi 2>/dev/null)
ifneq ($(shell command -v uv 2>/dev/null),)
INSTALL = uv pip install --compile-bytecode --python $(BIN)/python \
	$(if $(WHEELS),$(addprefix --find-links ,$(WHEELS)),--torch-backend auto)
else
INSTALL = $(BIN)/python -m pip install \
	$(if $(WHEELS)$(HAS_GPU)$(filter-out Linux,$(shell uname)),,--extra-index-url https://download.pytorch.org/whl/cpu)
endif

$(BIN)/python:
	$(PYTHON) -m venv .venv

install: $(INSTALLED) ## Create .venv with bertkit and its dependencies at the tested versions

$(INSTALLED): pyproject.toml requirements/tested.txt | $(BIN)/python
	@echo "Installing bertkit and what its commands need into .venv. torch and transformers are the largest packages."
	$(INSTALL) -c requirements/tested.txt -e '.[offline,report]'
	touch $@

install-dev: $(INSTALLED_DEV) ## Add all extras and the tools of the tests

$(INSTALLED_DEV): pyproject.toml requirements/tested.txt | $(BIN)/python
	@echo "Installing bertkit, all extras and the tools of the tests into .venv."
	$(INSTALL) -c requirements/tested.txt -e '.[offline,dev]'
	touch $@ $(INSTALLED)

demo: $(INSTALLED) ## Fine-tune on film reviews in a minute or two, without the Hub or an accelerator
	$(BIN)/bertkit classify --recipe rotten-tomatoes --output-dir runs/demo --overwrite
	@echo
	@echo "The page of this run: runs/demo/report.html. Next, try:"
	@echo "  $(BIN)/bertkit predict runs/demo --text 'A warm and funny film.'"
	@echo "  $(BIN)/bertkit classify --data FILE.csv  # a file of yours with the columns text and label"

test: $(INSTALLED_DEV) ## Run the tests
	$(BIN)/python -m pytest

test-fast: $(INSTALLED_DEV) ## Run the tests without the mark `slow`, in under a minute on two cores
	$(BIN)/python -m pytest -m "not slow"

$(OLDEST)/.installed: pyproject.toml requirements/oldest.txt
	$(OLDEST_PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install -q -c requirements/oldest.txt -e '.[offline,dev]'
	touch $@

test-oldest: $(OLDEST)/.installed ## Run the tests with the oldest supported versions, in .venv-oldest
	$(OLDEST)/bin/python -m pytest -W default

check: $(INSTALLED_DEV) ## Check format, lint, import layers and types; change nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

format: $(INSTALLED_DEV) ## Format the code and apply automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

smoke: $(INSTALLED_DEV) ## Run each task on its shipped sample for a few steps, and one of them in two processes
	@for task in $$($(BIN)/python -c 'from bertkit.tasks import TASKS; print(*TASKS)'); do \
		$(BIN)/bertkit $$task --data sample --max-steps 4 -o runs/smoke-$$task --overwrite || exit 1; \
	done
	$(BIN)/bertkit classify --data sample --max-steps 4 --nproc 2 -o runs/smoke-nproc --overwrite

docs: $(INSTALLED_DEV) ## Build the documentation as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

FAULTS ?= 120

faults: $(INSTALLED_DEV) ## Kill processes, fill the disk, damage files: FAULTS random faults over every kind of run
	PYTHONPATH=tests $(BIN)/python -m faults --count $(FAULTS)
	PYTHONPATH=tests $(BIN)/python -m faults.hosts

slurm: $(INSTALLED_DEV) ## Interrupt jobs of a Slurm cluster on this machine (needs root, slurm-wlm and munge)
	PYTHONPATH=tests $(BIN)/python -m faults.slurm

EXAMPLES ?= 2000

fuzz: $(INSTALLED_DEV) ## Random damage to every kind of file, EXAMPLES examples per reader
	$(BIN)/python tests/fuzz.py --examples $(EXAMPLES)

bench: $(INSTALLED_DEV) ## Compare training speed (BERTKIT_DATA_DIR must contain SST-2, squad, codah and wnut17)
	$(BIN)/python benchmarks/training.py --rounds 3
	$(BIN)/python benchmarks/choice_speed.py --rounds 3
	$(BIN)/python benchmarks/ner_speed.py --rounds 3
	$(BIN)/python benchmarks/qa_speed.py
	$(BIN)/python benchmarks/masking_speed.py

recipes: $(INSTALLED_DEV) ## Run the recipes that need no Hub: RECIPES="NAMES", all by default, which takes hours
	$(BIN)/python benchmarks/recipes.py $(RECIPES)

matrix: $(INSTALLED_DEV) ## Try all tasks and commands with each type of model, for the table of docs/models.md
	PYTHONPATH=benchmarks $(BIN)/python tests/matrix.py --write

screenshots: $(INSTALLED_DEV) ## Create the pictures of pages with Chromium
	$(BIN)/python tests/terminal_svg.py
	$(BIN)/python tests/screenshots.py

SAMPLES := --task-train-samples 1500 --task-eval-samples 800

ablation: $(INSTALLED_DEV) ## The paper's table of pre-training objectives, at a small size
	$(BIN)/bertkit ablation --seeds 3 --task-learning-rate 1e-3 --embedding-init ppmi --task-pooling mean $(SAMPLES)

sizes: $(INSTALLED_DEV) ## The paper's table of model sizes: three small rows
	$(BIN)/bertkit ablation --table sizes --rows 2-64-1,2-128-2,4-256-4 --seeds 3 --task-learning-rate 3e-4 --embedding-init ppmi --task-pooling mean $(SAMPLES)

clean: ## Remove .venv, caches and build outputs, but no runs
	rm -rf .venv $(OLDEST) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
