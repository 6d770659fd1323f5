"""The rules for trainings, case by case, with the numbers written out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numerics
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.metrics import baseline, baseline_of, metric

from pytest_distbench.judging import golden_curve
from pytest_distbench.judging.entry import stored_samples
from pytest_distbench.judging.stats import noise_limit
from pytest_distbench.judging.training_rule import STEPS_ALPHA, Family, judge_family, known_values, olympic
from pytest_distbench.launch.reduce import merge, of_rank
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.metric import UNTIL_CHANGED, Observation, Sample, Scalar
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding


def family(**changes: object) -> Family:
    made = {
        "current": {"a": [metric(1.0), metric(3.0)], "b": [metric(5.0), metric(None)], "new": [metric(7.0)]},
        "stored": {"b": baseline([4.0]), "a": baseline([1.0, 2.0])},
        "same_software": True,
    }
    return Family(**(made | changes))  # type: ignore[arg-type]


def test_a_seed_has_the_mean_over_launches_in_the_order_of_the_new_ones() -> None:
    assert family().new == [2.0, None, 7.0]
    assert family().old == [1.5, 4.0]
    assert known_values([1.0, None, 0.0]) == [1.0, 0.0]


@pytest.mark.parametrize(("given", "accepted"), [(None, 0.2), (0.0, 0.0), (0.5, 0.5)])
def test_the_tolerance_that_was_set_goes_before_the_rules_own(given: float | None, accepted: float) -> None:
    assert family(tolerance=given).tolerance_or(0.2) == accepted


Values = Sequence[float | None]
Series = Sequence[float]


def judge_samples(current: Sequence[Sample], stored: list[Sample], **changes: object) -> Finding:
    """The finding on samples of one seed."""
    kept = {"m": stored} if stored else {}
    return judge_family(Family(current={"m": [*current]}, stored=kept, **({"same_software": True} | changes)))  # type: ignore[arg-type]


Identity = Mapping[str, Scalar] | None


def judged(
    better: Better,
    current: Values,
    stored: Values,
    *,
    identity: Identity = None,
    before: Identity = None,
    **changes: object,
) -> Finding:
    """One launch now and two in the baseline, one value per seed."""
    now = dict(identity or {})
    then = now if before is None else dict(before)
    one = Sample(name="m", unit="", better=better, value=None, identity=now)
    made = {f"m[seed={i}]": [replace(one, value=v, at={"seed": i})] for i, v in enumerate(current)}
    kept = {f"m[seed={i}]": baseline_of([v, v], better, "", name="m", identity=then) for i, v in enumerate(stored)}
    return judge_family(Family(current=made, stored=kept, **({"same_software": False} | changes)))  # type: ignore[arg-type]


def judged_curve(
    current: Series, stored: Series, *, spread: float = 0.0, beside: Sequence[str] = (), **changes: object
) -> Finding:
    measured = Sample(name="loss", unit="", better="curve", value=1.0, values=list(current), beside=list(beside))
    return judge_samples([measured], baseline_of([1.0], "curve", "", values=stored, spread=spread), **changes)


EXACTLY = {"same_software": True, "curve": "equal"}
GOLDEN = [2.30259, 2.10147, 1.90313, 1.80171, 1.70229]
STEPS = [50, 55, 45, 60, 50]


# MLPerf's reference convergence points: the worked example of training_rules, appendix on RCPs

BATCH_128 = [16, 14, 16, 17, 16, 16, 15, 16, 15, 16]
BATCH_256 = [20, 21, 21, 20, 22, 22, 21, 21, 20, 20]


@pytest.mark.parametrize(
    ("points", "mean", "stdev", "fewest"), [(BATCH_128, 15.75, 0.43, 15.21), (BATCH_256, 20.75, 0.66, 19.93)]
)
def test_mlperfs_example_has_its_published_limits(
    points: list[float], mean: float, stdev: float, fewest: float
) -> None:
    """MLPerf asks whether 5 runs of a submission converge *faster* than its own: the same test, other tail."""
    kept = sorted(points)[1:-1]
    found, _, n = olympic(points)
    spread = (sum((v - found) ** 2 for v in kept) / n) ** 0.5

    assert (found, n) == (mean, 8)
    assert spread == pytest.approx(stdev, abs=0.005)
    assert found - noise_limit(spread, n, 3, STEPS_ALPHA) == pytest.approx(fewest, abs=0.005)


# Exactly, while software and arithmetic are the same


@pytest.mark.parametrize("better", ["same", "steps", "floor"])
def test_the_same_arithmetic_must_give_the_same_number(better: Better) -> None:
    assert judged(better, [50], [50], **EXACTLY).kind == "unchanged"
    assert judged(better, [50 + 1e-6], [50], **EXACTLY).code == ("numerics" if better == "same" else "training-number")
    verdict = judged(better, [50, 51], [50, 50], **EXACTLY)

    assert verdict.kind == "changed"
    assert verdict.reason.startswith("exact under the same software: 50 -> 51 (seed 1)")
    assert "(seed 1) and 2 more" in judged(better, [51] * 4, [50] * 4, **EXACTLY).reason


@pytest.mark.parametrize("better", ["same", "steps", "floor"])
def test_under_other_software_equal_losses_say_that_the_number_must_be_equal_too(better: Better) -> None:
    verdict = judged(better, [50, 51], [50, 50], curve="equal")

    assert (verdict.code, verdict.threshold) == ("training-number", 0.0)
    assert verdict.reason.startswith("exact where the losses agree in every digit: 50 -> 51 (seed 1)")


@pytest.mark.parametrize("better", ["same", "steps", "floor"])
@pytest.mark.parametrize("curve", ["nothing", "equal"])
def test_equal_numbers_acquit_under_other_software_however_far_seeds_are_apart(better: Better, curve: str) -> None:
    assert judged(better, [1.0, 90.0], [1.0, 90.0], curve=curve).code == "equal"


@pytest.mark.parametrize("differs", [{"curve": "nothing"}, {"curve": "other digits"}, {"curve": "diverges"}])
def test_under_other_software_or_arithmetic_chance_has_its_part(differs: dict[str, object]) -> None:
    assert judged("steps", [51, 56, 45, 60, 50], STEPS, **differs).kind == "unchanged"


def test_a_baseline_whose_launches_differ_is_no_exact_number() -> None:
    now = Sample(name="m", unit="", better="same", value=1.0003)

    assert judge_samples([now], baseline_of([1.0, 1.0002], "same", "")).kind == "unchanged"


FIRST_OTHER = "first other value: number"


@pytest.mark.parametrize(
    ("better", "then", "now", "text"),
    [
        ("same", [4.1, 3.2, 2.5, 2.2], [4.1, 3.2, 2.6, 2.0], f"the first 2 values agree; {FIRST_OTHER} 3 (2.5 -> 2.6)"),
        ("floor", [0.3, 0.5, 0.7], [0.3, 0.5, 0.8], "number 3 (0.7 -> 0.8); better, but not the same training"),
        ("steps", [10, 40], [20, 80], "no value agrees: number 1 (10 -> 20)"),
        ("same", [9.1, 8.2], [9.1, 8.4], f"the first value agrees; {FIRST_OTHER} 2 (8.2 -> 8.4)"),
        ("same", [1.0, 2.0], [1.0, 2.0, 3.0], "2 -> 3"),
    ],
)
def test_an_exact_number_that_was_taken_from_a_series_names_its_first_other_value(
    better: Better, then: list[float], now: list[float], text: str
) -> None:
    def of(values: list[float]) -> Sample:
        return Sample(name="m", unit="", better=better, value=values[-1], values=values)

    verdict = judge_samples([of(now)], stored_samples([of(then), of(then)]))

    assert verdict.kind == "changed"
    assert verdict.reason.endswith(text)


@pytest.mark.parametrize(
    ("better", "then", "now"), [("floor", 0.69, 0.71), ("floor", 0.71, 0.69), ("same", 1.03, 1.04), ("steps", 40, 60)]
)
def test_behind_losses_that_agree_the_evaluation_is_suspected(better: Better, then: float, now: float) -> None:
    agrees = judged(better, [now], [then], **EXACTLY).reason
    unknown = judged(better, [now], [then], **{**EXACTLY, "curve": "nothing"}).reason

    assert "the losses agree, so it is the evaluation or what follows them" in agrees
    assert "another training" not in agrees
    assert "evaluation" not in unknown


# Curves


def test_a_curve_is_unchanged_numerics_or_changed_by_its_digits() -> None:
    assert judged_curve(GOLDEN, GOLDEN).kind == "unchanged"

    other = [a * (1 + 1e-7) for a in GOLDEN]
    assert judged_curve(other, GOLDEN).code == "numerics"
    assert judged_curve(other, GOLDEN, same_software=False).kind == "unchanged"
    assert judged_curve(other, GOLDEN, spread=2e-7).kind == "unchanged"

    assert judged_curve([a * 0.9 for a in GOLDEN], GOLDEN).kind == "changed"

    assert judged_curve([a * 1.01 for a in GOLDEN], GOLDEN, tolerance=0.05).code == "numerics"
    assert judged_curve([a * (1 + 1e-7) for a in GOLDEN], GOLDEN, tolerance=0.0).kind == "changed"

    assert "has 5 steps, this run's has 4" in judged_curve(GOLDEN[:4], GOLDEN).reason


@pytest.mark.parametrize("same_software", [True, False])
def test_a_curve_beyond_the_tolerance_is_a_regression_that_names_step_and_cause(same_software: bool) -> None:
    verdict = judged_curve([*GOLDEN[:1], 2.2, 2.0, 1.9, 1.8], GOLDEN, same_software=same_software)

    assert verdict.kind == "changed"
    text = "diverges at step 2, differs by up to 5.7 %; likely causes, in the first"
    assert text in verdict.reason
    assert verdict.facts["diverges_at_step"] == 2


@pytest.mark.parametrize(
    ("first", "code"), [(GOLDEN, "losses"), ([v * (1 + 1e-7) for v in GOLDEN], "within-threshold")]
)
def test_under_other_software_later_losses_decide_where_the_first_are_equal(first: Series, code: str) -> None:
    then, now = [*GOLDEN, 1.7, 1.6], [*first, 1.7, 1.5]
    stored = baseline_of([1.0], "curve", "", values=GOLDEN)
    stored = [replace(m, whole=then, whole_length=len(then)) for m in stored]
    launch = Sample(name="loss", unit="", better="curve", value=1.0, values=first, whole=now, whole_length=len(now))

    assert judge_samples([launch], stored, same_software=False, is_exact=True).code == code


def test_a_curve_that_a_script_printed_names_its_line() -> None:
    lines = [f"iter {10 * step}" for step in range(5)]
    verdict = judged_curve([*GOLDEN[:4], 1.8], GOLDEN, beside=lines)

    assert verdict.reason.startswith("diverges at value 5 (iter 40), differs by up to 5.7 %")
    assert "the value before agreed" in verdict.reason
    assert verdict.facts["diverges_at_value"] == 5


# Real trainings, as benchmarks/numerics.py wrote them

TRAININGS = json.loads(Path(__file__).with_name("trainings.json").read_text())
HEALTHY = (
    *("as it was", "bucket size", "bucket views", "static graph", "two threads", "summed in another order"),
    *("optimizer in a loop", "fused optimizer", "channels_last", "compiled (aot_eager)", "gradients in bfloat16"),
    "other instructions",
)
NOT_DETECTED = {("warm-up", "clipped before it is averaged")}  # no norm is large enough to be clipped


@pytest.mark.parametrize("same_software", [True, False])
@pytest.mark.parametrize("change", HEALTHY)
@pytest.mark.parametrize("recipe", TRAININGS)
def test_a_legitimate_change_of_numerics_is_not_red(recipe: str, change: str, same_software: bool) -> None:
    found = numerics.judged(TRAININGS[recipe]["as it was"], TRAININGS[recipe][change], same_software=same_software)

    assert not numerics.is_red(found)


@pytest.mark.parametrize(
    ("recipe", "change"),
    [(recipe, change) for recipe, changes in TRAININGS.items() for change in changes if change not in HEALTHY],
)
def test_another_training_is_red_but_for_what_hardly_is_another(recipe: str, change: str) -> None:
    found = numerics.judged(TRAININGS[recipe]["as it was"], TRAININGS[recipe][change])

    assert numerics.is_red(found) == ((recipe, change) not in NOT_DETECTED)


@pytest.mark.parametrize(
    ("losses", "steps"),
    [
        ([10.0 - 0.5 * i for i in range(30)], 10),  # it has moved by then
        ([4.0 - 0.001 * i * i for i in range(60)], 23),
        ([4.0 + 0.3 * (-1) ** i for i in range(60)], 50),  # noise moves nothing
        ([3.0] * 7, 7),
    ],
)
def test_a_curve_whose_length_nobody_set_is_as_long_as_the_loss_takes_to_move(losses: list[float], steps: int) -> None:
    assert golden_curve.steps_to_move(losses) == steps
    of = Sample(name="loss", unit="", better="curve", value=1.0, values=losses, facts={UNTIL_CHANGED: True})
    assert len(stored_samples([of, of])[0].values) == steps
    assert len(stored_samples([replace(of, facts={})])[0].values) == len(losses)
    assert judged_curve(losses, losses[:steps]).kind in ("unchanged", "inconclusive")


# A training that is not seeded

OTHER = [a * 1.02 for a in GOLDEN]
ANOTHER = [a * 0.99 for a in GOLDEN]


def judged_launches(
    *launches: Sequence[float], baseline: Sequence[Sequence[float]], beside: Sequence[str] = (), can_repeat: bool = True
) -> Finding:
    def of(series: Sequence[float]) -> Sample:
        return Sample(name="loss", unit="", better="curve", value=1.0, values=list(series), beside=list(beside))

    stored = stored_samples([of(series) for series in baseline]) if baseline else []
    return judge_samples(map(of, launches), stored, can_repeat=can_repeat, asks=len(launches) == 1)


def from_value(at: int, by: float) -> list[float]:
    """The golden curve, and another one from a value on, from 1."""
    return [v * (1 + by * (i >= at)) for i, v in enumerate(GOLDEN, 1)]


LEFT, THERE = from_value(3, 2e-3), "the baseline's launches differ"
EARLY = [from_value(1, 0.3), [*from_value(1, 0.3)[:3], *(v * 1.305 for v in GOLDEN[3:])]]


@pytest.mark.parametrize(
    ("launches", "stored", "code", "text"),
    [
        pytest.param([GOLDEN, from_value(2, 3e-3)], [], "no-baseline", "its launches differ", id="an update"),
        pytest.param([GOLDEN, GOLDEN, from_value(5, 8e-3)], [], "no-baseline", "its launches differ", id="late"),
        pytest.param([GOLDEN, LEFT], [GOLDEN, GOLDEN], "not-deterministic", "its launches differ", id="now alone"),
        pytest.param([LEFT], [GOLDEN, from_value(4, 5e-3)], "not-deterministic", THERE, id="then alone"),
        pytest.param(
            [GOLDEN, OTHER], [], "unseeded", "seed it", id="likely causes, before any update: nobody seeded it"
        ),
        pytest.param(EARLY, [GOLDEN, GOLDEN], "losses", "before any update", id="left before its launches parted"),
    ],
)
def test_where_no_arithmetic_is_made_to_repeat_launches_that_part_later_are_seeded(
    launches: Sequence[Sequence[float]], stored: Sequence[Sequence[float]], code: str, text: str
) -> None:
    verdict = judged_launches(*launches, baseline=stored, can_repeat=False)

    assert (verdict.code, text in verdict.reason) == (code, True)
    if code in ("no-baseline", "not-deterministic"):
        assert "this training does not repeat, as deterministic algorithms are off" in verdict.reason
        assert "seed" not in verdict.reason


def test_an_unseeded_training_is_reported_with_the_first_difference_and_a_remedy() -> None:
    # At the update already, when there is nothing to compare with
    verdict = judged_launches(GOLDEN, OTHER, from_value(3, 1e-2), baseline=[])
    assert verdict.code == "unseeded"
    assert verdict.reason.startswith("its launches differ by up to 2.0e-02 from the first value on: seed it: torch")
    assert judged_launches(GOLDEN, GOLDEN, baseline=[]).kind == "new"
    assert judged_launches(GOLDEN, from_value(1, 2e-4), from_value(3, 2e-4), baseline=[]).code == "unseeded"

    verdict = judged_launches(GOLDEN, OTHER, baseline=[], beside=["iter"] * 5)
    text = "the first value on: seed it: call torch.manual_seed before the model is made; where the script takes the"
    assert text in verdict.reason

    verdict = judged_launches(GOLDEN, [*GOLDEN[:2], *OTHER[2:]], baseline=[])
    text = "differ by up to 2.0e-02 from value 3 on: likely a race (a collective that nobody waits for,"
    assert text in verdict.reason

    rounded = [GOLDEN[0], *(a * (1 + 2e-4) for a in GOLDEN[1:])]
    assert judged_launches(GOLDEN, rounded, baseline=[GOLDEN, rounded]).kind == "unchanged"

    verdict = judged_curve(OTHER, GOLDEN, spread=0.05)
    assert (verdict.code, "the baseline's launches differ by up to 5.0e-02" in verdict.reason) == ("unseeded", True)

    verdict = judged_launches(GOLDEN, GOLDEN, baseline=[OTHER, ANOTHER])
    assert verdict.kind == "inconclusive"
    assert "were not seeded, this run's 2 agree" in verdict.reason


@pytest.mark.parametrize("now", [[GOLDEN], [GOLDEN, ANOTHER]])
def test_no_launch_diverges_from_a_baseline_that_was_not_seeded(now: Sequence[Sequence[float]]) -> None:
    verdict = judged_launches(*now, baseline=[OTHER, ANOTHER])

    assert verdict.kind == "inconclusive"
    assert "torch.manual_seed" in verdict.reason


def test_a_training_that_lost_its_seed_is_told_from_one_that_repeats_otherwise() -> None:
    # One launch cannot tell it from another initialisation: it asks for a second
    first = judged_launches(OTHER, baseline=[GOLDEN, GOLDEN])
    verdict = judged_launches(OTHER, ANOTHER, baseline=[GOLDEN, GOLDEN])
    assert (first.kind, first.is_open) == ("changed", True)
    assert verdict.kind == "changed"
    text = "the training is no longer seeded: its launches differ by up to 2.9e-02 from the fi"
    assert verdict.reason.startswith(text)

    verdict = judged_launches(OTHER, OTHER, baseline=[GOLDEN, GOLDEN])
    assert verdict.kind == "changed"
    text = "the 2 launches of this run agree, so it is seeded; likely causes, before any update: seed, init"
    assert text in verdict.reason

    verdict = by_launch("floor", [0.9, 0.8], [0.95, 0.95], lost_its_seed=True)
    assert (verdict.code, verdict.reason) == ("unseeded", "the baseline's launches were seeded, this run's are not")

    verdict = judged_launches(from_value(3, 2e-2), from_value(3, 2e-2), baseline=[GOLDEN, GOLDEN])
    assert "the 2 launches of this run agree; likely causes, in the second update: " in verdict.reason


@pytest.mark.parametrize("at", [1, 2, 4, 5])
def test_before_a_curve_is_blamed_a_second_launch_says_whether_the_code_agrees_with_itself(at: int) -> None:
    assert judged_launches(from_value(at, 0.02), baseline=[GOLDEN, GOLDEN]).is_open
    assert not judged_launches(GOLDEN, baseline=[GOLDEN, GOLDEN]).is_open
    assert not judged_launches(from_value(at, 1e-6), baseline=[GOLDEN, GOLDEN]).is_open


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (from_value(2, 3e-2), from_value(4, 1e-2)),
        (from_value(3, 5e-3), GOLDEN),
        (from_value(2, 2e-2), [*from_value(2, 2e-2)[:4], GOLDEN[4] * 1.0203]),  # they differ by less than the tolerance
    ],
)
def test_code_that_does_not_repeat_its_losses_is_reported_without_blaming_the_optimizer(
    first: list[float], second: list[float]
) -> None:
    verdict = judged_launches(first, second, baseline=[GOLDEN, GOLDEN])

    assert verdict.kind == "changed"
    assert verdict.reason.startswith("this code does not reproduce its own losses: its launches differ by up to")
    assert "a race (a collective that nobody waits for" in verdict.reason
    assert "optimizer" not in verdict.reason


def by_launch(better: Better, current: Values, stored: Values, **changes: object) -> Finding:
    """Launches of one seed that differ from each other."""
    identity: dict[str, Scalar] = {"evaluation_samples": 1000} if better == "floor" else {}
    measured = [Sample(name="m", unit="", better=better, value=v, identity=identity) for v in current]
    return judge_samples(measured, baseline_of(stored, better, "", identity=identity), **changes)


@pytest.mark.parametrize(
    ("better", "stored", "like", "worse"),
    [
        ("same", [0.30, 0.34, 0.28, 0.33, 0.31], 0.35, 0.60),
        ("steps", [50, 60, 45, 70, 55], 75, 200),
        ("floor", [0.90, 0.94, 0.86, 0.92, 0.88], 0.84, 0.60),
    ],
)
def test_launches_of_a_seed_that_differ_are_samples(better: Better, stored: Values, like: float, worse: float) -> None:
    """What chance does to a training that is not seeded is known from the baseline's launches."""
    assert by_launch(better, [like], stored).kind in ("unchanged", "inconclusive")
    verdict = by_launch(better, [worse], stored)
    assert (verdict.kind, "went up" in verdict.reason) == (
        ("changed", True) if better == "same" else ("regressed", False)
    )


