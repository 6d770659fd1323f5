"""The site of ranks on other hosts, each with a relay that was started there.

A rank is a number here: only its host's relay has access to its process, files and clock, so that nothing done here can
reach a process of this host by mistake.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from pytest_distbench.errors import LauncherError
from pytest_distbench.hosts.relay import Message, Order, place_of
from pytest_distbench.launch.site import PULSE_S, Clocks, Exit, Heard
from pytest_distbench.launch.site.local import RankProcess, places
from pytest_distbench.launch.site.processes import Standstill
from pytest_distbench.records.launch import MOMENTS, HostReport
from pytest_distbench.records.plan import LaunchPlan, read_work
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event, Lines, variables_to_wire

_READ_BYTES = 2**18
_LEAVE_S = 10.0  # how long a relay may take to end when its stream has closed: it ends what is left of its ranks
_LOST_LEAVE_S = 1.0  # the same where nobody reaches it any more


class Keeper(RankProcess, Protocol):
    """A process of this host that keeps a relay alive, maybe several."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the relay has ended. Raises ``subprocess.TimeoutExpired``."""

    def kill(self) -> None:
        """End the relay."""


class Host:
    """A host of ranks: the connection to its relay, the keeper of the relay, and what is known of the host.

    The keeper has a session of its own, which Ctrl-C does not reach. ``offset_s`` converts the host's times to this
    process's; ``error_s``, its error, is None until measured. ``silent_since`` is the time of the relay's last message,
    or of a later ping. ``owed``: answers that are still to come for orders whose wait Ctrl-C ended.
    """

    def __init__(self, name: str, *, line: socket.socket, keeper: Keeper, ranks: Sequence[int]) -> None:
        self.name = name
        self.line = line
        self.keeper = keeper
        self.ranks = ranks
        self.lines = Lines()
        self.offset_s = 0.0
        self.error_s: float | None = None
        self.pings = 0
        self.pinged_at = 0.0
        self.ponged_at = 0.0
        self.silent_since = 0.0
        self.pong = Message(what="pong", number=0, at=0.0)
        self.answer = Message(what="done")
        self.owed = 0
        self.ended: Exit | None = None
        self.is_lost = False
        self.trouble = ""

    @property
    def report(self) -> HostReport | None:
        """The host's report, with times converted to this process's, or None if there is none yet."""
        found = self.answer.report
        if found is None:
            return None
        entered = {
            key: ([at + self.offset_s for at in firsts], latest) for key, (firsts, latest) in found.entered.items()
        }
        ranks = []
        for report in found.ranks:
            error = report.error and replace(report.error, raised_at=report.error.raised_at + self.offset_s)
            phases = {name: at + self.offset_s * (name in MOMENTS) for name, at in report.phases.items()}
            ranks.append(replace(report, phases=phases, error=error))
        return replace(found, ranks=ranks, entered=entered)

    @property
    def has_answered(self) -> bool:
        return self.pong.number == self.pings

    def ping(self) -> Message:
        """Make a message that asks for the host's time, and whether it is alive."""
        self.pinged_at = time.monotonic()
        if self.has_answered:
            self.silent_since = self.pinged_at
        self.pings += 1
        return Message(what="ping", number=self.pings)

    def read_offset(self) -> tuple[float, float] | None:
        """(error_s, offset_s) of the last answer, or None: half of the round trip, and this clock minus the host's."""
        half = (self.ponged_at - self.pinged_at) / 2
        return (half, self.pinged_at + half - self.pong.at) if self.has_answered else None

    def set_offset(self, readings: Sequence[tuple[float, float]]) -> None:
        """Use the (error, offset) with the smallest error: the first sets the offset, later ones widen the error."""
        error_s, offset_s = min(readings, default=(math.inf, self.offset_s))
        if self.error_s is None:
            self.offset_s = offset_s
        self.error_s = error_s + abs(offset_s - self.offset_s)

    def see_off(self) -> None:
        """Wait until the keeper of the relay ends, else kill it. Called when all its connections are closed."""
        try:
            self.keeper.wait(timeout=_LOST_LEAVE_S if self.is_lost else _LEAVE_S)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()


_PINGS = 5
_AT_ONCE = 8  # hosts whose times are asked for together, so that no answer waits for long
_OPEN_S = 30.0  # how long a relay may take to start, and to answer its first order
_ANSWER_S = 120.0  # how long a relay may take to carry out an order: its own limits are shorter
_SILENT_S = 20.0  # for silence of a relay that is asked every :data:`PULSE_S` whether it is there
_LED_NOWHERE = "its relay has ended, or the connection to it"


