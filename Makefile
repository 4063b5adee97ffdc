# Every target sets up what it needs: on a fresh machine `make demo` is enough. Needs Python 3.11+, git, make.
#   make PYTHON=python3.12 demo    chooses the interpreter

STAMP := .venv/.set-up
export PYTHON

.PHONY: demo test check setup clean

demo: setup
	@.venv/bin/outpace demo

test: check
	@scripts/browser
	@scripts/oldest-triton
	@scripts/test

check: setup
	@scripts/check

setup: $(STAMP)

$(STAMP): pyproject.toml scripts/setup $(wildcard requirements/*.txt)
	@scripts/setup
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
