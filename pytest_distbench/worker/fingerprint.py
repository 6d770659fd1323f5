"""What one iteration does, read out of torch's flight recorder after it: nothing happens while it runs.

The recorder notes every collective of a process by itself, with the time it was entered. Here only the begin and the
end of an iteration are noted; the collectives between are read later, when no clock runs. What the plugin itself sends
(barriers, counts) lies in stretches *apart*, and is left out.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from pytest_distbench.records.fingerprint import NOT_RECORDED, Collective, RankFingerprint
from pytest_distbench.records.flight import FlightEntry, FlightRecording
from pytest_distbench.records.record import replace
from pytest_distbench.releases import PARTS, RECORDER_SIZE_VARIABLES, text
from pytest_distbench.worker import torch_internals

_DEFAULT_CAPACITY = 2000
_MOST_STAMPS = 300
_CLOCK_STEP_NS = 5_000_000


@dataclass(slots=True)
class _Window:
    key: str
    begin_ns: int
    entered_before: int
    end_ns: int = 0
    parameters: int = 0
    optimizer_steps: int = 0


class Watch:
    """The fingerprints of one rank.

    Attributes:
        is_on: False: every method does nothing.
        found: fingerprint per key, as far as they have been read.
    """

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self.found: dict[str, RankFingerprint] = {}
        self._pending: list[_Window] = []
        self._apart: list[tuple[int, int]] = []
        self._open: _Window | None = None
        self._hook: contextlib.ExitStack = contextlib.ExitStack()
        self._capacity = _capacity(os.environ)
        self._clock_offset_ns = _clock_offset_ns()
        self._entered_at_mark = 0
        self._mark_ns = time.time_ns()

    def mark(self) -> None:
        """From here on counts what :meth:`since_mark` describes; at first it is the rank's start."""
        if self.is_on:
            self._mark_ns, self._entered_at_mark = time.time_ns(), _count_entered()

    def since_mark(self, key: str) -> None:
        """Describe under ``key`` everything since the last mark."""
        if self.is_on:
            window = _Window(key, self._mark_ns, self._entered_at_mark, end_ns=time.time_ns())
            self._pending.append(window)

    @property
    def open_key(self) -> str:
        """What is being described; empty: nothing."""
        return self._open.key if self._open is not None else ""

    def begin(self, key: str) -> None:
        """The iteration described under ``key`` begins; a later one takes the place of an earlier."""
        if not self.is_on:
            return
        self._hook.close()
        window = self._open = _Window(key, 0, _count_entered())

        def count(optimizer: Optimizer, *_: object) -> None:
            if not window.optimizer_steps:
                window.parameters = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
            window.optimizer_steps += 1

        self._hook.callback(register_optimizer_step_post_hook(count).remove)
        window.begin_ns = time.time_ns()

    def end(self, *, ahead: int = 0) -> None:
        """The iteration is over. What can wait is read later, at once where the recorder would overflow until then.

        Args:
            ahead: iterations like it that follow immediately.
        """
        if self._open is None:
            return
        window, self._open = self._open, None
        window.end_ns = time.time_ns()
        self._hook.close()
        self._pending.append(window)
        now = _count_entered()
        expected = now + ahead * (now - window.entered_before + 1)  # and our barrier
        if expected - self._pending[0].entered_before > self._capacity // 2:
            self.read()

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """What happens inside is not the workload's."""
        if not self.is_on:
            yield
            return
        begin = time.time_ns()
        try:
            yield
        finally:
            self._apart.append((begin, time.time_ns()))

    def read(self) -> None:
        """Read what is pending. Takes some ten milliseconds: not for when a clock runs."""
        if not self._pending:
            return
        rings = [recording.entries for recording in _read(whole=True) if recording.entries]  # oldest first
        trouble = ""
        # A script that is one process, and makes no group, sends nothing: that is its fingerprint.
        is_alone = not dist.is_initialized() and torch_internals.has_recorder()
        if not self._capacity or not (rings or _count_entered() or is_alone):
            trouble = _why_not_recorded(self._capacity)
        elif abs(_clock_offset_ns() - self._clock_offset_ns) > _CLOCK_STEP_NS:
            trouble = "the system clock was set meanwhile"
        for window in self._pending:
            lost = any(r[0].record_id > 0 and r[0].time_created_ns >= window.begin_ns for r in rings)
            why = trouble or (
                f"more than the {self._capacity} collectives torch remembers (TORCH_FR_BUFFER_SIZE)" if lost else ""
            )
            inside = [e for ring in rings for e in ring if self._is_inside(e, window)]
            self.found[window.key] = RankFingerprint(missing=why) if why else _fingerprint(window, inside)
        self._pending.clear()
        self._apart.clear()

    def _is_inside(self, entry: FlightEntry, window: _Window) -> bool:
        at = entry.time_created_ns
        return window.begin_ns <= at <= window.end_ns and not any(a <= at <= b for a, b in self._apart)


def _fingerprint(window: _Window, entries: list[FlightEntry]) -> RankFingerprint:
    entries = sorted(entries, key=lambda e: e.time_created_ns)
    began = entries[0].time_created_ns if entries else 0
    rows: list[Collective] = []
    for entry in entries:
        one = _collective(entry)
        if rows and replace(rows[-1], count=1) == one:
            rows[-1] = replace(rows[-1], count=rows[-1].count + 1)
        else:
            rows.append(one)
    return RankFingerprint(
        collectives=rows,
        parameters=window.parameters,
        optimizer_steps=window.optimizer_steps,
        began=began / 1e9,
        entered=[(e.time_created_ns - began) / 1e9 for e in entries[:_MOST_STAMPS]],
    )


def _collective(entry: FlightEntry) -> Collective:
    return Collective(
        op=entry.op,
        dtype="+".join(dict.fromkeys(entry.dtypes)),
        message_bytes=sum(_bytes(dtype, shape) for dtype, shape in zip(entry.dtypes, entry.input_sizes, strict=False)),
        group=entry.group,
        count=1,
    )


def _bytes(dtype: str, shape: list[int]) -> int:
    kind = getattr(torch, dtype, None)
    size = kind.itemsize if isinstance(kind, torch.dtype) else 1
    for length in shape:
        size *= length
    return size


def _read(*, whole: bool) -> list[FlightRecording]:
    found = []
    for content in torch_internals.recordings(whole=whole).values():
        with contextlib.suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(content, type=FlightRecording))
    return found


def _count_entered() -> int:
    """Collectives entered so far in all groups. Some ten microseconds."""
    status = (s for recording in _read(whole=False) for s in recording.pg_status.values())
    return sum(max(0, int(s.last_enqueued_collective)) for s in status)


def _why_not_recorded(capacity: int) -> str:
    backend = dist.get_backend() if dist.is_initialized() else "no process group"
    where = f"{NOT_RECORDED} torch {torch.__version__} on {backend}"
    if not capacity:
        return f"{where} with {RECORDER_SIZE_VARIABLES[0]}=0"
    return where if torch_internals.has_recorder() else f"{where}; {text(PARTS['recorder'].since)} and later do"


def _capacity(environment: Mapping[str, str]) -> int:
    size = next((value for name in RECORDER_SIZE_VARIABLES if (value := environment.get(name))), "")
    return int(size) if size.isdecimal() else _DEFAULT_CAPACITY


def _clock_offset_ns() -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC, from the tries the one the scheduler disturbed least."""
    tries = []
    for _ in range(5):
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        tries.append((after - before, now - after))
    return min(tries)[1]
