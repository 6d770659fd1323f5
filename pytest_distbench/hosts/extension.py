"""What ranks on other hosts, and chosen networks, add to the tables of the core."""

from __future__ import annotations

ROWS = {
    "launchers": {
        "slurm": "rows:SLURM",
        "cmd": "rows:CMD",
    },
    "options": {"network": "plugin:OPTION"},
    "markers": {"network": "plugin:MARKER"},
    "choices": {"network": "rows:CHOICE"},
    "around": {"network": "lab:make_around"},
}