# Mean loss: neither up nor down


def test_seeds_are_paired_and_one_alone_proves_nothing() -> None:
    stored = [0.20, 0.22, 0.24, 0.21, 0.23]
    up, down = ([v * f for v in stored] for f in (1.02, 0.98))
    assert judged("same", up, stored).kind == "changed"
    assert judged("same", down, stored).kind == "changed"
    assert "down over 5 seeds" in judged("same", down, stored).reason

    # The seeds differ by 20 %, the shift is 1 %: only differences of the same seed show it
    stored = [0.2, 0.25, 0.3, 0.22, 0.28]
    now = [v * f for v, f in zip(stored, (1.01, 1.012, 1.009, 1.01, 1.011), strict=True)]
    assert judged("same", now, stored).kind == "changed"

    stored = [0.20, 0.22, 0.24, 0.21, 0.23]
    assert judged("same", [v * (1 + 1e-6) for v in stored], stored).kind == "unchanged"

    verdict = judged("same", [0.25], [0.2])
    assert verdict.kind == "inconclusive"
    assert "one seed changed by 25.0%" in verdict.reason

    verdict = judged("same", [0.25], [0.2], same_software=True, curve="diverges")
    assert verdict.reason == "one seed changed by 25.0%, which follows from the diverged loss curve"


