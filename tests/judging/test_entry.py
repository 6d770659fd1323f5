"""What is stored of the launches of a case."""

from __future__ import annotations

import pytest
from support.cases import ON_TWO
from support.fingerprints import BARRIER, of, reduce
from support.metrics import metric, timed

from pytest_distbench.judging.entry import make_entry, stored_metric
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.case import Case
from pytest_distbench.records.fingerprint import Fingerprint
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace


def test_a_baseline_keeps_the_ends_of_a_series_and_nothing_of_a_number() -> None:
    launches = [
        LaunchRecord(
            index=0,
            outcome="passed",
            wall_s=1.0,
            measurements=[
                timed(1.0),
                replace(metric(2.0), name="one"),
                replace(timed(1.0), name="foreign", value=9.0),
            ],
        )
    ]
    case = Case(test="t.py::t", id="", conditions=ON_TWO, device="cpu")
    stored = make_entry(case, launches, {}).metrics

    assert (stored["latency"].minimum, stored["latency"].p95) == ([0.9], [1.2])
    assert (stored["one"].minimum, stored["one"].p95) == ([], [])
    assert (stored["foreign"].launches, stored["foreign"].minimum) == ([9.0], [])


def test_a_training_that_is_not_seeded_has_no_golden_curve() -> None:
    def stored(*series: list[float]) -> BaselineMetric:
        found = [Measurement(name="loss", unit="", better="curve", value=s[-1], series=s) for s in series]
        return stored_metric(found, tolerance=None)

    seeded, unseeded = stored([2.0, 1.5], [2.0, 1.5]), stored([2.0, 1.5], [2.1, 1.5])

    assert (seeded.curve, seeded.unseeded_at) == ([2.0, 1.5], None)
    assert (unseeded.curve, unseeded.unseeded_at, unseeded.spread) == ([], 1, pytest.approx(0.05))


def test_a_baseline_keeps_what_launches_agree_on_and_says_where_they_do_not() -> None:
    case = Case(test="t", id="ws2", conditions=ON_TWO, device="cpu")
    measured = Measurement(name="m", unit="s", better="lower", value=1.0)
    launches = [
        LaunchRecord(
            index=i,
            outcome="passed",
            wall_s=1.0,
            measurements=[replace(measured, companions={"cpu_s": seconds, "waits": 3.0})],
            fingerprints={"m": of(BARRIER), "wild": of(reduce(4 * i))},
        )
        for i, seconds in enumerate([0.1, 0.5, 0.123456])
    ]
    entry = make_entry(case, launches, {})

    assert entry.fingerprints["m"] == of(BARRIER)
    assert entry.fingerprints["wild"] == Fingerprint(missing="differs between launches of the same code")
    assert entry.metrics["m"].companions == {"cpu_s": 0.1235, "cpu_spread": 0.8747, "waits": 3.0}
