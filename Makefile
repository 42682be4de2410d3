# Everything runs from .venv, by path. Nothing needs activating, and a system Python that refuses pip is left alone.

.DEFAULT_GOAL := help

BIN := .venv/bin
READY := .venv/.ready
LOCAL := .venv-chat
CORES := $(shell getconf _NPROCESSORS_ONLN)
# Twice as many as there are cores: the tests of whole processes wait for most of their time.
WORKERS ?= $(shell expr $(CORES) \* 2)

# Compiled modules are kept, in one place, whatever the machine's environment says: hundreds of Pythons start here.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/pycache

PYTEST := $(BIN)/pytest --dist loadfile --no-loadscope-reorder
# Suites that neither start processes nor play thousands of scenarios.
FAST := $(addprefix tests/,agent cli compose core history hostile house sessions tools turns)

# The first interpreter that is new enough. Each is tried, because a name on PATH may be a shim that does not run.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: quick
quick: $(READY) lint ## while you work: lint, the types of what changed, the fast tests
	@$(MAKE) --no-print-directory -j2 mypy pyright-changed
	$(PYTEST) -q -n $(CORES) $(FAST)

.PHONY: test
test: $(READY) lint ## lint, check the types, run the tests
	@$(MAKE) --no-print-directory -j2 mypy pyright
	$(PYTEST) -n $(WORKERS)

.PHONY: test-everywhere
test-everywhere: $(READY) ## cancel every entry at every await, where `make test` takes a sample, and see that none is left
	$(BIN)/pytest -m everywhere

.PHONY: test-browser
test-browser: $(READY) ## the tests that need a browser: chromium, Chrome, or playwright's
	$(BIN)/pytest -m browser

.PHONY: test-postgres
test-postgres: $(READY) ## the tests that need PostgreSQL, which a wheel brings
	$(BIN)/pytest -m 'postgres and not proof'

.PHONY: test-adapters
test-adapters: $(READY) ## agents of other frameworks under Safepoint, each framework in an environment of its own
	$(BIN)/python -m tests.adapters.environments

.PHONY: test-protocols
test-protocols: $(READY) build/protocols/.ready ## other people's clients of the protocols, which npm installs into build/protocols
	$(BIN)/pytest -m protocols

build/protocols/.ready: tests/protocols/package.json
	@mkdir -p $(@D) && cp $< $(@D)/
	@npm install --prefix $(@D) --no-audit --no-fund --loglevel error
	@touch $@

.PHONY: test-terminal
test-terminal: $(READY) ## the chat and the tour in a real terminal
	$(PYTEST) -n $(WORKERS) -m terminal tests/terminal

.PHONY: test-cold
test-cold: $(READY) ## docs, examples and whole processes once more, each in a new Python instead of a forked one
	SAFEPOINT_COLD=1 $(PYTEST) -n $(WORKERS) tests/docs tests/examples tests/process tests/test_program.py

.PHONY: lint
lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

.PHONY: mypy pyright
mypy pyright: $(READY)
	$(BIN)/$@

.PHONY: pyright-changed
pyright-changed: $(READY)
	@changed=$$(git diff --name-only --diff-filter=d HEAD -- '*.py'; git ls-files --others --exclude-standard -- '*.py'); \
	if [ -n "$$changed" ]; then $(BIN)/pyright $$changed; fi

.PHONY: format
format: $(READY) ## mend what ruff can mend by itself
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: proof
proof: $(READY) ## run the long proofs and show their reports
	$(BIN)/pytest -m 'proof or everywhere' -s --timeout 1800

.PHONY: mutants
mutants: $(READY) ## break the core and the closing of histories on purpose, and see whether a test notices
	$(BIN)/python -m tests.mutation

# The site is read from the disk: open build/site/index.html. The theme's notice about its successor is not for readers.
.PHONY: docs
docs: $(READY) ## build the documentation site into build/site, and fail for a dead link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open build/site/index.html"

.PHONY: docs-serve
docs-serve: $(READY) ## the site at localhost:8001, built again when a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr localhost:8001

.PHONY: figures
figures: $(READY) ## draw the figures of the guides again
	$(BIN)/python -m docs.scripts.figures

.PHONY: test-docs
test-docs: $(READY) ## build the site and follow every link in it
	$(BIN)/pytest -m site

.PHONY: changelog
changelog: $(READY) ## show what the next release changes; VERSION=0.2.0 writes it to CHANGELOG.md and takes the fragments away
	$(BIN)/towncrier build --yes $(if $(VERSION),--version $(VERSION),--draft --version next)

.PHONY: release-check
release-check: $(READY) ## build wheel and sdist, install the wheel with each extra in a new environment, import, serve, chat
	$(BIN)/python -m tests.release

.PHONY: bench
bench: $(READY) ## measure Safepoint beside other frameworks, in environments of their own; the summary goes to the README
	$(BIN)/python -m bench compare

.PHONY: bench-quick
bench-quick: $(READY) ## the same in a short form, to see that it works; the README stays as it is
	$(BIN)/python -m bench compare --quick

.PHONY: bench-ours
bench-ours: $(READY) ## run our own benchmarks: each measures one part of Safepoint
	$(BIN)/python -m bench

.PHONY: bench-adapters
bench-adapters: $(READY) ## each other framework bare and under Safepoint: the stop score, and the cost of a run; needs `make test-adapters` first
	$(BIN)/python -m bench.compare.adapted --all

.PHONY: cluster
cluster: $(READY) ## three workers on one PostgreSQL, one is killed, nothing is lost; build/cluster/happened.svg shows who ran what
	$(BIN)/python examples/several_machines.py build/cluster
	$(BIN)/python -m docs.scripts.cluster build/cluster/happened.jsonl build/cluster/happened.svg

.PHONY: tour
tour: $(LOCAL)/.ready ## stop an agent six times in two minutes, without a model
	@$(LOCAL)/bin/safepoint tour

.PHONY: recording
recording: $(READY) ## play the tour and an ACP client in a terminal and write docs/pictures/*.svg
	$(BIN)/python -m tests.terminal.record

.PHONY: chat
chat: $(LOCAL)/.ready ## talk to an agent in the terminal, and stop it; installs what it needs, about 160 MB
	@$(LOCAL)/bin/safepoint chat $(WITH)

# A small environment of its own: who wants to try a chat does not wait for the tools of developers.
$(LOCAL)/.ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Safepoint needs Python 3.11 or newer; say which one: make PYTHON=python3.12 chat" >&2; exit 1; }
	@echo "Installing what the chat needs into $(LOCAL) (about 160 MB, once) ..."
	@"$(PYTHON)" -m venv $(LOCAL)
	@$(LOCAL)/bin/python -m pip install --disable-pip-version-check -e '.[local]'
	@touch $@

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
