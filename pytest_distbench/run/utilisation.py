"""How busy this host's CPUs are while a launch runs: looked at from pytest's process, so that no rank does it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pytest_distbench.launch.starters.table import Hosting
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchPlan, LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.worker.load import busy_s, usable_cpus

_FIRST_PAUSE_S = 0.125
"""Between two looks; the system counts in ticks of 0.01 s."""
_MOST_LOOKS = 200
"""About so many of a launch are kept, however long it takes."""


@dataclass(frozen=True, slots=True)
class Course:
    """Of one launch: seconds since it began -> share of the CPUs that was busy since the look before."""

    looks: list[tuple[float, float]] = field(default_factory=list)

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        """A launch with it."""
        return replace(record, cpu_course=self.looks)


class UtilisationAround:
    """Looks at the CPUs of this host while ranks run on it, and at none of other hosts."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, busy: Callable[[], float] = lambda: busy_s(usable_cpus())[0]
    ) -> None:
        self._now = now
        self._busy = busy

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Course]:
        """Look now and then: often at first, for launches that are over soon."""
        del plan
        course = Course()
        if hosting.hosts != "one":
            yield course
            return
        is_over = threading.Event()
        thread = threading.Thread(
            target=lambda: course.looks.extend(self.looks(is_over.wait)), name="distbench-cpus", daemon=True
        )
        thread.start()
        try:
            yield course
        finally:
            is_over.set()
            thread.join()

    def looks(self, wait: Callable[[float], bool]) -> Iterator[tuple[float, float]]:
        """Until waiting says that it is over: a moment, and the share that was busy since the one before."""
        cpus = len(usable_cpus() or ()) or os.cpu_count() or 1
        start = last = self._now()
        before = self._busy()
        is_over = False
        while not is_over:
            is_over = wait(max(_FIRST_PAUSE_S, (last - start) / (_MOST_LOOKS / 4)))
            now, busy = self._now(), self._busy()
            if now - last >= _FIRST_PAUSE_S / 2:
                yield round(now - start, 3), round(min(1.0, (busy - before) / ((now - last) * cpus)), 3)
                last, before = now, busy

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """Nothing: it is only looked at."""
        del request
        return {}

    def close(self) -> None:
        """It holds nothing."""
