# Two commands are enough on a new machine: `make demo` and `make test`. The rest is for work on the code.
# Every target works from any folder (`make -C path/to/dormouse demo`) and may be repeated.

ROOT   := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
PYTHON ?= python3
VENV   := $(ROOT)/.venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed.stamp
RUNS   ?= $(ROOT)/runs

.PHONY: help demo test check format bench clean

help:           ## show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(STAMP): $(ROOT)/pyproject.toml $(ROOT)/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(ROOT)/constraints.txt -e '$(ROOT)[dev]'
	@touch $@

install: $(STAMP)  ## create the environment

demo: $(STAMP)  ## train, score and sample on the built-in corpus (about five minutes on two cores)
	@cd $(ROOT) && $(BIN)/dormouse demo --out $(RUNS)

check: $(STAMP)  ## formatting, lint, import contracts, types
	cd $(ROOT) && $(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports && $(BIN)/pyrefly check

test: check     ## everything that continuous integration runs
	cd $(ROOT) && $(BIN)/python -m pytest -q -n 2

format: $(STAMP)  ## rewrite the files in the project's format
	cd $(ROOT) && $(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: $(STAMP)  ## generation, retraction, dispatch, instruments (rewrites their files in benchmarks/results), every peer for seconds
	cd $(ROOT) && export GOMP_SPINCOUNT=10000 && $(BIN)/python -m benchmarks.generation && $(BIN)/python -m benchmarks.retraction \
	&& $(BIN)/python -m benchmarks.dispatch && $(BIN)/python -m benchmarks.instruments \
	&& $(BIN)/python -m benchmarks.peers --smoke

clean:          ## remove the environment and caches (runs/ stays)
	rm -rf $(VENV) $(ROOT)/.pytest_cache $(ROOT)/.ruff_cache
