"""Plans of launches that are never started, and how they might have ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_distbench.records.environment import End
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Ranks, Work

BODY = BodyReference(file="x.py", function="body")


def make_plan(directory: Path, *, world_size: int = 2, work: Work | None = None, **plan: Any) -> LaunchPlan:
    made: dict[str, Any] = {
        "index": 0,
        "world_size": world_size,
        "backend": "gloo",
        "device": "cpu",
        "work": work or Ranks(body=BODY),
        "timeout_s": 1.0,
        "directory": str(directory),
        "data_dir": str(directory),
        "folder": str(directory),
        "working_dir": str(directory),
        "python_path": [],
        "variables": {},
    }
    return LaunchPlan(**{**made, **plan})


def ended(*, code: int = 0, timed_out: bool = False, wall_s: float = 20.0) -> End:
    """How a launch below a guardian ended, of which nothing else is known."""
    return End(code=code, timed_out=timed_out, wall_s=wall_s)
