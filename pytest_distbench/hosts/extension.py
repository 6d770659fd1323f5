"""What ranks on other hosts, and chosen networks, add to the tables of the core."""

from __future__ import annotations

ROWS = {
    "launchers": {
        "slurm": "launchers:SLURM",
        "cmd": "launchers:CMD",
    },
}
