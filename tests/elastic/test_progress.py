"""How far an elastic job has come: by its timeline, by what its script prints, and as seen from outside."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from support.timelines import ERROR, JOB, LOST, Timeline

from pytest_distbench.elastic.engines import CannotGoOn, NodeOutputs
from pytest_distbench.elastic.measures.history import History
from pytest_distbench.elastic.progress import ATTEMPTS, Progress, ScriptWatch, StepLines, check_pattern
from pytest_distbench.elastic.records import event
from pytest_distbench.errors import ConfigurationError, ReadingError
from pytest_distbench.read import csv, stdout
from pytest_distbench.records.launch import ErrorReport
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Reader
from pytest_distbench.records.wire import Event


def progress(lines: list[Event], *taken: int) -> Progress:
    made = Progress(JOB.most)
    made.taken = set(taken)
    for line in sorted(lines, key=lambda line: line.t):
        made.take(line)
    return made


@pytest.fixture
def two() -> Timeline:
    """Slots 0 and 1, four steps."""
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=10.0, steps=4)
    return timeline


def raised(t: float, error: ErrorReport, *, generation: int | None = None) -> Event:
    return event("raised", t=t, slot=1, pid=500 + int(t - 20), generation=generation, error=error)


def test_it_is_stable_when_all_that_should_be_there_have_stepped(two: Timeline) -> None:
    assert progress(two.lines, 0, 1).stable_generation == 0
    assert progress(two.lines, 0).stable_generation is None
    assert progress([line for line in two.lines if line.t < 11.5], 0, 1).stable_generation is None


def test_it_is_over_when_all_of_a_generation_have_finished(two: Timeline) -> None:
    ends: list[Event] = [event("finished", t=14.0, slot=slot, generation=0) for slot in (0, 1)]
    one, both = progress(two.lines + ends[:1], 0, 1), progress(two.lines + ends, 0, 1)

    assert (one.is_ending, one.has_finished) == (True, False)
    assert both.has_finished


def started(count: int, slot: int = 1) -> list[Event]:
    return [event("started", t=20.0 + i, slot=slot, pid=500 + i, process_t=19.0 + i, restarts=i) for i in range(count)]


TOO_MANY = started(ATTEMPTS + 1)
GONE = [event("worker_ended", t=15.0 + slot, slot=slot, pid=slot) for slot in (0, 1)]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ([raised(14.0, LOST, generation=0)], ""),
        ([raised(14.0, ERROR, generation=0)], "the body raised in slot 1, generation 0: ValueError: no"),
        (started(ATTEMPTS), ""),
        (TOO_MANY, r"does not get beyond step 4: the worker of slot 1 was started 6 times since\."),
        ([raised(20.5, ERROR), raised(21.5, LOST), *TOO_MANY], "Before they had a group they raised ValueError: no"),
        ([*GONE, *TOO_MANY], "slot 1 was started 6 times since; the last time the worker of slot 0 ended f"),
    ],
)
def test_it_is_given_up_where_a_body_raised_or_a_worker_is_started_again_and_again(
    two: Timeline, more: list[Event], text: str
) -> None:
    with pytest.raises(CannotGoOn, match=text) if text else nullcontext():
        progress([*two.lines, *more], 0, 1)


EPOCHS = r"epoch (?P<epoch>\d+) step (?P<value>\d+)"


def numbers(lines: StepLines, *texts: str) -> list[int]:
    return [int(step["step"] or 0) for text in texts if (step := lines.take(text))]


def test_a_step_is_a_line_that_matches_and_what_its_groups_say() -> None:
    lines = StepLines(r"epoch (?P<epoch>\d+) step (?P<value>\d+) loss (?P<loss>\S+)( lr (?P<lr>\S+))?")
    step = lines.take("[0] epoch 3 step 7 loss 0.5 lr 1e-3")

    assert step is not None
    assert step == {"step": 7, "is_laid": False, "epoch": 3, "loss": 0.5, "accuracy": None, "top5": None, "lr": 0.001}
    assert lines.take("saved a snapshot") == {}
    with pytest.raises(ReadingError, match="the loss is nan: the training has diverged, at 'epoch 3 step 8 loss nan'"):
        lines.take("epoch 3 step 8 loss nan")


def test_epochs_are_laid_end_to_end_unless_a_script_goes_back_or_counts_on() -> None:
    first = StepLines(EPOCHS)
    assert numbers(first, *[f"epoch {e} step {s}" for e in range(2) for s in range(3)]) == [0, 1, 2, 3, 4, 5]
    again = StepLines(EPOCHS, first)
    assert numbers(again, "epoch 1 step 0", "epoch 1 step 1", "epoch 1 step 2", "epoch 1 step 3", "epoch 2 step 0") == [
        3, 4, 5, 6, 7,
    ]  # fmt: skip

    lines = StepLines(EPOCHS)
    texts = [f"epoch {e} step {s}" for e in range(3) for s in (0, 10)]
    on = StepLines(EPOCHS)
    counted_on = [f"epoch {e} step {20 * e + s}" for e in range(3) for s in (0, 10)]
    assert [step["is_laid"] for text in texts if (step := lines.take(text))] == [False, False, True, False, True, False]
    assert not any(step["is_laid"] for text in counted_on if (step := on.take(text)))

    first = StepLines(EPOCHS)
    numbers(first, "epoch 0 step 0", "epoch 0 step 1")
    assert numbers(StepLines(EPOCHS, first), "epoch 1 step 0", "epoch 1 step 1") == [2, 3]

    first = StepLines(EPOCHS)
    found = numbers(first, "epoch 0 step 10", "epoch 0 step 20", "epoch 1 step 30", "epoch 2 step 40")
    assert found == [10, 20, 30, 40]
    assert numbers(StepLines(EPOCHS, first), "epoch 1 step 30", "epoch 2 step 40", "epoch 3 step 50") == [30, 40, 50]


@pytest.mark.parametrize(
    ("pattern", "texts", "text"),
    [
        (r"step (\S+)", ["step 9", "step 0"], r"fell from 9 to 0 in one process, at 'step 0'. .*\(\?P<epoch>"),
        (r"step (\S+)", ["step 1.5"], "'1.5' is no whole number, of the line 'step 1.5'"),
        (
            r"step (?P<value>\d+) loss (?P<loss>\S+)",
            ["step 1 loss 0.5, 3 ms"],
            r"'0.5,' is no number, of the line 'step 1 loss 0.5, 3 ms': let the group loss",
        ),
    ],
)
def test_an_invalid_step_number_is_an_error_with_its_line(pattern: str, texts: list[str], text: str) -> None:
    with pytest.raises(ReadingError, match=text):
        numbers(StepLines(pattern), *texts)


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (csv("log.csv", "step"), "a reader of csv; wanted lines"),
        (stdout(r"step (\d+)", rank="all"), "rank='all': the workers of a generation step together"),
        (stdout(r"step (\d+)", skip=3, take="last"), "skip, take: every line counts"),
        (stdout(r"(?P<value>\d+) (?P<speed>\d+)"), "group speed; known are value .*, epoch, loss, accuracy, top5, lr"),
    ],
)
def test_a_reader_that_finds_no_steps_is_refused(reader: Reader, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        check_pattern(reader)


def test_a_line_that_is_printed_twice_is_one_step() -> None:
    assert numbers(StepLines(r"step (\d+)"), "step 1", "step 1", "step 2") == [1, 2]


def test_steps_before_a_change_do_not_show_that_it_is_stable(two: Timeline) -> None:
    made = progress([])
    made.taken = {0, 1}
    made.forget_steps(11.5)
    for line in two.lines:
        made.take(line)

    assert (made.stable_generation, made.step) == (None, 4)


def test_a_change_or_a_further_step_allows_new_attempts(two: Timeline) -> None:
    made = progress([*two.lines, *started(ATTEMPTS)], 0, 1)
    made.forget_steps(30.0)
    for line in started(ATTEMPTS):
        made.take(line)


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


def test_an_agent_with_exit_code_0_means_that_its_worker_has_finished(script: Script) -> None:
    script.come(10.0, 0, 1)
    ended = [event("agent_ended", t=30.0, slot=0, code=0), event("agent_ended", t=31.0, slot=1, code=1)]
    script.poll()

    assert [script.watch.take_end(one) for one in ended] == [[event("finished", t=30.0, slot=0, generation=0)], []]


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
