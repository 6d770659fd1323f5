"""What a run says of its own rules, and of the slowdowns that were injected into its cases."""

from __future__ import annotations

import pytest
from support.metrics import passed
from support.results import result, verdict

from pytest_distbench.judging.outcome import Strictness, conclude
from pytest_distbench.judging.remarks import remarks
from pytest_distbench.records.iteration import SAMPLES, TRAINING_STEP, Fingerprint
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import Bound, Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Control, Finding
from pytest_distbench.report import Line
from pytest_distbench.report.terminal import run_lines
from pytest_distbench.report.verdicts import explanation

USUAL = Control(share=0.2, step="turns", has_baseline=True, launches=16, took_s=4.0)
FOUND = replace(USUAL, verdicts=[verdict("beyond-threshold", ratio=1.19)])
LOST = Control(
    share=0.2, step="screening", has_baseline=True, verdicts=[verdict("low-power", ratio=1.02, mde=0.3)], launches=1
)
UNTRIED = Control(why_not="its times are its own")


def run_says(*cases: CaseResult) -> list[Line]:
    """What is said of a run but that its software is another one."""
    return run_lines(cases, [found for found in remarks(cases) if found.code != "software"])


def unjudged_learning(cases: list[CaseResult]) -> list[Finding]:
    return [found for found in remarks(cases) if found.code in ("learning", "learning-known")]


def of(control: Control) -> CaseResult:
    return replace(result(), control=control)


def test_each_case_is_a_row_and_the_last_line_counts_them() -> None:
    lines = run_says(result(), of(FOUND), of(LOST), of(UNTRIED))

    assert [line.text for line in lines] == [
        "   test         metric  slowdown                      injected  measured  launches   time",
        "   test_a[ws2]  step    detected                       +20.0 %   +19.0 %        16  4.0 s",
        "?  test_a[ws2]  step    not detected: not suspicious   +20.0 %    +2.0 %         1  0.0 s",
        "? nothing injected in test_a[ws2]: its times are its own",
        "1 of 2 cases detected a slowdown of their tolerance (injected: a third more)",
    ]
    assert [line.severity for line in lines] == ["plain", "plain", "doubt", "doubt", "doubt"]


def test_injected_slowdowns_are_reported_with_timings_that_they_cannot_reach() -> None:
    assert run_says(result()) == []

    assert run_says(of(replace(FOUND, is_chosen=True)))[-1].text == "1 of 1 case detected a slowdown of 20 %"

    rate = verdict("beyond-threshold", better="higher", ratio=0.8)
    [_, row, _] = run_says(of(replace(FOUND, share=0.25, verdicts=[rate])))
    assert "-20.0 %   -20.0 %" in row.text

    lines = run_says(of(replace(FOUND, left_out=["loss_time"])))
    assert lines[-2].text == "? not delayed in test_a[ws2]: loss_time: the script measures these times itself"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": "bound"}, "detected: beyond its bound"),
        ({"has_baseline": False}, "detected, by A/B alone: no baseline"),
        ({"step": "stored"}, "detected, against the baseline alone"),
        ({"verdicts": [verdict("noise")]}, "not detected: A/B did not fail"),
        ({"verdicts": [verdict("within-threshold"), verdict("beyond-threshold", metric="b")]}, "detected in 1 of 2"),
    ],
)
def test_the_row_says_at_which_step_it_was_decided(changes: dict[str, object], said: str) -> None:
    [_, row, _] = run_says(of(replace(FOUND, **changes)))

    assert f"  {said}  " in row.text


def test_the_failure_says_what_was_injected_and_measured_and_what_would_help() -> None:
    conclusion = conclude(of(LOST), Strictness(options=frozenset({"distbench-strict"})))
    said = "a slowdown was not detected: not suspicious: step injected +20.0 %, measured +2.0 % against the baseline"
    assert conclusion.headline == said
    text = explanation(conclusion, command="pytest test_a.py", platforms=[])
    assert "+30.0%" in text
    assert "what would help: a baseline with more launches" in text
    assert text.endswith("again:  pytest test_a.py --distbench-control")


