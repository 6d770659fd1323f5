"""CPU seconds of each test, as the property ``cpu_s`` of its case in a JUnit file: hooks for ``conftest.py``.

A test's own process counts, the children that it has waited for, and all live descendants. What a fixture of several
tests costs belongs to the first of them, or to the last. A process that leaves the tree before it ends is not counted.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

PROPERTY = "cpu_s"
_TICKS = os.sysconf("SC_CLK_TCK")
_TIMES = slice(11, 15)
"""utime, stime, cutime and cstime in /proc/PID/stat, behind the command's name (proc_pid_stat(5))."""
_counted_s = pytest.StashKey[float]()


def cpu_s() -> float:
    """CPU seconds of this process and of its descendants, live and waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + _of_descendants_s(os.getpid())


def _of_descendants_s(pid: int) -> float:
    total = 0.0
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for child in children.read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[_TIMES])) / _TICKS + _of_descendants_s(int(child))
    return total


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.session.stash.setdefault(_counted_s, cpu_s())
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.when == "teardown":
        now_s = cpu_s()
        item.user_properties.append((PROPERTY, f"{now_s - item.session.stash[_counted_s]:.3f}"))
        item.session.stash[_counted_s] = now_s
    return (yield)
