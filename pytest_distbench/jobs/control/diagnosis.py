"""Why an elastic job does not come to rest: the faults that users report, each by its name and with its remedy.

What hangs on the engine is in its row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytest_distbench.jobs.engines.advice import Advice
from pytest_distbench.jobs.engines.table import ENGINES
from pytest_distbench.launch.diagnosis.blame import is_follower
from pytest_distbench.records.elastic import Change, ChangeResult, ElasticJob
from pytest_distbench.records.timeline import AgentEnded, Changed, Joined, Line, Raised, Rendezvous, Started, Stepped


def tell_unstable(lines: Sequence[Line], expected: Collection[int], change: Change | None, job: ElasticJob) -> str:
    """A text for a job that had not become stable in time."""
    after = "its start" if change is None else str(change)
    begin = max((line.t for line in lines if isinstance(line, Changed)), default=0.0)
    since = [line for line in lines if line.t >= begin]
    stepped = {line.slot for line in since if isinstance(line, Stepped)}
    missing = sorted(set(expected) - stepped)
    head = (
        f"not stable {job.settle_s:g} s after {after}: {len(expected)} nodes should train together, and of slot "
        f"{', '.join(map(str, missing)) or 'none'} there is no step"
    )
    return f"{head}. {_name(since, expected, change, job)}"


def tell_split(line: Stepped, newest: int, job: ElasticJob) -> str:
    """A text for a job that has fallen into two, each of which trains."""
    timers = ", ".join(f"{name}={value:g}" for name, value in job.timers.items())
    return (
        f"The job is split: slot {line.slot} trains on in generation {line.generation}, beside the nodes of generation "
        f"{newest}. {_advice(job).split.format(timers=timers)}"
    )


def tell_agent_end(lines: Sequence[Line], agent: AgentEnded, job: ElasticJob, *, log: str) -> str:
    """A text for an agent that ended, and nobody had asked it to."""
    used = [line.restarts for line in lines if isinstance(line, Started) and line.slot == agent.slot]
    head = f"the agent of slot {agent.slot} ended with exit code {agent.code}, and nobody had asked it to"
    limit, told = job.timers.get("max_restarts"), _advice(job).restarts
    if told and limit is not None and used and agent.code > 0 and used[-1] >= limit:
        changes = sum(isinstance(line, Changed) for line in lines)
        head += f". Restarts used up: it had taken {used[-1]} of {told.format(limit=limit, changes=changes)}"
    return f"{head}; its log:\n{log}"


def tell_standstill(lines: Sequence[Line]) -> str:
    """How long a job that was ended had come no further, and who stepped last; empty: it never stepped."""
    steps = [line for line in lines if isinstance(line, Stepped)]
    if not steps:
        return ". It took no step"
    furthest = max(step.step for step in steps)
    reached = min(step.t for step in steps if step.step == furthest)
    begun = len({line.generation for line in lines if isinstance(line, Joined) and line.t > reached})
    return (
        f". Its furthest step, {furthest}, came {max(line.t for line in lines) - reached:.0f} s before the last thing "
        f"that it did; {begun} generations have begun since, and the last step of all was one of slot {steps[-1].slot}"
    )


SLOW_S = 30.0
"""A recovery that takes longer is explained."""


def tell_slow(change: ChangeResult, job: ElasticJob) -> str:
    """Why a recovery took so long, by its largest part, and which knob it hangs on; empty: it did not."""
    if change.recovery_s is None or change.recovery_s < SLOW_S or not change.parts:
        return ""
    part, seconds = max(change.parts.items(), key=lambda item: item[1])
    knob = _rendezvous_knob(change, seconds, job) if part == "rendezvous" else _advice(job).knobs[part]
    return (
        f"recovery of {change.recovery_s:.0f} s after the {change.kind} at {change.at_s:.1f} s, of which "
        f"{part.replace('_', ' ')} took {seconds:.0f} s: {knob}"
    )


def _rendezvous_knob(change: ChangeResult, seconds: float, job: ElasticJob) -> str:
    """What it waited for: what takes longest of all that was in it and fits."""
    causes = _advice(job).in_rendezvous(change, job)
    fitting = {text: value for text, value in causes.items() if 0 < value <= seconds}
    return max(fitting, key=lambda text: fitting[text]) if fitting else "agents came late to it, or again and again"


def _advice(job: ElasticJob) -> Advice:
    return ENGINES[job.engine].advice


def _name(since: Sequence[Line], expected: Collection[int], change: Change | None, job: ElasticJob) -> str:
    began = {line.slot for line in since if isinstance(line, Started)}
    joined = {line.slot for line in since if isinstance(line, Joined)}
    met = {line.slot for line in since if isinstance(line, Rendezvous)}
    raised = [line for line in since if isinstance(line, Raised)]
    reasons = [line.error for line in raised if not is_follower(line.error)]
    if reasons:
        return f"Workers raised {len(raised)} times, the last time {reasons[-1].kind}: {reasons[-1].message}"
    if change is not None and change.kind in ("leave", "kill") and not began and not met:
        return _advice(job).unnoticed
    if (began or met) and not joined:
        return (
            f"Hang on join: agents have met{' and started workers' * bool(began)}, and nobody has joined a group. "
            f"{_advice(job).hang_on_join}"
        )
    if not met:
        return _advice(job).no_meeting
    if raised:
        return f"Workers raised {len(raised)} times, the last time {raised[-1].error.kind}: {raised[-1].error.message}"
    if job.steps is not None and joined and not any(isinstance(line, Stepped) for line in since):
        return (
            f"No step: workers have joined their group, and no line that rank {job.steps.rank} printed since matches "
            f"steps={job.steps.source!r}"
        )
    return f"Slots that joined a group: {', '.join(map(str, sorted(joined & set(expected)))) or 'none'}"
