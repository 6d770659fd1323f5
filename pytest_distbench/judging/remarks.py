"""What a run says of itself as a whole: of its rules, its software, its baselines. Nothing of it is a verdict. Pure."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_distbench.judging.screening import is_clock
from pytest_distbench.judging.sensitivity import common_movement, is_learned, out_of_reach
from pytest_distbench.judging.terms import software_changes
from pytest_distbench.judging.words import metric_text
from pytest_distbench.records.iteration import NOT_RECORDED, TRAINING_STEP
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.records.summaries import grouped
from pytest_distbench.units import counted, format_percent, is_duration, is_rate

_NUMBER = re.compile(r"[+-]?[\d.,]+ %")
_MOST_NAMES = 10


def remarks(results: Sequence[CaseResult]) -> list[Finding]:
    """What there is to say of a run, in the order in which reports have it."""
    compared = [r for r in results if r.update in ("", "completed") and r.verdicts]
    return [
        *_injected(results),
        *_sensitivity(compared),
        *_moved_together(compared),
        *_out_of_reach(compared),
        *_unconfirmed(compared),
        *_flaky(results),
        *_needless(compared),
        *_software(results),
        *_not_recorded(results),
        *_unseen(results),
        *_of_tests_that_are_gone(compared),
        *_unjudged_learning(results),
    ]


def and_more(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    return f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"


def _injected(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """What an injected slowdown did not reach, and in how many cases it was detected."""
    controls = [(r, r.control) for r in results if r.control is not None]
    groups = grouped((control.why_not, r.case.title) for r, control in controls if control.why_not)
    for why, titles in groups.items():
        yield Finding(code="not-injected", reason=f"nothing injected in {and_more(titles)}: {why}")
    for result, control in controls:
        if control.left_out:
            left_out = ", ".join(control.left_out)
            told = f"not delayed in {result.case.title}: {left_out}: the script measures these times itself"
            yield Finding(code="not-delayed", case=result.case.title, reason=told)
    tried = [control for _, control in controls if not control.why_not]
    if tried:
        found = sum(bool(control.found) for control in tried)
        chosen = [control.share for control in tried if control.is_chosen]
        of = f"{chosen[0] * 100:.3g} %" if chosen else "their tolerance (injected: a third more)"
        told = f"{found} of {counted(len(tried), 'case')} detected a slowdown of {of}"
        yield Finding(code="detected" if found == len(tried) else "undetected", reason=told)


def _sensitivity(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """The slowdown that was detectable in the timings that were decided: in the median one, and in the worst.

    One below the threshold passes, however quiet the timing is.
    """
    found = [
        (max(v.mde, v.threshold or 0.0), r, v)
        for r in results
        for v in r.verdicts
        if v.is_judged and v.mde is not None and is_timing(v) and v.kind not in ("not evaluated", "inconclusive")
    ]
    if not found:
        return
    most, result, verdict = max(found, key=lambda one: one[0])
    where = f"{result.case.title} {metric_text(verdict)}"
    text = f"Sensitivity: slowdowns of {format_percent(most)} are detectable in {where}"
    if len(found) > 1:
        middle = format_percent(statistics.median(mde for mde, _, _ in found))
        text = f"Sensitivity: slowdowns of {middle} are detectable (median of {len(found)} timings), of "
        text += f"{format_percent(most)} in the worst: {where}"
    if low := sum(v.code == "low-power" for _, _, v in found):
        text += f"; {low} could miss one of the tolerance (--distbench-confirm=always)"
    yield Finding(code="low-sensitivity" if low else "sensitivity", reason=text)


def is_timing(verdict: Finding) -> bool:
    return is_clock(verdict, verdict.unit) and (is_duration(verdict.unit) or is_rate(verdict.unit))


def _moved_together(results: Sequence[CaseResult]) -> Iterator[Finding]:
    if (found := common_movement(results)) is not None:
        span = f"{found.least:.2f} to {found.most:.2f} times"
        word = "slower" if found.is_slower else "faster"
        told = (
            f"all {found.cases} cases with timings are {word} than their baselines, by {span}: the cause is the "
            "machine, its software or the baselines, not one change; distbench doctor checks the machine, "
            "--distbench-against REF compares by A/B"
        )
        yield Finding(code="all-moved", reason=told)


def _out_of_reach(results: Sequence[CaseResult]) -> Iterator[Finding]:
    found = [(r, verdict, why) for r in results for verdict, why in out_of_reach(r)]
    for same in grouped((_NUMBER.sub("", one[2]), one) for one in found).values():
        names = and_more([f"{result.case.title} {metric_text(verdict)}" for result, verdict, _ in same])
        told = f"{counted(len(same), 'metric')} could not have turned red: {names}: {same[0][2]}"
        yield Finding(code="out-of-reach", reason=told)


def _unconfirmed(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Why suspicious cases were not confirmed by A/B, a line for each reason, numbers aside."""
    groups = grouped((re.sub(r"\d", "", r.unconfirmed), r) for r in results if r.unconfirmed)
    for found in groups.values():
        told = f"not confirmed by A/B: {and_more([r.case.title for r in found])}: {found[0].unconfirmed}"
        yield Finding(code="unconfirmed", reason=told)


def flaky_tests(results: Sequence[CaseResult]) -> dict[str, str]:
    """Tests that passed only when a plugin ran them again: node id -> at which attempt, and what ended the first."""
    tests = {result.nodeid: result.flaky for result in results if result.flaky}
    return {nodeid: f"flaky: passed at attempt {len(ended) + 1}, before: {ended[0]}" for nodeid, ended in tests.items()}


