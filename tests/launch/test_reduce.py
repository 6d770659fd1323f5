"""From what ranks recorded to one measurement: reduction over ranks, per element."""

from __future__ import annotations

import pytest
from support.fingerprints import BARRIER

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.reduce import late_s, merge, merge_fingerprints
from pytest_distbench.records.bound import Bound
from pytest_distbench.records.fingerprint import Collective, Fingerprint, RankFingerprint
from pytest_distbench.records.kinds import Better, Reduce
from pytest_distbench.records.metric import Observation
from pytest_distbench.records.rank import RankReport
from pytest_distbench.records.record import replace


def report(
    rank: int, *values: float, better: Better = "lower", reduce: Reduce = "max", series: bool = True
) -> RankReport:
    observation = Observation(name="m", unit="s", better=better, reduce=reduce, values=list(values), is_series=series)
    return RankReport(rank=rank, outcome="passed", phase="body", phases={}, observations=[observation])


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    [measurement] = merge([report(0, 1.0, 5.0, 1.0, 1.0), report(1, 2.0, 2.0, 2.0, 2.0)])

    assert measurement.value == 2.0
    assert measurement.summary is not None
    assert (measurement.summary.n, measurement.summary.minimum, measurement.summary.p99) == (4, 2.0, 5.0)
    assert (measurement.summary.slowest_rank, measurement.summary.slowest_share) == (1, 0.75)


def test_a_series_is_kept_whole_where_its_kind_asks_for_it_and_as_a_distribution_elsewhere() -> None:
    for better, series, distribution in (("lower", [], [1.0, 2.0, 5.0]), ("info", [2.0, 5.0, 1.0], [])):
        [measurement] = merge([report(0, 2.0, 5.0, 1.0, better=better, reduce="max")])

        assert (measurement.series, measurement.distribution) == (series, distribution)
    [number] = merge([report(0, 2.0, series=False)])
    assert number.distribution == []


@pytest.mark.parametrize(("reduce", "value"), [("max", 3.0), ("min", 1.0), ("mean", 2.0), ("sum", 4.0), ("rank0", 1.0)])
def test_reductions(reduce: Reduce, value: float) -> None:
    [measurement] = merge([report(0, 1.0, reduce=reduce, series=False), report(1, 3.0, reduce=reduce, series=False)])

    assert measurement.value == value


def test_throughput_takes_the_75th_percentile() -> None:
    [measurement] = merge([report(0, 1.0, 2.0, 3.0, 4.0, 5.0, better="higher", reduce="min")])

    assert measurement.value == 4.0


def test_ranks_that_must_agree_and_do_not_are_an_error_that_shows_both() -> None:
    with pytest.raises(RecordingError, match="rank 0: 1, rank 1: 2"):
        merge([report(0, 1.0, better="exact", reduce="all"), report(1, 2.0, better="exact", reduce="all")])


def test_series_of_different_length_are_an_error() -> None:
    with pytest.raises(RecordingError, match=r"\[1, 2\] values"):
        merge([report(0, 1.0), report(1, 1.0, 2.0)])


def fingerprinted(rank: int, *rows: Collective, entered: tuple[float, ...] = (), missing: str = "") -> RankReport:
    fingerprint = RankFingerprint(collectives=list(rows), entered=list(entered), missing=missing)
    return RankReport(rank=rank, outcome="passed", phase="body", phases={}, fingerprints={"m": fingerprint})


def test_equal_ranks_are_stored_once_and_others_apart() -> None:
    found = merge_fingerprints([fingerprinted(1, BARRIER), fingerprinted(0, BARRIER), fingerprinted(2)])["m"]

    assert found.collectives == {"0-1": [BARRIER], "2": []}


def test_a_rank_without_a_fingerprint_leaves_the_launch_without() -> None:
    assert merge_fingerprints([fingerprinted(0, BARRIER), fingerprinted(1, missing="off")])["m"] == Fingerprint(
        missing="off"
    )


def test_the_rank_that_comes_last_is_late_by_the_mean_over_collectives() -> None:
    late = late_s([fingerprinted(0, entered=(0.0, 1.0)), fingerprinted(1, entered=(0.5, 1.1))])

    assert late["m"] == pytest.approx([0.0, 0.3])


def test_cpu_time_and_waits_are_summed_over_ranks() -> None:
    times = [1.0, 1.0, 1.0, 9.0]
    reports = [
        RankReport(
            rank=rank,
            outcome="passed",
            phase="body",
            phases={},
            observations=[
                Observation(
                    name="m",
                    unit="s",
                    better="lower",
                    reduce="max",
                    values=times,
                    is_series=True,
                    companions={"cpu_s": times, "waits": times},
                )
            ],
        )
        for rank in range(2)
    ]
    [measurement] = merge(reports)

    assert measurement.companions == {"cpu_s": 2.0, "waits": 6.0}


def test_ranks_that_disagree_about_a_bound_are_an_error() -> None:
    def report(rank: int) -> RankReport:
        bound = Bound(side="most", value=float(rank), where="rank.record at a.py:1")
        observation = Observation(
            name="loss", unit="", better="info", reduce="mean", values=[1.0], is_series=False, bounds=[bound]
        )
        return RankReport(rank=rank, outcome="passed", phase="body", phases={}, observations=[observation])

    assert merge([report(1)])[0].bounds == [Bound(side="most", value=1.0, where="rank.record at a.py:1")]
    with pytest.raises(RecordingError, match=r"ranks disagree about .* or bounds"):
        merge([report(0), report(1)])


def test_a_rank_none_of_whose_optimizers_has_stepped_is_named_beside_those_that_did() -> None:
    reports = [
        replace(fingerprinted(rank), fingerprints={"m": RankFingerprint(parameter_bytes=held)})
        for rank, held in ((0, 84), (1, 0))
    ]

    assert merge_fingerprints(reports)["m"].parameter_bytes == {"0": 84, "1": 0}
    assert merge_fingerprints([fingerprinted(0), fingerprinted(1)])["m"].parameter_bytes == {}
