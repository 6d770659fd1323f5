"""Why an elastic job does not come to rest: the faults that users report, each by its name and with its remedy."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytest_distbench.launch.diagnosis.blame import is_follower
from pytest_distbench.records.elastic import Change, ElasticJob
from pytest_distbench.records.timeline import Changed, Joined, Line, Raised, Rendezvous, Started, Stepped


def tell_unstable(lines: Sequence[Line], expected: Collection[int], change: Change | None, job: ElasticJob) -> str:
    """A text for a job that had not become stable in time.

    Args:
        lines: of the timeline so far.
        expected: slots that should train.
        change: after which it should have; None: after its start.
        job: what runs.
    """
    after = "its start" if change is None else str(change)
    begin = max((line.t for line in lines if isinstance(line, Changed)), default=0.0)
    since = [line for line in lines if line.t >= begin]
    stepped = {line.slot for line in since if isinstance(line, Stepped)}
    missing = sorted(set(expected) - stepped)
    head = (
        f"not stable {job.settle_s:g} s after {after}: {len(expected)} nodes should train together, and of slot "
        f"{', '.join(map(str, missing)) or 'none'} there is no step"
    )
    return f"{head}. {_name(since, expected, change)}"


def tell_split(line: Stepped, newest: int, job: ElasticJob) -> str:
    """A text for a job that has fallen into two, each of which trains.

    Args:
        line: a step of the older one.
        newest: the generation of the other.
        job: what runs.
    """
    told = ", ".join(f"{name}={value:g}" for name, value in job.timers.items())
    return (
        f"The job is split: slot {line.slot} trains on in generation {line.generation}, beside the nodes of generation "
        f"{newest}. Its signs of life came too late ({told}), so that the others count it as lost, and torch does not "
        "tell it. Give it longer timers, or a machine with less load"
    )


def _name(since: Sequence[Line], expected: Collection[int], change: Change | None) -> str:
    began = {line.slot for line in since if isinstance(line, Started)}
    joined = {line.slot for line in since if isinstance(line, Joined)}
    met = {line.slot for line in since if isinstance(line, Rendezvous)}
    raised = [line for line in since if isinstance(line, Raised)]
    reasons = [line.error for line in raised if not is_follower(line.error)]
    if reasons:
        return f"Workers raised {len(raised)} times, the last time {reasons[-1].kind}: {reasons[-1].message}"
    if change is not None and change.kind in ("leave", "kill") and not began and not met:
        return (
            "Scale-down unnoticed: no survivor has begun anew. torchrun restarts workers when they fail, not when a "
            "node falls silent: their collectives need a limit, init_process_group(timeout=...), and no retries"
        )
    if (began or met) and not joined:
        return (
            f"Hang on join: agents have met{' and started workers' * bool(began)}, and nobody has joined a group. "
            "With torch 2.13 set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for the agents; and the store must not be on a "
            "node that may go"
        )
    if not met:
        return (
            "No rendezvous: agents wait for each other. Is a node still counted that is gone (keep-alive interval "
            "times attempts), or MIN more than there are?"
        )
    if raised:
        return f"Workers raised {len(raised)} times, the last time {raised[-1].error.kind}: {raised[-1].error.message}"
    return f"Slots that joined a group: {', '.join(map(str, sorted(joined & set(expected)))) or 'none'}"
