"""The baseline file that stores the launches of a case, and what an update writes of it."""

from __future__ import annotations

import pytest
from support.cases import ON_TWO
from support.fingerprints import BARRIER, of, reduce
from support.metrics import baseline, metric, passed, timed
from support.results import verdict
from support.stores import entry, launches

from pytest_distbench.judging.entry import few_launches, is_wanted, make_baseline, only_judges, why_not_storable
from pytest_distbench.records.case import Case
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.metric import Sample, Spread
from pytest_distbench.records.record import replace


def test_a_baseline_keeps_the_ends_of_a_series_and_nothing_of_a_number() -> None:
    launches = [passed(timed(1.0), replace(metric(2.0), name="one"), replace(timed(1.0), name="foreign", value=9.0))]
    case = Case(test="t.py::t", id="", conditions=ON_TWO, device="cpu")
    stored = make_baseline(case, launches, {}).metrics

    [latency], [one], [foreign] = stored["latency"], stored["one"], stored["foreign"]

    assert latency.spread == Spread(n=50, minimum=0.9, p95=1.2)
    assert one.spread is None
    assert (foreign.value, foreign.spread) == (9.0, Spread(n=50))


def test_a_baseline_keeps_what_launches_agree_on_and_says_where_they_do_not() -> None:
    case = Case(test="t", id="ws2", conditions=ON_TWO, device="cpu")
    measured = Sample(name="m", unit="s", better="lower", value=0.000123456789)
    count = Sample(name="count", unit="", better="exact", value=123456.0)
    prints = [{"m": of(BARRIER), "wild": of(reduce(4 * i))} for i in range(3)]
    clocks = [replace(measured, companions={"cpu_s": seconds, "waits": 3.0}) for seconds in (0.1, 0.5, 0.123456)]
    made = [passed(clocks[i], count, index=i, foreign_cores=0.123, fingerprints=prints[i]) for i in range(3)]
    entry = make_baseline(case, made, {})

    assert entry.fingerprints["m"] == of(BARRIER)
    assert entry.fingerprints["wild"] == Fingerprint(missing="differs between launches of the same code")
    assert [[m.value for m in entry.metrics[key]] for key in ("m", "count")] == [[0.0001235] * 3, [123456] * 3]
    assert entry.foreign_cores == 0.12
    assert entry.metrics["m"][0].companions == {"cpu_s": 0.1235, "cpu_spread": 0.8747, "waits": 3.0}


@pytest.mark.parametrize(
    ("mode", "new", "stored"),
    [("new", False, True), ("failed", True, False), ("changed", False, False), ("all", False, False)],
)
def test_an_update_leaves_to_the_comparison_what_its_mode_does_not_want(mode: str, new: bool, stored: bool) -> None:
    assert (only_judges(mode, None), only_judges(mode, entry(1.0))) == (new, stored)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("all", {"within-threshold", "better", "beyond-threshold", "noise", "other-workload", "no-baseline"}),
        ("new", set()),
        ("failed", {"beyond-threshold"}),
        ("communication", {"better", "beyond-threshold", "other-workload", "no-baseline"}),
    ],
)
def test_some_verdicts_rewrite_a_baseline(mode: str, wanted: set[str]) -> None:
    codes = ["within-threshold", "better", "beyond-threshold", "noise", "other-workload", "no-baseline"]

    assert {code for code in codes if is_wanted(mode, [verdict(code)], is_new=False)} == wanted


def test_a_missing_baseline_is_written_in_all_modes_but_failed_if_it_is_judged() -> None:
    written = [m for m in ("all", "new", "failed", "changed") if is_wanted(m, [verdict()], is_new=True)]
    assert written == ["all", "new", "changed"]
    assert not is_wanted("changed", [verdict("no-baseline", better="info")], is_new=False)


def test_a_timing_is_storable_with_two_values_and_an_exact_number_with_one() -> None:
    assert why_not_storable(launches(1.0, 1.1)) == ""

    assert why_not_storable(launches(7.0, better="exact")) == ""
    assert why_not_storable(launches(1.0)).startswith("step has one value, so its noise is unknown")
    assert why_not_storable(launches(1.0), fewest=1) == ""

    assert why_not_storable(launches(1.0, 2.0, better="info")) == "nothing was measured that can be judged"

    assert why_not_storable(launches(1.0, None, None)).startswith("step has no value in 2 of 3 launches")

    # The next run, slower by any factor, would be held against nothing
    idle = launches(0.0, 0.0)
    assert why_not_storable(idle) == "step: 0 s is no time that anything takes"
    asleep = {"companions": {"cpu_s": 0.1, "host_s": 0.1}}
    timed = [replace(one, measurements=[replace(m, **asleep) for m in one.measurements]) for one in idle]
    assert why_not_storable(timed).startswith("step: the timing is 0 s: nothing ran on the device in this loop")
    assert "took 100 ms per iteration" in why_not_storable(timed)

    assert why_not_storable(launches(100.0, None, better="steps")) == ""
    assert why_not_storable(launches(None, None, better="steps")).startswith("step has no value in 2 of 2 launches")

    metrics = {"a": baseline([1.0] * 4), "b": baseline([1.0] * 5), "c": baseline([1.0], "exact")}
    assert few_launches(metrics) == {"a": 4}
