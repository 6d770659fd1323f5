# `make suites` measures and takes about two minutes, `make suites-full` with all long forms, `make structure` judges what needs no clock, `make test` tests the plugin, `make thorough` with more of the same, `make gpu` on GPUs, `make docs` builds the site. Torch is installed once.
PYTHON ?= python3
TOX = .venv/bin/tox
UV = .venv/bin/uv

.PHONY: suites suites-full structure test thorough gpu docs

suites: $(TOX)
	$(TOX) run -q -e py -- suites --world-size 2

suites-full: $(TOX)
	$(TOX) run -q -e py -- suites --world-size 2 --distbench-full

# What trainings send and hold at 8 and 64 ranks: one process for a rank, on any machine.
structure: $(TOX)
	$(TOX) run -q -e py -- suites/structure --world-size 8,64 --distbench-backend fake --distbench-missing fail

# Does it do on these GPUs what it promises? About an hour; `make gpu LINES="--only clock,hang --json seen.json"`. A Python, and
# the build of torch that fits the driver, come by uv; made-up GPUs (`LINES=--stand-in`) need none but tox's.
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

test: $(TOX)
	$(TOX) run -q -e py

# No line of the plugin that `make test` does not run: every fault under torchrun too, every type on four ranks.
thorough: $(TOX)
	$(TOX) run -q -e py -- tests -m thorough -n 4 --dist=loadgroup --no-loadscope-reorder

docs: $(TOX)
	$(TOX) run -q -e docs

$(TOX):
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet 'tox>=4.25'

$(UV):
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet uv
