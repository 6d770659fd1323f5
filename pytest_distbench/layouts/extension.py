"""What layouts add to the tables of the core."""

from __future__ import annotations

ROWS = {
    "fixtures": {"equivalent": "plugin:equivalent"},
    "options": {"model": "plugin:MODEL"},
    "tables": {"layouts": "tables:LAYOUT_TABLE", "models": "tables:MODEL_TABLE"},
}
