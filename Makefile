# Three commands: `make suites` measures, `make test` tests the plugin, `make gpu` tests it on GPUs. Torch is installed once.
PYTHON ?= python3
TOX = .venv/bin/tox

.PHONY: suites test gpu

suites: $(TOX)
	$(TOX) run -q -e py -- suites --world-size 2

# Does it do on these GPUs what it promises? About half an hour; `make gpu LINES="--only clock,hang --json seen.json"`.
gpu: $(TOX)
	$(TOX) run -q -e py --notest
	.tox/py/bin/python benchmarks/gpu_acceptance.py $(LINES)

test: $(TOX)
	$(TOX) run -q -e py

$(TOX):
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet 'tox>=4.25'
