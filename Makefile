# Two commands for a fresh machine (Python 3.11, a C++ compiler):
#   make demo   .venv: ringline as pip installs it, the model, and the demo
#   make test   .venv-test: ringline with the test extras, and everything that CI runs
# Built engines and the model are kept in the cache folder (RINGLINE_CACHE, see docs/settings.md).

PYTHON ?= python3
DEMO := .venv/bin
TEST := .venv-test/bin

.DEFAULT_GOAL := demo
.NOTPARALLEL:
.PHONY: demo demo-env test test-env browser lint fmt bench fuzz model lock clean check-python

# make fuzz N=10000 SEED=1: so many mutated graphs, and malformed messages of every command.
N ?= 10000
SEED ?= 1

demo: model
	$(DEMO)/ringline demo

# The demo runs on the plain build, which has no RPC code of llama.cpp; pytest comes last, so that
# its summary is the last thing one reads.
test: test-env lint model browser
	$(DEMO)/ringline demo
	$(TEST)/pytest

lint: test-env
	$(TEST)/ruff check
	$(TEST)/ruff format --check
	$(TEST)/mypy
	$(TEST)/lint-imports --no-logo

fmt: test-env
	$(TEST)/ruff check --fix
	$(TEST)/ruff format

bench: test-env model
	$(TEST)/ringline bench step --json bench-step.json

fuzz: test-env
	PYTHONPATH=tools:. $(TEST)/python -m tests.fuzz run -n $(N) --seed $(SEED)

model: demo-env
	$(DEMO)/python -m ringline.engine.demo_model

demo-env: check-python
	$(PYTHON) tools/engine.py --venv .venv --flavour plain

test-env: check-python
	$(PYTHON) tools/engine.py --venv .venv-test --flavour rpc --extra test

# Chromium, for the tests of the page: Debian's package, if it is missing and we are root.
browser: check-python
	$(PYTHON) tools/browser.py

# Takes the newest versions that pyproject.toml allows and writes down what they are.
lock:
	$(TEST)/pip install --quiet --upgrade --upgrade-strategy eager \
	    --only-binary llama-cpp-python --editable '.[test]'
	{ echo '# What pyproject.toml pins and what that brings along; written by `make lock`.'; \
	  $(TEST)/pip freeze --exclude-editable --exclude llama_cpp_python; } > tools/constraints.txt

clean:
	rm -rf .venv .venv-test .venv.lock .venv-test.lock
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'error: ringline needs Python 3.11 or newer; name one: make PYTHON=python3.12 ...' >&2; \
	      exit 1; }
