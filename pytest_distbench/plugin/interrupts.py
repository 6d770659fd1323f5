"""Ctrl-C and SIGTERM: a run that has started something ends orderly at both, and finishes its cleaning up."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from pytest_distbench.errors import Terminated

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a run that SIGTERM has ended: what a shell says of any process that it ended."""

_Handler = Callable[[int, FrameType | None], Any] | int | None


class Interrupts:
    """The handlers of SIGINT and SIGTERM in a process that starts ranks; handlers of others stay where they are."""

    def __init__(self) -> None:
        self._replaced: dict[signal.Signals, tuple[_Handler, _Handler]] = {}
        self._is_listening = False

    def listen(self) -> None:
        """From now on SIGTERM interrupts the run as Ctrl-C does: cancelled CI jobs get it."""
        self._is_listening = threading.current_thread() is threading.main_thread()
        self._replace(signal.SIGTERM, signal.SIG_DFL, _terminate)

    def hold_on(self) -> None:
        """The run is interrupted and cleans up: say so to the first who interrupts that, and let the second do it."""
        self._replace(signal.SIGINT, signal.default_int_handler, self._tell)
        self._replace(signal.SIGTERM, _terminate, self._tell)

    def forget(self) -> None:
        """The process is as it was before."""
        for number, (before, ours) in self._replaced.items():
            if signal.getsignal(number) == ours:
                signal.signal(number, before)
        self._replaced.clear()
        self._is_listening = False

    @contextlib.contextmanager
    def ignored(self) -> Iterator[None]:
        """Finish what takes a moment: an interrupt in it would leave processes and files, and save nobody time."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [signal.SIGINT, *(self._replaced.keys() - {signal.SIGINT})]
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.default_int_handler if handler is None else handler)

    def _replace(self, number: signal.Signals, found: _Handler, ours: _Handler) -> None:
        if self._is_listening and signal.getsignal(number) == found:
            before, _ = self._replaced.get(number, (found, ours))
            signal.signal(number, ours)
            self._replaced[number] = before, ours

    def _tell(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.forget()
        text = "\ndistbench: the interrupted run cleans up; once more leaves at once, with what is not yet removed\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode())  # sys.stderr may be in the middle of a line, and refuses another one


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise Terminated("SIGTERM interrupted the run")
