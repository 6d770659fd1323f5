"""How good a baseline is, which rules could not have failed, and injected slowdowns. Pure."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from support.metrics import baseline_of, passed, timed
from support.results import PAIRED, result, verdict

from pytest_distbench.judging.bounds import why_implausible
from pytest_distbench.judging.entry import sensitivity_lines, sensitivity_of, stored_samples
from pytest_distbench.judging.remarks import changed_together, out_of_reach
from pytest_distbench.judging.terms import Terms
from pytest_distbench.judging.thresholds import LOOKS, SPENDING, Circumstances, of_stored, power
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.metric import Bound, Sample
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.records.wanted import RUN_LAUNCHES
from pytest_distbench.run.control import other_failure, share_beyond, timings_of

NOISY = [1.0, 1.6, 0.8, 1.3, 0.7, 1.9, 1.1, 0.9, 1.5, 1.2]
STEADY = [1.0, 1.001, 0.999, 1.0, 1.002]


def sensitivity(noise: float, mde: float, paired_mde: float) -> Finding:
    return Finding(metric="step", code="sensitivity", mde=mde, facts={"noise": noise, "paired_mde": paired_mde})


def stored(values: list[float], better: str = "lower", unit: str = "s") -> list[Sample]:
    return baseline_of(values, better, unit)


@pytest.mark.parametrize("values", [NOISY, [v**0.2 for v in NOISY]])
@pytest.mark.parametrize("tolerance", [0.1, 0.5])
def test_it_is_what_the_rules_say_of_launches_with_this_noise(values: list[float], tolerance: float) -> None:
    found = sensitivity_of({"step": stored(values)}, {"step": tolerance})
    assert found is not None
    logs = [math.log(v) for v in values]
    again = of_stored(logs, logs, Circumstances(tolerance=tolerance, comparisons=1, max_launches=RUN_LAUNCHES), 1.0)
    pair = found.facts["noise"] * math.sqrt(1 + 1 / 2)  # of one launch and the mean of two
    under = Circumstances(tolerance=tolerance, comparisons=1, looks=LOOKS, spending=SPENDING)

    assert found.facts["noise"] == pytest.approx(statistics.stdev(math.log(v) for v in values))
    assert found.mde == pytest.approx(again.mde)
    assert power(found.facts["paired_mde"], pair, under) == pytest.approx(0.9, abs=0.01)


def test_the_page_on_noise_says_what_a_noise_hides() -> None:
    page = (Path(__file__).parents[2] / "docs" / "noise.md").read_text()
    rows = re.findall(r"^\| (\d+) % \| (\d+) % \| (\d+) % \|$", page, re.MULTILINE)
    assert rows
    for noise, alone, paired in (map(int, row) for row in rows):
        apart = math.exp(noise / 100 * math.sqrt(9 / 10))
        found = sensitivity_of({"step": stored([apart, 1 / apart] * 5)}, {"step": 0.1})
        assert found is not None
        assert (round(100 * found.mde), round(100 * found.facts["paired_mde"])) == (alone, paired)


def test_the_noise_is_that_of_what_is_judged() -> None:
    """A series of iterations is judged by the geometric mean of minimum and 25th percentile."""
    launches = [timed(v, fastest=1 / v**3, slow=9.0) for v in (1.1, 1.2, 1.15, 1.3)]
    fast = [math.log(m.value * m.spread.minimum) / 2 for m in launches if m.value and m.spread]
    found = sensitivity_of({"step": stored_samples(launches)}, {"step": 0.1})

    assert found is not None
    assert found.facts["noise"] == pytest.approx(statistics.stdev(fast), rel=0.01)


def test_the_timing_that_is_hardest_to_judge_stands_for_its_case() -> None:
    metrics = {"steady": stored(STEADY), "noisy": stored(NOISY), "count": stored([7.0, 7.0], "exact", "")}
    tolerances = dict.fromkeys(metrics, 0.1)
    found = sensitivity_of(metrics, tolerances)

    assert found is not None
    assert found.metric == "noisy"
    only_steady = sensitivity_of(metrics, {"steady": 0.1})
    assert only_steady is not None
    assert 0.1 < only_steady.mde < 0.11 > only_steady.facts["paired_mde"] > 0.1
    for left in ({"count": stored([7.0, 7.0], "exact", "")}, {"step": stored([1.0])}, {"step": stored([1.0, 0.0])}):
        assert sensitivity_of(left, dict.fromkeys(left, 0.1)) is None

    sweep = {f"latency[message_bytes={n}]": stored(NOISY) for n in range(4)}
    sweep["latency[message_bytes=9]"] = stored(STEADY)
    quiet = sensitivity_of(sweep, {"latency[message_bytes=9]": 0.1})
    assert quiet is not None
    assert quiet.facts["noise"] == pytest.approx(statistics.stdev(map(math.log, NOISY))), "as its siblings"


def test_one_sentence_has_the_median_case_and_the_worst_and_a_poor_baseline_has_advice() -> None:
    cases = [(f"test_{n}[ws2]", sensitivity(n / 100, n / 50, n / 99)) for n in (5, 1, 3)]
    poor = sensitivity(0.25, 1.09, 0.28)

    assert sensitivity_lines(cases) == [
        (
            "noise 3 % (median of 3 cases): baselines alone detect slowdowns above 6 %, with A/B about 3 %; "
            "worst, test_5[ws2] step: noise 5 %, above 10 %, with A/B about 5.1 %"
        )
    ]
    assert sensitivity_lines([("test_a[ws2]", poor)]) == [
        "test_a[ws2] step: noise 25 %: this baseline alone detects slowdowns above 109 %, with A/B about 28 %",
        "to detect smaller ones: a quieter machine (distbench doctor), or more iterations in the loop; record again",
    ]
    assert sensitivity_lines([]) == []


KINDS = [("step", "s", "lower"), ("rate", "1/s", "higher"), ("size", "B", "lower"), ("shown", "s", "info")]
TIMINGS = [Sample(name=name, unit=unit, better=better, value=1.0) for name, unit, better in KINDS]
LAUNCH = passed(*TIMINGS, Sample(name="loss_curve", unit="", better="curve", value=1.0))


@pytest.mark.parametrize(
    ("metrics", "left_out", "timings"),
    [(None, (), ["step", "rate"]), (("step", "size"), (), ["step"]), (None, ("step",), ["rate"])],
)
def test_timings_are_judged_metrics_in_units_of_time(
    metrics: tuple[str, ...] | None, left_out: tuple[str, ...], timings: list[str]
) -> None:
    terms = Terms(default_tolerance=0.1, max_launches=1, cores=1, metrics=metrics)

    assert timings_of(terms, LAUNCH, left_out=left_out) == timings


@pytest.mark.parametrize(("tolerances", "share"), [([0.3], 0.4), ([0.06, 0.3], 0.4), ([0.0], 0.05)])
def test_an_injected_slowdown_exceeds_the_largest_tolerance_by_a_third(tolerances: list[float], share: float) -> None:
    assert share_beyond(tolerances) == pytest.approx(share)


def test_what_is_red_speaks_against_a_case_and_was_in_reach() -> None:
    clock, curve = verdict("beyond-threshold"), verdict("beyond-threshold", metric="loss_curve", better="curve")
    assert other_failure([clock], ["step"]) is None
    assert other_failure([clock, curve], ["step"]) == curve

    assert list(out_of_reach([result(verdict("beyond-threshold", mde=9.0))])) == []


@pytest.mark.parametrize(
    ("name", "unit", "better", "words"),
    [
        ("ttft", "ms", "higher", "it is a time (ms), and a longer one would count as an improvement"),
        ("tokens", "tokens/s", "lower", "it is a rate (tokens/s), and a lower one would count as an improvement"),
        ("step_time", "", "higher", "a time that rises would count as an improvement"),
        ("val_loss", "", "higher", "a loss that rises would count as an improvement"),
        ("accuracy_at_5", "", "lower", "a accuracy that falls would count as an improvement"),
        ("time_to_accuracy", "s", "lower", ""),
        ("samples_per_second", "", "higher", ""),
        ("loss", "", "info", ""),
        ("time", "s", "exact", ""),
        ("uptime", "", "higher", ""),
    ],
)
def test_a_direction_that_takes_worse_for_better_is_questioned(name: str, unit: str, better: str, words: str) -> None:
    assert why_implausible(name, unit, better) == words.replace("a accuracy", "an accuracy")


SAME, OTHER = {"torch": "2.13.0"}, {"torch": "2.14.0"}
VERSIONS = "other software versions (torch 2.13.0 -> 2.14.0)"


@pytest.mark.parametrize(
    ("changes", "software", "why"),
    [
        ({"mde": 2.1, "unit": ""}, SAME, "minimum detectable slowdown +210.0 %"),
        ({"mde": 2.1}, SAME, ""),  # of timings another line tells
        ({"mde": 0.4, "unit": ""}, SAME, ""),
        ({"mde": None}, SAME, ""),
        ({"mde": 2.1, "bounds": [Bound(side="most", value=1.0, where="here")]}, SAME, ""),
        ({"better": "exact"}, SAME, ""),
        ({"better": "exact"}, OTHER, f"exact numbers cannot be compared under {VERSIONS}"),
        ({"better": "floor"}, OTHER, f"one seed shows nothing under {VERSIONS}"),
        ({"better": "floor", "facts": {"seeds": 5}}, OTHER, ""),
        ({"better": "curve"}, OTHER, ""),
        ({"better": "exact", "metric": "fingerprint"}, OTHER, ""),
    ],
)
def test_a_rule_that_could_not_fail_is_found(changes: dict[str, Any], software: dict[str, str], why: str) -> None:
    environment = Environment(platform="cpu-x", device="X", cores=2, software=software)
    found = out_of_reach([result(verdict("within-threshold", **changes), environment=environment)])

    assert [remark.reason.split(": ", 2)[2] for remark in found] == ([why] if why else [])


def test_one_seed_can_fail_under_other_software_where_its_curve_is_followed() -> None:
    environment = Environment(platform="cpu-x", device="X", cores=2, software=OTHER)
    sides = verdict("equal", metric="loss", better="curve"), verdict("equal", metric="final_loss", better="same")

    assert not [*out_of_reach([result(*sides, environment=environment)])]
    assert [*out_of_reach([result(*sides[1:], environment=environment)])]


def case(*ratios: float, better: str = "lower", unit: str = "s") -> CaseResult:
    return result(
        *(verdict("within-threshold", metric=f"m{i}", ratio=r, better=better, unit=unit) for i, r in enumerate(ratios))
    )


def test_cases_that_changed_by_about_as_much_share_a_remark() -> None:
    [found] = changed_together([case(1.2), case(1.3, 1.2, 1.4), case(0.8, better="higher", unit="B/s"), case(1.25)])
    assert found.reason.startswith("all 4 cases with timings are slower than their baselines, by 1.20 to 1.30 times: ")

    [found] = changed_together([case(0.8)] * 4)
    assert found.reason.startswith("all 4 cases with timings are faster than their baselines, by 1.25 to 1.25 times: ")


@pytest.mark.parametrize(
    "results",
    [
        [case(1.2)] * 3,
        [case(1.2)] * 4 + [case(1.0)],
        [case(1.2)] * 4 + [case(0.8)],
        [case(1.02)] * 9,
        [case(1.2, unit="B")] * 4,
        [result(verdict(ratio=1.2), reference=PAIRED)] * 4,
        [],
    ],
    ids=["few", "one stood still", "one became faster", "a little", "sizes", "next to another revision", "none"],
)
def test_anything_else_is_none(results: list[CaseResult]) -> None:
    assert list(changed_together(results)) == []
