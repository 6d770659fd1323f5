"""Why a forecast rose: the calls that a rank makes more often, and how long it waits for them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from pytest_distbench.forecast import EXPOSED, STEP, label
from pytest_distbench.forecast.model import Call
from pytest_distbench.judging.remarks import MOST_DIFFERENCES
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.units import format_change, format_seconds


def dearer_calls(result: CaseResult) -> Iterator[Finding]:
    """Return a cause for each number of ranks whose forecast rose beyond its threshold."""
    if not result.launches:
        return
    now = result.launches[-1]
    samples = {each.key: each for each in now.measurements}
    other = result.reference.launches
    others = {each.key: each for launch in other for each in launch.measurements}
    stored = other[-1].fingerprints if other else result.reference.fingerprints
    for finding in result.verdicts:
        if finding.name == STEP and finding.is_failure and finding.ratio and finding.metric in samples:
            key, facts = label(int(finding.at["ranks"])), samples[finding.metric].facts
            calls, before = (_calls(found[key]) if key in found else Counter() for found in (now.fingerprints, stored))
            added = {call: (n - before[call]) * _number(facts, call) for call, n in calls.items() if n > before[call]}
            lines = [
                f"{calls[call]} {call}, {before[call]} before: {format_seconds(seconds)} more to send, "
                f"a step waits {format_seconds(_number(facts, f'{EXPOSED} {call}'))} for them"
                for call, seconds in sorted(added.items(), key=lambda each: -each[1])
            ]
            if not lines:
                then = others[finding.metric].facts if finding.metric in others else {}
                lines = [f"the step computes {_change(facts, then, 'computing_s')}"]
                for call in sorted(calls, key=lambda call: -_longer(facts, then, f"{EXPOSED} {call}")):
                    if _longer(facts, then, f"{EXPOSED} {call}") > 0:
                        lines.append(f"it waits {_change(facts, then, f'{EXPOSED} {call}')} for {calls[call]} {call}")
            yield Finding(
                code="dearer-calls",
                metric=finding.metric,
                reason=f"{format_change(finding.ratio)} at {finding.at['ranks']:,} ranks",
                differences=lines[:MOST_DIFFERENCES],
            )


def _calls(fingerprint: Fingerprint) -> Counter[str]:
    found: Counter[str] = Counter()
    for rows in fingerprint.collectives.values():
        for each in rows:
            found[str(Call(each.op, each.dtype, each.message_bytes, each.group, size=0, stride=0))] += each.count
    return found


def _longer(facts: Mapping[str, object], then: Mapping[str, object], name: str) -> float:
    return _number(facts, name) - _number(then, name)


def _change(facts: Mapping[str, object], then: Mapping[str, object], name: str) -> str:
    now = format_seconds(_number(facts, name))
    return f"{now} ({format_seconds(_number(then, name))} before)" if then else now


def _number(facts: Mapping[str, object], name: str) -> float:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
