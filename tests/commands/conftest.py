"""A store, and the command run on it."""

from __future__ import annotations

from support.stores import folder, run, store

__all__ = ["folder", "run", "store"]