BEYOND: list[tuple[Better, float, float]] = [("same", 31.2, 35.4), ("same", -3.1, -2.6), ("floor", 0.62, 0.56)]
WITHIN: list[tuple[Better, float, float]] = [("same", 31.2, 33.1), ("same", -3.1, -3.15), ("floor", 0.62, 0.6)]


@pytest.mark.parametrize("curve", ["other digits", "diverges"])
@pytest.mark.parametrize(("better", "then", "now"), [*BEYOND, ("steps", 60, 90), ("steps", 120, 200)])
def test_one_seed_keeps_its_tolerance_whatever_curves_do(better: Better, then: float, now: float, curve: str) -> None:
    verdict = judged(better, [now], [then], same_software=True, curve=curve)

    assert verdict.kind == ("changed" if better == "same" else "regressed")
    assert f"one seed changed by {abs(now / then - 1):.1%}" in verdict.reason


@pytest.mark.parametrize(("better", "then", "now"), WITHIN)
def test_one_seed_within_what_other_digits_do_is_inconclusive(better: Better, then: float, now: float) -> None:
    assert judged(better, [now], [then], same_software=True, curve="other digits").kind == "inconclusive"


@pytest.mark.parametrize(("better", "then", "now"), WITHIN)
def test_one_seed_beyond_a_tolerance_that_somebody_set_is_a_regression(better: Better, then: float, now: float) -> None:
    assert judged(better, [now], [then], tolerance=0.005).kind == ("changed" if better == "same" else "regressed")
    assert judged(better, [now], [then], tolerance=0.2).kind == "unchanged"


