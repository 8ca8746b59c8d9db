# nediff: `make demo` shows what it does, `make test` checks it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-for-work

.PHONY: demo test lint docs wheel-test notebooks bench faults soak clean browser

demo: $(STAMP)  ## Train on noisy photographs for three minutes; writes demo/report.html
	$(BIN)/nediff demo --out demo

test: $(DEV) lint browser  ## ruff, mypy --strict, the import contracts, and the tests
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

docs: $(DEV)  ## The documentation site, docs/_build/html/index.html; stops at a warning
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

wheel-test: $(DEV)  ## Build the wheel and use it outside the repository (part of `make test`)
	$(BIN)/pytest tests/test_wheel.py

notebooks: $(DEV)  ## Run the notebooks and the scripts of the gallery (part of `make test`)
	$(BIN)/pytest tests/test_examples.py

browser:  ## Chromium for the tests of the page, where it can be installed; else they are skipped
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium) >/dev/null 2>&1 || \
	  echo "Chromium cannot be installed; the tests of the page in a browser are skipped"; \
	else echo "no Chromium: the tests of the page in a browser are skipped"; fi

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEV)  ## Speed, against others; needs NEDIFF_DATA (two hours; finished parts are kept)
	$(BIN)/pip install --quiet --disable-pip-version-check bm3d
	$(BIN)/python -c "from benchmarks.speed.peers import install; install()"
	$(BIN)/python -m benchmarks.speed

faults: $(DEV)  ## Kills, damaged files, full disks, hostile files; writes docs/reliability.md's table
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults

soak: $(DEV)  ## An hour of training and sampling in turn, with the memory recorded
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.soak

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (PyTorch is large: two to three minutes the first time) ..."
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[app]"
	touch $(STAMP)

$(DEV): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[app,dev]"
	touch $(DEV)

clean:
	rm -rf $(VENV) .bench demo docs/_build .pytest_cache .mypy_cache .ruff_cache
