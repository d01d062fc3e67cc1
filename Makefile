# Each target sets itself up: the first run makes an environment in .venv, later runs leave it alone until its
# requirement file or pyproject.toml changes. Needs python3, pip and make, nothing else.

PYTHON ?= python3
# For the makes that `tests/everything.py` starts.
export PYTHON
# Written wherever it is unset: the tests start thousands of processes, which would each compile what they import.
export PYTHONDONTWRITEBYTECODE :=
# Without it mkdocs-material prints at each build that its support ends in May 2027.
export NO_MKDOCS_2_WARNING := 1
BIN := .venv/bin

# The tests of an older SDK or HTTP library, of each integration, of agents, and of what trainers read of our exports, run
# in an environment of their own: .venvs/NAME. The trainers' need Python 3.11 or newer.
CLIENTS := $(patsubst requirements/%.txt,%,$(wildcard requirements/openai-*.txt requirements/anthropic-*.txt \
	requirements/google-*.txt requirements/http-*.txt))
INTEGRATIONS := $(patsubst integrations/%/tests/requirements.txt,%,$(wildcard integrations/*/tests/requirements.txt))
COLLECT := tests/collection tests/shards
# What users test their agents with.
PLUGIN := tests/plugin tests/testing tests/test_pytest_agent.py
# Rollouts on a Ray cluster, which the test starts.
RAY := collect-ray
# Frameworks inside each other, with an integration each.
MIXED := mixed
NESTED := rollout-trace-langchain rollout-trace-pydantic-ai rollout-trace-openai-agents
# The page in a browser.
PAGE := page
# What is built of the project to be published.
RELEASE := release
# The same tests beside the oldest release of the framework that they pass with.
OLDEST := $(patsubst integrations/%/tests/requirements-oldest.txt,%-oldest,$(wildcard \
	integrations/*/tests/requirements-oldest.txt))

SMOLAGENTS := integrations/rollout-trace-smolagents
CONSUMERS := $(patsubst requirements/%.txt,%,$(wildcard requirements/consumers-*.txt))
# Trainers whose environments take long to make, and of which some are on no index: not run by CI. The one of Python 3.12
# needs that interpreter: make test-trainers-python312 PYTHON=python3.12. For slime, rLLM and NeMo-RL set
# ROLLOUT_TRACE_CHECKOUTS to a folder with checkouts of them.
TRAINERS := $(patsubst requirements/%.txt,%,$(wildcard requirements/trainers-*.txt))
# Agents and frameworks as their users run them. Fewer: make test-agents AGENTS=agents-litellm
AGENTS := $(patsubst requirements/%.txt,%,$(wildcard requirements/agents-*.txt))
NAMES := $(CLIENTS) $(INTEGRATIONS) $(OLDEST) $(RAY) $(PAGE) $(RELEASE) $(MIXED) $(CONSUMERS) $(TRAINERS) $(AGENTS)
# Other recorders, each beside the openai client in an environment of its own: `make bench-peers`, which CI does not run.
PEERS := $(patsubst requirements/%.txt,%,$(wildcard requirements/peers-*.txt))

.PHONY: demo dist docs test check check-core bench fuzz properties kills collect-stress clean test-core test-collect test-plugin test-install test-agents test-consumers test-trainers test-sequences test-engines $(NAMES:%=test-%)
.PHONY: bench-peers $(PEERS:%=environment-%)
.PHONY: environment $(NAMES:%=environment-%) $(INTEGRATIONS:%=bench-%) $(INTEGRATIONS:%=check-%)

demo: environment
	$(BIN)/python examples/quickstart.py --overwrite
	@echo
	@echo 'And then:'
	@echo '  $(BIN)/rollout-trace run -o mine.jsonl --engine vllm agent.py      records a program of yours, unmodified'
	@echo '  $(BIN)/rollout-trace collect agent.py:solve --tasks tasks.jsonl -o runs/mine.jsonl      runs an agent over tasks'
	@echo '  make docs      serves the documentation, which begins in docs/index.md'

# The documentation at http://127.0.0.1:8000/, built again when a file changes. Another port: make docs PORT=8001
PORT := 8000
docs: environment
	$(BIN)/mkdocs serve --strict --dev-addr 127.0.0.1:$(PORT)

# Two at a time, all of them whatever fails, and one table at the end. The environment that two of them share is made first;
# if it cannot be, they are the ones that fail.
test:
	-@$(MAKE) --silent environment
	@$(PYTHON) tests/everything.py core collect plugin install $(CLIENTS) $(INTEGRATIONS) $(OLDEST) $(MIXED) $(RAY) $(PAGE) $(RELEASE)

test-core: environment
	$(BIN)/python -m pytest -q $(COLLECT:%=--ignore=%) $(PLUGIN:%=--ignore=%)

