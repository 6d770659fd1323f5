"""Why an elastic job does not come to rest: the faults that users report, each by its name and with its remedy."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytest_distbench.launch.diagnosis.blame import is_follower
from pytest_distbench.records.elastic import Change, ChangeResult, ElasticJob
from pytest_distbench.records.timeline import AgentEnded, Changed, Joined, Line, Raised, Rendezvous, Started, Stepped


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
    return f"{head}. {_name(since, expected, change, job)}"


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


def tell_agent_end(lines: Sequence[Line], agent: AgentEnded, job: ElasticJob, *, log: str) -> str:
    """A text for an agent that ended, and nobody had asked it to.

    Args:
        lines: of the timeline so far.
        agent: that ended.
        job: what runs.
        log: the last lines of what it has printed.
    """
    used = [line.restarts for line in lines if isinstance(line, Started) and line.slot == agent.slot]
    head = f"the agent of slot {agent.slot} ended with exit code {agent.code}, and nobody had asked it to"
    limit = job.timers.get("max_restarts")
    if limit is not None and used and agent.code > 0 and used[-1] >= limit:
        changes = sum(isinstance(line, Changed) for line in lines)
        head += (
            f". Restarts used up: it had taken {used[-1]} of --max-restarts={limit}, in {changes} "
            "changes of membership. torchrun counts a join, too, where a worker loses its peers before its agent hears "
            "of the newcomer: allow ten restarts for every change there may be"
        )
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


STORE_TIMEOUT_S = 60
"""Of the rendezvous's store, by default."""

SLOW_S = 30.0
"""A recovery that takes longer is explained."""

_KNOBS: dict[str, str] = {
    "detect": (
        "nobody noticed: survivors learn of a lost node when a collective fails, so give their group a limit, "
        "init_process_group(timeout=...); a newcomer's own start is in it, too"
    ),
    "stop": (
        "workers took so long to go: whoever handles SIGTERM must end soon, and TORCH_ELASTIC_SHUTDOWN_TIMEOUT says "
        "how long torchrun waits before it kills them (30 s)"
    ),
    "process_start": "torchrun took so long to start processes: is the host out of cores or memory?",
    "import": "imports of a new process: is Python's environment on a slow disk, or are there fewer cores than nodes?",
    "group_init": "workers waited for each other in init_process_group: did one come much later, or die meanwhile?",
    "build": "what the body does before its checkpoint is loaded: data, model, the first optimizer of a process",
    "checkpoint_load": "loading the checkpoint: its size, and the disk it is on",
    "first_step": "the way from the group, or the checkpoint, to the first step: is something compiled, or loaded?",
}
"""What makes a part of a recovery long, and what to turn."""


def tell_slow(change: ChangeResult, job: ElasticJob) -> str:
    """Why a recovery took so long, by its largest part, and which knob it hangs on; empty: it did not."""
    if change.recovery_s is None or change.recovery_s < SLOW_S or not change.parts:
        return ""
    part, seconds = max(change.parts.items(), key=lambda item: item[1])
    knob = _rendezvous_knob(change, seconds, job) if part == "rendezvous" else _KNOBS[part]
    return (
        f"recovery of {change.recovery_s:.0f} s after the {change.kind} at {change.at_s:.1f} s, of which "
        f"{part.replace('_', ' ')} took {seconds:.0f} s: {knob}"
    )


def _rendezvous_knob(change: ChangeResult, seconds: float, job: ElasticJob) -> str:
    """Which timer of the rendezvous it was: the largest of those that were in it and fit."""
    last_call = job.timers.get("last_call_s", 0)
    silent = job.timers.get("keep_alive_s", 0) * job.timers.get("keep_alive_attempts", 0)
    in_it = {
        f"last_call_timeout ({last_call:g} s): below MAX nodes every rendezvous waits so long for more": (
            last_call if change.after is not None and change.after < job.most else 0
        ),
        f"keep_alive_interval x keep_alive_max_attempt ({silent:g} s): so long a lost node is waited for": (
            silent if change.kind in ("kill", "leave") else 0
        ),
        f"the store's timeout ({STORE_TIMEOUT_S} s): agents waited for what nobody published; is "
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 set?": STORE_TIMEOUT_S,
    }
    fitting = {text: value for text, value in in_it.items() if 0 < value <= seconds}
    return max(fitting, key=lambda text: fitting[text]) if fitting else "agents came late to it, or again and again"


def _name(since: Sequence[Line], expected: Collection[int], change: Change | None, job: ElasticJob) -> str:
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
    if job.steps is not None and joined and not any(isinstance(line, Stepped) for line in since):
        return (
            f"No step: workers have joined their group, and no line that rank {job.steps.rank} printed since matches "
            f"steps={job.steps.source!r}"
        )
    return f"Slots that joined a group: {', '.join(map(str, sorted(joined & set(expected)))) or 'none'}"
