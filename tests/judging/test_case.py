"""One judgement per metric, from the launches of a case and its stored baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.fingerprints import BARRIER, of
from support.metrics import baseline_of
from support.stores import SOFTWARE, entry, result

from pytest_distbench.judging.case import can_repeat, compare
from pytest_distbench.judging.entry import make_baseline
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.case import BaselineEntry
from pytest_distbench.records.iteration import Course, Fingerprint, StepKind
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding

QUIET = (1.00, 1.01, 0.99, 1.02, 0.98)
STORED = entry(*QUIET, *QUIET)


def launches(*values: float | None, **changes: Any) -> list[LaunchRecord]:
    return [replace(launch, software=SOFTWARE, **changes) for launch in result(*values).launches]


def verdicts(made: list[LaunchRecord], stored: BaselineEntry | None = STORED, **terms: Any) -> dict[str, Finding]:
    given = Terms(**({"default_tolerance": 0.1, "max_launches": len(made), "cores": 2} | terms))
    case = result(1.0).case
    known = None if stored is None else replace(stored, workload=case.workload)
    return {j.metric: j for j in compare(given, case, made, known, comparisons=1)}


def test_each_metric_is_judged_by_its_own_launches() -> None:
    assert verdicts(launches(*QUIET))["step"].kind == "unchanged"
    assert verdicts(launches(*[1.5 * v for v in QUIET]))["step"].kind == "regressed"

    assert verdicts(launches(1.0), None)["step"].kind == "new"

    shown = verdicts(launches(*[9.0] * 5), metrics=("other",))["step"]
    assert (shown.kind, shown.is_judged) == ("unchanged", False)

    both = replace(STORED, metrics={**STORED.metrics, "gone": STORED.metrics["step"]})
    assert verdicts(launches(*QUIET), both)["gone"].kind == "missing"
    assert "gone" not in verdicts(launches(*QUIET), both, metrics=("step",))

    made = launches(*QUIET)
    exact = [replace(m, name="count", better="exact", value=7.0) for m in made[0].measurements]
    made[0] = replace(made[0], measurements=[*made[0].measurements, *exact])
    part = [made[0], *(replace(launch, only=["step"]) for launch in made[1:])]
    assert verdicts(made, None)["count"].kind == "regressed"
    assert verdicts(part, None)["count"].kind == "new"


@pytest.mark.parametrize(
    ("busy", "terms", "code"),
    [
        (False, {}, "beyond-threshold"),
        (True, {}, "host-busy"),
        (True, {"metrics": ("wall_time",)}, "beyond-threshold"),
        (True, {"tolerance": {"wall_time": 0.1}}, "beyond-threshold"),
        (True, {"bounds": (("wall_time", 9.0, "the marker"),)}, "beyond-threshold"),
    ],
)
def test_the_time_of_a_script_that_no_test_names_is_judged_only_where_nothing_else_was_measured(
    busy: bool, terms: dict[str, Any], code: str
) -> None:
    stored = replace(STORED, metrics={"wall_time": baseline_of((*QUIET, *QUIET), name="wall_time")})
    slow = [
        replace(launch, measurements=[replace(m, name="wall_time") for m in launch.measurements], host_was_busy=busy)
        for launch in launches(*[1.5 * v for v in QUIET])
    ]

    assert verdicts(slow, stored, **terms)["wall_time"].code == code


def test_a_metrics_tolerance_goes_before_the_baselines_and_that_before_the_runs() -> None:
    slow = launches(*[1.5 * v for v in QUIET])
    assert verdicts(slow, replace(STORED, tolerance=1.0))["step"].kind == "unchanged"
    assert verdicts(slow, replace(STORED, tolerance=1.0, tolerances={"step": 0.1}))["step"].kind == "regressed"


@pytest.mark.parametrize(
    ("then", "now", "slower", "kind"),
    [
        (1.5, 5.0, 5.3, "inconclusive"),  # one busy loop then, ten runnable processes now: hardly more cores in use
        (1.5, 5.0, 9.0, "regressed"),
        (1.5, 1.5, 1.75, "regressed"),
        (None, 5.0, 5.3, "regressed"),  # nobody looked then, and the cores in use are nearly the same
        (1.0, None, 5.3, "regressed"),
    ],
)
def test_ranks_that_wait_longer_for_cpus_explain_a_slowdown_though_no_more_cores_are_in_use(
    then: float | None, now: float | None, slower: float, kind: str
) -> None:
    made = launches(*[slower * v for v in QUIET], foreign_cores=1.2, foreign_wanted=8.0, crowding=now)
    stored = replace(STORED, foreign_cores=1.0, foreign_wanted=1.0, crowding=then)

    assert verdicts(made, stored)["step"].kind == kind


@pytest.mark.parametrize("wanted", [0.0, 1.0])
def test_waits_are_not_put_down_to_others_where_others_want_no_more(wanted: float) -> None:
    """The code makes itself wait in a container with a share of the CPUs; or its helpers do, next to a neighbour."""
    made = launches(*[1.5 * v for v in QUIET], foreign_cores=0.7 * wanted, foreign_wanted=wanted + 0.1, crowding=3.0)
    stored = replace(STORED, foreign_cores=wanted, foreign_wanted=wanted, crowding=1.0)

    assert verdicts(made, stored)["step"].kind == "regressed"


def test_a_fingerprint_that_changed_fails_and_one_that_nobody_wants_does_not() -> None:
    made = launches(*QUIET, fingerprints={"step": of(BARRIER)})
    stored = replace(STORED, fingerprints={"step": of()})

    assert verdicts(made, stored)["fingerprint"].kind == "changed"
    assert [verdicts(*sides)["fingerprint"].kind for sides in ((launches(1.0), stored), (made,))] == ["missing", "new"]
    assert not verdicts(made, stored, metrics=("step",))["fingerprint"].is_judged


def test_a_diverging_curve_needs_one_more_launch_to_know_whether_the_code_repeats() -> None:
    def judged(*curves: list[float], most: int = 5) -> tuple[str, bool]:
        made = [
            replace(launch, measurements=[Sample(name="loss", unit="", better="curve", value=c[-1], values=c)])
            for launch, c in zip(launches(*[1.0] * len(curves)), curves, strict=True)
        ]
        golden = baseline_of([1.0], "curve", "", name="loss", values=[2.0013, 1.0])
        found = verdicts(made, replace(STORED, metrics={"loss": golden}), max_launches=most)["loss"]
        return found.kind, found.is_open

    assert judged([2.1, 1.0]) == ("changed", True)
    assert judged([2.1, 1.0], most=1) == ("changed", False)
    assert judged([2.1, 1.0], [2.1, 1.0]) == ("changed", False)
    assert judged([2.0013, 1.1]) == ("changed", True)
    assert judged([2.0013, 1.1], [2.0013, 1.1]) == ("changed", False)
    assert judged([2.0013, 1.0]) == ("unchanged", False)

    on, off = (replace(launches(1.0)[0], software={"cuda": "13", "deterministic": d}) for d in ("on", "off"))
    assert [can_repeat(made) for made in (launches(1.0), [on], [on, off])] == [True, True, False]


def test_what_differs_in_some_steps_alone_has_to_be_shown_by_three_launches() -> None:
    """An evaluation that comes every second comes at another step in a slow launch."""
    others = ([StepKind(entered=1, steps=1, first=n, last=n)] for n in (9, 11, 12))
    at = [of(course={"all": Course(steps=30, others=found)}) for found in others]
    stored = replace(STORED, fingerprints={"step": of(course={"all": Course(steps=30)})})

    def judged(*prints: Fingerprint, most: int = 10) -> tuple[str, bool]:
        made = [replace(launch, fingerprints={"step": f}) for launch, f in zip(launches(*QUIET), prints, strict=False)]
        found = verdicts(made, stored, max_launches=most)["fingerprint"]
        return found.kind, found.is_open

    assert judged(at[0]) == ("changed", True)
    assert judged(at[0], most=1) == ("changed", False)
    assert judged(*[at[0]] * 3) == ("changed", False)
    assert judged(*at) == ("unchanged", False)
    assert judged(replace(at[0], collectives={"all": [BARRIER]})) == ("changed", False)


def with_memory(made: list[LaunchRecord], num_bytes: float) -> list[LaunchRecord]:
    memory = Sample(name="peak_memory", unit="B", better="memory", value=num_bytes)
    return [replace(launch, measurements=[*launch.measurements, memory]) for launch in made]


NOISY = (1.0, 2.0, 0.6, 1.6, 0.5)


@pytest.mark.parametrize(
    ("others", "now", "kind"),
    [
        (1.0, 0.1, "improved"),
        (1.0, 0.55, "inconclusive"),  # stored launches reach it
        (0.1, 0.1, "inconclusive"),  # everything became faster alike: the machine did
    ],
    ids=["alone", "within the stored", "with the others"],
)
def test_what_alone_became_more_than_twice_as_fast_has_improved_however_noisy_it_is(
    others: float, now: float, kind: str
) -> None:
    first = launches(1.0)[0].measurements[0]

    def made(factors: Sequence[float], *, step: float, rest: float) -> list[LaunchRecord]:
        found = launches(*factors)
        values = {"step": step, "load": rest, "save": rest, "log": rest}
        return [
            replace(one, measurements=[replace(first, name=n, value=f * v) for n, v in values.items()])
            for one, f in zip(found, factors, strict=True)
        ]

    known = make_baseline(result(1.0).case, made(NOISY, step=1.0, rest=1.0), {"torch": "2.14.0"})
    assert verdicts(made([1.0, 1.01, 0.99], step=now, rest=others), known)["step"].kind == kind


STEADY = (1.0, 1.005, 0.995, 1.003, 0.997)  # a standard deviation of 0.4 %
WIDE = (1.0, 1.03, 0.97, 1.02, 0.98)  # of 2.5 %


@pytest.mark.parametrize(
    ("stored", "now", "terms", "torch", "code"),
    [
        (STEADY, 1.135, {}, "2.13.0", "beyond-threshold"),
        (STEADY, 1.04, {}, "2.13.0", "within-threshold"),
        (STEADY, 0.9, {}, "2.13.0", "better"),
        (WIDE, 1.1, {}, "2.13.0", "within-threshold"),
        (WIDE, 1.18, {}, "2.13.0", "beyond-threshold"),
        (STEADY[:4], 1.135, {}, "2.13.0", "within-threshold"),
        (STEADY[:4], 1.3, {}, "2.13.0", "beyond-threshold"),
        (STEADY, 1.135, {"tolerance": {"peak_memory": 0.2}}, "2.13.0", "within-threshold"),
        (STEADY, 1.08, {}, "2.14.0", "other-software"),
        (STEADY, 1.3, {}, "2.14.0", "beyond-threshold"),
    ],
)
def test_memory_is_judged_by_how_its_stored_launches_scatter_from_five_on(
    stored: tuple[float, ...], now: float, terms: dict[str, Any], torch: str, code: str
) -> None:
    known = baseline_of([2.0**30 * v for v in stored], "memory", "B", name="peak_memory")
    both = replace(STORED, metrics={**STORED.metrics, "peak_memory": known}, software={"torch": "2.13.0"})
    made = [replace(launch, software={"torch": torch}) for launch in with_memory(launches(*QUIET), 2.0**30 * now)]

    assert verdicts(made, both, **terms)["peak_memory"].code == code


def test_memory_that_one_side_does_not_know_is_not_said_to_be_missing() -> None:
    stored = baseline_of([2.0**30], "memory", "B", name="peak_memory")
    both = replace(STORED, metrics={**STORED.metrics, "peak_memory": stored})

    assert not verdicts(with_memory(launches(*QUIET), 2**31))["peak_memory"].is_judged
    assert "peak_memory" not in verdicts(launches(*QUIET), both)
    assert verdicts(with_memory(launches(*QUIET), 2**31), both)["peak_memory"].kind == "regressed"
    assert not verdicts(with_memory(launches(*QUIET), 2**31), both, metrics=("step",))["peak_memory"].is_judged