# Its slowest tests, beside the others: they start many processes.
test-collect: environment
	$(BIN)/python -m pytest -q $(COLLECT)

# The pytest plugin, which they run as users do, and the servers that it stands on.
test-plugin: environment
	$(BIN)/python -m pytest -q $(PLUGIN)

# The `pip install` lines of the documentation, in new environments.
test-install: environment
	$(BIN)/python -m pytest -q tests/install

$(CLIENTS:%=test-%): test-%: environment-%
	.venvs/$*/bin/python -m pytest -q $(FOLDER)

$(CLIENTS:%=test-%): FOLDER = tests/$(CLIENT_TESTS_$(firstword $(subst -, ,$(@:test-%=%))))
CLIENT_TESTS_openai := clients
CLIENT_TESTS_anthropic := clients_anthropic
CLIENT_TESTS_google := clients_google
CLIENT_TESTS_http := http_libraries

$(INTEGRATIONS:%=test-%) $(OLDEST:%=test-%): test-%: environment-%
	.venvs/$*/bin/python -m pytest -q -c pyproject.toml integrations/$(*:-oldest=)/tests

test-$(RAY): test-%: environment-%
	.venvs/$*/bin/python -m pytest -q tests/collect_ray

test-$(MIXED): test-%: environment-%
	.venvs/$*/bin/python -m pytest -q tests/mixed

# Needs Debian's chromium, or a browser that ROLLOUT_TRACE_BROWSER names; without one the tests are skipped.
$(PAGE:%=test-%): test-%: environment-%
	.venvs/$*/bin/python -m pytest -q tests/page

# The distributions: what is in them, and that they work where nothing else of the project is. It takes a package registry.
$(RELEASE:%=test-%): test-%: environment-%
	.venvs/$*/bin/python -m pytest -q tests/release

# The distributions in dist/, checked and ready to upload, which is left to you: CONTRIBUTING.md.
dist: environment-$(RELEASE)
	.venvs/$(RELEASE)/bin/python -m tests.release.distributions dist

# What trainers and other readers make of our exports: minutes to install, with PyTorch.
test-consumers:
	@$(PYTHON) tests/everything.py $(CONSUMERS)

$(CONSUMERS:%=test-%): test-%: environment-%
	.venvs/$*/bin/python -m pytest -q tests/consumers/$(*:consumers-%=%)
	$(if $(filter consumers-torch,$*),PYTHONPATH=$(SMOLAGENTS) \
	.venvs/$*/bin/python -m pytest -q -c pyproject.toml $(SMOLAGENTS)/tests/test_transformers.py)

test-trainers:
	@$(PYTHON) tests/everything.py $(TRAINERS)

$(TRAINERS:%=test-%): test-%: environment-%
	.venvs/$*/bin/python -m pytest -q tests/trainers/$(*:trainers-%=%)

# Agents and frameworks, unmodified, under `rollout-trace run` and `rt.instrument()`. CI runs a part: one case a program, by
# ROLLOUT_TRACE_AGENTS=part, in two of the environments.
test-agents:
	@$(PYTHON) tests/everything.py $(AGENTS)

$(AGENTS:%=test-%): test-%: environment-%
	.venvs/$*/bin/python -m pytest -q tests/agents/$(*:agents-%=%)

# The property tests, with all of their examples, of which `make test` tries a part.
properties: environment
	ROLLOUT_TRACE_ALL_EXAMPLES=1 $(BIN)/python -m pytest -q -m hypothesis

# 10,000 runs against the rule of sequences, of which `make test` looks at a part.
test-sequences: environment
	ROLLOUT_TRACE_EXAMPLES=10000 $(BIN)/python -m pytest -q tests/test_sequences.py

# 200 processes killed at any moment, and recovered; `make test` kills 20.
kills: environment
	ROLLOUT_TRACE_KILLS=200 $(BIN)/python -m pytest -q tests/kills

# 2,000 rollouts with faults, and ten kills of each kind; `make test` makes a part.
collect-stress: environment
	ROLLOUT_TRACE_ROLLOUTS=2000 ROLLOUT_TRACE_KILLS=10 $(BIN)/python -m pytest -q tests/collection/test_many.py tests/collection/test_kills.py

# Against live engines, those that are installed: docs/engines.md.
test-engines: environment
	ROLLOUT_TRACE_ENGINES=1 $(BIN)/python -m pytest -q tests/engines

# Two at a time: most of it is mypy, which is one process for each integration.
check:
	@+$(MAKE) --no-print-directory -j2 check-core $(INTEGRATIONS:%=check-%)

check-core: environment
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m tests.house
	$(BIN)/mkdocs build --strict --quiet

