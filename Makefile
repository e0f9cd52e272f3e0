PYTHON ?= python3
# Where torch comes from. Empty: your pip's own index. Without a GPU: make TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo serve test test-attacks test-engines check soak fuzz train-demo-model clean help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing opsin, PyTorch and the rest into .venv, once and without a word: minutes. It takes 1.4 GB of disk with"
	@echo "PyTorch's CPU build (TORCH_INDEX=https://download.pytorch.org/whl/cpu), and several times that with its default one."
	$(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),$(BIN)/pip install --quiet --disable-pip-version-check --index-url $(TORCH_INDEX) torch==2.13.0)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)  ## ask the real server about shipped pictures
	$(BIN)/python -m opsin.demo

serve: $(STAMP)  ## serve the demo model on port 8000
	$(BIN)/opsin serve

test: $(STAMP)  ## all tests but those with foreign engines
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m 'not timing'
	$(BIN)/pytest -m timing $$(grep -rl --include='*.py' 'mark\.timing' tests)

test-attacks: $(STAMP)  ## what strangers may try with pictures, see docs/security.md
	$(BIN)/pytest tests/attacks

test-engines: $(STAMP)  ## real engines of others behind opsin, see docs/engines.md
	$(BIN)/pytest tests/engines

check: $(STAMP)  ## lint, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

soak: $(STAMP)  ## twenty minutes of load, disconnects and killed engines on the real server
	$(BIN)/python benchmarks/soak.py --minutes 20 --clients 16

fuzz: $(STAMP)  ## ten minutes of strange pictures, URLs and bodies on the parsers and on the real server
	$(BIN)/python -m benchmarks.fuzz_media --minutes 10

train-demo-model: $(STAMP)  ## train the shipped model anew
	$(BIN)/python tools/train_demo_model.py --out src/opsin/demo/model --work .demo-training

clean:  ## forget the virtual environment
	rm -rf .venv
