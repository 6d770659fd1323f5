"""The end of a run: at most a screen of it, counts in plain words, and one sentence."""

from __future__ import annotations

import pytest
from support.results import PAIRED, end_of, point, result, verdict
from support.stores import launches

from pytest_distbench.judging.outcome import why_failed
from pytest_distbench.judging.remarks import remarks
from pytest_distbench.records.launch import RankFate
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Confirmation, Finding
from pytest_distbench.report import Line, lines_of
from pytest_distbench.report.terminal import (
    LONGEST,
    MOST_LINES,
    counts,
    in_words,
    inconclusive,
    next_steps,
    rows,
    sentence,
)

CHANGED = verdict("communication", metric="fingerprint", better="exact", current=None, baseline=None, unit="")


def failed(*verdicts: Finding) -> CaseResult:
    return result(*verdicts, outcome="failed", headline="why")


def test_the_end_of_a_run_fits_a_screen_however_much_there_is_to_say() -> None:
    """Two busy loops next to a run of 26 cases once ended it with 26 lines of 340 characters."""
    reason = "slower, but other processes used {} cores more than when the baseline was recorded " + "x" * 300
    cases = [
        result(*(verdict("machine-busy", metric=f"m{n}", reason=reason.format(n)) for n in range(4))) for _ in range(26)
    ]
    texts = [line.text for line in [*end_of(cases, record="x"), sentence(cases)]]

    assert len(texts) <= MOST_LINES
    assert max(map(len, texts)) <= LONGEST
    assert texts[-1] == "26 cases: 26 INCONCLUSIVE (passes; --distbench-strict fails it)"
    assert sum("other processes" in text for text in texts) == 1


def test_a_remedy_at_the_end_of_a_long_line_is_not_cut() -> None:
    why = f"in 3f2a91c0d4: {'data/shakespeare_char/' * 6}train.bin is not in the other revision; to link it, write "
    case = result(verdict(), unconfirmed=f"{why}distbench_against_link = data into the ini file")
    texts = [line.text for line in end_of([case], record="x")]

    assert max(map(len, texts)) <= LONGEST
    assert "distbench_against_link = data into the ini file" in " ".join(" ".join(texts).split())


def test_rows_are_of_what_is_not_as_it_should_be() -> None:
    case = failed(CHANGED, verdict(), verdict("not-evaluated", metric="b"), verdict("noise", metric="c"))

    assert [line.text.split()[0] for line in rows([case, result(verdict("better"))])] == ["test", "!", "?", "this"]
    assert rows([result(verdict(), verdict("better"))]) == []
    many = [failed(*(verdict("beyond-threshold", metric=f"m{n}") for n in range(20)))]
    assert rows(many)[-1].text == "  13 more (-v shows all)"
    [head, row, _] = rows([failed(verdict("beyond-threshold")), result(verdict(), reference=PAIRED)])
    assert (head.text.split()[-1], row.text.split()[-1]) == ("verdict", "regressed")


NO_VALUE = replace(
    result().launches[0], outcome="failed", fates=[RankFate(rank=0, outcome="passed", phase="body", how="passed")]
)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (failed(CHANGED, verdict("beyond-threshold")), "communication changed"),
        (failed(verdict("beyond-threshold")), "slower"),
        (failed(verdict("beyond-threshold", better="memory", unit="B", metric="peak_memory")), "more memory"),
        (failed(verdict("bound")), "beyond a bound"),
        (failed(verdict("not-measured", current=None)), "numbers missing"),
        (failed(verdict("losses", metric="loss", better="curve")), "losses changed"),
        (failed(verdict("exact-number", metric="answer", better="exact")), "answer changed"),
        (failed(verdict("beyond-threshold", metric="score", unit="points")), "slower"),
        (replace(failed(), launches=[replace(result().launches[0], outcome="failed")]), "a rank failed"),
        (replace(failed(), launches=[NO_VALUE]), "a launch failed"),
    ],
)
def test_why_a_case_failed_is_said_in_a_word_or_two(case: CaseResult, why: str) -> None:
    assert why_failed(case) == why
    told = f"2 cases: 1 passed, 1 FAILED ({why})   report: r.html"
    assert sentence([case, result(verdict())], where="report: r.html").text == told


def test_each_case_is_counted_as_one_thing() -> None:
    bound = verdict("within-bound", baseline=None)
    cases = [
        result(verdict(), CHANGED),
        result(verdict("no-baseline", baseline=None)),
        result(bound),
        result(verdict("slower-machine")),
        replace(result(verdict("no-baseline")), update="new"),
        failed(verdict("beyond-threshold")),
        failed(verdict("beyond-threshold")),
        replace(result(verdict("beyond-threshold")), outcome="xfailed"),
    ]
    texts = [line.text for line in counts(cases, took_s=95.0)]

    kinds = "3 regressed, 1 changed, 1 environment, 2 unchanged, 2 new"
    assert texts[0] == f"9 metrics ({kinds}), 8 launches in 1.6 min"
    assert "    2 cases FAILED: slower" in texts
    assert "    1 case passed: communication unchanged; timings within their thresholds" in texts
    assert sentence(cases).text == (
        "8 cases: 2 passed, 1 passed their bounds, 1 measured without a baseline, 1 stored as baselines, "
        "1 failed as expected, 2 FAILED (slower)"
    )


