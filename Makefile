# `make demo`, `make quick`, `make test` and `make docs` do everything on a fresh machine. All set up .venv first; `make test` also needs
# Chromium.
PYTHON ?= python3
BIN := .venv/bin

# Tests start many processes. Without bytecode on disk each of them compiles torch again: three seconds in place of one.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test check pytest docs attack chromium page format clean

# Bytecode is written here, with both cores: a dry run keeps what it imports from being written, and would compile it every time.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	-$(BIN)/python -m compileall -qq -j 0 .venv/lib
	touch $@

demo: .venv/ready
	$(BIN)/memfit demo

# Between edits: what breaks first, in less than 90 seconds on two cores. tests/quick.txt says which tests, CONTRIBUTING.md why these.
quick: check
	$(BIN)/pytest --numprocesses 2 --dist worksteal @tests/quick.txt

# One core installs packages while the other waits for Chromium; types, which take one core, are checked while tests run.
test:
	$(MAKE) --jobs 2 .venv/ready chromium
	$(MAKE) --jobs 2 check pytest

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# A worker that is done takes over from the other, so that both end together; the tests of a file, which share fixtures, stay together.
pytest: .venv/ready chromium
	$(BIN)/pytest --numprocesses 2 --dist worksteal

# The documentation as a site, in site/. A broken link fails.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Damaged files, full disks and whatever else must not make memfit fall over: ten minutes of it, an hour with LONG=1, or SECONDS=30.
attack: .venv/ready
	PYTHONPATH=tests $(BIN)/python -m attack --seconds $(or $(SECONDS),$(if $(LONG),3600,600)) --seed $(or $(SEED),0)

# The report page is tested in Debian's Chromium; it is installed where it is missing.
chromium:
	@command -v chromium >/dev/null && exit 0; \
	command -v apt-get >/dev/null || { echo 'Install Chromium such that the command `chromium` starts it; the tests need it.'; exit 1; }; \
	if [ "$$(id -u)" = 0 ]; then as=; elif command -v sudo >/dev/null; then as=sudo; \
	else echo 'The tests need Chromium. As root: apt-get update && apt-get install --yes chromium'; exit 1; fi; \
	$$as apt-get update --quiet && $$as env DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes chromium

# For those who change web/: builds the script and style of the report page into the package. Needs Node.
page:
	cd web && npm install --no-package-lock --no-audit --no-fund && npm run build

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv site
