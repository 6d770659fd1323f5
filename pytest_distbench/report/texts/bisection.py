"""A search for the commit that moved a metric, in lines: what is followed, each visit, and the answer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from pytest_distbench.judging.bisection import Standing, visits_left
from pytest_distbench.judging.moved import failure, tell
from pytest_distbench.records.bisection import Commit, Followed, Visit
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.texts.words import current, reference
from pytest_distbench.units import format_change

MOST_LISTED = 10


def followed_text(followed: Followed) -> str:
    """What is followed, and what became of it between GOOD and BAD."""
    return f"{followed.metric} of {followed.bad.nodeid}: {_difference(followed)}"


def same_lines(results: Sequence[CaseResult], metrics: Sequence[str]) -> Iterator[str]:
    """GOOD and BAD do not differ: what was compared, and which change would have been found."""
    yield "GOOD and BAD do not differ, as far as can be seen:"
    for result in results:
        if failure(result.launches):
            yield f"  {result.nodeid}: the launch fails: {result.launches[-1].reason}"
        for verdict in (v for v in result.verdicts if v.is_judged and v.metric in metrics):
            finds = "" if verdict.detectable is None else f"; would have found +{verdict.detectable:.0%}"
            yield f"  {verdict.metric}: {verdict.kind}, {_change(verdict)}{finds}"


def visit_lines(visit: Visit, standing: Standing) -> Iterator[str]:
    """What a visit, the last one, showed, and what remains."""
    places = sum(len(group.places) for group in standing.suspects)
    more = visits_left(standing.chances)
    left = f"{places} left" + (f", about {more} visit{'s' * (more != 1)} more" if standing.next else "")
    commit = standing.commits[standing.place(visit) - 1]
    yield f"{len(standing.state.visits):>3}  {commit.short}  {_seen(visit, standing):<32}{left:<32}{commit.subject}"
    yield from (f"       {line}" for line in (visit.skipped or visit.told).splitlines())


def answer_lines(standing: Standing, test: str) -> Iterator[str]:
    """The commit, or those that it may be."""
    visits = standing.state.visits
    how = f"{len(visits)} visit{'s' * (len(visits) != 1)}, {sum(v.seconds for v in visits):.0f} s"
    commit = standing.found
    if commit is None:
        yield from _suspect_lines(standing, how)
        return
    sure = "" if standing.state.followed.is_exact else f", {standing.suspects[0].chance:.0%} sure"
    yield f"found in {how}{sure}:"
    yield f"  {_commit_text(commit)}"
    yield f"  {_evidence(commit, standing)}"
    if len(commit.parents) > 1:
        yield f"  it is a merge; what it brought in: git log {commit.short}^1..{commit.short}^2"
    yield f"look at it:  git show {commit.short}"
    yield f"measure it:  git switch --detach {commit.short} && pytest {test} --distbench-against HEAD~"


def _suspect_lines(standing: Standing, how: str) -> Iterator[str]:
    places = {place for group in standing.suspects for place in group.places}
    likely = sorted(places, key=lambda place: -standing.chances[place - 1])[:MOST_LISTED]
    yield f"one of these {len(places)} commits ({how}; {len(standing.skipped)} could not be measured):"
    for place in sorted(likely):
        yield f"  {standing.chances[place - 1]:>4.0%}  {_commit_text(standing.commits[place - 1])}"
    if len(places) > len(likely):
        yield f"  and {len(places) - len(likely)} that are no likelier"
    if standing.next is not None:
        yield "the same command with a larger --most-visits goes on"


def _seen(visit: Visit, standing: Standing) -> str:
    if visit.skipped:
        return "skipped"
    seen = standing.seen(visit)
    word = ("as BAD" if seen.log_odds > 0 else "as GOOD") if seen.is_clear else "unclear"
    return word if standing.state.followed.is_exact else f"{word:<9}{_mean(visit.changes)}"


def _evidence(commit: Commit, standing: Standing) -> str:
    """What was seen of the metric before the commit, and from it on."""
    followed, visits = standing.state.followed, standing.state.visits
    if followed.is_exact:
        told = next((v.told for v in visits if v.commit == commit.hash), "")
        return f"{followed.metric}: {told or _difference(followed)}"
    place = standing.commits.index(commit) + 1
    before = [change for v in visits if standing.place(v) < place for change in v.changes]
    after = [change for v in visits if standing.place(v) >= place for change in v.changes] + followed.at_bad
    return f"{followed.metric}: {_mean(after)} from it on" + (f", {_mean(before)} before" if before else "")


def _difference(followed: Followed) -> str:
    """What became of it between GOOD and BAD."""
    if followed.verdict is None:
        return f"fails at BAD ({failure(followed.bad.launches)})"
    return tell(followed.verdict) if followed.is_exact else _change(followed.verdict)


def _change(verdict: Verdict) -> str:
    values = f"{reference(verdict)} -> {current(verdict)}"
    return values if verdict.ratio is None else f"{format_change(verdict.ratio)} ({values})"


def _mean(changes: Sequence[float]) -> str:
    return f"{format_change(math.exp(statistics.fmean(changes)))} over {len(changes)} pairs"


def _commit_text(commit: Commit) -> str:
    return f"{commit.short}  {commit.date}  {commit.author}: {commit.subject}"
