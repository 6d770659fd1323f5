"""Rows that workloads add to the tables of the core."""

from __future__ import annotations

from pathlib import Path

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.options import ADVANCED, Option
from pytest_distbench.records.wanted import Wanted

ROWS = {
    "commands": {"data": "data.commands:DATA"},
    "options": {"data": "extension:DATA"},
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


def _read_place(text: str) -> str:
    if "://" in text:
        from pytest_distbench.workloads.data import why_no_store

        if why := why_no_store(text):
            raise ConfigurationError(f"{text}: {why}")
        return text
    path = Path(text).absolute()
    if not path.is_dir():
        raise ConfigurationError(f"there is no folder {path}; give one, or a URL such as s3://bucket")
    return str(path)


DATA = Option(
    "folder or URL of full-size data sets",
    "An object store is s3://bucket/prefix.",
    metavar="DIR",
    wanted=Wanted("a folder or a URL", _read_place),
    name="data",
    group=ADVANCED,
    default="",
)
