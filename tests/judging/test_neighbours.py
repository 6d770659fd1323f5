"""Sizes next to each other support each other, compared with a baseline or with another revision."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from support.metrics import passed
from support.stores import SOFTWARE, result

from pytest_distbench.judging.case import Pairs, compare
from pytest_distbench.judging.entry import make_baseline
from pytest_distbench.judging.screening import LONE_SHARE, error_share, find_runs
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding

SIZES = [1024 * 2**n for n in range(12)]
CASE = result(1.0).case
NOISE = 0.1

Factors = Callable[[int], float]


def metric(size: object, value: float = 1.0, name: str = "latency", better: str = "lower") -> Sample:
    return Sample(name=name, unit="s", better=better, value=value, at={"message_bytes": size})  # type: ignore[dict-item]


def sweeps(count: int, factor: Factors = lambda size: 1.0, *, seed: int = 0) -> list[LaunchRecord]:
    """Launches whose sizes scatter on their own."""
    dice = random.Random(seed)
    return [
        passed(*(metric(s, factor(s) * dice.lognormvariate(0, NOISE)) for s in SIZES), index=i, software=SOFTWARE)
        for i in range(count)
    ]


def against_baseline(new: Sequence[LaunchRecord], *, most: int | None = None) -> dict[int, Finding]:
    entry = make_baseline(CASE, sweeps(10, seed=1), SOFTWARE)
    terms = Terms(default_tolerance=0.1, max_launches=most or len(new), cores=2)
    found = compare(terms, CASE, new, entry, comparisons=len(SIZES))
    return {int(j.at["message_bytes"]): j for j in found}


def at_one(factor: float) -> Factors:
    return lambda size: factor if size == SIZES[5] else 1.0


def from_the_middle_up(factor: float) -> Factors:
    return lambda size: factor if size >= SIZES[4] else 1.0


def red(found: dict[int, Finding]) -> list[int]:
    return [size for size, v in found.items() if v.kind == "regressed"]


def test_runs_are_of_two_four_and_eight_neighbours_of_one_metric() -> None:
    runs = [(run.sizes[0], run.sizes[-1]) for run in find_runs(map(metric, [1, 2, 4, 8, 16]))]
    assert runs == [(1, 2), (2, 4), (4, 8), (8, 16), (1, 8), (2, 16)]

    others = [metric(2, name="b"), metric(2, better="exact"), metric("2"), metric(True), metric(0)]
    assert find_runs([metric(1), metric(8), *others]) == []


def test_a_comparison_s_error_rate_is_spent_once() -> None:
    """Over the sizes alone and all runs, no more than one whole share per size, however long the sweep."""
    for count in range(1, 60):
        metrics = [metric(2**i) for i in range(count)]
        runs = find_runs(metrics)
        assert sum(error_share(m.key, runs) for m in metrics) + sum(run.share for run in runs) <= count + 1e-9
    assert error_share(metric(1).key, find_runs(metrics)) == LONE_SHARE
    assert error_share(metric(1).key, []) == 1


def test_a_slowdown_is_found_at_one_size_where_it_is_strong_and_over_a_range_where_it_is_weak() -> None:
    found = against_baseline(sweeps(10, from_the_middle_up(1.35)))
    supported = [v for v in found.values() if v.reason.startswith("with its neighbours")]
    assert set(red(found)) <= set(SIZES[4:])
    assert len(red(found)) >= 6
    assert len(supported) >= 4
    assert " sizes, " in supported[0].reason
    assert "threshold +" in supported[0].reason

    assert red(against_baseline(sweeps(10, at_one(2.0)))) == [SIZES[5]]

    assert red(against_baseline(sweeps(10, at_one(1.3)))) == []

    assert sum(v.kind == "improved" for v in against_baseline(sweeps(10, from_the_middle_up(0.7))).values()) >= 6


def test_an_open_run_asks_for_a_launch_of_all_its_sizes_until_there_may_be_no_more() -> None:
    slower = sweeps(2, from_the_middle_up(1.35), seed=3)
    assert set(SIZES[4:]) <= {size for size, j in against_baseline(slower, most=10).items() if j.is_open}
    assert not any(j.is_open for j in against_baseline(slower, most=2).values())


def test_launches_that_measured_some_sizes_only_count_for_the_runs_they_have_whole() -> None:
    full, *more = sweeps(10, from_the_middle_up(1.35))
    keys = [m.key for m in full.measurements[4:]]
    part = [replace(launch, only=keys, measurements=launch.measurements[4:]) for launch in more]

    assert len(red(against_baseline([full, *part]))) >= 6


@pytest.mark.parametrize("stored", [None, 0.0])
def test_a_baseline_that_lacks_a_value_has_no_runs_there(stored: float | None) -> None:
    entry = make_baseline(CASE, sweeps(10, seed=1), SOFTWARE)
    broken = metric(SIZES[5]).key
    first, *others = entry.metrics[broken]
    entry = replace(entry, metrics={**entry.metrics, broken: [replace(first, value=stored), *others]})
    terms = Terms(default_tolerance=0.1, max_launches=10, cores=2)
    found = compare(terms, CASE, sweeps(10), entry, comparisons=1)

    assert {j.kind for j in found} <= {"unchanged", "inconclusive"}


def test_neighbouring_sizes_are_judged_together_in_pairs_too() -> None:
    pairs = 10

    def judged(factor: Factors) -> dict[int, Finding]:
        terms = Terms(default_tolerance=0.1, max_launches=pairs, cores=2)
        paired = Pairs(baseline=sweeps(pairs, seed=5), tolerance_of=lambda metric: 0.05, looks=(5, pairs))
        found = compare(terms, CASE, sweeps(pairs, factor, seed=6), paired=paired, comparisons=1)
        return {int(j.at["message_bytes"]): j for j in found}

    found = judged(from_the_middle_up(1.25))
    assert set(red(found)) <= set(SIZES[4:])
    assert any(v.reason.startswith("with its neighbours") for v in found.values())
    assert red(judged(lambda size: 1.0)) == []
    assert red(judged(at_one(2.0))) == [SIZES[5]]
