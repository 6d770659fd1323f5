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
        "bandwidth": "tables.collectives:bandwidth",
        "change": "tables.collectives:change_by_size",
        "phases": "tables.phases:phases_by_rank",
        "links": "tables.communication:link_charts",
    },
    "charts above tables": {
        "scaling": "tables.scaling:scaling_charts",
        "phases": "tables.phases:phases_by_size",
        "cost": "tables.cost:cost_charts",
    },
    "causes": {"sizes": "causes:slow_sizes", "links": "causes:slow_links"},
    "case texts": {"links": "tables.communication:LINK_TEXT", "sweep": "tables.collectives:SWEEP"},
    "tables": {
        "setup": "tables.cost:SETUP",
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
