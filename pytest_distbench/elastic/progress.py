"""Progress of an elastic job, from its timeline and from what its script prints, and why it makes none.

The faults that users report have a name and a remedy here; remedies that depend on the engine are in its row.

An unchanged script below torchrun is observed from outside. The events that a body writes itself are made here from
three sources: the notes of each worker's Python (``worker/site``), what the nodes print, and how their agents end. The
workers of a generation step together, so a line of one rank reports a step of all.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pytest_distbench.elastic.engines import ENGINES, CannotGoOn, NodeOutputs
from pytest_distbench.elastic.records import Change, ElasticJob, error_of, event
from pytest_distbench.errors import ConfigurationError, ReadingError, show
from pytest_distbench.launch.fates import is_follower
from pytest_distbench.launch.workplace import tail
from pytest_distbench.records.launch import ErrorReport
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Reader
from pytest_distbench.records.record import Number
from pytest_distbench.records.wire import Event, EventReader
from pytest_distbench.worker.load import process_began

STABLE_STEPS = 3  # so many steps of every node in one generation make a job stable
STABLE_LINES = 1  # of a script so many lines of steps: from one to the next may be an epoch


EXIT_S = 30.0  # how long agents may take to end after their workers have finished

ATTEMPTS = 5  # so many workers of a slot in a row that come no further: its agent would start others for ever

SPLIT_S = 5.0  # how long a generation may go on after a later one began: agents end its workers meanwhile


class Progress:
    """What an elastic job has done so far.

    ``taken``: slots whose nodes should train. The job is stable when each has taken ``stable_steps`` steps in one
    generation. ``step``: the highest finished step; ``saved``: that of the last checkpoint. ``split``: a step of an old
    generation that goes on after a later one has begun, and the number of the later one, or None.
    """

    def __init__(self, most: int, *, stable_steps: int = STABLE_STEPS) -> None:
        self.taken: set[int] = set()
        self.lines: list[Event] = []
        self.step = self.saved = 0
        self.split: tuple[Event, int] | None = None
        self._first: dict[int, float] = {}
        """Generation -> when its first step ended."""
        self._forgotten_at = 0.0
        self._most = most
        self._stable_steps = stable_steps
        self._over = -1
        """Number of the newest generation when a worker last crashed: it ends with that worker; -1 if none did."""
        self._steps: dict[int, dict[int, int]] = {}
        """Generation -> slot -> steps since the last change."""
        self._worlds: dict[int, int] = {}
        """Generation -> its world size."""
        self._finished: dict[int, set[int]] = {}
        self._attempts: dict[int, int] = {}
        """Slot -> workers started since the job last advanced or changed."""
        self._reasons: list[ErrorReport] = []

    def take(self, line: Event) -> None:
        """Read an event.

        Raises CannotGoOn if the body raised, unless a lost peer made it raise, or if workers restart without progress.
        """
        self.lines.append(line)
        if line.what == "started":
            self._try(line)
        elif line.what == "joined":
            self._worlds[line.generation] = line.world_size
        elif line.what == "stepped":
            if line.step > self.step:
                self.step = line.step
                self._attempts.clear()
            self._first.setdefault(line.generation, line.t)
            newest = max(self._first)
            if line.generation < newest and line.t > self._first[newest] + SPLIT_S:
                self.split = line, newest
            if line.t >= self._forgotten_at:
                counts = self._steps.setdefault(line.generation, {})
                counts[line.slot] = counts.get(line.slot, 0) + 1
        elif line.what == "saved":
            self.saved = max(self.saved, line.step)
        elif line.what == "finished":
            self._finished.setdefault(line.generation, set()).add(line.slot)
        elif line.what == "raised" and not is_follower(error := error_of(line)):
            if line.generation is not None:
                raise CannotGoOn(
                    f"the body raised in slot {line.slot}, generation {line.generation}: {error.kind}: "
                    f"{error.message}\n{error.traceback}"
                )
            self._reasons.append(error)

    def _try(self, line: Event) -> None:
        attempts = self._attempts[line.slot] = self._attempts.get(line.slot, 0) + 1
        if attempts <= ATTEMPTS:
            return
        why = ". Workers end without an exception: os._exit, a signal, or a lack of memory? Their output is below"
        newest = max(self._worlds, default=None)
        members = {line.pid for line in self.lines if line.what == "joined" and line.generation == newest}
        if gone := [line for line in self.lines if line.what == "worker_ended" and line.pid in members]:
            first = min(gone, key=lambda line: line.t).slot
            why = f"; the last time the worker of slot {first} ended first{why}"
        if self._reasons:
            error = self._reasons[-1]
            why = f". Before they had a group they raised {error.kind}: {error.message}\n{error.traceback}"
        raise CannotGoOn(
            f"the job does not get beyond step {self.step}: the worker of slot {line.slot} was started {attempts} "
            f"times since{why}"
        )

    def forget_steps(self, now: float, *, ends_generation: bool = False) -> None:
        """Count steps from now on: earlier ones, read or not, do not show that the job is stable after a change.

        If the change ends the generation, later steps of that generation do not count either.
        """
        self._steps.clear()
        self._attempts.clear()
        self._forgotten_at = now
        self._over = max(self._worlds, default=-1) if ends_generation else -1

    @property
    def stable_generation(self) -> int | None:
        """The generation in which all ``taken`` nodes have stepped since the last change, or None."""
        if not self._steps:
            return None
        newest = max(self._steps)
        counts = self._steps[newest]
        is_stable = (
            set(counts) == self.taken
            and self._worlds.get(newest) == len(self.taken)
            and min(counts.values()) >= self._stable_steps
            and newest > self._over
        )
        return newest if is_stable else None

    @property
    def is_ending(self) -> bool:
        return bool(self._finished)

    @property
    def has_finished(self) -> bool:
        return any(len(slots) >= self._worlds.get(g, self._most) for g, slots in self._finished.items())


def explain_unstable(lines: Sequence[Event], expected: Collection[int], change: Change | None, job: ElasticJob) -> str:
    after = "its start" if change is None else str(change)
    begin = max((line.t for line in lines if line.what == "changed"), default=0.0)
    since = [line for line in lines if line.t >= begin]
    stepped = {line.slot for line in since if line.what == "stepped"}
    missing = sorted(set(expected) - stepped)
    head = (
        f"not stable {job.stable_within_s:g} s after {after}: {len(expected)} nodes should train together, and of slot "
        f"{', '.join(map(str, missing)) or 'none'} there is no step"
    )
    return f"{head}. {_name(since, expected, change, job)}"


def explain_split(line: Event, newest: int, job: ElasticJob) -> str:
    timers = ", ".join(f"{name}={value:g}" for name, value in job.timers.items())
    return (
        f"The job is split: slot {line.slot} still trains in generation {line.generation}, while the others are in "
        f"generation {newest}. {ENGINES[job.engine].split.format(timers=timers)}"
    )


def explain_agent_end(lines: Sequence[Event], agent: Event, job: ElasticJob, *, log: str) -> str:
    used = [line.restarts for line in lines if line.what == "started" and line.slot == agent.slot]
    head = f"the agent of slot {agent.slot} ended with exit code {agent.code} by itself"
    limit, restarts = job.timers.get("max_restarts"), ENGINES[job.engine].restarts
    if restarts and limit is not None and used and agent.code > 0 and used[-1] >= limit:
        changes = sum(line.what == "changed" for line in lines)
        head += f". Restarts used up: it had taken {used[-1]} of {restarts.format(limit=limit, changes=changes)}"
    return f"{head}; its log:\n{log}"


def explain_standstill(lines: Sequence[Event]) -> str:
    """How long a job that was ended had made no progress, and who stepped last; or that it took no step."""
    steps = [line for line in lines if line.what == "stepped"]
    if not steps:
        return ". It took no step"
    furthest = max(step.step for step in steps)
    reached = min(step.t for step in steps if step.step == furthest)
    begun = len({line.generation for line in lines if line.what == "joined" and line.t > reached})
    return (
        f". Its furthest step, {furthest}, came {max(line.t for line in lines) - reached:.0f} s before its last "
        f"action; {begun} generations have begun since, and the last step of all was one of slot {steps[-1].slot}"
    )


SLOW_S = 30.0  # a recovery that takes longer is explained


def explain_slow(change: Event, job: ElasticJob) -> str:
    """Why a recovery took longer than ``SLOW_S``: its largest part, with the setting to change; or ""."""
    if change.recovery_s is None or change.recovery_s < SLOW_S or not change.parts:
        return ""
    part, seconds = max(change.parts.items(), key=lambda item: item[1])
    if part == "rendezvous":  # what it waited for: what takes longest of all that was in it and fits
        causes = ENGINES[job.engine].in_rendezvous(change, job)
        fitting = {text: value for text, value in causes.items() if 0 < value <= seconds}
        knob = max(fitting, key=fitting.__getitem__, default="agents joined it late, or again and again")
    else:
        knob = ENGINES[job.engine].knobs[part]
    return (
        f"recovery of {change.recovery_s:.0f} s after the {change.kind} at {change.t:.1f} s, of which "
        f"{part.replace('_', ' ')} took {seconds:.0f} s: {knob}"
    )


def _name(since: Sequence[Event], expected: Collection[int], change: Change | None, job: ElasticJob) -> str:
    began = {line.slot for line in since if line.what == "started"}
    joined = {line.slot for line in since if line.what == "joined"}
    met = {line.slot for line in since if line.what == "rendezvous"}
    raised = [line for line in since if line.what == "raised"]
    reasons = [error_of(line) for line in raised if not is_follower(error_of(line))]
    if reasons:
        return f"Workers raised {len(raised)} times, the last time {reasons[-1].kind}: {reasons[-1].message}"
    if change is not None and change.kind in ("leave", "kill") and not began and not met:
        return ENGINES[job.engine].unnoticed
    if (began or met) and not joined:
        return (
            f"Hang on join: agents have met{' and started workers' * bool(began)}, and no worker has joined a group. "
            f"{ENGINES[job.engine].hang_on_join}"
        )
    if not met:
        return ENGINES[job.engine].no_meeting
    if raised:
        last = error_of(raised[-1])
        return f"Workers raised {len(raised)} times, the last time {last.kind}: {last.message}"
    if job.steps is not None and joined and not any(line.what == "stepped" for line in since):
        return (
            f"No step: workers have joined their group, and no line that rank {job.steps.rank} printed since matches "
            f"steps={job.steps.source!r}"
        )
    return f"Slots that joined a group: {', '.join(map(str, sorted(joined & set(expected)))) or 'none'}"


NAMES = ("epoch", "loss", "accuracy", "top5", "lr")  # groups of a pattern besides the number of the step

_VALUE = "value"


def check_pattern(reader: Reader) -> None:
    if reader.kind != "stdout":
        raise ConfigurationError(
            f"a reader of {reader.kind}; wanted lines that the script prints, stdout(r'step (\\d+)')"
        )
    if reader.rank == "all":
        raise ConfigurationError("rank='all': the workers of a generation step together; say which rank's lines count")
    unused = [n for n, v in (("skip", reader.skip), ("first", reader.first), ("take", reader.take)) if v]
    if unused:
        raise ConfigurationError(f"{', '.join(unused)}: every line counts; wanted a pattern and, if need be, rank=")
    unknown = set(re.compile(reader.source).groupindex) - {_VALUE, *NAMES}
    if unknown:
        raise ConfigurationError(
            f"group {', '.join(sorted(unknown))}; known are {_VALUE} (the number of the step), {', '.join(NAMES)}"
        )


class StepLines:
    """Reads steps of one generation from a script's lines; ``before``: the object of the generation before, or None.

    If the script restarts its count in each epoch, epochs are laid end to end, so that numbers are of the whole
    training. A training that goes back to an earlier epoch goes back in these numbers too.
    """

    def __init__(self, pattern: str, before: StepLines | None = None) -> None:
        self._pattern = re.compile(pattern)
        self._group: int | str = _VALUE if _VALUE in self._pattern.groupindex else 1
        self._begins: dict[int, int] = dict(before._begins) if before is not None else {}
        """Epoch -> offset of the numbers of its steps."""
        self._highest: int = before._highest if before is not None else 0
        self._last: tuple[int | None, int] | None = None

    def take(self, text: str) -> dict[str, Number | None]:
        """Return the facts of the step that a line reports; {} if it reports none, or the one before once more.

        ``is_laid`` marks the first line of an epoch if the script restarts its count there: how many steps the epoch
        before had after its last line is unknown. Raises :class:`ReadingError` if the number is none, or falls within
        the generation.
        """
        found = self._pattern.search(text)
        if found is None:
            return {}
        value = _whole(found[self._group], text)
        groups = found.groupdict()
        epoch = _whole(groups["epoch"], text) if groups.get("epoch") is not None else None
        if self._last == (epoch, value):
            return {}
        before, last = self._last if self._last is not None else (None, value)
        if value < last and (epoch is None or before is None or epoch <= before):
            raise ReadingError(
                f"steps=: the number of the step fell from {last} to {value} in one process, at {show(text.strip())}. "
                "If the script counts from 0 in each epoch, let the pattern capture the epoch: "
                r"stdout(r'epoch (?P<epoch>\d+) step (?P<value>\d+)')"
            )
        is_new = epoch is not None and epoch not in self._begins
        begin = self._begin(epoch, value)
        is_laid = is_new and self._last is not None and begin != self._begins.get(self._last[0] or 0, 0)
        number = value + begin
        self._last = epoch, value
        self._highest = max(self._highest, number)
        numbers = {name: _number(name, groups.get(name), text) for name in NAMES if name != "epoch"}
        return {"step": number, "is_laid": is_laid, "epoch": epoch, **numbers}

    def _begin(self, epoch: int | None, value: int) -> int:
        """Offset of the step numbers of an epoch: 0 if the script counts on from epoch to epoch."""
        if epoch is None:
            return 0
        if epoch not in self._begins:
            earlier = max((e for e in self._begins if e < epoch), default=None)
            on = 0 if earlier is None else self._begins[earlier]
            is_recounted = bool(self._begins) and value + on <= self._highest
            self._begins[epoch] = self._highest + 1 - value if is_recounted else on
        elif self._last is None:  # it has gone back, or on: later epochs begin where this one will have ended
            self._begins = {e: begin for e, begin in self._begins.items() if e <= epoch}
            self._highest = value + self._begins[epoch]
        return self._begins[epoch]


def _whole(text: str | None, line: str) -> int:
    try:
        return int(str(text))
    except ValueError:
        raise ReadingError(
            f"steps=: {show(text)} is no whole number, of the line {show(line.strip()[:160])}: the pattern's group "
            "must be the number of the step"
        ) from None


def _number(name: str, text: str | None, line: str) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        raise ReadingError(
            f"steps=: {show(text)} is no number, of the line {show(line.strip()[:160])}: let the group {name} take the "
            rf"number alone, (?P<{name}>[-+.\de]+)"
        ) from None
    if text is not None and not math.isfinite(number):
        raise ReadingError(f"steps=: the {name} is {text}: the training has diverged, at {show(line.strip()[:160])}")
    return number if text is not None else None


_EVENT = re.compile(r'\{"name": "torchelastic\.')  # what torchrun prints of itself, see ``prints_events``
_SHOWN = 8


@dataclass
class _ScriptWorker:
    note: Event
    process_t: float
    is_started: bool = False
    called_t: float | None = None  # when it wanted to join a group; None: it has not wanted to yet
    generation: int | None = None  # none: it has not joined a group yet


class ScriptWatch:
    """Makes timeline events of what a script prints and of what its workers note."""

    def __init__(
        self, files: LaunchFiles, outputs: NodeOutputs, steps: Reader, *, born: Callable[[int], float] = process_began
    ) -> None:
        self._files = files
        self._outputs = outputs
        self._reader = steps
        self._pattern = re.compile(steps.source)
        self._born = born
        self._notes = EventReader(files.worker_notes)
        self._now: dict[int, _ScriptWorker] = {}
        """Slot -> its newest worker."""
        self._generations: list[tuple[StepLines, dict[int, _ScriptWorker]]] = []
        """Steps of each generation, and its workers by slot."""
        self._attempts: dict[int, int] = {}
        """Slot -> processes started since the last step."""
        self._found: list[Event] = []

    def poll(self) -> list[Event]:
        """Return the events since the last call. Never blocks."""
        printed = self._outputs.take()  # before the notes: whoever has printed has left them already
        for seen in sorted([*self._notes.read(), *printed], key=lambda one: one.t):
            if seen.what == "printed":
                self._take_line(seen)
            else:
                self._take_note(seen)
        found, self._found = self._found, []
        return found

    def take_end(self, ended: Event) -> list[Event]:
        """Return the events up to the end of an agent; exit code 0 means that its worker has finished."""
        found = self.poll()
        worker = self._now.get(ended.slot)
        if ended.code == 0 and worker is not None and worker.generation is not None:
            found.append(event("finished", t=ended.t, slot=ended.slot, generation=worker.generation))
        return found

    def finish(self) -> list[Event]:
        self._outputs.finish()
        return self.poll()

    @property
    def trouble(self) -> str:
        """Why the job cannot go on, or ""."""
        for slot, attempts in self._attempts.items():
            if attempts > ATTEMPTS:
                return (
                    f"the script reached no step in slot {slot}: torchrun started it {attempts} times since the last "
                    f"one. {self.last_words()}"
                )
        return ""

    def last_words(self) -> str:
        said = tail(self._files.log(self._rank), lines=_SHOWN)
        return f"Rank {self._rank} printed last:\n{said}" if said else f"Rank {self._rank} has printed nothing"

    @property
    def _rank(self) -> int:
        return 0 if self._reader.rank == "all" else self._reader.rank

    def _take_note(self, note: Event) -> None:
        if note.what == "process":
            born = note.t
            with contextlib.suppress(OSError):
                born = min(born, self._born(note.pid))
            self._now[note.slot] = _ScriptWorker(note, born)
            self._attempts[note.slot] = self._attempts.get(note.slot, 0) + 1
        worker = self._now.get(note.slot)
        if worker is None or worker.note.pid != note.pid:
            return
        if note.what == "torch":
            self._start(worker, note.t)
        elif note.what == "call" and worker.called_t is None:
            worker.called_t = note.t
        elif note.what == "group":
            self._join(worker, note.t)

    def _start(self, worker: _ScriptWorker, t: float) -> None:
        if not worker.is_started:
            worker.is_started = True
            note = worker.note
            self._found.append(
                event("started", t=t, slot=note.slot, pid=note.pid, process_t=worker.process_t, restarts=note.restarts)
            )

    def _join(self, worker: _ScriptWorker, t: float) -> None:
        if worker.generation is not None:
            return
        self._start(worker, t)
        note = worker.note
        before, members = self._generations[-1] if self._generations else (None, {})
        if not members or note.slot in members or any(m.note.address != note.address for m in members.values()):
            members = {}
            self._generations.append((StepLines(self._reader.source, before), members))
        members[note.slot] = worker
        worker.generation = len(self._generations) - 1
        self._found.append(
            event(
                "joined",
                t=t,
                slot=note.slot,
                pid=note.pid,
                generation=worker.generation,
                rank=note.rank,
                world_size=note.world_size,
                called_t=worker.called_t,
            )
        )

    def _take_line(self, printed: Event) -> None:
        worker = self._now.get(printed.slot)
        if worker is None or _EVENT.search(printed.text):
            return
        rank = worker.note.rank
        with open(self._files.log(rank), "a", errors="surrogateescape") as log:
            log.write(printed.text + "\n")
        if rank != self._rank or self._pattern.search(printed.text) is None:
            return
        self._join(worker, printed.t)  # a script need not make a group where it is alone
        for other in self._now.values():
            if other.note.address == worker.note.address:
                self._join(other, printed.t)
        assert worker.generation is not None
        steps, members = self._generations[worker.generation]
        facts = steps.take(printed.text)
        for slot, member in members.items() if facts else ():
            self._attempts[slot] = 0
            found = {"generation": worker.generation, "world_size": member.note.world_size, **facts}
            self._found.append(event("stepped", t=printed.t, slot=slot, **found))
