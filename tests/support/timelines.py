"""Timelines of elastic jobs that never ran: generations that step at an even pace, and changes between them."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.elastic.engines import ENGINES
from pytest_distbench.elastic.measures.history import History
from pytest_distbench.elastic.records import ChangeKind, ElasticJob, event
from pytest_distbench.records.launch import ErrorReport
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event

JOB = ElasticJob(least=1, most=2, start=1, plan=[], timers=ENGINES["stock"].all_timers({}), checkpoint_every=10)
ERROR = ErrorReport(kind="ValueError", message="no", traceback="Traceback: no", raised_at=0.0)
LOST = ErrorReport(
    kind="RuntimeError",
    message="Connection closed by peer",
    traceback="Traceback",
    raised_at=0.0,
    torch_errors=["RuntimeError: [gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:38377"],
    began_in_torch=True,
)


def but(event: Event, **facts: object) -> Event:
    """The same with some facts changed."""
    return replace(event, facts={**event.facts, **facts})


class Timeline:
    """Lines as they are added; a sample is a number, and an epoch has twelve."""

    def __init__(self) -> None:
        self.lines: list[Event] = []
        self.seen: dict[int, tuple[int, int]] = {0: (0, 0)}
        """Step -> epoch and place in it behind that step."""

    @property
    def history(self) -> History:
        return History(sorted(self.lines, key=lambda line: line.t))

    def begin(self, t: float, *slots: int) -> None:
        self.lines.append(event("began", t=t, slots=list(slots)))

    def change(
        self,
        t: float,
        index: int,
        kind: ChangeKind,
        slots: Sequence[int],
        expected: Sequence[int],
        *,
        overlaps: bool = False,
    ) -> None:
        self.lines.append(
            event("changed", t=t, index=index, kind=kind, slots=list(slots), expected=list(expected), overlaps=overlaps)
        )

    def stable(self, t: float, index: int, generation: int, world_size: int) -> None:
        self.lines.append(event("stable", t=t, index=index, generation=generation, world_size=world_size))

    def agent_ended(self, t: float, slot: int) -> None:
        self.lines.append(event("agent_ended", t=t, slot=slot, code=0))

    def generation(
        self,
        number: int,
        slots: Sequence[int],
        *,
        first: float,
        steps: int,
        step_s: float = 1.0,
        resumed: int = 0,
        met: float | None = None,
        restarts: int = 0,
        saved: Sequence[int] = (),
        batch: int = 2,
    ) -> float:
        """Workers that take steps, the first of which is over at ``first``; returns when the last is.

        Each spends 0.1 s on its process, 0.2 s on imports, 0.3 s in its group, 0.05 s before the checkpoint, 0.15 s
        with it, and 0.2 s on the first step. Its rendezvous is over when its process is made, and took 0.4 s.
        """
        for rank, slot in enumerate(slots):
            pid = 100 * number + slot
            process = first - 1.0 if met is None else met + 0.1
            self.lines += [
                event("rendezvous", t=process - 0.1, slot=slot, seconds=0.4),
                event("started", t=process + 0.3, slot=slot, pid=pid, process_t=process, restarts=restarts),
                event("joined", t=first - 0.4, slot=slot, pid=pid, generation=number, rank=rank, world_size=len(slots)),
                event("loaded", t=first - 0.2, slot=slot, generation=number, began_t=first - 0.35, step=resumed),
            ]
        return self._take_steps(
            number, slots, first=first, steps=steps, step_s=step_s, behind=resumed, batch=batch, saved=saved
        )

    def _take_steps(
        self,
        number: int,
        slots: Sequence[int],
        *,
        first: float,
        steps: int,
        behind: int,
        step_s: float = 1.0,
        batch: int = 2,
        saved: Sequence[int] = (),
    ) -> float:
        for step in range(behind + 1, behind + 1 + steps):
            t = first + (step - behind - 1) * step_s
            epoch, place = self.seen[step - 1]
            count = min(batch * len(slots), 12 - place)
            samples = list(range(place, place + count))
            self.seen[step] = (epoch + 1, 0) if place + count == 12 else (epoch, place + count)
            for rank, slot in enumerate(slots):
                mine = samples[rank :: len(slots)]
                self.lines += [
                    event("batch", t=t - 0.15, slot=slot, generation=number, step=step, epoch=epoch, samples=mine),
                    event("stepped",
                        t=t, slot=slot, generation=number, step=step, world_size=len(slots), samples=count,
                        loss=1.0 / step,
                        lr=0.1 * len(slots),
                    ),
                ]  # fmt: skip
            if step in saved:
                self.lines.append(event("saved", t=t + 0.01, slot=slots[0], generation=number, step=step, seconds=0.01))
        return first + (steps - 1) * step_s

    def finish(self, t: float, generation: int, *slots: int) -> None:
        self.lines += [event("finished", t=t, slot=slot, generation=generation) for slot in slots]


def killed(*, later_s: float = 0.0) -> Timeline:
    """Two nodes; one is lost at 20.5, after step 10, whose checkpoint is of step 6; the other steps again at 25.

    ``later_s``: seconds by which everything after the loss comes later.
    """
    made = Timeline()
    made.begin(8.0, 0, 1)
    made.generation(0, [0, 1], first=11.0, steps=10, saved=[3, 6])
    made.stable(13.5, -1, 0, 2)
    made.change(20.5, 0, "kill", [1], [0])
    made.agent_ended(20.6, 1)
    made.generation(
        1, [0], first=25.0 + later_s, steps=6, step_s=0.5, resumed=6, met=23.9 + later_s, restarts=1, saved=[9, 12]
    )
    made.stable(26.5 + later_s, 0, 1, 1)
    made.finish(28.0 + later_s, 1, 0)
    made.agent_ended(28.1 + later_s, 0)
    return made
