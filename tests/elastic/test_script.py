"""A script seen from outside: timeline lines, made of notes and of what was printed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pytest_distbench.elastic.engines import NodeOutputs
from pytest_distbench.elastic.measures.history import History
from pytest_distbench.elastic.progress import ATTEMPTS, ScriptWatch
from pytest_distbench.elastic.records import event
from pytest_distbench.read import stdout
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Reader
from pytest_distbench.records.wire import Event


class Script:
    """Two nodes, whose notes and lines are as a test says."""

    def __init__(self, folder: Path, steps: Reader) -> None:
        self.files = LaunchFiles(folder)
        self.printed: list[Event] = []
        outputs = NodeOutputs(self.files)
        outputs.take = self.take  # type: ignore[method-assign]
        self.watch = ScriptWatch(self.files, outputs, steps, born=lambda pid: pid / 100)
        self.lines: list[Event] = []

    def take(self) -> list[Event]:
        printed, self.printed = self.printed, []
        return printed

    def note(self, what: str, t: float, slot: int, *, rank: int, of: int, port: int = 1, restarts: int = 0) -> None:
        made = event(
            what, t=t, pid=100 * port + slot, slot=slot, rank=rank, world_size=of, restarts=restarts,
            address=f"here:{port}",
        )  # type: ignore[arg-type] # fmt: skip
        with open(self.files.worker_notes, "ab") as file:
            file.write(msgspec.json.encode(made) + b"\n")

    def come(self, t: float, *slots: int, port: int = 1) -> None:
        """Workers that have a process, torch and a group."""
        for rank, slot in enumerate(slots):
            for step, what in enumerate(("process", "torch", "group")):
                self.note(what, t + step, slot, rank=rank, of=len(slots), port=port)

    def say(self, t: float, slot: int, text: str) -> None:
        self.printed.append(event("printed", t=t, slot=slot, text=text))

    def poll(self) -> list[Event]:
        found = self.watch.poll()
        self.lines += found
        return found


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path, stdout(r"step (?P<value>\d+)( loss (?P<loss>\S+))?"))


def test_a_worker_has_its_process_its_imports_and_its_group(script: Script) -> None:
    script.come(10.0, 0, 1)

    assert script.poll() == [
        event("started", t=11.0, slot=0, pid=100, process_t=1.0, restarts=0),
        event("started", t=11.0, slot=1, pid=101, process_t=1.01, restarts=0),
        event("joined", t=12.0, slot=0, pid=100, generation=0, rank=0, world_size=2),
        event("joined", t=12.0, slot=1, pid=101, generation=0, rank=1, world_size=2),
    ]


def test_what_a_script_does_before_it_asks_for_its_group_is_no_waiting_for_others(script: Script) -> None:
    for what, t in (("process", 10.0), ("torch", 11.0), ("call", 14.0), ("call", 14.1), ("group", 14.5)):
        script.note(what, t, 0, rank=0, of=1)
    script.say(15.0, 0, "step 1")
    worker = History(script.poll()).workers[0, 0]

    assert (worker.started, worker.joined.t, worker.imported_t) == (script.lines[0], 14.5, 14.0)


def test_a_line_of_rank_0_is_a_step_of_all_workers_of_its_generation(script: Script) -> None:
    script.come(10.0, 0, 1)
    script.say(13.0, 0, "step 5 loss 0.25")
    script.say(13.1, 1, "step 5 loss 0.75")
    script.poll()
    steps = [line for line in script.lines if line.what == "stepped"]
    found = [(s.t, s.slot, s.generation, s.step, s.world_size, s.loss) for s in steps]

    assert found == [(13.0, 0, 0, 5, 2, 0.25), (13.0, 1, 0, 5, 2, 0.25)]


def test_workers_that_meet_elsewhere_are_another_generation_whose_rank_0_may_be_another_slot(script: Script) -> None:
    script.come(10.0, 0, 1)
    script.say(13.0, 0, "step 5")
    script.come(20.0, 1, port=2)
    script.say(23.0, 1, "step 4")
    script.poll()
    steps = [line for line in script.lines if line.what == "stepped"]

    assert [(s.slot, s.generation, s.step) for s in steps] == [(0, 0, 5), (1, 0, 5), (1, 1, 4)]
    assert script.files.log(0).read_text() == "step 5\nstep 4\n"


def test_a_script_that_makes_no_group_where_it_is_alone_has_joined_with_its_first_step(script: Script) -> None:
    script.note("process", 10.0, 0, rank=0, of=1)
    script.say(13.0, 0, "step 1")

    assert [type(line) for line in script.poll()] == [Event, Event, Event]


def test_events_of_torchrun_and_lines_of_nobody_are_no_output_of_a_rank(script: Script) -> None:
    script.say(9.0, 0, "W1122 torchrun: OMP_NUM_THREADS is 1")
    script.come(10.0, 0)
    script.say(13.0, 0, '{"name": "torchelastic.worker.status.RENDEZVOUS", "source": "AGENT"}')
    script.say(13.0, 0, "hello")
    script.poll()

    assert script.files.log(0).read_text() == "hello\n"


def test_an_agent_that_ends_well_tells_that_its_worker_has_finished(script: Script) -> None:
    script.come(10.0, 0, 1)
    ended = [event("agent_ended", t=30.0, slot=0, code=0), event("agent_ended", t=31.0, slot=1, code=1)]
    script.poll()

    assert [script.watch.heed(one) for one in ended] == [[event("finished", t=30.0, slot=0, generation=0)], []]


def test_a_script_that_never_comes_to_a_step_is_given_up_with_what_it_said(script: Script) -> None:
    for attempt in range(1, ATTEMPTS + 2):
        assert script.watch.trouble == ""
        script.note("process", 10.0 * attempt, 0, rank=0, of=1, port=attempt)
        script.say(10.0 * attempt + 1, 0, "NameError: name 'data' is not defined")
        script.poll()

    assert "no step in slot 0: torchrun started it 6 times since the last one." in script.watch.trouble
    assert script.watch.trouble.endswith("NameError: name 'data' is not defined")


def test_a_step_shows_that_restarts_lead_somewhere(script: Script) -> None:
    for attempt in range(1, ATTEMPTS + 3):
        script.come(10.0 * attempt, 0, port=attempt)
        script.say(10.0 * attempt + 5, 0, f"step {attempt}")
        script.poll()

    assert script.watch.trouble == ""
