# nediff: `make demo` shows what it does, `make test` checks it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint bench clean

demo: $(STAMP)  ## Train on noisy photographs for three minutes; writes demo/report.html
	$(BIN)/nediff demo --out demo

test: $(STAMP) lint  ## ruff, mypy --strict, the import contracts, and the tests
	$(BIN)/pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## Denoising figures; needs NEDIFF_DATA (hours; finished pieces are kept)
	$(BIN)/python -m benchmarks.denoising

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (PyTorch is large: two to three minutes the first time) ..."
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache
