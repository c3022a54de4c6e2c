# On a fresh machine every target first makes .venv and installs the project into it.
#   make demo                nine trainings on real text, then their figures
#   make test                the test suite
#   make lint                ruff and mypy, as pre-commit and CI run them
#   make mutants             300 small errors in the code, and which no test notices (two hours)
#   make docs                rewrite the generated tables in docs/
#   make claims              what the literature says of nets at init, measured (12 minutes)
#   make claims-train        what it says of training, measured (45 minutes)
# PYTHON=python3.12 chooses the interpreter, VENV=path another place for the venv, and PIP_ARGS goes
# to pip (an index with the CPU or CUDA build of PyTorch that you want, say).

VENV := .venv
PYTHON ?=
PIP_ARGS ?=
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint mutants docs claims claims-train clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(INSTALLED)
	$(RUN) -m stability.run -m norm=pre,post,none depth=6,24,96 flush_subnormal=true name=demo
	$(RUN) -m stability.plot outputs/demo
	@echo "The figures are in $(CURDIR)/outputs/demo/figures"

test: $(INSTALLED)
	$(RUN) -m pytest -n auto

lint: $(INSTALLED)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

MUTANTS := --count 300 --seed 0
mutants: $(INSTALLED)
	$(RUN) tests/mutants.py $(MUTANTS)

docs: $(INSTALLED)
	$(RUN) docs/render.py

# Sweeps that are named: the same command again runs only what is missing.
claims: $(INSTALLED)
	@$(call put_to_the_test,init)

claims-train: $(INSTALLED)
	@$(call put_to_the_test,training)

define put_to_the_test
$(RUN) -m stability.claims --sweeps --stage $(1) | { failed=; while read -r sweep figures; do \
	$(RUN) -m stability.run experiments=$$sweep </dev/null || failed="$$failed $$sweep"; \
	test -z "$$figures" || $(RUN) -m stability.plot outputs/$$sweep --figures $$figures; \
done; $(RUN) -m stability.claims outputs; \
test -z "$$failed" || { echo "not complete:$$failed" >&2; exit 1; }; }
endef

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build

# Made anew when a dependency changes; otherwise it costs nothing.
$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(RUN) || { python=$$($(find_python)) && echo "Making $(VENV) with $$python" && \
		"$$python" -m venv $(VENV); }
	$(RUN) -m pip install --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@

# Hydra 1.3 does not start on Python 3.14.
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python)
define find_python
for python in $(CANDIDATES); do \
	"$$python" -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		2>/dev/null && echo "$$python" && exit; \
done; \
echo "No Python 3.11, 3.12 or 3.13 that can make a venv was found (tried: $(CANDIDATES))." >&2; \
echo "Install one (on Debian and Ubuntu python3-venv too) or name it: make PYTHON=PATH" >&2; exit 1
endef
