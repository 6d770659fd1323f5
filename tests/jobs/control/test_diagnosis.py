"""What users report of elastic jobs has a name, and a remedy."""

from __future__ import annotations

import pytest
from support.timelines import ERROR, JOB

from pytest_distbench.elastic import join, kill
from pytest_distbench.jobs.control.diagnosis import tell_agent_end, tell_slow, tell_unstable
from pytest_distbench.read import stdout
from pytest_distbench.records.elastic import Change, ChangeKind, ChangeResult
from pytest_distbench.records.record import Number, replace
from pytest_distbench.records.timeline import AgentEnded, Changed, Joined, Line, Raised, Rendezvous, Started

CHANGED = Changed(t=10.0, index=0, kind="kill", slots=[1], expected=[0])
MET = Rendezvous(t=11.0, slot=0, seconds=1.0)
STARTED = Started(t=12.0, slot=0, pid=7, process_t=11.5, restarts=1)
JOINED = Joined(t=13.0, slot=0, pid=7, generation=1, rank=0, world_size=1)
RAISED = Raised(t=14.0, slot=0, pid=7, generation=1, error=ERROR)

RAISED_EARLY = Raised(t=12.5, slot=0, pid=7, generation=None, error=ERROR)


@pytest.mark.parametrize(
    ("since", "change", "told"),
    [
        ([], kill(at_s=1), "Scale-down unnoticed: no survivor has begun anew."),
        ([MET, STARTED], join(at_s=1), "Hang on join: agents have met and started workers, and nobody"),
        ([MET], join(at_s=1), "Hang on join: agents have met, and nobody has joined a group."),
        ([], join(at_s=1), "No rendezvous: agents wait for each other."),
        ([MET, STARTED, JOINED, RAISED], kill(at_s=1), "Workers raised 1 times, the last time ValueError: no"),
        ([MET, STARTED, RAISED_EARLY], join(at_s=1), "Workers raised 1 times, the last time ValueError: no"),
        ([MET, STARTED, JOINED], kill(at_s=1), "Slots that joined a group: 0"),
    ],
)
def test_a_job_that_does_not_come_to_rest_is_told_by_name(since: list[Line], change: Change, told: str) -> None:
    text = tell_unstable(
        [STARTED.__class__(t=1.0, slot=0, pid=1, process_t=0.0, restarts=0), CHANGED, *since], {0}, change, JOB
    )

    assert text.startswith(f"not stable 120 s after {change}: 1 nodes should train together, and of slot 0 there is no")
    assert told in text


SCRIPT = replace(JOB, steps=stdout(r"step (\d+)"))


def test_a_script_whose_lines_match_nothing_is_told_which_pattern_that_was() -> None:
    text = tell_unstable([MET, STARTED, JOINED], {0}, None, SCRIPT)

    assert r"No step: workers have joined their group, and no line that rank 0 printed since matches" in text


@pytest.mark.parametrize(("restarts", "code", "is_told"), [(3, 1, True), (2, 1, False), (3, -9, False)])
def test_an_agent_that_has_no_restarts_left_is_told_who_uses_them_up(restarts: int, code: int, is_told: bool) -> None:
    job = replace(JOB, timers={**JOB.timers, "max_restarts": 3})
    lines = [CHANGED, replace(STARTED, restarts=restarts)]
    text = tell_agent_end(lines, AgentEnded(t=9.0, slot=0, code=code), job, log="the end")

    assert text.startswith(f"the agent of slot 0 ended with exit code {code}, and nobody had asked it to")
    assert text.endswith("; its log:\nthe end")
    assert ("Restarts used up: it had taken 3 of --max-restarts=3, in 1 changes of membership" in text) is is_told


def slow(kind: ChangeKind, part: str, seconds: float, *, after: int = 1) -> ChangeResult:
    return ChangeResult(
        index=0, kind=kind, slots=[1], at_s=5.0, before=2, after=after, recovery_s=seconds + 1, parts={part: seconds}
    )


@pytest.mark.parametrize(
    ("change", "timers", "told"),
    [
        (slow("kill", "rendezvous", 34.0), {"last_call_s": 30}, "last_call_timeout (30 s): below MAX nodes"),
        (
            slow("kill", "rendezvous", 34.0),
            {"keep_alive_s": 5},
            "keep_alive_max_attempt (15 s)",
        ),
        (
            slow("join", "rendezvous", 62.0, after=2),
            {},
            "the store's timeout (60 s)",
        ),
        (slow("join", "rendezvous", 40.0, after=2), {}, "agents came late to it, or again and again"),
        (slow("kill", "process_start", 40.0), {}, "process start took 40 s: torchrun took so long to start"),
        (
            slow("kill", "checkpoint_load", 40.0),
            {},
            "checkpoint load took 40 s: loading",
        ),
        (slow("leave", "stop", 31.0), {}, "whoever handles SIGTERM must end soon"),
        (slow("kill", "detect", 31.0), {}, "init_process_group(timeout=...)"),
    ],
)
def test_a_recovery_of_minutes_is_told_by_its_largest_part_and_the_knob_it_hangs_on(
    change: ChangeResult, timers: dict[str, Number], told: str
) -> None:
    text = tell_slow(change, replace(JOB, timers={**JOB.timers, **timers}))

    assert text.startswith(f"recovery of {change.recovery_s:.0f} s after the {change.kind} at 5.0 s, of which ")
    assert told in text


def test_a_recovery_of_seconds_needs_no_words() -> None:
    assert tell_slow(slow("kill", "rendezvous", 20.0), JOB) == ""
