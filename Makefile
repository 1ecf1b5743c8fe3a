# Each target sets up what it needs; nothing but Python >= 3.10 and make has to be there.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run setup test test-faults bench bench-quick results docs lint format clean

run: setup
	$(BIN)/cuber run $(ARGS)

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("cuber needs Python 3.10 or newer; name one with make PYTHON=python3.x" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

test: setup
	$(BIN)/python -m pytest $(ARGS)

# Thirty kills per method; a few minutes on two cores.
test-faults: setup
	CUBER_KILLS=30 $(BIN)/python -m pytest tests/faults $(ARGS)

# Speed and memory beside what is wanted: about ten minutes on a machine that does nothing else.
bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

bench-quick: setup
	$(BIN)/python -m benchmarks --quick $(ARGS)

# The tables and figures of docs/results.md, from results/; RUNS=DIR first copies the finished runs in DIR there.
results: setup
	$(BIN)/python -m benchmarks.results "$(RUNS)"

# The documentation site, in build/docs. Its notebooks are executed, and call cuber as a shell command.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	PATH="$(CURDIR)/$(BIN):$$PATH" python -m sphinx -W -n --keep-going -b html docs build/docs

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