# The types of an integration, its tests and its example, with its framework's. The core's own are checked above, with
# what the core can be used with.
$(INTEGRATIONS:%=check-%): check-%: environment environment-%
	MYPYPATH=integrations/$*:tests/shared:benchmarks/shared $(BIN)/mypy --cache-dir .mypy_cache/$* \
	--python-executable .venvs/$*/bin/python --follow-imports silent $(UNTYPED) integrations/$*

# smolagents has no types: its decorators and its classes can be anything.
check-rollout-trace-smolagents: UNTYPED := --allow-untyped-decorators --allow-subclassing-any

bench: environment $(INTEGRATIONS:%=bench-%)
	$(BIN)/python benchmarks/run.py

$(INTEGRATIONS:%=bench-%): bench-%: environment-%
	PYTHONPATH=benchmarks/shared .venvs/$*/bin/python integrations/$*/benchmark.py

# The same calls recorded by others, half an hour: writes benchmarks/peers/results.json and docs/comparison.md. A peer whose
# environment cannot be made is listed as such. A rough run, of some of them:
# make bench-peers PEERS_ARGUMENTS="--rounds 2 --only ours langfuse --output rough.json"
bench-peers: environment
	-@$(MAKE) --keep-going --no-print-directory $(PEERS:%=environment-%)
	$(BIN)/python -m benchmarks.peers.run $(PEERS_ARGUMENTS)

fuzz: environment
	$(BIN)/python -m tests.fuzz.run

clean:
	rm -rf .venv .venvs .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A number that changes with the content of these files, with PYTHON and with the folder of the checkout.
number = $(if $(1),$(firstword $(shell { cat $(1); echo '$(PYTHON) $(CURDIR) $(torch)'; } | cksum)))

# Harbor, whose validator of ATIF is the one to ask, needs Python 3.12, and so do the SDK of OpenHands and OpenPipe's ART.
# All peers have the same Python: their times are compared.
python = $(if $(filter %/consumers-atif %/trainers-python312 %/agents-openhands .venvs/peers-%,$(1)),$(shell python3.12 -c '' 2>/dev/null && echo python3.12 || echo $(PYTHON)),$(PYTHON))

# PyTorch comes in many builds, one for each kind of machine: whichever pip finds, before the others and without a hash.
torch = $(if $(filter %/consumers-torch.txt %/consumers-tinker.txt %/trainers-torch.txt,$(1)),torch==2.13.0)

# $(call rules,TARGET,FOLDER,REQUIREMENTS,PACKAGES): TARGET makes an environment in FOLDER. The empty files
# FOLDER/requirements-NUMBER and FOLDER/packages-NUMBER say what it holds. PACKAGES may be empty.
define rules
$(1): $(2)/$(if $(4),packages-$(call number,$(4:%=%/pyproject.toml)),requirements-$(call number,$(3)))

$(2)/packages-$(call number,$(4:%=%/pyproject.toml)): $(2)/requirements-$(call number,$(3))
	@$(PYTHON) tests/environment.py $(2) $(4:%=-e %)
	@rm -f $(2)/packages-*
	@touch $$@

$(2)/requirements-$(call number,$(3)):
	@echo "$(2): installing $(3)"
	@$(call python,$(2)) -m venv --clear $(2) >/dev/null 2>&1 || $(call python,$(2)) -m venv --clear --without-pip $(2)
	$(if $(call torch,$(3)),@$(PYTHON) tests/environment.py $(2) $(call torch,$(3)))
	@$(PYTHON) tests/environment.py $(2) -r $(3)
	@touch $$@
endef

$(eval $(call rules,environment,.venv,requirements/dev.txt,.))
$(foreach name,$(CLIENTS) $(RAY) $(PAGE) $(RELEASE) $(CONSUMERS) $(TRAINERS) $(AGENTS) peers-ours,$(eval $(call rules,environment-$(name),.venvs/$(name),$(strip \
	requirements/$(name).txt),.)))
$(foreach name,$(filter-out peers-ours,$(PEERS)),$(eval $(call rules,environment-$(name),.venvs/$(name),requirements/$(name).txt,)))
$(eval $(call rules,environment-$(MIXED),.venvs/$(MIXED),requirements/$(MIXED).txt,. $(NESTED:%=./integrations/%)))
$(foreach name,$(INTEGRATIONS),$(eval $(call rules,environment-$(name),.venvs/$(name),$(strip \
	integrations/$(name)/tests/requirements.txt),. ./integrations/$(name))))
$(foreach name,$(OLDEST:-oldest=),$(eval $(call rules,environment-$(name)-oldest,.venvs/$(name)-oldest,$(strip \
	integrations/$(name)/tests/requirements-oldest.txt),. ./integrations/$(name))))
