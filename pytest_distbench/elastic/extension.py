"""Rows that elastic jobs add to the tables of the core."""

from __future__ import annotations

ROWS = {
    "works": {"job": "records:Job", "pool": "records:Pool"},
    "launch kinds": {"records:Job": "launch:JOB", "records:Pool": "launch:POOL"},
    "workers": {"elastic": "worker.training:main", "serving": "worker.training:serve"},
    "charts": {"elastic": "tables:elastic_charts", "pool": "tables:pool_charts", "serving": "tables:serving_charts"},
    "fixtures": {"elastic": "plugin:elastic", "elastic_pool": "plugin:elastic_pool"},
    "formats": {"trace": "tables:TRACE"},
    "tables": {
        "elastic": "tables:JOBS",
        "epochs": "epochs:EPOCHS",
        "events": "tables:EVENTS",
        "accuracy": "epochs:ACCURACY",
        "final_accuracy": "epochs:FINAL_ACCURACY",
        "pool": "tables:POOLS",
        "serving": "tables:SERVINGS",
    },
}
