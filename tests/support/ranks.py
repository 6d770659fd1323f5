"""A rank's context inside the test's own process: one rank, no group, no control socket."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.records.plan import BodyReference, LaunchPlan, Ranks
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.line import RankLine

ENVIRONMENT = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "GROUP_RANK": "0"}


class Line(RankLine):
    """Takes the place of the control line, and keeps what was shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def progress(self, text: str) -> None:
        self.shown.append(text)


def make_rank(
    line: RankLine | None = None,
    *,
    device: str = "cpu",
    devices: Sequence[int] = (0,),
    stands_for: int | None = None,
    **plan: object,
) -> RankContext:
    made = LaunchPlan(
        index=0,
        world_size=1,
        backend="fake",
        device=device,  # type: ignore[arg-type]
        devices=list(devices),
        work=Ranks(body=BodyReference(file="", function="body"), stands_for=stands_for),
        timeout_s=60.0,
        directory="",
        data_dir="",
        python_path=[],
        variables={},
        **plan,  # type: ignore[arg-type]
    )
    return RankContext(made, line or RankLine(), ENVIRONMENT)
