"""From what ranks recorded to where the iterations of a loop go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_distbench.launch.breakdown import breakdowns as join
from pytest_distbench.launch.breakdown import loops_on
from pytest_distbench.records.breakdown import Breakdown, PartShare, PhasePlace
from pytest_distbench.records.host_report import HostReport
from pytest_distbench.records.metric import WALL_TIME, Observation
from pytest_distbench.records.rank import RankReport
from pytest_distbench.records.record import replace


def observation(name: str, *values: float, place: PhasePlace | None = None) -> Observation:
    return Observation(
        name=name, unit="s", better="info", reduce="max", values=list(values), is_series=True, place=place
    )


def phase(*path: str, values: list[float], began_at: list[float] | None = None, **place: object) -> Observation:
    made = PhasePlace(loop="step", path=list(path), began_at=began_at or [], **place)  # type: ignore[arg-type]
    return observation("phase/step/" + "/".join(path), *values, place=made)


def report(rank: int, *observations: Observation) -> RankReport:
    return RankReport(rank=rank, outcome="passed", phase="body", phases={}, observations=list(observations))


def breakdowns(reports: Sequence[RankReport], *, is_one_clock: bool) -> dict[str, Breakdown]:
    """Of all ranks, on one host where they have one clock, else each on its own."""
    hosts = [reports] if is_one_clock else [[report] for report in reports]
    return join([on_host(there, is_one_clock=is_one_clock) for there in hosts])


def on_host(reports: Sequence[RankReport], *, is_one_clock: bool = False) -> HostReport:
    ordered = sorted(reports, key=lambda report: report.rank)
    return HostReport(ranks=ordered, loops=loops_on(reports, is_one_clock=is_one_clock))


def test_each_number_is_a_mean_over_iterations_by_rank() -> None:
    """The largest over ranks, and the fast side of the iterations, of which a launch's value is made, do not add up."""
    found = breakdowns(
        [
            report(1, observation("step", 3.0, 5.0), phase("forward", values=[1.0, 3.0], host_s=[0.5, 0.5])),
            report(0, observation("step", 3.0, 5.0), phase("forward", values=[2.0, 1.0], host_s=[0.25, 0.25])),
        ],
        is_one_clock=True,
    )

    assert found == {
        "step": Breakdown(
            times_s=[4.0, 4.0], parts=[PartShare(path=["forward"], times_s=[1.5, 2.0], hosts_s=[0.25, 0.5])]
        )
    }
    assert found["step"].unaccounted_s == [2.5, 2.0]


def arrivals(*of_ranks: tuple[list[float], list[float]]) -> list[RankReport]:
    return [
        report(rank, observation("step", 9.0, 9.0), phase("communication", values=seconds, began_at=began_at))
        for rank, (seconds, began_at) in enumerate(of_ranks)
    ]


def test_ranks_wait_for_the_last_to_come_but_no_longer_than_they_are_in_the_phase() -> None:
    reports = arrivals(([4.0, 0.5], [10.0, 20.0]), ([1.0, 1.0], [13.0, 21.0]), ([2.0, 1.0], [12.0, 20.5]))
    [part] = breakdowns(reports, is_one_clock=True)["step"].parts

    assert part.waits_s == [(3.0 + 0.5) / 2, 0.0, (1.0 + 0.5) / 2]
    assert part.late_s == [0.0, (3.0 + 1.0) / 2, (2.0 + 0.5) / 2]


def test_nobody_waits_in_an_iteration_that_some_do_not_enter() -> None:
    [part] = breakdowns(arrivals(([4.0, 1.0], [10.0, 20.0]), ([1.0, 0.0], [13.0, 0.0])), is_one_clock=True)[
        "step"
    ].parts

    assert part.waits_s == [1.5, 0.0]


@pytest.mark.parametrize(("ranks", "is_one_clock"), [(1, True), (2, False)])
def test_it_is_not_told_who_waits_for_nobody_and_on_clocks_that_cannot_be_compared(
    ranks: int, is_one_clock: bool
) -> None:
    reports = arrivals(([4.0, 4.0], [10.0, 20.0]), ([1.0, 1.0], [13.0, 23.0]))[:ranks]
    [part] = breakdowns(reports, is_one_clock=is_one_clock)["step"].parts

    assert (part.waits_s, part.late_s) == ([], [])


def test_a_rank_that_does_not_enter_a_phase_has_spent_no_time_in_it() -> None:
    """As the one that saves a checkpoint, beside those that do not."""
    reports = [report(0, observation("step", 3.0), phase("save", values=[2.0])), report(1, observation("step", 3.0))]
    [part] = breakdowns(reports, is_one_clock=True)["step"].parts

    assert part.times_s == [2.0, 0.0]


def test_a_loop_of_some_ranks_is_left_out() -> None:
    reports = [report(0, observation("step", 3.0), phase("save", values=[2.0])), report(1)]

    assert breakdowns(reports, is_one_clock=True) == {}


def test_what_is_apart_stays_so() -> None:
    reports = [report(0, observation("step", 3.0), phase("evaluation", values=[2.0], is_apart=True))]
    [part] = breakdowns(reports, is_one_clock=True)["step"].parts

    assert part.is_apart


def test_a_part_of_a_script_has_all_the_times_that_it_was_entered_at_any_point() -> None:
    place = PhasePlace(loop=WALL_TIME, path=["reduce"])
    small, large = (replace(observation("phase/reduce", *v, place=place), at={"size": v[0]}) for v in ((1, 2), (3, 4)))
    found = breakdowns([report(0, small, large, observation(WALL_TIME, 12.0))], is_one_clock=True)

    assert found == {WALL_TIME: Breakdown(times_s=[12.0], parts=[PartShare(path=["reduce"], times_s=[10.0])])}


def test_ranks_of_several_hosts_are_told_in_their_order_wherever_each_lives() -> None:
    """The second host enters no phase of the loop, and a third one has a phase of its own."""

    def steps(rank: int, *phases: Observation) -> RankReport:
        return report(rank, observation("step", 10.0 + rank), *phases)

    hosts = [
        on_host([steps(0, phase("save", values=[2.0], host_s=[1.0])), steps(3)]),
        on_host([steps(1)]),
        on_host([steps(2, phase("load", values=[4.0], is_apart=True))]),
    ]

    assert join(hosts)["step"] == Breakdown(
        times_s=[10.0, 11.0, 12.0, 13.0],
        parts=[
            PartShare(path=["save"], times_s=[2.0, 0.0, 0.0, 0.0], hosts_s=[1.0, 0.0, 0.0, 0.0]),
            PartShare(path=["load"], times_s=[0.0, 0.0, 4.0, 0.0], is_apart=True),
        ],
    )
    assert join([*hosts, on_host([report(4)])]) == {}
