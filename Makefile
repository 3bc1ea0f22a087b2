# make compare   set up .venv, run the default comparison, write runs/compare/report.html
# make test      set up .venv, run the fast test suite
# make test-slow set up .venv, run the tests that are left out of `make test`
# make lint      set up .venv, check format and style

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Transparent huge pages for malloc: 5 to 7 % on CPU.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

.PHONY: compare test test-slow lint

compare: $(VENV)/run.stamp
	$(BIN)/python -m experiments.compare --config=configs/compare.py --workdir=runs/compare

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n auto --dist loadfile

test-slow: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n auto --dist loadfile -m slow

lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

$(VENV)/run.stamp: requirements.txt
	@echo "installing packages into $(VENV): once, a few minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/dev.stamp: requirements.txt requirements-dev.txt
	@echo "installing packages into $(VENV): once, a few minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements-dev.txt
	@touch $@
