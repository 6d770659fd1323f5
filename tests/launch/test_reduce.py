"""Reduction of what ranks recorded to one sample per metric, element by element."""

from __future__ import annotations

import re
import statistics
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fingerprints import BARRIER

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch import reduce as module
from pytest_distbench.launch.reduce import join, join_fingerprints, late_s, merge, recorded, reduce_partials
from pytest_distbench.records.iteration import Collective, Fingerprint
from pytest_distbench.records.kinds import Better, Reduce
from pytest_distbench.records.launch import HostReport, RankReport
from pytest_distbench.records.metric import Bound, Observation
from pytest_distbench.records.record import replace


def of_rank(rank: int, *observations: Observation, **more: Any) -> RankReport:
    return RankReport(rank=rank, outcome="passed", phase="body", phases={}, observations=list(observations), **more)


def report(
    rank: int, *values: float, better: Better = "lower", reduce: Reduce = "max", series: bool = True, **more: Any
) -> RankReport:
    measured = {"name": "m", "unit": "s", "better": better, "reduce": reduce, "values": list(values)}
    return of_rank(rank, Observation(**{**measured, "is_series": series, **more}))  # type: ignore[arg-type]


@pytest.mark.parametrize("better", ["curve", "same"])
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9), st.integers(1, 8))
def test_how_far_ranks_are_apart_is_known_however_they_lie_on_hosts(
    better: Better, values: list[float], cut: int
) -> None:
    """A mean hides errors that cancel."""
    reports = [report(i, v, 1.0, better=better, reduce="mean", series=True) for i, v in enumerate(values)]
    found = [
        merge([*reduce_partials(recorded(reports[:at])), *reduce_partials(recorded(reports[at:]))])[0].spread.over_ranks
        for at in (len(values), min(cut, len(values)))
    ]
    wanted = statistics.pstdev(values)

    for scatter in found:
        assert scatter[0] == pytest.approx(wanted, rel=1e-6, abs=1e-6)
        assert len(scatter) == (2 if any(scatter) else 1)
    assert merge(recorded([report(i, v, reduce="mean") for i, v in enumerate(values)]))[0].spread.over_ranks == []


def test_an_iteration_takes_as_long_as_its_slowest_rank() -> None:
    [measurement] = merge(recorded([report(0, 1.0, 5.0, 1.0, 1.0), report(1, 2.0, 2.0, 2.0, 2.0)]))

    assert measurement.value == 2.0
    assert measurement.spread is not None
    assert (measurement.spread.n, measurement.spread.minimum, measurement.spread.p99) == (4, 2.0, 5.0)
    assert (measurement.spread.slowest_rank, measurement.spread.slowest_share) == (1, 0.75)

    [measurement] = merge(recorded([report(0, 1.0, 2.0, 3.0, 4.0, 5.0, better="higher", reduce="min")]))

    assert measurement.value == 4.0

    hosts = [reduce_partials(recorded([report(rank, *values) for rank, values in there])) for there in SLOW_ON_HOSTS]
    [measurement] = merge([part for there in hosts for part in there])

    assert measurement.spread is not None
    assert (measurement.spread.slowest_rank, measurement.spread.slowest_share) == (2, 0.75)


def test_a_series_is_kept_whole_where_its_kind_asks_for_it_and_as_a_distribution_elsewhere() -> None:
    for better, values in (("lower", [1.0, 2.0, 5.0]), ("info", [2.0, 5.0, 1.0])):
        [measurement] = merge(recorded([report(0, 2.0, 5.0, 1.0, better=better, reduce="max")]))

        assert measurement.values == values
    [number] = merge(recorded([report(0, 2.0, series=False)]))
    assert number.values == []


@pytest.mark.parametrize(("reduce", "value"), [("max", 3.0), ("min", 1.0), ("mean", 2.0), ("sum", 4.0), ("rank0", 1.0)])
def test_reductions(reduce: Reduce, value: float) -> None:
    ranks = [report(rank, value, reduce=reduce, series=False) for rank, value in ((0, 1.0), (1, 3.0))]

    assert merge(recorded(ranks))[0].value == value