def test_what_a_confirmation_cleared_is_counted_with_its_cost() -> None:
    turns = Confirmation(
        revision="a90c25b475", here="b", took_s=41.0, launches=launches(1.0, 1.0), baselines=launches(1.0)
    )
    case = result(verdict("cleared"), confirmation=turns)
    text = counts([case], took_s=None)[-1].text
    told = "        1 with suspicious or noisy timings, cleared by interleaved A/B with a90c25b475 (3 launches, 41 s)"
    assert text == told

    alone = replace(turns, baselines=[])
    text = counts([replace(case, confirmation=alone)], took_s=None)[-1].text
    assert "further launches, as the code is still that of a90c25b475 (2 launches" in text


def sensitivity(*results: CaseResult) -> list[Line]:
    return [line for line in lines_of(remarks(results)) if line.text.startswith("A slowdown below")]


def test_sensitivity_is_the_median_and_the_worst_of_the_timings_that_were_decided() -> None:
    assert sensitivity(result(verdict())) == []
    [line] = sensitivity(result(verdict(mde=0.1)))
    assert line == ("A slowdown below 10 % would not have been detected in test_a[ws2] step", "plain")

    open_one = verdict("noise", metric="d", mde=9.0)
    case = result(verdict(mde=0.1), verdict("low-power", metric="b", mde=0.4), verdict(metric="c", mde=0.2), open_one)
    [line] = sensitivity(case)
    assert line.text.startswith(
        "A slowdown below 20 % would not have been detected (median of 3 timings); in the worst, test_a[ws2] b, "
    )
    assert line.severity == "doubt"

    share = verdict(metric="share", unit="", mde=0.01)
    [line] = sensitivity(result(verdict(mde=0.05, threshold=0.1), share))
    assert line.text == "A slowdown below 10 % would not have been detected in test_a[ws2] step", (
        "what passes is not found"
    )


def test_what_noise_left_undecided_comes_with_its_numbers_and_what_to_do() -> None:
    turns = Confirmation(revision="4c8a564357", here="b", took_s=60.0, launches=launches(1.0), baselines=launches(1.0))
    found = verdict(
        "not-confirmed", statistic="A/B sqrt(min x p25)", facts={"noise_floor": -0.24}, launches=7, mde=1.05,
        reason="its time was used up: --distbench-confirm=auto:SECONDS",
    )  # fmt: skip
    lines, told = inconclusive([result(verdict("noise", metric="other")), result(found, confirmation=turns)])

    assert [v.code for v in told] == ["noise", "not-confirmed"]
    numbers = "candidate 30 ms, baseline 20 ms (+50.0 %); A/A (noise floor): 24.0 %"
    assert [line.text for line in lines[:3]] == [
        "? test_a[ws2] step (and 1 more timing): code and noise cannot be told apart (not-confirmed)",
        f"    A/B with 4c8a564357, 7 pairs in 60 s: {numbers}",
        "    with 28 pairs a slowdown of 105 % is detectable; stopped because the time for confirmation was used up",
    ]
    assert [line.text.split(":")[0].strip() for line in lines[3:]] == ["give it time", "quieter machine", "longer loop"]
    other = replace(result(replace(found, launches=28)), reference=PAIRED)
    lines, _ = inconclusive([other])
    assert lines[1].text == "    A/B with main (123), 28 pairs: candidate 30 ms, baseline 20 ms (+50.0 %)"
    assert [line.text.split(":")[0].strip() for line in lines[3:]] == ["quieter machine", "longer loop"]
    broken = verdict("not-confirmed", reason="not confirmed: it does not start")
    assert inconclusive([result(verdict("unseeded"), verdict("ab-disagrees"), broken)]) == ([], [])


def test_what_comes_next_is_a_command() -> None:
    new = result(verdict("no-baseline", baseline=None))
    commands = {"record": "pytest --record", "keep": "git add b", "against": "pytest --against"}
    texts = [line.text for line in next_steps([new, result(point(8))], commands)]

    assert texts[:4] == [
        "Next steps",
        "  record baselines (up to 15 s):  pytest --record",
        "  keep them:                      git add b",
        "  or compare with a branch:       pytest --against",
    ]
    assert next_steps([result(verdict())], commands) == []


def test_a_run_is_a_sentence_that_says_why_cases_failed() -> None:
    slower, sent = failed(verdict("beyond-threshold")), failed(CHANGED)
    learned = failed(verdict("losses", metric="loss_curve", better="curve", unit=""))
    quiet, unknown = result(verdict()), result(verdict("noise"))

    assert in_words([]) == "nothing was measured"
    assert in_words([quiet, unknown]) == "none of 2 cases failed, 1 inconclusive"
    assert in_words([sent, quiet]) == "1 of 2 cases failed: the communication changed in test_a[ws2]"
    both = in_words([failed(CHANGED, verdict("beyond-threshold")), quiet])
    assert both == "1 of 2 cases failed: the communication changed and a timing regressed in test_a[ws2]"
    assert in_words([learned] * 2) == "2 of 2 cases failed: the loss diverges from the baseline in both"
    text = "4 of 4 cases failed: a timing regressed in 3; the communication changed in test_a[ws2]"
    assert in_words([slower] * 3 + [sent]) == text


@pytest.mark.parametrize(
    ("launches", "statistic", "told"),
    [(1, "median", "1 launch is"), (3, "median", "3 launches are"), (9, "A/B", "9 pairs are")],
)
def test_what_ended_the_launches_is_counted_in_grammar(launches: int, statistic: str, told: str) -> None:
    lines, _ = inconclusive([result(verdict("noise", launches=launches, statistic=statistic))])

    assert f"stopped because {told} the most that a run makes" in "".join(line.text for line in lines)

    stopped = result(verdict("noise", launches=launches, statistic=statistic), unconfirmed="the run was interrupted")
    lines, _ = inconclusive([stopped])
    assert "stopped because the run was interrupted" in "".join(line.text for line in lines)
