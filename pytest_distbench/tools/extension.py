"""What surrounds a run adds to the tables of the core: doctor, init, history, imports and exports."""

from __future__ import annotations

ROWS: dict[str, dict[str, str]] = {}