def test_ranks_that_must_agree_and_do_not_are_an_error_that_shows_them() -> None:
    with pytest.raises(RecordingError, match="rank 0: 1, rank 1: 2"):
        merge(recorded([report(0, 1.0, better="exact", reduce="all"), report(1, 2.0, better="exact", reduce="all")]))

    with pytest.raises(RecordingError, match=r"equally many values \(rank 0: 1, rank 1: 2\)"):
        merge(recorded([report(0, 1.0), report(1, 1.0, 2.0)]))

    def sent(rank: int) -> RankReport:
        return report(rank, 7.0 if rank == 4 else 5.0, better="exact", reduce="all", series=False)

    hosts = [reduce_partials(recorded(map(sent, there))) for there in ([0, 1, 2], [3, 4, 5])]

    with pytest.raises(RecordingError, match=r"ranks 0-3,5: 5, rank 4: 7"):
        merge([part for there in hosts for part in there])


def fingerprinted(rank: int, *rows: Collective, entered: tuple[float, ...] = (), missing: str = "") -> RankReport:
    fingerprint = Fingerprint(collectives={str(rank): list(rows)}, missing=missing)
    return of_rank(rank, fingerprints={"m": fingerprint}, entered={"m": list(entered)})


def fingerprint_of(*reports: RankReport) -> Fingerprint:
    return join_fingerprints([report.fingerprints["m"] for report in reports], len(reports))


def test_fingerprints_of_equal_ranks_are_stored_once_and_others_apart() -> None:
    found = fingerprint_of(fingerprinted(1, BARRIER), fingerprinted(0, BARRIER), fingerprinted(2))

    assert found.collectives == {"0-1": [BARRIER], "2": []}
    assert fingerprint_of(fingerprinted(0, BARRIER), fingerprinted(1, missing="off")) == Fingerprint(missing="off")

    def held(*numbers: int) -> Fingerprint:
        each = [Fingerprint(facts={"parameter_bytes": {str(rank): number}}) for rank, number in enumerate(numbers)]
        return module.of_launch(join_fingerprints(each), len(numbers))

    assert held(84, 0).facts == {"parameter_bytes": {"0": 84, "1": 0}}
    assert held(0, 0).facts == {}


def hosts_of(*lives: list[RankReport]) -> HostReport:
    return join(
        [module.reduce_host({r.rank: r for r in there}, lived_here=len(there), are_all=False) for there in lives]
    )


def test_ranks_are_as_late_as_they_come_to_the_collective_that_they_come_latest_to() -> None:
    ranks = [fingerprinted(0, entered=(0.0, 1.0)), fingerprinted(1, entered=(0.5, 1.1))]

    assert late_s(hosts_of(ranks), resolution_s=0.0)["m"] == pytest.approx([0.0, 0.5])
    assert late_s(hosts_of(ranks[:1]), resolution_s=0.0) == {}  # after nobody
    assert late_s(hosts_of([*ranks, fingerprinted(2, entered=(0.0,))]), resolution_s=0.0) == {}
    assert late_s(hosts_of(ranks, [fingerprinted(2)]), resolution_s=0.0) == {}

    lives = (
        [fingerprinted(0, entered=(0.0, 1.0)), fingerprinted(3, entered=(0.01, 1.3))],
        [fingerprinted(1, entered=(0.2, 1.1)), fingerprinted(2, entered=(0.2, 1.15))],
    )
    hosts = hosts_of(*lives)

    assert late_s(hosts, resolution_s=0.0)["m"] == pytest.approx([0.0, 0.2, 0.2, 0.3])
    assert late_s(hosts, resolution_s=0.25)["m"] == pytest.approx([0.0, 0.2, 0.2, 0.3])
    assert late_s(hosts, resolution_s=0.35) == {}


def test_cpu_time_and_waits_are_summed_over_ranks() -> None:
    times = [1.0, 1.0, 1.0, 9.0]
    reports = [report(rank, *times, secondary={"cpu_s": times, "waits": times}) for rank in range(2)]
    [measurement] = merge(recorded(reports))

    assert measurement.companions == {"cpu_s": 2.0, "waits": 6.0}