# How far a curve moves

SLOW = [6.9, *(6.9 - 1e-5 * i * i for i in range(1, 9))]
"""A warm-up: in nine steps the loss moves by 1e-4 of it."""


def leaves(curve: Sequence[float], share: float) -> list[float]:
    """What an optimizer computes whose updates are so many times as large."""
    return [curve[0] + (value - curve[0]) * share for value in curve]


@pytest.mark.parametrize("share", [2.2, 0.6, -1.0])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 40.0])
@pytest.mark.parametrize("same_software", [True, False])
def test_a_fault_in_small_updates_is_a_departure_however_little_the_loss_moves(
    share: float, scale: float, same_software: bool
) -> None:
    stored = [value * scale for value in SLOW]
    verdict = judged_curve(leaves(stored, share), stored, same_software=same_software)

    assert verdict.kind == "changed"
    assert verdict.reason.startswith("diverges at")


@pytest.mark.parametrize(
    "other",
    [
        leaves(SLOW, 1.001),  # gradients in bfloat16
        [value * (1 + 1e-6 * (-1) ** i) for i, value in enumerate(SLOW)],  # rounding
        [value * (1 + 4e-5 * (-1) ** i) for i, value in enumerate(SLOW)],  # other precision of the forward pass
    ],
)
def test_other_arithmetic_of_small_updates_is_numerics(other: Sequence[float]) -> None:
    assert judged_curve(other, SLOW).code == "numerics"


