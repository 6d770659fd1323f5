"""An unchanged script below torchrun, seen from outside: when its workers come, meet, and print the lines of steps.

What a body writes into the timeline itself is made here of three sources: the notes of each worker's Python
(``worker/site``), what the nodes print, and how their agents end. The workers of a generation step together, so that a
line of one rank tells of a step of all.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_distbench.elastic.engines import NodeOutputs
from pytest_distbench.elastic.progress import ATTEMPTS, StepLines
from pytest_distbench.elastic.timeline import event
from pytest_distbench.launch.workplace import tail
from pytest_distbench.records.event import Event, EventReader
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.metric import Reader
from pytest_distbench.worker.load import process_began

_EVENT = re.compile(r'\{"name": "torchelastic\.')
"""What torchrun prints of itself, see ``tells_events``."""
_SHOWN = 8


@dataclass
class _Worker:
    note: Event
    process_t: float
    is_started: bool = False
    called_t: float | None = None
    """When it wanted to join a group; None: it has not wanted to yet."""
    generation: int | None = None
    """None: it has not joined a group yet."""


@dataclass
class _Generation:
    number: int
    address: str
    steps: StepLines
    members: dict[int, _Worker] = field(default_factory=dict)


class ScriptWatch:
    """Makes timeline lines of what a script shows."""

    def __init__(
        self,
        files: LaunchFiles,
        outputs: NodeOutputs,
        steps: Reader,
        *,
        born: Callable[[int], float] = process_began,
    ) -> None:
        self._files = files
        self._outputs = outputs
        self._reader = steps
        self._pattern = re.compile(steps.source)
        self._born = born
        self._notes = EventReader(files.worker_notes)
        self._now: dict[int, _Worker] = {}
        """Slot -> its newest worker."""
        self._generations: list[_Generation] = []
        self._attempts: dict[int, int] = {}
        """Slot -> processes since a step."""
        self._found: list[Event] = []

    def poll(self) -> list[Event]:
        """What has happened since the last call. Never blocks."""
        printed = self._outputs.take()  # before the notes: whoever has printed has left them already
        for seen in sorted([*self._notes.read(), *printed], key=lambda one: one.t):
            if seen.what == "printed":
                self._take_line(seen)
            else:
                self._take_note(seen)
        found, self._found = self._found, []
        return found

    def heed(self, ended: Event) -> list[Event]:
        """What the end of an agent tells: with exit code 0 its worker has finished."""
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
        """Why it makes no sense to go on, in words; empty: it does."""
        for slot, attempts in self._attempts.items():
            if attempts > ATTEMPTS:
                return (
                    f"the script reached no step in slot {slot}: torchrun started it {attempts} times since the last "
                    f"one. {self.last_words()}"
                )
        return ""

    def last_words(self) -> str:
        said = "\n".join(tail(self._files.log(self._rank), lines=_SHOWN).splitlines())
        return f"Rank {self._rank} printed last:\n{said}" if said else f"Rank {self._rank} has printed nothing"

    @property
    def _rank(self) -> int:
        return 0 if self._reader.rank == "all" else self._reader.rank

    def _take_note(self, note: Event) -> None:
        if note.what == "process":
            born = note.t
            with contextlib.suppress(OSError):
                born = min(born, self._born(note.pid))
            self._now[note.slot] = _Worker(note, born)
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

    def _start(self, worker: _Worker, t: float) -> None:
        if not worker.is_started:
            worker.is_started = True
            note = worker.note
            self._found.append(
                event("started", t=t, slot=note.slot, pid=note.pid, process_t=worker.process_t, restarts=note.restarts)
            )

    def _join(self, worker: _Worker, t: float) -> _Generation:
        note = worker.note
        if worker.generation is not None:
            return self._generations[worker.generation]
        self._start(worker, t)
        newest = self._generations[-1] if self._generations else None
        if newest is None or newest.address != note.address or note.slot in newest.members:
            steps = StepLines(self._reader.source, newest.steps if newest is not None else None)
            newest = _Generation(len(self._generations), note.address, steps)
            self._generations.append(newest)
        worker.generation = newest.number
        newest.members[note.slot] = worker
        self._found.append(
            event(
                "joined",
                t=t,
                slot=note.slot,
                pid=note.pid,
                generation=newest.number,
                rank=note.rank,
                world_size=note.world_size,
                called_t=worker.called_t,
            )
        )
        return newest

    def _take_line(self, printed: Event) -> None:
        worker = self._now.get(printed.slot)
        if worker is None or _EVENT.search(printed.text):
            return
        rank = worker.note.rank
        with open(self._files.log(rank), "a", errors="surrogateescape") as log:
            log.write(printed.text + "\n")
        if rank != self._rank or self._pattern.search(printed.text) is None:
            return
        generation = self._join(worker, printed.t)  # a script need not make a group where it is alone
        for other in self._now.values():
            if other.note.address == worker.note.address:
                self._join(other, printed.t)
        facts = generation.steps.take(printed.text)
        for slot, member in generation.members.items() if facts else ():
            self._attempts[slot] = 0
            told = {"generation": generation.number, "world_size": member.note.world_size, **facts}
            self._found.append(event("stepped", t=printed.t, slot=slot, **told))
