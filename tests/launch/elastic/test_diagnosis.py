"""What users report of elastic jobs has a name, and a remedy."""

from __future__ import annotations

import pytest
from support.timelines import ERROR, JOB

from pytest_distbench.elastic import join, kill
from pytest_distbench.launch.elastic.diagnosis import tell_unstable
from pytest_distbench.records.elastic import Change
from pytest_distbench.records.timeline import Changed, Joined, Line, Raised, Rendezvous, Started

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
