# `make suites` measures and takes about two minutes, `make suites-full` with all slow tests, `make structure` judges what needs no clock, `make test` runs lint and the tests of the plugin, `make lint` that alone, `make nightly` more of the same, `make durations` says which file of tests has become costly, `make dist` builds the wheel and tries it, `make models` compares models of transformers under layouts, `make gpu` on GPUs, `make docs` builds the site. Torch is installed once.
PYTHON ?= python3
TOX = .venv/bin/tox
UV = .venv/bin/uv

.PHONY: suites suites-full structure lint test nightly durations dist models gpu docs

SIDE_BY_SIDE = -n 4 --dist=loadgroup --no-loadscope-reorder -rs

# `make suites ARGS=--distbench-update=new` records baselines for this machine: without any nothing is compared.
suites: $(TOX)
	$(TOX) run -q -e py -- suites --world-size 2 $(ARGS)

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

# Lint, format, types, import contracts, workflows and the pages: also a part of `make test`.
lint: $(TOX)
	$(TOX) run -q -e py -- tests/test_lint.py -n 2

# `make test MARKS="not nightly"`: also, under torchrun, a command and Slurm, what depends on who starts the ranks.
MARKS = not thorough and not nightly
test: $(TOX)
	$(TOX) run -q -e py -- tests -m "$(MARKS)" --since=origin/main $(SIDE_BY_SIDE) --durations=10 --junit-xml=durations/test.xml

# Minutes each: every fault under every launcher, every type on four ranks, networks and nodes that die, all conditional tests.
nightly: $(TOX)
	$(TOX) run -q -e py -- tests -m "nightly or conditional" $(SIDE_BY_SIDE) --durations=10

# After `make test`, whose seconds it reads; RECORD=--record writes tests/durations.csv.
durations:
	.tox/py/bin/python tests/durations.py $(RECORD) durations/test.xml

# The sdist and the wheel in dist/, and the README's first test with the wheel; WITH=--empty in an environment that has nothing else.
dist: $(TOX)
	$(TOX) run -q -e py --notest
	.tox/py/bin/python tests/wheel.py dist $(WITH)

# Two hours; killed, it goes on where it was: models.csv has what is done. `make models LINES="--layouts all --lot 20"`.
models: $(TOX)
	$(TOX) run -q -e py --notest
	.tox/py/bin/python benchmarks/models.py $(LINES)

docs: $(TOX)
	$(TOX) run -q -e docs

$(TOX):
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet 'tox>=4.25'

$(UV):
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet uv