# Digits that were printed


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ([11.8, 11.8, 11.7, 11.6, 11.6, 11.5], "4 of its 6 losses differ, in steps of 0.1: the whole range is 3"),
        ([1034.0, 1031.0, 1026.0, 1019.0], "in steps of 1: the whole range is 15 such steps"),
    ],
)
def test_a_curve_whose_digits_can_show_nothing_is_not_called_unchanged(printed: list[float], said: str) -> None:
    verdict = judged_curve(printed, printed)

    assert verdict.kind == "unchanged"
    assert said in verdict.reason
    assert judged_curve(printed, printed, tolerance=0.05).kind == "unchanged"


STILL = {
    "a constant": [0.0] * 3,
    "what a network without gradients says of ten classes": [2.30258512] * 10,
    "rounding in another order": [0.693147182, 0.693147182, 0.693147242, 0.693147182],
    "a loss that is printed with one decimal": [2.3] * 8,
}


@pytest.mark.parametrize("curve", STILL.values(), ids=STILL)
@pytest.mark.parametrize("tolerance", [None, 0.05])
def test_a_training_that_learns_on_neither_side_is_inconclusive(curve: list[float], tolerance: float | None) -> None:
    verdict = judged_curve(curve, curve, tolerance=tolerance)
    recorded = judged_launches(curve, curve, baseline=[])

    assert [v.kind for v in (verdict, recorded)] == ["inconclusive", "inconclusive"]
    for said in (verdict.reason, recorded.reason):
        assert said.startswith(f"the losses do not change: all {len(curve)} are {curve[0]:g}. This training does not ")


