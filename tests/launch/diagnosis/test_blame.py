"""Of ranks that hang, those that the others wait for; and whether nobody is to blame."""

from __future__ import annotations

import pytest

from pytest_distbench.launch.diagnosis.blame import find_missing, is_deadlock, is_hang
from pytest_distbench.records.rank import HUNG, ErrorReport, RankFate

WAITED = ErrorReport(
    kind="DistStoreError", message="x", traceback="x", raised_at=1.0, torch_errors=["DistStoreError: x"]
)


def hung(rank: int, **fields: object) -> RankFate:
    return RankFate(rank=rank, outcome="failed", how=HUNG, **{"phase": "body", **fields})  # type: ignore[arg-type]


def gave_up(rank: int) -> RankFate:
    return RankFate(rank=rank, outcome="failed", phase="body", how="raised", is_victim=True, error=WAITED)


PASSED = RankFate(rank=9, outcome="passed", phase="body", how="passed")
BOTH = {"0": [0, 1]}
ALL = {"0": [0, 1, 2]}


@pytest.mark.parametrize(
    ("fates", "missing"),
    [
        ([hung(0), hung(1, phase="rendezvous")], [1]),
        ([hung(0, entered={"0": 2}, groups=BOTH), hung(1, entered={"0": 1}, groups=BOTH)], [1]),
        ([hung(0, entered={"0": 1}, groups=BOTH), hung(1, groups=BOTH)], [1]),
        ([hung(0, entered={"0": 2}, groups={"0": [0, 2]}), hung(1)], []),
        ([hung(0), hung(1, is_elsewhere=True)], [1]),
        ([hung(0, is_elsewhere=True), hung(1, is_elsewhere=True)], []),
        ([hung(0, phase="rendezvous"), hung(1, phase="rendezvous", is_elsewhere=True)], []),
        (
            [
                hung(0, entered={"0": 50}, unfinished={"0": 30}, groups=ALL),
                hung(1, entered={"0": 30}, unfinished={"0": 30}, groups=ALL),
                hung(2, entered={"0": 29}, groups=ALL),
            ],
            [2],
        ),
        (
            [
                hung(0, entered={"0": 7, "1": 5}, unfinished={"1": 5}, groups={**ALL, "1": [0, 1, 2]}),
                hung(1, entered={"0": 8, "1": 4}, unfinished={"0": 8}, groups={**ALL, "1": [0, 1, 2]}),
                hung(2, entered={"0": 7, "1": 4}, groups={**ALL, "1": [0, 1, 2]}),
            ],
            [2],
        ),
        ([], []),
    ],
    ids=[
        "an earlier phase",
        "behind in a group",
        "not come to a group",
        "not of that group",
        "in code of its own",
        "all of them are nobody",
        "before the body own code says nothing",
        "behind the host but not the GPU",
        "of two that are behind, one waits for the other",
        "nobody hangs",
    ],
)
def test_the_missing_ranks_are_those_behind_the_others(fates: list[RankFate], missing: list[int]) -> None:
    assert [f.rank for f in find_missing(fates)] == missing


@pytest.mark.parametrize(
    ("fates", "deadlock", "hang"),
    [
        ([gave_up(0), gave_up(1)], True, True),
        ([gave_up(0), PASSED], True, True),
        ([hung(0), PASSED], False, True),
        ([PASSED], False, False),
        ([gave_up(0), RankFate(rank=1, outcome="failed", phase="body", how="exit code 3")], False, False),
    ],
)
def test_a_deadlock_has_nobody_to_blame(fates: list[RankFate], *, deadlock: bool, hang: bool) -> None:
    assert (is_deadlock(fates), is_hang(fates)) == (deadlock, hang)
