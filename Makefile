# Two commands for a newcomer: `make demo` and `make test`. Each target sets itself up first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo test test-all test-slow lint peers bench bde soak docs release licences audit clean
setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

demo: setup
	$(BIN)/isotherm run double-well --out runs/demo
	$(BIN)/isotherm run order --set balanced_words=ABOBA,ABDODBA --out runs/demo
	$(BIN)/isotherm report runs/demo

# What a contributor runs: about ten minutes on two cores. `make test-all` adds the tests marked `slow`.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations 25

test: setup
	$(PYTEST) -m "not slow"

test-slow: setup
	$(PYTEST) -m slow

test-all: setup
	$(PYTEST)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# The peers (BlackJAX, posteriors on PyTorch, tomotopy, gensim) live in their own environment, pinned apart from ours.
$(VENV)-bench/.installed: requirements-bench.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-bench.lock
	$(VENV)-bench/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

peers: $(VENV)-bench/.installed

bench: peers
	$(VENV)-bench/bin/python benchmarks/double_well.py
	$(VENV)-bench/bin/python benchmarks/networks.py
	$(VENV)-bench/bin/python benchmarks/topics.py
	$(VENV)-bench/bin/python benchmarks/lda_in_memory.py
	$(VENV)-bench/bin/python benchmarks/deep_topics.py
	$(VENV)-bench/bin/python benchmarks/lda_stream.py
	$(VENV)-bench/bin/python benchmarks/dpfa_stream.py
	$(VENV)-bench/bin/python benchmarks/accuracy.py
	$(VENV)-bench/bin/python benchmarks/noise.py
	$(VENV)-bench/bin/python benchmarks/network_minibatches.py
	$(VENV)-bench/bin/python benchmarks/ess.py
	$(VENV)-bench/bin/python benchmarks/growth.py
	$(VENV)-bench/bin/python benchmarks/streaming.py
	$(VENV)-bench/bin/python benchmarks/convolutions.py
	$(VENV)-bench/bin/python benchmarks/devices.py

# bde needs an older BlackJAX than the other peers, so it has an environment of its own.
bde:
	$(PYTHON) -m venv $(VENV)-bde
	$(VENV)-bde/bin/python -m pip install --quiet --disable-pip-version-check --editable . sklearn-contrib-bde==1.0.2
	$(VENV)-bde/bin/python benchmarks/bde_uci.py

# Kills, hostile arguments, damaged files, memory: some hours with these times. `make soak FUZZ_SECONDS=60 KILLS=5` is a short one.
KILLS ?= 50
FUZZ_SECONDS ?= 600
MEMORY_SECONDS ?= 3600
EXAMPLES ?= 2000
SOAK := $(BIN)/python soak

$(VENV)/.atheris: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris==3.0.0
	touch $@

soak: $(VENV)/.atheris
	for name in logistic mlp estimator regressor classifier lda dpfa partial-fit; do $(SOAK)/kills.py $$name --kills $(KILLS) || exit 1; done
	! $(SOAK)/kills.py logistic --kills 10 --mutant
	$(SOAK)/faults.py
	$(SOAK)/forge.py
	$(SOAK)/overhead.py
	ISOTHERM_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest tests/test_hostile_api.py
	for name in idx libsvm ldac matrix-market npz vocabulary wiki-xml wikitext; do $(SOAK)/fuzz.py $$name --seconds $(FUZZ_SECONDS) || exit 1; done
	$(SOAK)/memory.py --seconds $(MEMORY_SECONDS)

# Build sdist and wheel into dist/, install the wheel into an empty environment, run the README program; list what it consists of.
release: setup
	$(BIN)/python release/try_wheel.py
	$(BIN)/python release/sbom.py > dist/sbom.json

licences: setup
	$(BIN)/python release/sbom.py --licences

# Known vulnerabilities of the pinned versions; without a network it says that nothing was checked, and exits with 2.
audit:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	$(VENV)-audit/bin/python release/audit.py --pip-audit $(VENV)-audit/bin/pip-audit

docs: setup
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf $(VENV) $(VENV)-bench $(VENV)-bde $(VENV)-audit docs/_build runs