@pytest.mark.parametrize("curve", STILL.values(), ids=STILL)
def test_a_training_that_learns_no_longer_is_a_regression(curve: list[float]) -> None:
    assert judged_curve(curve, [max(curve[0], 1.0) * (1 - 0.01 * i) for i in range(len(curve))]).kind == "changed"


@pytest.mark.parametrize(
    "curve",
    [
        [2.30258512 * (1 - 3e-6 * i) for i in range(10)],  # a warm-up
        [2.3026 + 0.001 * (-1) ** i for i in range(10)],  # labels at random: batches differ, and nothing is learned
        [2.302, 2.301],
    ],
)
def test_a_curve_that_moves_however_little_is_not_called_one_that_does_not_learn(curve: list[float]) -> None:
    assert judged_curve(curve, curve).kind == "unchanged"
    assert judged_launches(curve, curve, baseline=[]).kind == "new"


@pytest.mark.parametrize("scale", [1.0, 100.0, 0.01])
def test_one_unit_of_the_last_digit_is_no_departure_but_one_in_each_value_is(scale: float) -> None:
    printed = [round(scale * (2.5 - 0.08 * i), 4) for i in range(10)]
    unit = scale * 0.01
    assert judged_curve([*printed[:6], printed[6] + unit, *printed[7:]], printed).code == "numerics"
    assert judged_curve([*printed[:3], *(value + unit for value in printed[3:])], printed).kind == "changed"


