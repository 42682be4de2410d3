# Everything runs from .venv, by path. Nothing needs activating, and a system Python that refuses pip is left alone.

.DEFAULT_GOAL := help

BIN := .venv/bin
READY := .venv/.ready
# One more than there are cores: the tests of whole processes wait for most of their time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# The first interpreter that is new enough. Each is tried, because a name on PATH may be a shim that does not run.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: test
test: $(READY) ## lint, check the types, run the tests: what CI runs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(MAKE) --no-print-directory -j2 mypy pyright
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile || { \
		echo "Once more without neighbours. What passes now is a test that can't bear them: mend it all the same."; \
		$(BIN)/pytest --last-failed --last-failed-no-failures none; }

.PHONY: mypy pyright
mypy pyright: $(READY)
	$(BIN)/$@

.PHONY: format
format: $(READY) ## mend what ruff can mend by itself
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: proof
proof: $(READY) ## run the long proofs and show their reports
	$(BIN)/pytest -m proof -s --timeout 1800

.PHONY: mutants
mutants: $(READY) ## break the core and the closing of histories on purpose, and see whether a test notices
	$(BIN)/python -m tests.mutation

.PHONY: bench
bench: $(READY) ## run every benchmark
	$(BIN)/python -m bench

.PHONY: chat
chat: $(READY) ## talk to an agent in the terminal, and stop it
	$(BIN)/python -m safepoint.cli.chat

# A venv made by uv has no pip in it, so without uv it is made anew.
$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Safepoint needs Python 3.11 or newer; say which one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing into .venv ..."
	@if command -v uv >/dev/null; then \
		$(BIN)/python -c '' 2>/dev/null || { rm -rf .venv && uv venv -q --python "$(PYTHON)" .venv; } && \
		uv pip install -q --python $(BIN)/python -e '.[dev]'; \
	else \
		$(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf .venv && "$(PYTHON)" -m venv .venv; } && \
		$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'; \
	fi
	@touch $@