def test_remarks_about_a_run_are_a_line_each() -> None:
    [line] = run_says(*[result(verdict("beyond-threshold", ratio=1.2))] * 4)
    assert line.severity == "plain"
    words = "all 4 cases with timings are slower than their baselines, by 1.20 to 1.20 times: the cause"
    assert line.text.startswith(words)

    blind = result(*(verdict("within-threshold", ratio=1.0, mde=mde, unit="") for mde in (2.1, 3.0)))
    line = run_says(blind, blind)[-1]
    first, _, why = line.text.partition(" and 3 more: ")
    assert first == "? 4 metrics could not have turned red: test_a[ws2] step"
    assert why == "minimum detectable slowdown +210.0 %"

    assert run_says(result(verdict("beyond-threshold"))) == []

    shown = replace(LOSS, better="info")
    [line] = unjudged_learning([script(WALL, RATE, shown), script(WALL), script(WALL, LOSS)])
    assert line.reason.startswith(
        "test_a[ws2] and 1 more: trains, and nothing judges whether it learns; print its loss"
    )

    samples = replace(LOSS, name=SAMPLES, better="exact")
    [line] = unjudged_learning([script(RATE, samples, key="step")])
    assert line.reason.startswith(
        "test_a[ws2]: trains, and nothing judges whether it learns; keep its losses, and call "
    )
    assert line.reason.endswith('rank.record("loss_curve", losses[:10], better="curve") after the loop')
    real = script(RATE)
    fake = replace(real.case, conditions=replace(real.case.conditions, backend="fake", fake_rank=0))
    assert unjudged_learning([replace(real, case=fake)]) == []
    assert unjudged_learning([script(RATE, key="step at 64 ranks", is_timed=False)]) == []  # a forecast


def script(
    *measurements: Sample, key: str = TRAINING_STEP, optimizer_steps: int = 2, is_timed: bool = True
) -> CaseResult:
    """A script whose optimizer steps; with another key a body that times such a loop."""
    timed = [replace(WALL, name=key)] * (is_timed and key != TRAINING_STEP)
    steps = {key: Fingerprint(totals={"optimizer_steps": optimizer_steps})}
    return result(verdict(), launches=[passed(*measurements, *timed, fingerprints=steps)])


WALL = Sample(name="wall_time", unit="s", better="lower", value=2.0)
RATE = Sample(name="rate", unit="samples/s", better="higher", value=2.0)
LOSS = Sample(name="loss", unit="", better="same", value=2.0)


@pytest.mark.parametrize(
    ("name", "better", "most", "judges"),
    [
        ("parameters", "exact", None, False),
        ("gradient_buckets", "exact", None, False),
        ("tokens_seen", "exact", None, False),
        ("loss_scale", "exact", None, False),
        ("speedup", "higher", None, False),
        ("mfu", "higher", None, False),
        ("queue_depth", "lower", None, False),
        ("layers", "info", 12, False),
        ("final_loss", "exact", None, True),
        ("accuracy_top5", "exact", None, True),
        ("weights_checksum", "exact", None, True),
        ("val/perplexity", "lower", None, True),
        ("eval.loss_at_100", "exact", None, True),
        ("bleu", "higher", None, True),
        ("error", "info", 0.5, True),
        ("quality", "floor", None, True),
    ],
)
def test_what_a_training_learns_by_its_name_or_its_kind_judges_learning_and_no_other_number_does(
    name: str, better: str, most: float | None, judges: bool
) -> None:
    bounds = [] if most is None else [Bound(side="most", value=most, where="here")]
    number = replace(LOSS, name=name, better=better, bounds=bounds)

    assert len(unjudged_learning([script(WALL, number, key="step")])) == (not judges)


@pytest.mark.parametrize(
    "other",
    [
        script(WALL, LOSS),
        script(WALL, replace(LOSS, better="lower")),
        script(WALL, LOSS, key="step"),
        script(WALL, key="step", optimizer_steps=0),
        script(WALL, key="script", optimizer_steps=0),
    ],
)
def test_a_case_that_judges_a_loss_or_does_not_train_has_no_remark(other: CaseResult) -> None:
    assert unjudged_learning([other]) == []


def test_a_recording_names_once_what_git_ignores() -> None:
    launch = result().launches[0]
    cases = [
        result(launches=[replace(launch, unlinked=names), launch]) for names in (["data", "src/gen.py"], ["data"], [])
    ]
    [found] = [each for each in remarks(cases) if each.code == "unlinked"]

    assert found.reason.startswith("test_a[ws2] reads data and 1 more, which git ignores: ")
    assert found.reason.endswith("write distbench_against_link = data, src/gen.py into the ini file")


@pytest.mark.parametrize(
    ("ratio", "better", "wall", "is_said"),
    [
        (14.0, "higher", 1.08, True),
        (0.2, "lower", 1.0, True),
        (14.0, "higher", 0.08, False),  # the script became as fast
        (1.5, "higher", 1.1, False),
        (14.0, "exact", 1.0, False),
    ],
)
def test_a_number_that_became_much_faster_alone_contradicts_the_wall_time(
    ratio: float, better: Better, wall: float, is_said: bool
) -> None:
    seen = verdict("better", metric="throughput", unit="1/s", better=better, ratio=ratio)
    found = remarks([result(seen, verdict(metric="wall_time", ratio=wall))])

    assert ["contradiction"] * is_said == [each.code for each in found if each.code == "contradiction"]
