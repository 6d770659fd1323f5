# Two commands: `make suites` measures, `make test` tests the plugin. Torch is installed once, for both.
PYTHON ?= python3
TOX = .venv/bin/tox

.PHONY: suites test

suites: $(TOX)
	$(TOX) run -q -e py -- suites --world-size 2

test: $(TOX)
	$(TOX) run -q -e py

$(TOX):
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet 'tox>=4.25'