# Steps to a goal


def test_steps_to_a_goal_are_judged_by_what_chance_does() -> None:
    assert judged("steps", [80, 85, 75, 90, 80], STEPS).kind == "regressed"
    assert judged("steps", [30, 25, 30, 35, 30], STEPS).kind == "improved"
    assert judged("steps", [55, 50, 50, 60, 50], STEPS).kind == "unchanged"

    identity = {"every": 20}
    assert judged("steps", [80] * 5, [60] * 5, identity=identity).kind == "unchanged"
    assert judged("steps", [81] * 5, [60] * 5, identity=identity).kind == "regressed"
    assert judged("steps", [81] * 5, [60] * 5, identity=identity, tolerance=0.5).kind == "unchanged"

    verdict = judged("steps", [50, 55, None, 60, 50], STEPS)
    assert verdict.kind == "unchanged"
    assert verdict.reason == "goal missed in 1 of 5 seeds, counted as the slowest"

    assert judged("steps", [None], []).kind == "regressed"

    assert judged("steps", [50, 50], [50, None]).kind == "inconclusive"

    assert judged("steps", [20, 300, 100, 40, 500], [30, 250, 90, 35, 400]).kind == "inconclusive"


@pytest.mark.parametrize("current", [[50, None, None, 60, 50], [None]])
def test_more_misses_are_a_regression(current: Values) -> None:
    assert judged("steps", current, STEPS[: len(current)]).kind == "regressed"


# Final quality


def test_an_accuracy_is_judged_by_the_size_of_its_test_set_where_that_is_known() -> None:
    identity = {"evaluation_samples": 360}
    assert judged("floor", [0.95], [0.97], identity=identity).kind == "unchanged"
    assert judged("floor", [0.93], [0.97], identity=identity).kind == "regressed"
    assert judged("floor", [0.93] * 5, [0.97] * 5, identity=identity).kind == "regressed"
    assert judged("floor", [0.93] * 5, [0.97] * 5, identity=identity).threshold == pytest.approx(0.0141, abs=0.001)

    assert judged("floor", [0.99], [1.0], identity={"evaluation_samples": 100}).kind == "unchanged"

    assert judged("floor", [92.0], [93.5], identity={"evaluation_samples": 100}).kind == "inconclusive"

    stored = [0.97, 0.96, 0.975, 0.965, 0.97]
    assert judged("floor", [0.965, 0.96, 0.97, 0.965, 0.97], stored).kind == "unchanged"
    assert judged("floor", [0.90, 0.91, 0.92, 0.90, 0.91], stored).kind == "regressed"
    assert judged("floor", [0.99, 0.99, 0.995, 0.99, 0.99], stored).kind == "improved"

    assert judged("floor", [0.9], [0.97]).kind == "inconclusive"


