"""Control groups that limit CPU time: the cpu controller of cgroups, version 1 or 2 (cgroups(7)).

A group is made below the one that this process is in, so that whatever limits this process limits the group too. Under
version 2 it is a threaded one: a group that holds processes may have no other with a controller below it.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from pytest_distbench.errors import AroundUnavailable

PERIOD_US = 5_000
"""Short, so that a quota slows iterations and does not only pause between them. Under the kernel's own 100 ms the fast
quarter of steps of 5 ms takes 9 ms with 0.3 of a core, and 16 ms under this."""
LEAST_US = 1_000
"""The kernel takes no shorter quota and no shorter period."""
_PATIENCE_S = 2.0
"""How long processes that were ended may stay in their group."""
_LOOK_S = 0.01
_OWN = re.compile(r"distbench-(\d+)-rank\d+")
_ADVICE = "run pytest as root, in a privileged container, or below systemd-run --user --scope -p Delegate=yes"
_NAMES = {1: "cpu", 2: ""}
"""What /proc/self/cgroup calls the hierarchy of the controller; that of version 2 has no name."""
_FILESYSTEMS = {1: "cgroup", 2: "cgroup2"}

Version = Literal[1, 2]


@dataclass(frozen=True, slots=True)
class CpuController:
    """The cpu controller of this system."""

    folder: Path
    version: Version

    def group(self, rank: int) -> Path:
        """The group of a rank of this process's launches; it need not be there."""
        return self.folder / f"distbench-{os.getpid()}-rank{rank}"

    def make(self, group: Path, cpus: float) -> None:
        """Make a group whose processes together may use so many cores.

        Raises:
            AroundUnavailable: this process may not, or the groups above it do not let it.
        """
        period_us = max(PERIOD_US, math.ceil(LEAST_US / cpus))
        quota_us = round(cpus * period_us)
        if self.version == 1:
            settings = {group / "cpu.cfs_period_us": str(period_us), group / "cpu.cfs_quota_us": str(quota_us)}
        else:
            settings = {
                group / "cgroup.type": "threaded",
                self.folder / "cgroup.subtree_control": "+cpu",
                group / "cpu.max": f"{quota_us} {period_us}",
            }
        path = group
        try:
            group.mkdir(exist_ok=True)
            for path, value in settings.items():
                path.write_text(value)
        except OSError as error:
            raise _unavailable(f"{path}: {error.strerror}") from error

    def remove_stale(self) -> None:
        """Remove the groups of pytest processes that have ended without doing so; one that is in use stays."""
        for group in self.folder.glob("distbench-*"):
            named = _OWN.fullmatch(group.name)
            if named is not None and not psutil.pid_exists(int(named[1])):
                with contextlib.suppress(OSError):
                    group.rmdir()


def find_controller(root: Path = Path("/")) -> CpuController:
    """Raises :class:`AroundUnavailable` where this system has none, or does not hand it down to the group of this
    process.
    """
    for version in (1, 2):
        if (folder := _own_group(root, version)) is not None:
            return CpuController(folder, version)
    raise _unavailable("no cpu controller in /proc/self/cgroup")


def remove(group: Path) -> bool:
    """Remove a group when the last process in it has ended; False: one has not, and the group is still there."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        else:
            return True


def throttled(group: Path) -> float:
    """Share of the periods with something to compute in which a group was stopped because its quota was used up."""
    lines = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
    counted = {name: int(value) for name, value in lines}
    return counted.get("nr_throttled", 0) / max(1, counted.get("nr_periods", 0))


def _own_group(root: Path, version: Version) -> Path | None:
    """The folder of the group that this process is in, where the controller is of this version."""
    try:
        own = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError as error:
        raise _unavailable(f"{error.filename}: {error.strerror}") from error
    path = next((path for _, names, path in own if _NAMES[version] in names.split(",")), None)
    if path is None:
        return None
    for mount in mounts:
        place, _, what = mount.partition(" - ")
        top, at = place.split()[3:5]
        filesystem, _, options = what.split()
        is_it = filesystem == _FILESYSTEMS[version] and (version == 2 or _NAMES[1] in options.split(","))
        if is_it and Path(path).is_relative_to(top):
            folder = root / at.lstrip("/") / Path(path).relative_to(top)
            return folder if version == 1 or _hands_down(folder) else None
    raise _unavailable(f"{path} of the cpu controller is mounted nowhere")


def _hands_down(folder: Path) -> bool:
    """Whether groups below one of version 2 may have the cpu controller."""
    with contextlib.suppress(OSError):
        return "cpu" in (folder / "cgroup.controllers").read_text().split()
    return False


def _unavailable(why: str) -> AroundUnavailable:
    return AroundUnavailable(f"needs a control group that may be written: {why}; {_ADVICE}")
