"""What workloads add to the tables of the core."""

from __future__ import annotations

ROWS = {
    "commands": {"data": "data.commands:DATA"},
    "options": {"data": "plugin:DATA"},
    "fixtures": {
        "collective_sweep": "plugin:collective_sweep",
        "time_to_accuracy": "plugin:time_to_accuracy",
        "scaling": "plugin:scaling",
        "communication": "plugin:communication",
    },
    "charts": {
        "bandwidth": "charts:bandwidth",
        "change": "charts:change_by_size",
        "phases": "charts:phases_by_rank",
        "links": "charts:links",
    },
    "charts above tables": {
        "scaling": "charts:scaling",
        "phases": "charts:phases_by_size",
        "cost": "charts:cost",
    },
    "case texts": {"links": "tables.communication:LINK_TEXT", "sweep": "tables.collectives:SWEEP"},
    "tables": {
        "collectives": "tables.collectives:COLLECTIVES",
        "backends": "tables.collectives:BACKENDS",
        "transports": "tables.collectives:TRANSPORTS",
        "networks": "tables.collectives:NETWORKS",
        "scaling": "tables.scaling:SCALING",
        "phases": "tables.phases:PHASES",
        "growth": "tables.communication:GROWTH",
        "buckets": "tables.communication:BUCKETS",
        "cost": "tables.cost:COST",
        "links": "tables.communication:LINKS",
    },
}
