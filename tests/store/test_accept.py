"""The baseline that a case in a run record proposes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from support.fingerprints import BARRIER, of
from support.results import verdict
from support.stores import HUNG, PLATFORM, entry, environment, result

from pytest_distbench.judging.entry import make_baseline
from pytest_distbench.records.case import BaselineEntry
from pytest_distbench.records.iteration import Course, Fingerprint, StepKind
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, OtherSideRecord
from pytest_distbench.store.accept import NotABaseline, propose_baseline, why_test_did_not_pass

FIVE = (0.004, 0.004, 0.004, 0.004, 0.004)


def values_of(made: Any, key: str) -> list[float | None]:
    return [m.value for m in made.metrics[key]]


def take(made: CaseResult, stored: Any = None, *, mode: str = "all", force: bool = False) -> Any:
    return propose_baseline(made, stored, mode=mode, force=force)


def test_what_is_accepted_takes_the_place_of_what_is_stored() -> None:
    made = take(result(*FIVE), entry(1.0, tolerances={"step": 0.3}, tolerance=0.25, xfail_perf="bug"))
    assert (values_of(made, "step"), made.tolerances) == ([0.004] * 5, {"step": 0.3})
    assert (made.tolerance, made.xfail_perf, made.software) == (0.25, "bug", {"torch": "2.14.0"})

    assert take(result(*FIVE, code="better"), entry(1.0), mode="failed") is None
    assert take(result(*FIVE), entry(1.0), mode="new") is None

    beside = OtherSideRecord(kind="paired", name="main (3f2a91c0d4)")
    assert take(result(*FIVE, reference=beside, verdicts=[verdict("within-threshold")])) is None
    text = r"compared with main \(3f2a91c0d4\) by interleaved A/B, .* without --distbench-against"
    with pytest.raises(NotABaseline, match=text):
        take(result(*FIVE, reference=beside, verdicts=[verdict("beyond-threshold"), verdict("within-threshold")]))

    stored = replace(entry(0.001, 0.002), workload=result(0.004).case.workload)
    still = result(0.004, code="within-threshold")
    assert take(still, stored).metrics == stored.metrics
    assert values_of(take(result(*FIVE, code="within-threshold"), stored), "step") == [0.004] * 5
    assert values_of(take(still, stored, force=True), "step") == [0.004]

    worse = result(0.009, verdicts=[verdict("beyond-threshold")])
    both = replace(stored, metrics={**stored.metrics, "other": entry(1.0, 1.1, 1.2).metrics["step"]})
    other = replace(worse.launches[0].measurements[0], name="other", value=1.0)
    worse = replace(worse, launches=[replace(worse.launches[0], measurements=[*worse.launches[0].measurements, other])])
    taken = take(worse, both, mode="changed", force=True)
    assert (values_of(taken, "step"), len(taken.metrics["other"])) == ([0.009], 3), (
        "what did not change keeps its noise"
    )

    with pytest.raises(NotABaseline, match=r"step violates a bound: 4 s, bound: at most 3 s \(the baseline file\)"):
        take(result(4.0, 4.0, 4.0), entry(1.0, bounds={"step": "3 s"}), force=True)
    with pytest.raises(NotABaseline, match="step violates a bound"):
        take(result(*FIVE, code="bound"), force=True)
    with pytest.raises(NotABaseline, match="the unit 'B' does not fit"):
        take(result(*FIVE), entry(1.0, bounds={"step": "3 B"}))
    assert take(result(*FIVE), entry(1.0, bounds={"step": "3 s"})).bounds == {"step": "3 s"}

    bare = entry(1.0, metrics={}, workload="", bounds={"step": "3 s"})
    assert values_of(take(result(*FIVE, code="no-baseline"), bare, mode="new"), "step") == [0.004] * 5


BY_ITS_OWN = "its test failed after it was measured, by an assertion of its own"


@pytest.mark.parametrize(
    ("cases", "why"),
    [
        ([{"test_outcome": "passed"}], ""),
        ([{}], ""),
        ([{"test_outcome": "failed"}], BY_ITS_OWN),
        ([{"test_outcome": "failed", "outcome": "advisory"}], BY_ITS_OWN),
        ([{"test_outcome": "failed", "outcome": "failed"}], ""),
        ([{"test_outcome": "failed"}, {"test_outcome": "failed", "outcome": "failed"}], ""),
        ([{"test_outcome": "skipped"}], "its test was skipped after it was measured"),
        ([{"outcome": "xfailed", "headline": "slow disk"}], "its test was xfailed: slow disk"),
        ([{}, {"launches": [replace(result(0.1).launches[0], outcome="failed")]}], "a launch of its test did not pass"),
    ],
)
def test_numbers_of_a_test_that_failed_by_more_than_verdicts_are_no_baseline(
    cases: list[dict[str, Any]], why: str
) -> None:
    made = [result(*FIVE, **changes) for changes in cases]
    assert why_test_did_not_pass(made) == ({made[0].nodeid: why} if why else {})
    if why:
        with pytest.raises(NotABaseline, match=f"{why}; fix it, and measure again"):
            propose_baseline(made[0], None, mode="all", force=False, did_not_pass=why)


@pytest.mark.parametrize("update", ["new", "changed"])
def test_what_an_update_stored_is_taken_with_the_launches_that_it_made(update: str) -> None:
    made = result(*FIVE[:3], update=update)

    assert values_of(take(made), "step") == [0.004] * 3
    with pytest.raises(NotABaseline, match="has 3 of the 5 launches"):
        take(replace(made, update=""))


def test_few_launches_keep_what_repeats_and_the_note_that_a_fingerprint_differs_between_launches() -> None:
    unsure = Fingerprint(missing="differs between launches of the same code")
    stored = replace(entry(*FIVE), fingerprints={"step": unsure})
    made = result(*FIVE[:4], code="within-threshold")
    launches = [replace(launch, fingerprints={"step": of(BARRIER)}) for launch in made.launches]

    assert take(replace(made, launches=launches), stored).fingerprints == {"step": unsure}

    for now, code in ((0.5001, "within-threshold"), (0.5, "noise")):
        seen = measured(metric("final", "same", now), codes={"final": code})
        assert values_of(take(seen, recorded(metric("final", "same", 0.5))), "final") == [0.5] * 5


def test_few_launches_keep_what_more_have_shown_of_the_steps_of_a_loop() -> None:
    """A loop may end at any step, for example: a few launches may all have the same number."""
    known = of(course={"all": Course(steps=20)})
    stored = replace(entry(*FIVE), fingerprints={"step": known}, workload=result(0.004).case.workload)
    made = result(*FIVE[:4], code="within-threshold")

    def taken(course: Course) -> dict[str, Fingerprint]:
        launches = [replace(launch, fingerprints={"step": of(course={"all": course})}) for launch in made.launches]
        return take(replace(made, launches=launches), stored).fingerprints

    assert taken(Course(steps=30, is_whole=True)) == {"step": known}
    other = Course(steps=20, others=[StepKind(entered=1, steps=1, first=3, last=3)])
    assert taken(other) == {"step": of(course={"all": other})}


def metric(name: str, better: str, value: float, series: Sequence[float] = ()) -> Sample:
    unit = {"memory": "B", "lower": "s"}.get(better, "")
    return Sample(name=name, unit=unit, better=better, value=value, values=list(series))


CURVE = metric("loss", "curve", 1.0, [2.0, 1.5, 1.0])
OTHER_CURVE = metric("loss", "curve", 0.9, [2.0, 1.4, 0.9])
FINAL, OTHER_FINAL = metric("final", "same", 0.5), metric("final", "same", 0.6)


def measured(*metrics: Sample, launches: int = 1, codes: Mapping[str, str] = MappingProxyType({})) -> CaseResult:
    """A case with a timing and peak memory in addition to these, and verdicts of these codes."""
    steady = [metric("step", "lower", 9.0), metric("peak_memory", "memory", 9e6)]
    launch = LaunchRecord(index=0, outcome="passed", wall_s=9.0, foreign_cores=1.5, measurements=[*steady, *metrics])
    verdicts = [
        replace(verdict(codes.get(m.name, "within-threshold")), metric=m.key, better=m.better, unit=m.unit)
        for m in launch.measurements
    ]
    made = result(*[9.0] * launches, launches=[replace(launch, index=i) for i in range(launches)])
    return replace(made, verdicts=verdicts)


def recorded(*metrics: Sample) -> BaselineEntry:
    """What five launches of a quiet machine stored, with a timing and peak memory of their own."""
    launch = replace(measured(*metrics).launches[0], foreign_cores=0.0, wall_s=2.0)
    steady = [metric("step", "lower", 1.0), metric("peak_memory", "memory", 1e6)]
    launches = [replace(launch, measurements=[*steady, *metrics])] * 5
    return make_baseline(result(1.0).case, launches, {"torch": "2.14.0"})


@pytest.mark.parametrize(
    ("before", "now", "codes"),
    [
        ([CURVE], [OTHER_CURVE], {"loss": "beyond-threshold"}),
        ([CURVE], [OTHER_CURVE], {"loss": "numerics"}),
        ([metric("samples", "exact", 7.0)], [metric("samples", "exact", 8.0)], {"samples": "beyond-threshold"}),
        ([FINAL], [OTHER_FINAL], {"final": "beyond-threshold"}),
        ([metric("accuracy", "floor", 0.9)], [metric("accuracy", "floor", 0.5)], {"accuracy": "beyond-threshold"}),
        ([CURVE, FINAL], [OTHER_CURVE, OTHER_FINAL], {"loss": "beyond-threshold", "final": "noise"}),
    ],
)
def test_one_launch_is_enough_of_what_repeats_and_the_rest_stays_as_it_is(
    before: list[Sample], now: list[Sample], codes: dict[str, str]
) -> None:
    stored = recorded(*before)
    mode = "failed" if "numerics" not in str(codes) else "changed"
    made = take(measured(*now, codes={"step": "noise", **codes}), stored, mode=mode)

    assert {key: found[0].value for key, found in made.metrics.items() if key in codes} == {m.key: m.value for m in now}
    assert [made.metrics[key] == stored.metrics[key] for key in ("step", "peak_memory")] == [True, True]
    assert (made.foreign_cores, made.launch_s) == (stored.foreign_cores, stored.launch_s), "the noise of what is kept"


def test_a_fingerprint_of_one_launch_is_taken_alone() -> None:
    stored = replace(recorded(), fingerprints={"step": of(BARRIER)})
    made = measured(codes={"step": "noise"})
    launches = [replace(made.launches[0], fingerprints={"step": of(BARRIER, BARRIER)})]
    changed = replace(verdict("communication"), metric="communication", better="exact")
    taken = take(replace(made, launches=launches, verdicts=[*made.verdicts, changed]), stored, mode="failed")

    assert (taken.fingerprints, taken.metrics) == ({"step": of(BARRIER, BARRIER)}, stored.metrics)


NEW, SLOWER = {"loss": "no-baseline"}, {"step": "beyond-threshold"}
BOTH = {**SLOWER, "loss": "beyond-threshold"}
FEW = "is new or changed, and has {} of the {} launches"


@pytest.mark.parametrize(
    ("made", "stored", "said"),
    [
        (result(), None, "nothing was launched"),
        (result(*FIVE, verdicts=[]), None, "nothing was judged"),
        (result(*FIVE, launches=[HUNG]), None, "launch 1 failed: hung in body"),
        (result(*FIVE, environment=environment(PLATFORM, shares_gpu=True)), None, "shared"),
        (result(0.004), None, f"step {FEW.format(1, 5)}"),
        (result(*FIVE[:4], None), None, "step has no value in 1 of 5 launches"),
        (measured(CURVE, codes=NEW), recorded(), f"loss {FEW.format(1, 2)}"),
        (measured(CURVE, codes=BOTH), recorded(CURVE), "step.* has 1 of the 5 launches .* pytest"),
        (measured(CURVE, codes=NEW | SLOWER), recorded(), rf"step \(and 1 more\) {FEW.format(1, 5)}"),
        (measured(launches=3, codes=SLOWER), recorded(CURVE), f"step {FEW.format(3, 5)}"),
    ],
)
def test_numbers_that_must_not_be_a_baseline_are_refused_with_the_next_step(
    made: CaseResult, stored: BaselineEntry | None, said: str
) -> None:
    with pytest.raises(NotABaseline, match=said):
        take(made, stored, mode="all" if stored is None else "changed")


@pytest.mark.parametrize(
    ("then", "now", "newer"),
    [
        ([0.002] * 5, [0.002] * 5, ""),
        ([0.002] * 5, [0.003] * 5, "the baseline of step became 2 ms -> 3 ms"),
        ([0.002] * 5, [0.004] * 5, ""),  # by this run
        ([], [0.003] * 5, "its baseline was recorded"),
    ],
    ids=["as it was", "recorded since", "recorded by the run", "new since"],
)
def test_a_number_that_is_newer_than_the_run_is_overwritten_by_force_alone(
    then: list[float], now: list[float], newer: str
) -> None:
    code = "beyond-threshold" if then else "no-baseline"
    known = OtherSideRecord(kind="stored", metrics=entry(*then).metrics if then else {})
    made, stored = result(*FIVE, code=code, reference=known), entry(*now)

    if newer:
        with pytest.raises(NotABaseline, match=f"{newer} since this run compared with it: measure again"):
            take(made, stored, mode="changed")
    assert values_of(take(made, stored, mode="changed", force=bool(newer)), "step") == [0.004] * 5


def test_two_launches_that_agree_are_enough_of_a_new_number_of_a_training() -> None:
    new = measured(CURVE, launches=2, codes={"loss": "no-baseline"})

    assert take(new, recorded(), mode="changed").metrics["loss"][0].values == [2.0, 1.5, 1.0]
    apart = replace(new, launches=[new.launches[0], measured(OTHER_CURVE).launches[0]])
    with pytest.raises(NotABaseline, match="has 2 of the 5 launches"):
        take(apart, recorded(), mode="changed")
