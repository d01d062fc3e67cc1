# `make demo`, `make test`, `make list`: each command is a session of noxfile.py. Needs python3, pip and make, nothing else;
# everything is made in .venvs. Another interpreter: make PYTHON=python3.12 test
PYTHON ?= python3

# One room, file or word of `make test`, FAST=1 without property tests and processes: make test ROOM=wire K=segment
TESTS = $(if $(ROOM),tests/$(ROOM)) $(FILE) $(if $(K),-k "$(K)") $(if $(FAST),-m "not hypothesis and not processes") $(PEERS_ARGUMENTS)

.PHONY: list clean FORCE

list:
	@$(PYTHON) bootstrap.py --list

clean:
	rm -rf .venvs .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

%: FORCE
	@$(PYTHON) bootstrap.py -s $@ -- $(TESTS)

Makefile: ;
