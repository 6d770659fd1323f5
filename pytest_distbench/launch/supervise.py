"""One launch, or several interleaved, from plan to record: start, listen, end in time, leave no process behind.

Known limits. A group that is destroyed and made again through the same store may hang in torch, also under torchrun.
Ranks do not finalize the interpreter: what only ``__del__`` cleans up stays, a file that only a local variable holds is
not flushed, and a rank that failed runs no exit handlers. A child with its own session and environment outlives a
parent that is killed together with pytest. A rank that waits for a file or a socket and gives up first is named as the
cause. Without a loopback interface torch takes a minute to fail.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from pytest_distbench.errors import LauncherError, Terminated
from pytest_distbench.launch.fates import Ending, make_record
from pytest_distbench.launch.site import LOOK_S, PULSE_S, Site
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.launch.workplace import Leftovers, LogFollower, set_up, watched_folder
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan, Ranks
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import ALL_JOINED, ALL_UP, SESSION_VARIABLE, TURN_REQUEST, Event, start_s


def _nobody() -> Launcher:
    raise LauncherError("a launch of ranks needs a launcher, and its side has none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """How the launches of one side of a comparison are started, besides their plan.

    Attributes:
        launcher: returns the launcher of its ranks, the same at each call.
        python: path of the Python for processes that are no ranks, or "" for this one.
        on_output: called with (number, line) of what processes print, or None.
    """

    launcher: Callable[[], Launcher] = _nobody
    python: str = ""
    on_progress: Callable[[str], None] = lambda text: None
    on_output: Callable[[int, str], None] | None = None


Arm = tuple[LaunchPlan, Side]


VICTIM_GRACE_S = 0.5  # for the other ranks to report after one has failed
CRASH_GRACE_S = 1.0  # for the launcher to end a launch by itself after a rank has died
SKIP_GRACE_S = 2.0  # for the other ranks to go on after one has skipped, before they disagree
TEARDOWN_S = 30.0  # for the ranks to end after all bodies have passed
LEAST_TEARDOWN_S = 13.0  # the same at the end of the launch's own time: threads and exit handlers have 10 s
FOLLOW_INTERVAL_S = 0.1  # between readings of logs that are shown live
TWICE_S = 1.0  # a second Ctrl-C within this time ends an attached launch
TELLING_S = 5.0  # before the end of the test's own time: ranks that hang have to show where they are


def supervise(plan: LaunchPlan, side: Side) -> LaunchRecord:
    """Run one launch and return its record, also if it fails; no process outlives the call."""
    with open_launch(plan, side) as launch:
        launch.wait()
    return launch.record()


@contextlib.contextmanager
def open_launch(plan: LaunchPlan, side: Side) -> Iterator[Supervised]:
    """A launch in flight, whose processes and sockets are gone at the end."""
    launcher = side.launcher()
    plan = set_up(replace(plan, variables={**plan.variables, SESSION_VARIABLE: launcher.session}))
    site = launcher.open(plan)
    follower = LogFollower(plan, side.on_output) if side.on_output is not None else None
    try:
        launch = Supervised(site, plan, side.on_progress, follower)
        try:
            yield launch
        finally:
            launch.finish()
    finally:
        site.close()
        if follower is not None:
            follower.finish()


class Supervised:
    """A launch in flight.

    ``on_progress`` is called with what the launch is doing, and with "" now and then while that continues. ``latest``:
    time at which the launch is ended whatever its own limits say, so that the test's limit holds. ``on_ready``: called
    when all ranks wait for their turn; by default it gives them the turn.
    """

    def __init__(
        self, site: Site, plan: LaunchPlan, on_progress: Callable[[str], None], follower: LogFollower | None
    ) -> None:
        self.site = site
        self.heard = site.heard
        self.plan = plan
        self.on_progress = on_progress
        self.follower = follower
        self.started_at = time.monotonic()
        self.timed_out = False
        self.finished_at: float | None = None
        self.sent: set[bytes] = set()
        self.asking: set[int] = set()
        self.waits_since: float | None = None  # since when all ranks wait for their turn; CLOCK_MONOTONIC seconds
        self.on_ready: Callable[[Supervised], None] = Supervised.give_turn
        self.ended_by_us: frozenset[int] = frozenset()
        self.left: frozenset[int] = frozenset()
        self.leftovers = Leftovers(watched_folder(plan))
        site.start()
        self.up_at = time.monotonic()  # for now: set again when the last rank has said hello
        self.latest = float("inf")
        if plan.test_ends_at is not None:
            self.latest = plan.test_ends_at - min(TELLING_S, max(0.0, plan.test_ends_at - self.started_at) / 4)
        self.stop_at = min(self.latest, self.up_at + plan.timeout_s + start_s(plan.processes))

    def wait(self) -> None:
        """Listen until all ranks have ended or one must not go on.

        Ctrl-C, which the terminal sends to pytest, is passed on to an attached rank's debugger.
        """
        attached = self.plan.expect(Ranks).attached
        last = float("-inf")
        is_over = False
        while not is_over:
            try:
                is_over = self.advance(self.patience())
            except Terminated:
                raise
            except KeyboardInterrupt:
                now = time.monotonic()
                if attached is None or attached not in self.heard.ranks_up or now - last < TWICE_S:
                    raise
                last = now
                self.site.signal(attached, signal.SIGINT)

    def patience(self) -> float:
        """Seconds that :meth:`advance` may wait for messages before it has to look at processes, limits or logs."""
        now = time.monotonic()
        remaining = min(PULSE_S, self.stop_at - (now if self.waits_since is None else self.waits_since))
        if self._needs_drivers():
            remaining = min(remaining, LOOK_S)
        return max(0.0, remaining if self.follower is None else min(remaining, FOLLOW_INTERVAL_S))

    def _needs_drivers(self) -> bool:
        """Whether ranks are about to start or end, for which the processes that started them must be alive."""
        return len(self.heard.ranks_up) < self.plan.processes or len(self.heard.ranks_done) == self.plan.processes

    def advance(self, timeout_s: float) -> bool:
        """Receive what arrives within the time-out; returns whether the launch is over and should be finished."""
        for event in self.site.listen(timeout_s):
            self._handle(event)
        if self.heard.ranks_lost:
            self._stop_within(CRASH_GRACE_S)
        has_said_all = self._is_last_of(self.heard.ranks_done)
        if self.site.ended is not None or (has_said_all and self.heard.is_holding):  # one waits to be ended
            return True
        self.on_progress("")
        if self.follower is not None:
            self.site.fetch_output()
            self.follower.poll()
        if self._needs_drivers():
            self.site.look()
            if self.site.ended is not None:
                return True
        if self.waits_since is None and time.monotonic() >= self.stop_at:
            self.timed_out = not self.heard.is_holding and not self.heard.ranks_lost
            return True
        return False

    def finish(self) -> None:
        """End what still runs; later calls do nothing."""
        if self.finished_at is not None:
            return
        try:
            if self.site.ended is None:
                self._end()
        finally:
            self.site.clear()
            self.finished_at = time.monotonic()

    def give_turn(self) -> None:
        """Let the waiting ranks go on, and extend their time limit by the time they waited."""
        if self.waits_since is not None:
            self.stop_at = min(self.latest, self.stop_at + time.monotonic() - self.waits_since)
            self.waits_since = None
        asked, self.asking = self.asking, set()
        self.site.ask(asked, TURN_REQUEST)

    def _handle(self, event: Event) -> None:
        match event.what:
            case "hello" if self._is_last_of(self.heard.ranks_up):
                self._send_all(ALL_UP)
                if not self.heard.is_holding:
                    self.up_at = time.monotonic()
                    self.stop_at = min(self.latest, self.up_at + self.plan.timeout_s)
            case "phase" if event.text == "body" and self._is_last_of(self.heard.ranks_in_body):
                self._send_all(ALL_JOINED)
            case "progress":
                self.on_progress(event.text)
            case "turn" if self.waits_since is None and not self.heard.ranks_lost and not self.heard.is_holding:
                self.asking.add(event.slot)
                if len(self.asking) == self.plan.processes:
                    self.waits_since = time.monotonic()
                    self.on_ready(self)
            case "failed":
                self._stop_within(VICTIM_GRACE_S)
            case "skipped":
                self._stop_within(SKIP_GRACE_S)
            case "done" if self._is_last_of(self.heard.ranks_done):
                self._stop_within(TEARDOWN_S)
                self.stop_at = max(self.stop_at, time.monotonic() + LEAST_TEARDOWN_S)

    def _send_all(self, message: bytes) -> None:
        if message not in self.sent:
            self.sent.add(message)
            self.site.ask(range(self.plan.processes), message)

    def _stop_within(self, seconds: float) -> None:
        self.waits_since = None
        self.stop_at = min(self.stop_at, time.monotonic() + seconds)

    def _is_last_of(self, ranks: Collection[int]) -> bool:
        return len(ranks) == self.plan.processes

    def _end(self) -> None:
        alive = self.site.running()
        self.ended_by_us = alive
        self.left = alive & self.heard.ranks_lost
        self.heard.ended_at = time.monotonic()
        undecided = {rank for rank in alive if rank not in self.heard.ranks_done or self.timed_out}
        self.site.collect(undecided=undecided, held=alive - undecided)
        self.site.end(alive)

    def record(self) -> LaunchRecord:
        assert self.site.ended is not None
        assert self.finished_at is not None
        ending = Ending(
            exit=self.site.ended,
            timed_out=self.timed_out,
            ended_by_us=self.ended_by_us,
            left=self.left,
            clocks=self.site.clocks,
            started_at=self.started_at,
            up_at=self.up_at,
            finished_at=self.finished_at,
        )
        # A signal may wake what hung: what a rank says after we have begun to end it is not what happened.
        hosts = [
            replace(host, ranks=[r for r in host.ranks if r.phases.get("end", 0.0) <= self.heard.ended_at])
            for host in self.site.reports()
        ]
        record = make_record(self.plan, hosts, self.heard, ending, remarks=[self.leftovers.remark()])
        if self.timed_out and self.heard.ended_at >= self.latest:
            return replace(record, reason=f"{record.reason}; the time limit of its test was nearly reached")
        return record


def run_interleaved(arms: Sequence[Arm]) -> list[LaunchRecord | None]:
    """Run launches interleaved, block by block; no process outlives the call.

    A launch that does not pass ends the others, whose record is then None: their measurements cannot be compared. Each
    launcher needs its own session for that. A launch's time limit stands still while it waits; the other launches'
    limits bound that wait.
    """
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as all_arms:
        launches = [
            stack.enter_context(open_launch(replace(plan, work=replace(plan.expect(Ranks), takes_turns=True)), side))
            for plan, side in arms
        ]
        turnstile = Turnstile(launches, random.SystemRandom().shuffle)
        for launch in launches:
            all_arms.register(launch.site, selectors.EVENT_READ)
            launch.on_ready = turnstile.ask
        records: dict[Supervised, LaunchRecord] = {}
        while len(records) < len(launches) and all(r.outcome == "passed" for r in records.values()):
            running = [launch for launch in launches if launch not in records]
            all_arms.select(min(launch.patience() for launch in running))
            for launch in [launch for launch in running if launch.advance(0.0)]:
                all_arms.unregister(launch.site)
                launch.finish()
                # To each group the others are foreign work, which says nothing about the machine.
                records[launch] = replace(launch.record(), foreign_cores=None, foreign_wanted=None, crowding=None)
                turnstile.leave(launch)
    return [records.get(launch) for launch in launches]


class Turnstile:
    """Gives the turn to one group at a time.

    A turn begins only while all remaining groups wait: a group asks when it has started, and after each block. Each
    group has one turn per round; ``shuffle`` orders each round, in place.
    """

    def __init__(self, launches: Sequence[Supervised], shuffle: Callable[[list[Supervised]], None]) -> None:
        self._present = list(launches)
        self._shuffle = shuffle
        self._waiting: list[Supervised] = []
        self._round: list[Supervised] = []

    def ask(self, launch: Supervised) -> None:
        self._waiting.append(launch)
        self._next()

    def leave(self, launch: Supervised) -> None:
        for queue in (self._present, self._waiting, self._round):
            if launch in queue:
                queue.remove(launch)
        self._next()

    def _next(self) -> None:
        if not self._present or len(self._waiting) < len(self._present):
            return
        if not self._round:
            self._round = list(self._present)
            self._shuffle(self._round)
        launch = self._round.pop(0)
        self._waiting.remove(launch)
        launch.give_turn()
