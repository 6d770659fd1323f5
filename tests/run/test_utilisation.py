"""How busy the CPUs are while a launch runs, by a clock and loads that are made up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.plans import make_plan
from support.results import result

from pytest_distbench.launch.starters.table import Hosting
from pytest_distbench.run import utilisation
from pytest_distbench.run.utilisation import UtilisationAround


class Machine:
    """Two CPUs, of which a step keeps some busy for so long; a launch of so many seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, share: Iterator[float]) -> None:
        self.now = 50.0
        self.busy = 7.0
        self.ends = self.now + seconds
        self.share = share
        monkeypatch.setattr(utilisation, "usable_cpus", lambda: frozenset({0, 1}))

    def wait(self, seconds: float) -> bool:
        took = min(seconds, self.ends - self.now)
        self.now += took
        self.busy += 2 * took * next(self.share)
        return self.now >= self.ends

    def looks(self) -> list[tuple[float, float]]:
        return list(UtilisationAround(lambda: self.now, lambda: self.busy).looks(self.wait))


def test_a_course_has_the_share_that_was_busy_since_the_moment_before(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 0.5, iter([0.0, 0.5, 1.0, 0.25]))

    assert machine.looks() == [(0.125, 0.0), (0.25, 0.5), (0.375, 1.0), (0.5, 0.25)]


@pytest.mark.parametrize("seconds", [1.0, 60.0, 3600.0, 86_400.0])
def test_a_long_launch_has_no_more_than_some_hundred_looks(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    looks = Machine(monkeypatch, seconds, itertools.repeat(1.0)).looks()

    assert 8 <= len(looks) <= 700
    assert looks[-1][0] == pytest.approx(seconds)
    assert {share for _, share in looks} == {1.0}


@pytest.mark.parametrize(("hosts", "is_seen"), [("one", True), ("many", False), ("none", False)])
def test_ranks_of_other_hosts_are_out_of_sight(tmp_path: Path, hosts: str, *, is_seen: bool) -> None:
    ticks = itertools.count()
    around = UtilisationAround(lambda: float(next(ticks)), lambda: 0.0)
    with around.during(make_plan(tmp_path), Hosting(hosts=hosts)) as course:  # type: ignore[arg-type]
        pass

    assert bool(course.describe(result().launches[0]).cpu_course) is is_seen
