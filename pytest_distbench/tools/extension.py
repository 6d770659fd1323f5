"""Rows that the tools add to the tables of the core: doctor, init, CI, history, shrink, explain, exchange."""

from __future__ import annotations

ROWS = {
    "hooks": {"other plugins": "plugin:pytest_configure"},
    "commands": {
        "init": "init:INIT",
        "doctor": "doctor:DOCTOR",
        "ci": "ci:CI",
        "history": "history:HISTORY",
        "explain": "explain:EXPLAIN",
        "shrink": "shrink:SHRINK",
    },
    "formats": {
        "github-action-benchmark-smaller": "exports:SMALLER",
        "github-action-benchmark-bigger": "exports:BIGGER",
        "pytorch-benchmark": "exports:PYTORCH",
    },
    "page files": {"history": "history:CHARTS"},
    "baseline commands": {"export": "transfer:EXPORT", "import": "transfer:IMPORT"},
}
