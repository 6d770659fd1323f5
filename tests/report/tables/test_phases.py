"""Where iterations go: phases that add up, with their parents."""

from __future__ import annotations

import pytest
from support.results import result

from pytest_distbench.launch.reduce import merge
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Observation
from pytest_distbench.records.rank import RankReport
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.phases import PHASES, phase_rows


def series(name: str, *seconds: float) -> Observation:
    better = "info" if name.startswith("phase/") else "lower"
    return Observation(name=name, unit="s", better=better, reduce="max", values=list(seconds), is_series=True)


def case(*ranks: dict[str, tuple[float, float]], late_s: dict[str, list[float]] | None = None) -> CaseResult:
    reports = [
        RankReport(
            rank=i, outcome="passed", phase="body", phases={}, observations=[series(n, *v) for n, v in each.items()]
        )
        for i, each in enumerate(ranks)
    ]
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=merge(reports), late_s=late_s or {})
    return result(launches=[launch])


def test_parts_and_the_rest_add_up_though_another_rank_is_the_slowest_in_each() -> None:
    """Rank 0 computes longer and rank 1 waits for it: the sum of the maxima would be more than the step."""
    first = {"step": (1.0, 1.0), "phase/step/forward": (0.6, 0.6), "phase/step/backward": (0.3, 0.3)}
    second = {"step": (1.0, 1.0), "phase/step/forward": (0.4, 0.4), "phase/step/backward": (0.5, 0.5)}
    whole, *parts = phase_rows([case(first, second)])

    assert [part.phase for part in parts] == ["forward", "backward", "unaccounted"]
    assert sum(part.mean_s for part in parts) == pytest.approx(whole.mean_s) == pytest.approx(1.0)
    assert [part.uneven_s for part in parts] == [pytest.approx(0.1), pytest.approx(0.1), None]
    assert [part.slowest_rank for part in parts] == [0, 1, None]


def test_inner_phases_stand_below_theirs_and_count_once() -> None:
    inner = {"step": (1.0, 3.0), "phase/step/backward/send": (0.5, 0.5), "phase/step/backward": (1.0, 1.0)}
    section = PHASES.section([case(inner)])

    assert [row[2].rstrip() for row in section.texts] == ["step", "  backward", "    send", "  unaccounted"]
    assert [row[4] for row in section.texts] == ["100.0%", "50.0%", "25.0%", "50.0%"]


def test_a_loop_without_phases_and_phases_without_a_loop_are_no_rows() -> None:
    assert phase_rows([case({"step": (1.0, 1.0)}), case({"phase/load": (1.0, 1.0)})]) == []


def test_who_comes_late_to_the_collectives_is_named() -> None:
    ranks = [{"step": (1.0, 1.0), "phase/step/forward": (0.6, 0.6)}] * 2
    section = PHASES.section([case(*ranks, late_s={"step": [0.0, 0.02]})])

    assert section.footer == ["# test_a[ws2] step: rank 1 enters a collective last, 10 ms after the mean of the ranks"]
