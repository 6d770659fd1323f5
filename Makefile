# `make suites` measures and takes about two minutes, `make suites-full` with all slow tests, `make structure` judges what needs no clock, `make lint` runs what needs no test, `make test` that and the tests of the plugin, `make thorough` and `make nightly` more of the same, `make durations` says which file of tests takes too long, `make dist` builds the wheel and tries it, `make gpu` on GPUs, `make docs` builds the site. Torch is installed once.
PYTHON ?= python3
TOX = .venv/bin/tox
UV = .venv/bin/uv

.PHONY: suites suites-full structure lint test thorough nightly durations dist gpu docs

SIDE_BY_SIDE = -n 4 --dist=loadgroup --no-loadscope-reorder

suites: $(TOX)
	$(TOX) run -q -e py -- suites --world-size 2

suites-full: $(TOX)
	$(TOX) run -q -e py -- suites --world-size 2 --distbench-full

# Communication and state of trainings at 8 and 64 ranks: one process represents a rank, on any machine.
structure: $(TOX)
	$(TOX) run -q -e py -- suites/structure --world-size 8,64 --distbench-backend fake --distbench-no-baseline fail

# Does the plugin work on these GPUs as promised? About an hour; `make gpu LINES="--only clock,hang --json seen.json"`. A Python, and
# the build of torch that fits the driver, come from uv; simulated GPUs (`LINES=--stand-in`) need only tox's.
ifeq ($(findstring --stand-in,$(LINES)),)
gpu: .venv-gpu/is-installed
	.venv-gpu/bin/python benchmarks/gpu_acceptance.py $(LINES)
else
gpu: $(TOX)
	$(TOX) run -q -e py --notest
	.tox/py/bin/python benchmarks/gpu_acceptance.py $(LINES)
endif

.venv-gpu/is-installed: pyproject.toml | $(UV)
	$(UV) venv --quiet --clear --python 3.12 .venv-gpu
	$(UV) pip install --python .venv-gpu --torch-backend=auto -e '.[suites]' --group test
	touch $@

# Lint, format, types, import contracts, workflows and the pages: about a minute.
lint: $(TOX)
	$(TOX) run -q -e py --notest
	.tox/py/bin/python tests/lint.py

test: lint
	$(TOX) run -q -e py

# Under torchrun, a command and Slurm what depends on who starts the ranks.
thorough: $(TOX)
	$(TOX) run -q -e py -- tests -m thorough $(SIDE_BY_SIDE) --junit-xml=durations/thorough.xml

# Minutes each: every fault under every launcher, every type on four ranks, networks and nodes that die.
nightly: $(TOX)
	$(TOX) run -q -e py -- tests -m nightly $(SIDE_BY_SIDE) --durations=10

# After `make test` and `make thorough`, whose seconds it reads.
durations:
	.tox/py/bin/python tests/durations.py durations/*.xml

# The sdist and the wheel in dist/, and the README's first test with the wheel in an empty environment.
dist: $(TOX)
	$(TOX) run -q -e py --notest
	.tox/py/bin/python tests/wheel.py dist

docs: $(TOX)
	$(TOX) run -q -e docs

$(TOX):
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet 'tox>=4.25'

$(UV):
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet uv
