"""The fixture ``scaling``: what it runs, in which order, and what it makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import fixtures
from support.fixtures import made_up_distbench

from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.outcomes import Misuse
from pytest_distbench.plugin.scaling import Scaling
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.run import CaseResult

COMMUNICATION_S = 0.25


class Timed(fixtures.MadeUp):
    """A step takes 10 ms a sample, and communication of more than one worker a quarter of a second."""

    order: list[tuple[int, str]] = []

    def add(self, *, only: object = ()) -> None:
        params: Any = self.request.work.params  # type: ignore[union-attr]
        self.order.append((self.request.world_size, params["communication"]))
        waits = self.request.world_size > 1 and params["communication"] == "on"
        step = Measurement(
            name="step", unit="s", better="lower", value=0.01 * params["batch"] + waits * COMMUNICATION_S
        )
        self.launches.append(LaunchRecord(index=len(self), outcome="passed", wall_s=1.0, measurements=[step]))


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Distbench, list[CaseResult]]:
    monkeypatch.setattr(fixtures, "MadeUp", Timed)
    monkeypatch.setattr(Timed, "order", [])
    found: list[CaseResult] = []
    distbench = made_up_distbench(Path(__file__), tmp_path)
    monkeypatch.setattr(distbench, "_record", found.append)
    monkeypatch.setattr(distbench, "world_size", 4)
    return distbench, found


def body(rank: Any) -> None:
    """Runs nowhere."""


def values(found: list[CaseResult]) -> dict[str, float | None]:
    return {v.metric: v.current for result in found for v in result.verdicts if "workers" in v.at}


def test_every_size_runs_in_turns_beside_one_worker_and_itself_without_communication(
    made_up: tuple[Distbench, list[CaseResult]],
) -> None:
    distbench, found = made_up
    runs = Scaling(distbench)(body, params={"batch": 50}, launches=2)

    sizes = [(1, "off"), (1, "on"), (2, "on"), (4, "on"), (2, "off"), (4, "off")]
    assert Timed.order == [*sizes, *sizes]
    assert [run.result.case.world_size for run in runs] == [1, 2, 4]
    assert [r.case.label for r in found[:6]] == [
        "local@ws1", "workers@ws1", "workers@ws2", "workers@ws4", "apart@ws2", "apart@ws4",
    ]  # fmt: skip


def test_weak_a_worker_has_as_many_samples_however_many_there_are(
    made_up: tuple[Distbench, list[CaseResult]],
) -> None:
    distbench, found = made_up
    Scaling(distbench)(body, params={"batch": 50})

    assert values(found) == pytest.approx(
        {
            "scaling_efficiency[workers=2]": 0.5 / 0.75,
            "computing_share[workers=2]": 0.5 / 0.75,
            "scaling_efficiency[workers=4]": 0.5 / 0.75,
            "computing_share[workers=4]": 0.5 / 0.75,
        }
    )


def test_strong_the_samples_are_shared(made_up: tuple[Distbench, list[CaseResult]]) -> None:
    distbench, found = made_up
    Scaling(distbench)(body, mode="strong", params={"batch": 100}, name="shared")

    assert values(found) == pytest.approx(
        {
            "shared scaling_efficiency[workers=2]": 1.0 / (2 * 0.75),
            "shared computing_share[workers=2]": 0.5 / 0.75,
            "shared scaling_efficiency[workers=4]": 1.0 / (4 * 0.5),
            "shared computing_share[workers=4]": 0.25 / 0.5,
        }
    )


def test_one_worker_has_nothing_to_be_compared_with(made_up: tuple[Distbench, list[CaseResult]]) -> None:
    distbench, found = made_up
    [run] = Scaling(distbench)(body, params={"batch": 1}, world_size=1)

    assert (run.result.case.label, values(found)) == ("workers@ws1", {})


def test_a_size_that_is_no_power_of_two_is_the_last(made_up: tuple[Distbench, list[CaseResult]]) -> None:
    distbench, _ = made_up
    runs = Scaling(distbench)(body, params={"batch": 3}, world_size=3)

    assert [run.result.case.world_size for run in runs] == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "both", "params": {"batch": 1}}, "mode='both'; wanted one of weak, strong"),
        ({"params": {}}, "params has no 'batch': the samples of a step, of a worker"),
        ({"params": {"batch": 0}}, r"params\['batch'\]=0; wanted a whole number of at least 1"),
        ({"params": 3}, "params=3"),
        ({"params": {"batch": 1, "communication": "on"}}, "params holds 'communication', which scaling sets itself"),
        ({"mode": "strong", "params": {"batch": 6}}, "=6 cannot be shared evenly by 4 workers; give a multiple of 4"),
        ({"params": {"batch": 1}, "of": 3}, "of=3"),
        ({"params": {"batch": 1}, "sizes": [1, 2]}, "sizes"),
    ],
)
def test_what_cannot_be_scaled_is_refused_with_what_was_wanted(
    made_up: tuple[Distbench, list[CaseResult]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Misuse, match=message):
        Scaling(made_up[0])(body, **options)
    assert Timed.order == []