def flaky_lines(results: Sequence[CaseResult]) -> list[str]:
    names = {result.nodeid: result.test_name for result in results}
    return [f"{names[nodeid]} is {text}" for nodeid, text in flaky_tests(results).items()]


def _flaky(results: Sequence[CaseResult]) -> Iterator[Finding]:
    lines = flaky_lines(results)
    if len(lines) > _MOST_NAMES:
        lines = [*lines[:_MOST_NAMES], f"{len(lines) - _MOST_NAMES} more tests are flaky"]
    yield from (Finding(code="flaky", reason=line) for line in lines)


def _needless(results: Sequence[CaseResult]) -> list[Finding]:
    """Cases that are expected to fail, and of which every number is seen to be no worse.

    Other digits of a training are not seen to be harmless.
    """
    found = []
    for r in results:
        judged = [v for v in r.verdicts if v.is_judged]
        is_fine = all(v.kind in ("unchanged", "improved") and v.row.is_answer and not v.row.is_told for v in judged)
        if r.xfail_perf and is_fine:
            told = f"xfail_perf of {r.case.title} is no longer needed: nothing regressed ({r.xfail_perf})"
            found.append(Finding(code="needless-xfail", case=r.case.title, reason=told))
    return found[:_MOST_NAMES]


def _software(results: Sequence[CaseResult]) -> Iterator[Finding]:
    found: dict[str, Counter[str]] = {}
    for result in results:
        if result.reference.software and all(launch.outcome == "passed" for launch in result.launches):
            changes = software_changes(result.reference.software, result.environment.software)
            is_paired = result.reference.kind == "paired"
            told = "software differs from the baseline's" if is_paired else "software differs from the baselines'"
            found.setdefault(told, Counter()).update(changes)
    for told, counts in found.items():
        if counts:
            differs = ", ".join(f"{what} ({counted(number, 'case')})" for what, number in counts.items())
            yield Finding(code="software", reason=f"{told}: {differs}")


def _not_recorded(results: Sequence[CaseResult]) -> Iterator[Finding]:
    reasons = ({f.missing for run in r.launches for f in run.fingerprints.values()} for r in results)
    counts = Counter(why for found in reasons for why in found if why.startswith(NOT_RECORDED))
    for why, number in counts.items():
        yield Finding(code="not-recorded", reason=f"no fingerprint of {counted(number, 'case')}: {why}")


def _unseen(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Bodies that communicate in loops of their own, which no fingerprint describes; once for all cases."""
    judged = (r for r in results if r.verdicts or r.update)
    if found := [r.case.title for r in judged if any(run.unseen_collectives for run in r.launches)]:
        how = 'for step in rank.timed("step", iterations=N), or rank.goal'
        told = f"no fingerprint: {and_more(found)}: what the body sends is not compared; wrap its loop: {how}"
        yield Finding(code="unseen", reason=told)


def _of_tests_that_are_gone(results: Sequence[CaseResult]) -> Iterator[Finding]:
    lines = []
    for result in (r for r in results if r.reference.gone):
        name, found = f"{result.case.test}[{result.case.key}]", " and ".join(map(str, result.reference.gone))
        if len(result.reference.gone) == 1:
            lines.append(f"{name} was compared with {found}, whose test is gone; --distbench-update=new moves it")
        else:
            lines.append(f"{name} was not compared: {found}, whose tests are gone, fit it equally")
    if len(lines) > _MOST_NAMES:
        lines = [*lines[:_MOST_NAMES], f"and {len(lines) - _MOST_NAMES} more"]
    yield from (Finding(code="renamed", reason=line) for line in lines)


def _unjudged_learning(results: Sequence[CaseResult]) -> Iterator[Finding]:
    """Trainings of which nothing that they learn is judged, such as a loss; once for those that have no baseline yet.

    One trains whose optimizer steps in the iteration, or the training step, that the fingerprint describes. On the
    backend ``fake`` no loss means anything.
    """
    found = [result for result in results if _steps(result) and not _may_judge_learning(result)]
    is_new = [result.is_written or result.lacks_baseline for result in found]
    for code, group in (
        ("learning", [result for result, new in zip(found, is_new, strict=True) if new]),
        ("learning-known", [result for result, new in zip(found, is_new, strict=True) if not new]),
    ):
        if group:
            how = (
                'print its loss, and give read={"loss_curve": stdout("loss " + NUMBER, better="curve", first=10)}'
                if TRAINING_STEP in _steps(group[0])
                else 'keep its losses, and call rank.record("loss_curve", losses[:10], better="curve") after the loop'
            )
            names = and_more([result.case.title for result in group])
            told = f"{names}: trains, and nothing judges whether it learns; {how}"
            yield Finding(code=code, reason=told)


def _steps(result: CaseResult) -> list[str]:
    last = result.launches[-1]
    is_left_out = last.events or result.case.conditions.fake_rank is not None
    return [key for key, seen in last.fingerprints.items() if seen.totals.get("optimizer_steps") and not is_left_out]


def _may_judge_learning(result: CaseResult) -> bool:
    """Whether anything is judged that a training learns: by its kind, or by what its name says."""
    judged = [m for m in result.launches[-1].measurements if m.is_judged or m.bounds]
    return any(METRIC_KINDS[m.better].is_of_training or is_learned(m.name) for m in judged)
