"""Rows that forecasts add to the tables of the core."""

from __future__ import annotations

ROWS = {
    "fixtures": {"forecast": "plugin:forecast"},
    "metric kinds": {"modelled": "kinds:MODELLED"},
    "rules": {"modelled": "rule:BY_ALL_TERMS"},
    "reasons": {"model-unsure": "kinds:MODEL_UNSURE"},
    "causes": {"forecast": "causes:dearer_calls"},
    "tables": {"forecast": "tables:FORECAST"},
    "charts above tables": {"forecast": "tables:forecast_charts"},
    "commands": {"cluster": "commands:CLUSTER"},
}