class RelayedSite:
    """A launch whose ranks live on ``hosts``; ``meeting_point``: address and port of rank 0's store for all ranks."""

    def __init__(self, plan: LaunchPlan, hosts: Sequence[Host], *, meeting_point: tuple[str, int]) -> None:
        self.heard = Heard()
        self.clocks = Clocks()
        self.ended: Exit | None = None
        self._plan = plan
        self._meeting_point = meeting_point
        self._selector = selectors.EpollSelector()
        self._hosts = hosts
        for host in self._hosts:
            self._selector.register(host.line, selectors.EVENT_READ, host)
        self._fresh: list[Event] = []
        self._standstill = Standstill()

    def fileno(self) -> int:
        return self._selector.fileno()

    def start(self) -> None:
        if (housed := sorted(rank for host in self._hosts for rank in host.ranks)) != [*range(self._plan.processes)]:
            raise LauncherError(f"the hosts have ranks {housed}; wanted each of {self._plan.processes} once, from 0")
        plan = replace(self._plan, variables=variables_to_wire(self._plan.variables))
        began_ns = self._plan.files.began.stat().st_mtime_ns
        assigned = places([host.ranks for host in self._hosts], self._meeting_point, self._plan.variables)
        opening = {
            host: Message(what="open", plan=plan, places=place, began_ns=began_ns)
            for host, place in zip(self._hosts, assigned, strict=True)
        }
        self._insist(opening, within_s=_OPEN_S)
        self._measure_offsets()
        self._insist(self._to_all("start"))

    def listen(self, timeout_s: float) -> list[Event]:
        self._take(0.0 if self._fresh else timeout_s)
        for host in self._hosts:
            if host.ended is None and host.keeper.poll() is not None:  # nothing leads there: who would end it then?
                self._lose(host, _LED_NOWHERE)
            if host.has_answered and time.monotonic() - host.pinged_at >= PULSE_S:
                self._send(host, host.ping())
            self._lose_if_silent(host)
        fresh, self._fresh = self._fresh, []
        return fresh

    def ask(self, ranks: Iterable[int], request: bytes) -> None:
        for host, those in self._by_host(ranks).items():
            self._send(host, Message(what="ask", ranks=those, request=request.decode()))

    def signal(self, rank: int, number: signal.Signals) -> None:
        for host in self._by_host([rank]):
            self._send(host, Message(what="signal", rank=rank, number=number))

    def running(self) -> frozenset[int]:
        return frozenset(rank for done in self._order(self._to_all("running")) for rank in done.ranks)

    def look(self) -> None:
        """Check that no keeper of a relay is suspended (SIGSTOP); if one is, all hosts count as lost."""
        if why := self._standstill.look(host.keeper.pid for host in self._hosts if not host.is_lost):
            for host in self._hosts:
                self._lose(host, why)

    def collect(self, *, undecided: Iterable[int], held: Iterable[int]) -> None:
        at_work, waiting = self._by_host(undecided), self._by_host(held)
        asked = {**at_work, **waiting}
        self._order({h: Message(what="collect", ranks=at_work.get(h, []), held=waiting.get(h, [])) for h in asked})

    def end(self, ranks: Iterable[int]) -> Exit:
        there = self._by_host(ranks)
        self._order({h: Message(what="end", ranks=there.get(h, [])) for h in self._hosts if h.ended is None})
        for host in self._hosts:
            if host.ended is None:
                self._lose(host, "its relay did not report how its ranks ended")
        assert self.ended is not None
        return self.ended

    def clear(self) -> Exit:
        found = [done.ended for done in self._order(self._to_all("clear")) if done.ended]
        self._measure_offsets()
        self.ended = replace(
            self.ended or Exit(),
            stuck={rank: text for each in found for rank, text in each.stuck.items()},
            oom_kills={rank: count for each in found for rank, count in each.oom_kills.items()},
            remarks=[remark for each in found for remark in each.remarks],
        )
        return self.ended

    def fetch_output(self) -> None:
        self._order(self._to_all("fetch"))

    def reports(self) -> list[HostReport]:
        return [report for host in self._hosts if (report := host.report) is not None]

    def close(self) -> None:
        for host in self._hosts:
            host.line.close()  # all of them, before one is waited for: a process may lead to several
        for host in self._hosts:
            host.see_off()
        self._selector.close()

    def _by_host(self, ranks: Iterable[int]) -> dict[Host, list[int]]:
        wanted = set(ranks)
        found = {host: sorted(wanted.intersection(host.ranks)) for host in self._hosts}
        return {host: those for host, those in found.items() if those}

    def _to_all(self, what: Order) -> dict[Host, Message]:
        return dict.fromkeys(self._hosts, Message(what=what))

    def _insist(self, orders: Mapping[Host, Message], *, within_s: float = _ANSWER_S) -> None:
        self._order(orders, within_s=within_s)
        for host in orders:
            if trouble := host.trouble or host.answer.trouble:
                raise LauncherError(f"host {host.name}: {trouble}")

    def _order(self, orders: Mapping[Host, Message], *, within_s: float = _ANSWER_S) -> list[Message]:
        for host, order in orders.items():
            self._send(host, host.ping())  # answered before the order is begun, however long that takes
            host.owed += 1
            self._send(host, order)
        self._take_until(lambda host: not host.owed, orders, "did not answer", within_s=within_s)
        return [host.answer for host in orders if not host.owed]

    def _measure_offsets(self) -> None:
        """Measure the offset of each host's clock; a change since the last time adds to its error."""
        for first in range(0, len(self._hosts), _AT_ONCE):
            asked = self._hosts[first : first + _AT_ONCE]
            readings: dict[Host, list[tuple[float, float]]] = {host: [] for host in asked}
            for _ in range(_PINGS):
                for host in asked:
                    self._send(host, host.ping())
                self._take_until(lambda host: host.has_answered, asked, "did not report its time")
                for host in asked:
                    if not host.is_lost and (reading := host.read_offset()) is not None:
                        readings[host].append(reading)
            for host in asked:
                host.set_offset(readings[host])
        self.clocks = Clocks(
            hosts={rank: host.name for host in self._hosts for rank in host.ranks},
            errors_s={host.name: host.error_s or 0.0 for host in self._hosts},
        )

    def _lose_if_silent(self, host: Host) -> None:
        if not host.has_answered and time.monotonic() - host.silent_since >= _SILENT_S:
            what = "the host is gone or cannot be reached, or the relay was stopped"
            self._lose(host, f"its relay has been silent for {_SILENT_S:.0f} s: {what}")

    def _take_until(
        self, is_so: Callable[[Host], bool], hosts: Iterable[Host], otherwise: str, *, within_s: float = _ANSWER_S
    ) -> None:
        deadline = time.monotonic() + within_s
        while waiting := [host for host in hosts if not host.is_lost and not is_so(host)]:
            if (remaining := deadline - time.monotonic()) <= 0:
                for host in waiting:
                    if host.error_s is None:  # nothing runs there yet that it would have to end
                        host.keeper.kill()
                    self._lose(host, f"its relay {otherwise} within {within_s:.0f} s")
            for host in waiting:
                self._lose_if_silent(host)
            self._take(max(0.0, min(remaining, PULSE_S)))

    def _send(self, host: Host, order: Message) -> None:
        if not host.is_lost:
            try:
                host.line.sendall(msgspec.json.encode(order) + b"\n")
            except OSError as error:
                self._lose(host, f"its relay no longer accepts commands ({error.strerror or error})")

    def _take(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            host: Host = key.data
            data = b""  # no more will come, however that came about
            with contextlib.suppress(OSError):
                data = host.line.recv(_READ_BYTES)
            if data:
                host.silent_since = time.monotonic()
                for line in host.lines.take(data):
                    try:
                        self._take_word(host, msgspec.json.decode(line, type=Message, dec_hook=read_work))
                    except msgspec.MsgspecError:
                        asks = "does the host run this version of pytest-distbench, and only one relay?"
                        self._lose(host, f"its relay said {line[:200]!r}; {asks}")
                        break
            else:
                self._lose(host, _LED_NOWHERE)

    def _take_word(self, host: Host, word: Message) -> None:
        match word:
            case Message(what="said", event=Event() as event):
                event = replace(event, t=event.t + host.offset_s)
                self.heard.take([event])
                self._fresh.append(event)
            case Message(what="closed", rank=rank, at=at):
                self.heard.close(rank, at + host.offset_s)
            case Message(what="ended"):
                host.ended = word.ended
                self._note_end()
            case Message(what="wrote", rank=rank) if rank in host.ranks:
                path = place_of(self._plan.files, word.kind, rank)
                path.touch(mode=0o600)
                with open(path, "r+b" if word.offset else "wb") as file:
                    file.seek(word.offset)
                    file.write(word.data)
            case Message(what="pong"):
                host.pong, host.ponged_at = word, time.monotonic()
            case Message(what="done"):
                host.answer = word
                host.owed -= 1

    def _lose(self, host: Host, why: str) -> None:
        if host.is_lost:
            return
        self._selector.unregister(host.line)
        host.is_lost, host.trouble = True, why
        if host.ended is None:
            host.line.close()
            for rank in set(host.ranks) - set(self.heard.closed_at):
                self.heard.close(rank, time.monotonic())
        self._note_end()

    def _note_end(self) -> None:
        if self.ended is None and all(host.ended is not None or host.is_lost for host in self._hosts):
            troubles = {host: host.trouble if host.ended is None else host.ended.trouble for host in self._hosts}
            self.ended = Exit(
                codes={rank: code for host in self._hosts if host.ended for rank, code in host.ended.codes.items()},
                trouble="; ".join(f"host {host.name}: {text}" for host, text in troubles.items() if text),
                died=any(host.ended is None or host.ended.died for host in self._hosts),
            )
