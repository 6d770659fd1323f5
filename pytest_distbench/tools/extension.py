"""What surrounds a run adds to the tables of the core: doctor, init, history, explain, imports and exports."""

from __future__ import annotations

ROWS = {
    "commands": {
        "init": "init:INIT",
        "doctor": "doctor:DOCTOR",
        "history": "history:HISTORY",
        "explain": "explain:EXPLAIN",
    },
    "baseline commands": {"export": "transfer:EXPORT", "import": "transfer:IMPORT"},
}