def test_ranks_that_disagree_about_a_bound_are_an_error() -> None:
    bounds = [Bound(side="most", value=float(rank), where="rank.record at a.py:1") for rank in range(2)]
    ranks = [
        report(i, 1.0, better="info", reduce="mean", series=False, bounds=[bound]) for i, bound in enumerate(bounds)
    ]

    assert merge(recorded(ranks[1:]))[0].bounds == bounds[1:]
    with pytest.raises(RecordingError, match=r"about its bounds \(rank 0: \['most 0'\], rank 1: \['most 1'\]\)"):
        merge(recorded(ranks))


KINDS: list[tuple[Better, Reduce]] = [
    ("lower", "max"),
    ("higher", "min"),
    ("info", "mean"),
    ("info", "sum"),
    ("info", "rank0"),
    ("exact", "all"),
]


def on_some_hosts(reports: list[RankReport], data: st.DataObject) -> list[list[RankReport]]:
    """Each rank on one of three hosts, some of which may have none."""
    lives = [data.draw(st.integers(0, 2)) for _ in reports]
    return [[r for r, host in zip(reports, lives, strict=True) if host == which] for which in range(3)]


@given(st.data())
def test_it_is_the_same_however_the_ranks_lie_on_hosts(data: st.DataObject) -> None:
    """Whole numbers, whose sums have no rounding; ranks of a host need not be neighbours, and some record less."""
    world_size, length = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    is_series = length > 1 or data.draw(st.booleans())
    small = st.lists(st.integers(0, 5), min_size=length, max_size=length)
    same = data.draw(small)
    reports = [
        of_rank(
            rank,
            *(
                Observation(
                    name=reduce,
                    unit="s",
                    better=better,
                    reduce=reduce,
                    values=same if reduce == "all" else data.draw(small),
                    is_series=is_series,
                    secondary={"waits": data.draw(small)},
                )
                for better, reduce in KINDS
                if reduce == "max" or data.draw(st.booleans())
            ),
        )
        for rank in range(world_size)
    ]
    hosts = on_some_hosts(reports, data)
    on_hosts = [part for there in hosts for part in reduce_partials(recorded(there))]
    travelled = msgspec.json.decode(msgspec.json.encode(on_hosts), type=list[Observation])

    assert merge(travelled) == merge(recorded(reports))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.data())
def test_fingerprints_are_the_same_however_the_ranks_lie_on_hosts(kinds: list[int], data: st.DataObject) -> None:
    prints = [
        Fingerprint(
            collectives={str(rank): [BARRIER] * kind},
            totals={"parameters": 1 + kind},
            facts={"parameter_bytes": {str(rank): 4 * kind}},
        )
        for rank, kind in enumerate(kinds)
    ]
    reports = [replace(fingerprinted(rank), fingerprints={"m": one}) for rank, one in enumerate(prints)]
    of_hosts = [join_fingerprints([r.fingerprints["m"] for r in there]) for there in on_some_hosts(reports, data)]

    assert join_fingerprints([f for f in of_hosts if f.collectives], len(reports)) == fingerprint_of(*reports)
    assert all(len(f.collectives) <= len(set(kinds)) for f in of_hosts)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"unit": "ms"}, "about its unit (ranks 0-1: 's', rank 2: 'ms')"),
        ({"better": "higher"}, "about its direction (ranks 0-1: 'lower', rank 2: 'higher')"),
        ({"reduce": "min"}, "about its reduction (ranks 0-1: 'max', rank 2: 'min')"),
        ({"is_series": False}, "about its shape (ranks 0-1: 'a series', rank 2: 'a number')"),
        ({"identity": {"n": 1}}, "about its identity (ranks 0-1: {}, rank 2: {'n': 1})"),
    ],
)
def test_a_property_that_ranks_disagree_about_is_an_error_that_names_them(other: dict[str, object], text: str) -> None:
    ranks = [report(rank, 1.0) for rank in range(3)]
    ranks[2] = replace(ranks[2], observations=[replace(ranks[2].observations[0], **other)])

    with pytest.raises(RecordingError, match=re.escape(text)):
        merge(recorded(ranks))


SLOW_ON_HOSTS = [
    [(0, (1.0, 9.0, 1.0, 1.0)), (1, (2.0, 2.0, 2.0, 2.0))],
    [(2, (3.0, 3.0, 3.0, 3.0)), (3, (1.0, 1.0, 1.0, 1.0))],
]
