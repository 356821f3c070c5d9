# `make book` builds the site, `make test` checks everything. GNU make 3.81 or later, Python 3.11 or later.

PYTHON ?= python3
RUN    := .venv/bin/python
READY  := .venv/ready
SITE   := _build/html
COLAB  := .venv-colab

# Kernels, start-up files and settings of the account that runs this stay out of the book.
export JUPYTER_PREFER_ENV_PATH := 1
export JUPYTER_PATH := $(CURDIR)/.venv/share/jupyter
export IPYTHONDIR := $(CURDIR)/.venv/ipython
export MPLCONFIGDIR := $(CURDIR)/.venv/matplotlib
export PYTHONNOUSERSITE := 1
unexport PYTHONPATH MATPLOTLIBRC MPLBACKEND
# Nor does the book say another thing where there is a GPU; CUDA_VISIBLE_DEVICES=0 lets the tests use it.
CUDA_VISIBLE_DEVICES ?=
export CUDA_VISIBLE_DEVICES

.PHONY: help book test test-colab lint format notebooks picture retarget clean distclean
.DEFAULT_GOAL := help

help:
	@echo "make book       build the site into $(SITE)"
	@echo "make test       style, types, tests, notebooks and the site"
	@echo "make test-colab run every notebook with the packages of Google Colab"
	@echo "make notebooks  run every notebook in place and clean it"
	@echo "make picture    take the picture of the README from its notebook"
	@echo "make retarget REPO=owner/name   name the public repository, everywhere"
	@echo "make lint       style and types only"
	@echo "make format     put the style right"
	@echo "make clean      remove what was built; make distclean removes .venv and $(COLAB) too"

# Made again only when the pins or the package's description change. Two things would print into the first notebook,
# and are settled here: a kernel's warning that it talks to its own machine unencrypted, and matplotlib's font cache.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "remat needs Python 3.11 or later, and '$(PYTHON)' is not: name one with 'make book PYTHON=python3.12'."; \
	  exit 1; }
	@echo "Installing the pinned environment into .venv (a few minutes the first time) ..."
	@$(PYTHON) -m venv .venv
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@mkdir -p .venv/etc/ipython
	@echo '{"IPKernelApp": {"log_level": "ERROR"}}' > .venv/etc/ipython/ipython_kernel_config.json
	@$(RUN) -c 'import matplotlib.font_manager'
	@touch $(READY)

book: $(READY)
	@rm -rf $(SITE)
	REMAT_FRAMES="$(CURDIR)/_build/frames" .venv/bin/jupyter-book build . --all -W -n --keep-going -q
	@echo "Open $$($(RUN) -c 'import pathlib; print(pathlib.Path("$(SITE)/index.html").resolve().as_uri())')"

# One pytest run holds the tests, the doctests, the notebooks against their outputs, and the built pages.
test: lint book
	REMAT_SITE=$(SITE) $(RUN) -m pytest --nbval --nbval-current-env --nbval-cell-timeout=120 \
	  --nbval-sanitize-with=tests/book/sanitize.cfg tests remat notebooks

# The same versions as on Colab, but for PyTorch, which is the one in .venv.
$(COLAB)/ready: tests/colab/requirements.txt tests/colab/environment.py requirements.txt | $(READY)
	@echo "Installing Colab's versions into $(COLAB) (a minute or two the first time) ..."
	@$(RUN) tests/colab/environment.py $(COLAB)
	@touch $@

test-colab: $(COLAB)/ready
	REMAT_COLAB=$(COLAB) $(RUN) -m pytest --durations=0 tests/colab

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(READY)
	$(RUN) -m ruff check --fix --exit-zero --quiet .
	$(RUN) -m ruff format .

notebooks: $(READY)
	$(RUN) _sphinx/clean_notebooks.py notebooks/*.ipynb

picture: $(READY)
	$(RUN) _sphinx/picture.py

retarget:
	@$(PYTHON) _sphinx/retarget.py "$(REPO)"

clean:
	rm -rf _build .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
	find remat tests _sphinx benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf .venv $(COLAB)
