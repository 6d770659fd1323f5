"""Plans of launches that are never started."""

from __future__ import annotations

from pathlib import Path

from pytest_distbench.records.plan import BodyReference, LaunchPlan


def make_plan(directory: Path, *, world_size: int = 2) -> LaunchPlan:
    return LaunchPlan(
        index=0,
        world_size=world_size,
        backend="gloo",
        device="cpu",
        body=BodyReference(file="x.py", function="body"),
        params={},
        seeds=[0],
        timeout_s=1.0,
        directory=str(directory),
        data_dir=str(directory),
        working_dir=str(directory),
        python_path=[],
        variables={},
    )
