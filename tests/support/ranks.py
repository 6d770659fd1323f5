"""A rank's context inside the test's own process: one rank, no group, no control socket."""

from __future__ import annotations

from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.work import BodyReference, Ranks
from pytest_distbench.worker.context import RankContext

ENVIRONMENT = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "GROUP_RANK": "0"}


class Line:
    """Takes the place of the control line, and keeps what was shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def progress(self, text: str) -> None:
        self.shown.append(text)

    def take_turn(self) -> None:
        """It is always this group's."""


def make_rank(
    line: Line | None = None, *, device: str = "cpu", stands_for: int | None = None, **plan: object
) -> RankContext:
    made = LaunchPlan(
        index=0,
        world_size=1,
        backend="fake",
        device=device,  # type: ignore[arg-type]
        devices=[0],
        work=Ranks(body=BodyReference(file="", function="body"), stands_for=stands_for),
        timeout_s=60.0,
        directory="",
        data_dir="",
        python_path=[],
        variables={},
        **plan,  # type: ignore[arg-type]
    )
    return RankContext(made, line or Line(), ENVIRONMENT)  # type: ignore[arg-type]