@given(st.data())
def test_any_numbers_get_a_verdict_that_survives_a_file(data: st.DataObject) -> None:
    better = data.draw(st.sampled_from([name for name, kind in METRIC_KINDS.items() if kind.is_of_training]))
    number = st.floats(allow_nan=False, allow_infinity=False)
    values = st.lists(number if better == "curve" else st.none() | number, min_size=1, max_size=6)
    identity: dict[str, Scalar] = {"every": 5, "evaluation_samples": 100}
    series = data.draw(st.lists(number, min_size=2, max_size=2))
    kept = data.draw(st.lists(number, max_size=2))
    stored = baseline_of(data.draw(values), better, "", identity=identity, values=kept)
    current = data.draw(values)
    one = Sample(name="m", unit="", better=better, value=None, identity=identity, values=series)
    family = Family(
        current={str(i): [replace(one, value=v, at={"seed": i})] for i, v in enumerate(current)},
        stored=dict.fromkeys(map(str, range(data.draw(st.sampled_from([0, len(current)])))), stored),
        same_software=data.draw(st.booleans()),
    )

    assert msgspec.json.decode(msgspec.json.encode(judge_family(family)), type=Finding).better == better


# What is not the same number


def test_what_is_defined_otherwise_is_incomparable_and_no_value_a_regression() -> None:
    verdict = judged("steps", [50], [50], identity={"target": 0.9}, before={"target": 0.95})
    assert verdict.kind == "inconclusive"
    assert verdict.reason == "target was 0.95, now 0.9"

    assert "no m[seed=1]" in judged("steps", [50, 50], [50]).reason

    now = Sample(name="m", unit="", better="steps", value=50.0)
    assert judge_samples([now], baseline_of([50.0], "exact", "")).kind == "inconclusive"

    verdict = judge_samples([replace(now, unit="epochs")], baseline_of([50.0], "steps", "steps"))
    assert (verdict.kind, verdict.reason) == ("inconclusive", "the unit was 'steps', now it is 'epochs'")

    assert judged("floor", [0.9, None], [0.9, 0.9]).kind == "regressed"

    assert judged("same", [0.0, 0.0], [0.0, 0.0]).kind == "unchanged"
    assert judged("same", [0.5, 0.5], [0.0, 0.0]).kind == "changed"


# What differs by rank


def of_ranks(kind: str, values: Sequence[Sequence[float]]) -> Sample:
    """What ranks recorded, reduced as a launch reduces it."""
    is_series = METRIC_KINDS[kind].shape == "series"
    usual = Observation(name="m", unit="", better=kind, reduce="mean", values=[], is_series=is_series)
    [found] = merge([of_rank(rank, replace(usual, values=list(mine))) for rank, mine in enumerate(values)])
    return found


def judged_ranks(
    kind: str, then: Sequence[Sequence[float]], now: Sequence[Sequence[float]], **changes: object
) -> Finding:
    before = of_ranks(kind, then)
    return judge_samples([of_ranks(kind, now)], stored_samples([before, before]), **changes)


ON_1 = [3.0807, 2.9011, 2.7313]
CANCELLING = {
    "tokens of experts": ("same", [[256], [256], [256], [256]], [[250], [262], [256], [256]]),
    "gradient norms": ("same", [[0.31], [0.29]], [[0.35], [0.25]]),
    "losses of one step": (
        "curve",
        [[3.1207, 2.9411, 2.7713], ON_1],
        [[3.1207, 2.9411, 2.8713], [3.0807, 2.9011, 2.6313]],
    ),
}


@pytest.mark.parametrize(("kind", "then", "now"), CANCELLING.values(), ids=CANCELLING)
def test_errors_of_ranks_that_cancel_out_are_red(kind: str, then: list[list[float]], now: list[list[float]]) -> None:
    verdict = judged_ranks(kind, then, now)

    assert verdict.kind == "changed"
    assert "agrees, the single ranks do not: their standard deviation" in verdict.reason
    assert judged_ranks(kind, then, then).kind == "unchanged"


@pytest.mark.parametrize("same_software", [True, False])
@pytest.mark.parametrize("apart", [0.0, 0.04])
def test_ranks_that_round_otherwise_are_as_far_apart(apart: float, same_software: bool) -> None:
    then = [[3.1207 + apart, 2.9411 + apart, 2.7713], [3.0807, 2.9011, 2.7313]]
    now = [[value * (1 + 1e-6) for value in mine] for mine in then]

    assert judged_ranks("curve", then, now, same_software=same_software).kind == "unchanged"


def test_a_baseline_that_does_not_know_how_far_ranks_are_apart_is_compared_as_before() -> None:
    then, now = of_ranks("same", [[1.0], [1.0]]), of_ranks("same", [[1.5], [0.5]])
    assert judge_samples([now], [replace(m, spread=None) for m in stored_samples([then])]).kind == "unchanged"

    apart = judged_ranks("same", [[1.0], [1.0]], [[1.01], [0.99]], same_software=False, curve="other digits")
    assert apart.kind == "unchanged", "that is within what other digits do"
    apart = judged_ranks("same", [[1.0], [1.0]], [[1.01], [0.99]], same_software=False, curve="equal")
    assert apart.code == "ranks-apart"
