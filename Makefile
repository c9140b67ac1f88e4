# `make demo` and `make test` need nothing but Python 3.11 or newer: they make their own .venv.
# Extra words for pip: make test PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PYTHON ?= python3
PIP_ARGS ?=
WORKERS ?= 2
BIN := .venv/bin
# Modules are compiled when they are first imported, and then kept: most of what is installed never is.
INSTALL = $(BIN)/python -m pip install --no-compile --disable-pip-version-check $(PIP_ARGS) -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test coverage docs docs-browser docs-links hosts release-check matrix lint format clean
.PHONY: check-style check-types check-types-of-tests check-imports

demo: .venv/.made
	$(BIN)/isornn demo $(DEMO_ARGS)

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# All tests again, with what they do not cover: following each line takes two thirds longer
coverage: .venv/.made-dev
	$(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term-missing:skip-covered

# The recipes in docs/hosts, each in an environment of its own: make hosts HOSTS="darts gluonts"
hosts:
	@PIP_ARGS="$(PIP_ARGS)" $(PYTHON) benchmarks/hosts $(HOSTS)

# The site, in docs/_build/html: warnings and broken links within it are errors. Tutorials run once, and when they change.
SPHINX = $(BIN)/sphinx-build -W --keep-going -d docs/_build/doctrees
docs: .venv/.made-docs
	$(SPHINX) -j $(WORKERS) docs docs/_build/html

# Every page of the built site in Chromium, at the width of a telephone, light and dark
docs-browser: .venv/.made-dev
	$(BIN)/python -m pytest -n 0 tests/docs_in_chromium.py

# Links to other sites, which takes the network
docs-links: .venv/.made-docs
	$(SPHINX) -b linkcheck docs docs/_build/linkcheck

# The wheel and the source archive, built and tried as they are installed; some ten minutes.
release-check: .venv/.made-dev
	$(INSTALL) -q -e ".[release]"
	PIP_ARGS="$(PIP_ARGS)" $(BIN)/python tools/release_check.py

# The oldest versions that pyproject.toml allows and the newest there are, on the Pythons of this machine.
matrix:
	PIP_ARGS="$(PIP_ARGS)" $(PYTHON) tools/matrix.py

lint: .venv/.made-dev
	$(MAKE) --no-print-directory -j $(WORKERS) check-types check-types-of-tests check-style check-imports

check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-types:
	$(BIN)/mypy

check-types-of-tests:
	$(BIN)/mypy --config-file tests/mypy.ini

check-imports:
	$(BIN)/lint-imports

format: .venv/.made-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .hosts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache docs/_build docs/reference/generated

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "isornn needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv

# The stamps say that .venv was made from the current pyproject and constraints: once, and again when they change.
.venv/.made: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing isornn into .venv (once)"
	$(INSTALL) -e ".[cli,plot]"
	@touch $@

.venv/.made-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing isornn and its development tools into .venv (once)"
	$(INSTALL) -e ".[dev]"
	@touch $@ .venv/.made

.venv/.made-docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing isornn and what builds its site into .venv (once)"
	$(INSTALL) -e ".[docs]"
	@touch $@ .venv/.made
